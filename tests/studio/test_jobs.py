"""The queue and its one worker, without HTTP."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from thg.errors import THGError
from thg.studio.jobs import BEHIND, Job, QueueFull, Worker


def run(coroutine):
    """In a thread of its own, since a browser's driver has a loop in this one."""
    with ThreadPoolExecutor() as thread:
        return thread.submit(asyncio.run, coroutine).result()


async def heard(job: Job) -> list[tuple[str, dict]]:
    return [event async for event in job.events(patience=0.01) if event is not None]


def test_jobs_run_in_order_of_arrival():
    async def scene():
        worker, order = Worker(waiting=3), []

        def work(name):
            def job(emit, cancelled):
                order.append(name)
                emit("done", {})

            return job

        jobs = [worker.submit(work(name)) for name in "abc"]
        worker.start()
        for job in jobs:
            assert (await heard(job))[-1] == ("done", {})
        worker.stop()
        return order

    assert run(scene()) == ["a", "b", "c"]


def test_positions_fall_as_the_queue_moves():
    async def scene():
        worker, gate = Worker(waiting=3), threading.Event()

        def work(emit, cancelled):
            gate.wait(30)
            emit("done", {})

        jobs = [worker.submit(work) for _ in range(3)]
        worker.start()
        gate.set()
        told = [[data["ahead"] for name, data in await heard(job) if name == "queued"] for job in jobs]
        worker.stop()
        return told

    first, second, third = run(scene())
    assert first[0] == 0
    assert second == sorted(second, reverse=True)
    assert third[0] == 2
    assert third == sorted(third, reverse=True)
    assert third[-1] >= 1  # the last word before its start: one runs


def test_a_full_queue_refuses_and_has_room_again_after_a_cancel():
    async def scene():
        worker = Worker(waiting=1)  # not started: nothing leaves the queue by itself
        job = worker.submit(lambda emit, cancelled: None)
        with pytest.raises(QueueFull) as refused:
            worker.submit(lambda emit, cancelled: None)
        assert refused.value.retry_after >= 1
        worker.cancel(job)
        worker.cancel(job)  # harmless
        worker.submit(lambda emit, cancelled: None)
        return worker.load

    assert run(scene()) == (False, 1)


@pytest.mark.parametrize(
    ("error", "said"), [(THGError("no plan"), "no plan"), (ValueError("two\n lines"), "ValueError: two lines")]
)
def test_what_a_job_raises_is_its_last_event(error, said, caplog):
    async def scene():
        def work(emit, cancelled):
            raise error

        worker = Worker(waiting=1)
        worker.start()
        events = await heard(worker.submit(work))
        worker.stop()
        return events

    assert run(scene())[-1] == ("failed", {"message": said})


def test_a_listener_that_lags_behind_gets_the_steps_without_previews():
    async def scene():
        job = Job(lambda emit, cancelled: None)
        for step in range(3 * BEHIND):
            job.emit("step", {"step": step, "previews": ["a picture"]})
            await asyncio.sleep(0)  # the loop puts it on the queue, and nobody reads
        job.emit("done", {})
        return await heard(job)

    steps = [data for name, data in run(scene()) if name == "step"]
    assert [data["step"] for data in steps] == list(range(3 * BEHIND))
    assert sum(data["previews"] is not None for data in steps) == BEHIND
