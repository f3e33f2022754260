"""A real vLLM-Omni server with the shipped flow model: its own pipeline, and its adapter for diffusers pipelines."""

from __future__ import annotations

import json
import logging
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from tests.serving_engines.server import IMAGES, decibels, metric, served
from thg.serving.request import ServerSetting, planned

ASKED = {
    "prompt": "a dark ankle boot",
    "num_inference_steps": 20,
    "guidance_scale": 4.0,
    "size": "32x32",
    "seed": 3,
}
PLAIN = {**ASKED, "extra_params": {"thg": "off"}}
CLOSE = 35.0  # dB


def vllm_omni(model, folder, *arguments, setting="1%"):
    command = ["-m", "vllm_omni.entrypoints.cli.main", "serve", str(model), "--omni", "--host", "127.0.0.1"]
    command += ["--dtype", "float32", *arguments, "--port"]
    return served(command, folder, "/health", THG_SERVING=setting, VLLM_TARGET_DEVICE="cpu", VLLM_NO_USAGE_STATS="1")


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    with vllm_omni(model, tmp_path_factory.mktemp("one"), "--enforce-eager") as server:
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


def test_the_answer_has_the_numbers(server):
    answer = json.loads(server.ask(IMAGES, ASKED | {"extra_params": {"thg": 0.5}})[0])
    found = answer["metrics"]["stage_durations"]
    assert (found["thg.evaluations"], found["thg.plain_evaluations"]) == (20, 40)
    assert 0 < found["thg.estimated_error"] < 0.2


def test_requests_in_flight_share_nothing(server):
    asked = [ASKED | {"seed": seed, "extra_params": {"thg": value}} for seed, value in enumerate(("1%", 0.5, "off"))]
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
    with pytest.raises(urllib.error.HTTPError) as raised:
        server.picture(**ASKED | {"extra_params": {"thg": "fast"}})
    assert b"is not a setting; write" in raised.value.read()
    server.picture(**ASKED)


def test_the_metrics_endpoint_counts(server):
    server.picture(**ASKED)
    assert metric(server, "thg:network_evaluations") > 0
    assert metric(server, "thg:network_evaluations_skipped") > 0


def test_two_ranks_skip_the_same_steps(model, server, tmp_path):
    plain_alone, alone = server.picture(**PLAIN), server.picture(**ASKED)
    with vllm_omni(model, tmp_path, "--enforce-eager", "--cfg-parallel-size", "2") as both:
        plain = both.picture(**PLAIN)
        found = both.picture(**ASKED)
        reports = both.reports()
    assert len(reports) == 2
    assert reports[0] == reports[1]
    assert reports[0][0] <= 0.75 * reports[0][1]
    assert decibels(found, plain) > CLOSE
    assert decibels(plain, plain_alone) > CLOSE
    assert decibels(found, alone) >= decibels(plain, plain_alone) - 6  # at most twice what the engine changes


def test_the_diffusers_adapter(model, tmp_path):
    with vllm_omni(model, tmp_path, "--diffusion-load-format", "diffusers") as server:
        plain, found = server.picture(**PLAIN), server.picture(**ASKED)
        (report,) = server.reports()
    assert report[0] <= 0.75 * report[1]
    assert decibels(found, plain) > CLOSE


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"step_execution": True}, "step by step"),
        ({"cache_backend": "tea_cache"}, "a cache inside the network"),
    ],
)
def test_what_is_not_understood_runs_as_it_is_with_one_line_in_the_log(settings, reason):
    from vllm_omni.diffusion.data import OmniDiffusionConfig
    from vllm_omni.diffusion.distributed.cfg_parallel import CFGParallelMixin

    from thg.serving import vllm_omni

    pipeline, lines = CFGParallelMixin(), []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    vllm_omni.logger.addHandler(handler)
    try:
        vllm_omni.follow(pipeline, OmniDiffusionConfig(**settings), ServerSetting("1%", planned("1%")))
    finally:
        vllm_omni.logger.removeHandler(handler)
    (line,) = lines
    assert line.startswith("thg: CFGParallelMixin runs as it is: ")
    assert reason in line
    assert not vars(pipeline)


@pytest.fixture(scope="module")
def three_branches():
    """A pipeline whose loop calls the engine's own method for more than two branches."""
    from vllm_omni.diffusion.data import DiffusionOutput, OmniDiffusionConfig
    from vllm_omni.diffusion.distributed.cfg_parallel import CFGParallelMixin

    from thg.serving import vllm_omni

    class ThreeBranches(CFGParallelMixin):
        scheduler = FlowMatchEulerDiscreteScheduler()

        def predict_noise(self, hidden_states, shift):
            return torch.sin(hidden_states) + shift

        def forward(self, batch):
            self.scheduler.set_timesteps(20)
            latents = torch.ones(1, 4)
            for t in self.scheduler.timesteps:
                branches = [{"hidden_states": latents, "shift": shift} for shift in (0.0, 0.1, 0.2)]
                noise = self.predict_noise_with_multi_branch_cfg(True, 4.0, branches)
                latents = self.scheduler.step(noise, t, latents, return_dict=False)[0]
            return DiffusionOutput(output=latents)

    pipeline = ThreeBranches()
    vllm_omni.follow(pipeline, OmniDiffusionConfig(), ServerSetting("1%", planned("1%")))
    return pipeline


def batch_of(*asked):
    from vllm_omni.diffusion.request import OmniDiffusionRequest
    from vllm_omni.diffusion.worker.request_batch import DiffusionRequestBatch
    from vllm_omni.inputs.data import OmniDiffusionSamplingParams

    return DiffusionRequestBatch(
        [
            OmniDiffusionRequest("a boot", OmniDiffusionSamplingParams(extra_args={"thg": value}), f"request {i}")
            for i, value in enumerate(asked)
        ]
    )


def test_more_than_two_branches(three_branches):
    plain, found = (three_branches.forward(batch_of(value)) for value in ("off", 0.5))
    numbers = found.stage_durations
    assert (numbers["thg.evaluations"], numbers["thg.plain_evaluations"]) == (30, 60)
    assert not plain.stage_durations
    torch.testing.assert_close(found.output, plain.output, rtol=0.01, atol=0)
    assert not torch.equal(found.output, plain.output)


def test_requests_that_share_a_batch_and_ask_for_different_things_run_as_they_are(three_branches):
    plain, found = (three_branches.forward(batch_of(*asked)) for asked in (("off", "off"), ("1%", 0.5)))
    assert torch.equal(found.output, plain.output)
    assert not found.stage_durations
