"""A real SGLang-Diffusion server with the shipped flow model: one rank, two ranks, and its diffusers backend."""

from __future__ import annotations

import json
import math
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.serving_engines.server import IMAGES, decibels, metric, served
from thg.serving.request import run_of

ASKED = {
    "prompt": "a dark ankle boot",
    "num_inference_steps": 20,
    "guidance_scale": 4.0,
    "size": "64x64",  # it assumes a factor of 8 where this model has 4
    "seed": 3,
    "response_format": "b64_json",
    "output_format": "png",
}
PLAIN = {**ASKED, "diffusers_kwargs": {"thg": "off"}}
CLOSE = 35.0  # dB
COMMAND = ["-m", "sglang.multimodal_gen.runtime.launch_server", "--host", "127.0.0.1", "--warmup-mode", "off"]


def sglang(model, folder, *arguments, setting="1%"):
    command = [*COMMAND, "--model-path", str(model), *arguments, "--port"]
    return served(command, folder, "/health", THG_SERVING=setting)


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    with sglang(model, tmp_path_factory.mktemp("one"), "--num-gpus", "1", "--enable-metrics") as server:
        yield server


def test_a_request_is_answered_with_fewer_evaluations_and_the_same_picture(server):
    plain = server.picture(**PLAIN)
    before = len(server.reports())
    found = server.picture(**ASKED)
    (report,) = server.reports()[before:]
    assert report[0] <= 0.75 * report[1]
    assert report[1] == 40
    assert decibels(found, plain) > CLOSE
    assert (server.picture(**ASKED) == found).all()
    assert plain.std() > 0.1


def test_a_request_chooses_its_budget(server):
    before = len(server.reports())
    server.picture(**ASKED | {"diffusers_kwargs": {"thg": 0.5}})
    assert [report[:2] for report in server.reports()[before:]] == [(20, 40)]


def test_the_answer_has_the_report_as_a_header(server):
    headers = server.ask(IMAGES, ASKED | {"diffusers_kwargs": {"thg": 0.5}})[1]
    report = json.loads(headers["x-thg"])
    assert (report["evaluations"], report["plain_evaluations"], report["steps"]) == (20, 40, 20)
    assert report["evaluated"].count("○") == 10
    assert 0 < report["estimated_error"] < 0.2
    assert "x-thg" not in server.ask(IMAGES, PLAIN)[1]


def test_requests_in_flight_share_nothing(server):
    asked = [
        ASKED | {"seed": seed, "diffusers_kwargs": {"thg": value}} for seed, value in enumerate(("1%", 0.5, "off"))
    ]
    alone = [server.picture(**request) for request in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda request: server.picture(**request), asked))
    for found, expected in zip(together, alone, strict=True):
        assert (found == expected).all()


def test_a_request_without_guidance(server):
    before = len(server.reports())
    plain = server.picture(**PLAIN | {"guidance_scale": 1.0})
    found = server.picture(**ASKED | {"guidance_scale": 1.0})
    (report,) = server.reports()[before:]
    assert report[0] <= 0.75 * report[1] == 15
    assert decibels(found, plain) > CLOSE


def test_a_wrong_setting_is_an_error_of_the_request_alone(server):
    with pytest.raises(urllib.error.HTTPError):
        server.picture(**ASKED | {"diffusers_kwargs": {"thg": "fast"}})
    assert 'write "1%"' in server.log.read_text()
    server.picture(**ASKED)


def test_a_request_with_the_gate_of_the_engine_runs_as_it_is(server):
    before = len(server.reports())
    server.picture(**ASKED | {"cfg_gate_step": 0.3})
    assert len(server.reports()) == before
    assert "runs as it is: its cfg_gate_step" in server.log.read_text()


def test_the_metrics_endpoint_counts(server):
    server.picture(**ASKED)
    assert metric(server, "thg:network_evaluations") > 0
    assert metric(server, "thg:network_evaluations_skipped") > 0


@pytest.mark.parametrize("ranks", [("--enable-cfg-parallel",), ("--tp-size", "2")], ids=["cfg", "tensor"])
def test_two_ranks_skip_the_same_steps(model, server, tmp_path, ranks):
    plain_alone, alone = server.picture(**PLAIN), server.picture(**ASKED)
    with sglang(model, tmp_path, "--num-gpus", "2", *ranks) as both:
        plain = both.picture(**PLAIN)
        found = both.picture(**ASKED)
        reports = both.reports()
    assert len(reports) == 2
    assert reports[0] == reports[1]
    assert reports[0][0] <= 0.75 * reports[0][1]
    assert decibels(found, plain) > CLOSE
    assert decibels(plain, plain_alone) > CLOSE
    assert decibels(found, alone) >= decibels(plain, plain_alone) - 6  # at most twice what the engine changes


def test_the_diffusers_backend(model, tmp_path):
    with sglang(model, tmp_path, "--num-gpus", "1", "--backend", "diffusers") as server:
        plain, found = (server.picture(**asked | {"size": "32x32"}) for asked in (PLAIN, ASKED))  # it knows the factor
        (report,) = server.reports()
    assert report[0] <= 0.75 * report[1]
    assert decibels(found, plain) > CLOSE


def test_the_schedulers_of_the_engine_are_measured():
    """Wan's: thg reads no table for it, and its response must be that of a run with any outputs."""
    from sglang.multimodal_gen.runtime.models.schedulers.scheduling_flow_unipc_multistep import (
        FlowUniPCMultistepScheduler,
    )

    scheduler = FlowUniPCMultistepScheduler(shift=3.0)
    scheduler.set_timesteps(20, device="cpu")
    run = run_of(scheduler, scheduler.timesteps, branches=2)
    assert run.response is not None
    assert not run.no_response
    assert run.log_snr[0] == pytest.approx(2 * math.log((1 - scheduler.sigmas[0]) / scheduler.sigmas[0]), rel=1e-5)
    start, outputs = torch.randn(2, 1, 1, 8, dtype=torch.float64), torch.randn(20, 1, 1, 8, dtype=torch.float64)
    final = [_final(scheduler, start[0], outputs), _final(scheduler, start[0], 0 * outputs)]
    by_response = torch.einsum("k,kabc->abc", torch.from_numpy(run.response.matrix[-1]), outputs)
    torch.testing.assert_close(final[0] - final[1], by_response, rtol=1e-4, atol=1e-5)


def _final(scheduler, state, outputs):
    """The state after a run with these outputs."""
    scheduler.set_timesteps(len(outputs), device="cpu")
    for t, output in zip(scheduler.timesteps, outputs, strict=True):
        (state, *_) = scheduler.step(output, t, state, return_dict=False)
    return state
