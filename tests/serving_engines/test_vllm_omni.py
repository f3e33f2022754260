"""A real vLLM-Omni server with the shipped flow model: its own pipeline, and its adapter for diffusers pipelines."""

from __future__ import annotations

import json
import logging
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from tests.serving_engines.server import COLOUR, IMAGES, metric, same_picture, served
from thg.models.shipped import shipped_path
from thg.serving.request import ServerSetting, planned

ASKED = {
    "prompt": "a dark ankle boot",
    "num_inference_steps": 20,
    "guidance_scale": 4.0,
    "size": "32x32",
    "seed": 3,
}
PLAIN = {**ASKED, "extra_params": {"thg": "off"}}


def vllm_omni(model, folder, *arguments, setting="1%"):
    command = ["-m", "vllm_omni.entrypoints.cli.main", "serve", str(model), "--omni", "--host", "127.0.0.1"]
    command += ["--dtype", "float32", *arguments, "--port"]
    return served(command, folder, "/health", THG_SERVING=setting, VLLM_TARGET_DEVICE="cpu", VLLM_NO_USAGE_STATS="1")


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    with vllm_omni(model, tmp_path_factory.mktemp("one"), "--enforce-eager") as server:
        yield server


def test_a_request_is_answered_with_fewer_evaluations_and_the_same_picture(server):
    plain, found = same_picture(server, PLAIN, ASKED, 40)
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
    same_picture(server, PLAIN | {"guidance_scale": 1.0}, ASKED | {"guidance_scale": 1.0}, 20)


def test_a_wrong_setting_is_an_error_of_the_request_alone(server):
    with pytest.raises(urllib.error.HTTPError) as raised:
        server.picture(**ASKED | {"extra_params": {"thg": "fast"}})
    assert b"is not a setting; write" in raised.value.read()
    server.picture(**ASKED)


def test_the_metrics_endpoint_counts(server):
    server.picture(**ASKED)
    assert metric(server, "thg:network_evaluations") > 0
    assert metric(server, "thg:network_evaluations_skipped") > 0


def test_two_ranks_skip_the_same_steps_and_make_the_picture_of_one(model, server, tmp_path):
    plain_alone, alone = server.picture(**PLAIN), server.picture(**ASKED)
    with vllm_omni(model, tmp_path, "--enforce-eager", "--cfg-parallel-size", "2") as both:
        plain, found = same_picture(both, PLAIN, ASKED, 40)
        assert len(both.reports()) == 2
    assert (plain == plain_alone).all()
    assert (found == alone).all()


def test_the_diffusers_adapter(model, tmp_path):
    with vllm_omni(model, tmp_path, "--diffusion-load-format", "diffusers") as server:
        same_picture(server, PLAIN, ASKED, 40)


def test_a_picture_in_colour(tmp_path):
    """A StableDiffusionPipeline, for which the engine has no code of its own."""
    with vllm_omni(shipped_path("emoji"), tmp_path, "--diffusion-load-format", "diffusers") as server:
        plain, _ = same_picture(server, PLAIN | COLOUR, ASKED | COLOUR, 60)
    assert plain.std(axis=2).max() > 0.2


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
