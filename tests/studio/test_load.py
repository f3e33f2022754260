"""A hundred clients at once: the queue is bounded, the rest are told when to come back, and the server goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import httpx

from tests.studio.conftest import serve, until
from tests.studio.holding import WatchedEngine, held
from tests.studio.wishes import events, finished, plan_wish, run_wish
from thg.studio.engine import Engine
from thg.studio.jobs import Worker

CLIENTS = 100


async def one(client: httpx.AsyncClient, number: int) -> tuple[int, str]:
    """Status and Retry-After, or the last event of a run."""
    wish = run_wish(steps=2, seed=number)
    async with client.stream("POST", "/api/runs", json=wish) as response:
        text = "".join([part async for part in response.aiter_text()])
        if response.status_code == 503:
            return 503, response.headers["retry-after"]
        return response.status_code, text.rpartition("event: ")[2].split("\n")[0]


async def crowd(url: str) -> tuple[list[tuple[int, str]], list[int]]:
    limits = httpx.Limits(max_connections=2 * CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits, trust_env=False) as client:
        runs = [one(client, number) for number in range(CLIENTS)]
        plans = [client.post("/api/plan", json=plan_wish()) for _ in range(CLIENTS)]
        outcomes = await asyncio.gather(*runs)
        return outcomes, [answer.status_code for answer in await asyncio.gather(*plans)]


def test_a_hundred_clients(model):
    with serve(Engine(model), worker=Worker(3)) as studio:
        with ThreadPoolExecutor() as thread:  # of its own, since a browser's driver has a loop in this one
            outcomes, plans = thread.submit(asyncio.run, crowd(studio.url)).result()
        assert {status for status, _ in outcomes} <= {200, 503}
        served = [last for status, last in outcomes if status == 200]
        refused = [int(wait) for status, wait in outcomes if status == 503]
        assert len(served) >= 3
        assert set(served) == {"done"}
        assert len(refused) >= CLIENTS // 2
        assert all(1 <= wait <= 60 for wait in refused)
        assert plans == [200] * CLIENTS
        with studio.client() as client:
            until(lambda: client.get("/api/queue").json() == {"running": False, "waiting": 0, "limit": 3})
            assert finished(client, run_wish())[-1][0] == "done"


def test_closing_the_studio_ends_a_run_that_somebody_watches(model):
    others = worker_threads()
    engine = WatchedEngine(model)
    with ExitStack() as watching:
        with held(engine) as network, serve(engine) as studio:
            client = watching.enter_context(studio.client())
            response = watching.enter_context(client.stream("POST", "/api/runs", json=run_wish(steps=150)))
            heard = events(response)
            until(lambda: next(heard)[0] == "step")
            assert worker_threads() == others + 1
        assert worker_threads() == others  # `serve` has waited for the server, and the server for its worker
        assert network.calls <= network.after + 1
        last = [name for name, _ in leftover(heard)]
    assert "done" not in last


def worker_threads() -> int:
    return sum(thread.name == "thg-studio-worker" for thread in threading.enumerate())


def leftover(heard: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What still comes before the connection breaks off."""
    with suppress(httpx.TransportError):
        yield from heard
