"""A real vLLM-Omni server with the shipped flow model: its own pipeline, and its adapter for diffusers pipelines."""

from __future__ import annotations

import json
import logging
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from tests.serving_engines import tiny_qwen
from tests.serving_engines.server import COLOUR, IMAGES, USUAL, decibels, metric, same_picture, served
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
    same_picture(server, PLAIN | USUAL, ASKED | USUAL, 56, share=0.6)


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


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return tiny_qwen.save(tmp_path_factory.mktemp("qwen"))


ALONE = 45.0  # dB; pictures of other noise have less
QWEN = {"size": "64x64", "negative_prompt": "blurred", "guidance_scale": 1.0, "true_cfg_scale": 4.0}


def test_requests_that_are_executed_step_by_step(qwen, tmp_path):
    """Requests share calls of the network, each at a step of its own: they make the pictures that they make alone."""
    asked = [
        ASKED | QWEN | {"seed": seed, "extra_params": {"thg": value}} for seed, value in enumerate(("1%", 0.5, "off"))
    ]
    with vllm_omni(qwen, tmp_path, "--enforce-eager", "--step-execution", "--max-num-seqs", "4") as server:
        same_picture(server, PLAIN | QWEN, ASKED | QWEN, 40)
        alone = [server.picture(**request) for request in asked]
        with ThreadPoolExecutor(len(asked)) as pool:
            together = list(pool.map(lambda request: server.picture(**request), asked))
        with pytest.raises(urllib.error.HTTPError) as raised:
            server.picture(**ASKED | QWEN | {"extra_params": {"thg": "fast"}})
        answer = json.loads(server.ask(IMAGES, ASKED | QWEN | {"extra_params": {"thg": 0.5}})[0])
    print(f"together against alone: {', '.join(f'{each:.1f}' for each in map(decibels, together, alone))} dB")
    assert min(map(decibels, together, alone)) > ALONE
    assert max(decibels(alone[0], other) for other in alone[1:]) < ALONE
    assert b"is not a setting; write" in raised.value.read()
    assert answer["metrics"]["stage_durations"]["thg.evaluations"] == 20


def test_sequence_parallelism(qwen, tmp_path):
    with vllm_omni(qwen, tmp_path, "--enforce-eager", "--ulysses-degree", "2") as both:
        same_picture(both, PLAIN | QWEN, ASKED | QWEN, 40)
        reports = both.reports(at_least=2)
    assert len(reports) == 2
    assert len(set(reports)) == 1


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
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


@pytest.mark.parametrize("second", [torch.sin, torch.cos], ids=["one network", "two experts"])
def test_two_experts(second):
    """As in Wan 2.2, whose loop names its present network among the arguments."""
    from vllm_omni.diffusion.data import DiffusionOutput, OmniDiffusionConfig
    from vllm_omni.diffusion.distributed.cfg_parallel import CFGParallelMixin

    from thg.serving import vllm_omni

    class TwoExperts(CFGParallelMixin):
        scheduler = FlowMatchEulerDiscreteScheduler()

        def predict_noise(self, current_model, hidden_states):
            evaluated.append(self.scheduler.step_index or 0)
            return current_model(hidden_states)

        def forward(self, batch):
            self.scheduler.set_timesteps(20)
            latents = torch.ones(1, 4)
            for index, t in enumerate(self.scheduler.timesteps):
                inputs = {"current_model": torch.sin if index < 9 else second, "hidden_states": latents}
                noise = self.predict_noise_maybe_with_cfg(False, 1.0, inputs, None)
                latents = self.scheduler.step(noise, t, latents, return_dict=False)[0]
            return DiffusionOutput(output=latents)

    pipeline, evaluated = TwoExperts(), []
    vllm_omni.follow(pipeline, OmniDiffusionConfig(), ServerSetting("1%", planned("1%")))
    pipeline.forward(batch_of(None))
    assert ({9, 10} <= set(evaluated)) is (second is torch.cos)
    assert len(evaluated) < 20


@pytest.fixture
def stepped():
    """A pipeline that is executed step by step, by the engine's own parts. `rows`: of each call of its network."""
    from vllm_omni.diffusion.data import DiffusionOutput, OmniDiffusionConfig
    from vllm_omni.diffusion.distributed.cfg_parallel import CFGParallelMixin

    from thg.serving import vllm_omni

    class Stepped(CFGParallelMixin):
        def __init__(self):
            self.rows = []

        def predict_noise(self, hidden_states, shift):
            self.rows.append(len(hidden_states))
            return torch.sin(hidden_states) + shift

        def forward(self, batch):
            raise NotImplementedError

        def prepare_encode(self, state):
            state.scheduler = FlowMatchEulerDiscreteScheduler()
            state.scheduler.set_timesteps(20)
            state.timesteps, state.do_true_cfg = state.scheduler.timesteps, True
            state.latents, state.prompt_embeds = torch.full((1, 4), float(state.sampling.seed)), torch.zeros(1, 1, 1)
            return state

        def denoise_step(self, input_batch, **kwargs):
            branches = [{"hidden_states": input_batch.latents, "shift": shift} for shift in (0.0, 0.1)]
            return self.predict_noise_maybe_with_cfg(True, input_batch.true_cfg_scale, *branches)

        def step_scheduler(self, state, noise_pred):
            t = state.current_timestep
            state.latents = self.scheduler_step(noise_pred, t, state.latents, per_request_scheduler=state.scheduler)
            state.step_index += 1

        def post_decode(self, state):
            return DiffusionOutput(output=state.latents)

    pipeline = Stepped()
    vllm_omni.follow(pipeline, OmniDiffusionConfig(step_execution=True), ServerSetting("1%", planned("1%")))
    return pipeline


def run_stepped(pipeline, asked, late=0):
    """The states of requests after their runs. late: by so many steps the last one begins later."""
    from vllm_omni.diffusion.worker.input_batch import InputBatch
    from vllm_omni.diffusion.worker.utils import StepRequestState

    states = [
        StepRequestState(request.request_id, sampling=request.sampling_params) for request in batch_of(*asked).requests
    ]
    for seed, state in enumerate(states):
        state.sampling.seed = seed + 1
        pipeline.prepare_encode(state)
    for time in range(20 + late):
        running = [state for state in states[: None if time >= late else -1] if not state.denoise_completed]
        batch = InputBatch.make_batch(running)
        for state, noise in zip(running, pipeline.denoise_step(batch, states=running).split(1), strict=True):
            pipeline.step_scheduler(state, noise)
            if state.denoise_completed:
                pipeline.post_decode(state)
    return states


def test_requests_that_share_a_call_of_the_network_take_their_own_steps(stepped):
    asked = ("1%", 0.5, "off", 0.5)
    together = run_stepped(stepped, asked, late=3)
    rows = sum(stepped.rows)
    stepped.rows.clear()
    for place, state in enumerate(together):
        values = ["off"] * len(asked)
        values[place] = asked[place]
        torch.testing.assert_close(state.latents, run_stepped(stepped, values)[place].latents)
    made = [state.stage_durations.get("thg.evaluations", 40.0) for state in together]
    assert made == [26, 20, 40, 20]
    assert rows == sum(made)
    assert not together[2].stage_durations


def test_a_step_that_no_request_evaluates_calls_no_network(stepped):
    (state,) = run_stepped(stepped, [0.5])
    assert len(stepped.rows) == state.stage_durations["thg.evaluations"] == 20


def test_requests_whose_steps_are_those_of_several_parts_run_as_they_are(stepped):
    original = stepped.prepare_encode
    stepped.prepare_encode = lambda state: setattr(original(state), "chunk_num_steps", 20)
    (state,) = run_stepped(stepped, [0.5])
    assert len(stepped.rows) == 40
    assert not state.stage_durations
