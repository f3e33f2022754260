"""A real SGLang-Diffusion server: the shipped flow model on one rank and on two, and its backend for diffusers."""

from __future__ import annotations

import json
import math
import pkgutil
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.serving_engines.server import CLOSE, COLOUR, IMAGES, USUAL, decibels, metric, same_picture, served
from thg.models.shipped import shipped_path
from thg.serving.request import ServerSetting, planned, run_of

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
COMMAND = ["-m", "sglang.multimodal_gen.runtime.launch_server", "--host", "127.0.0.1", "--warmup-mode", "off"]
COMMAND += ["--sleep-on-idle"]  # or an idle server takes a core from the others


def sglang(model, folder, *arguments, setting="1%"):
    command = [*COMMAND, "--model-path", str(model), *arguments, "--port"]
    return served(command, folder, "/health", THG_SERVING=setting)


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    with sglang(model, tmp_path_factory.mktemp("one"), "--num-gpus", "1", "--enable-metrics") as server:
        yield server


def test_a_request_is_answered_with_fewer_evaluations_and_the_same_picture(server):
    plain, found = same_picture(server, PLAIN, ASKED, 40)
    assert (server.picture(**ASKED) == found).all()
    assert plain.std() > 0.1
    same_picture(server, PLAIN | USUAL, ASKED | USUAL, 56, share=0.6)


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
    same_picture(server, PLAIN | {"guidance_scale": 1.0}, ASKED | {"guidance_scale": 1.0}, 20)


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


def several(server, asked):
    """Pictures of other noise, which one picture's chance does not decide."""
    return [server.picture(**asked | {"seed": seed}) for seed in range(8)]


def mean_decibels(found, expected):
    return sum(map(decibels, found, expected)) / len(found)


@pytest.mark.parametrize("ranks", [("--enable-cfg-parallel",), ("--tp-size", "2")], ids=["cfg", "tensor"])
def test_two_ranks_skip_the_same_steps(model, server, tmp_path, ranks):
    """Two ranks round differently from one, without thg already; fewer evaluations average fewer roundings."""
    plain_alone, alone = several(server, PLAIN), several(server, ASKED)
    with sglang(model, tmp_path, "--num-gpus", "2", *ranks) as both:
        plain, found = several(both, PLAIN), several(both, ASKED)
        reports = both.reports(at_least=2 * len(found))
        same_picture(both, PLAIN | USUAL, ASKED | USUAL, 56, share=0.6)
    assert len(reports) == 2 * len(found)
    assert len(set(reports)) == 1
    assert reports[0][0] <= 0.75 * reports[0][1]
    assert mean_decibels(found, plain) > CLOSE
    engine = mean_decibels(plain, plain_alone)
    print(f"two ranks against one: the engine alone {engine:.1f}, with thg {mean_decibels(found, alone):.1f} dB")
    assert engine - 4 < mean_decibels(found, alone) < engine + 4


def test_sequence_parallelism(model, tmp_path):
    """Its code for this model lets each rank see its own rows alone: the picture is another, without thg already."""
    with sglang(model, tmp_path, "--num-gpus", "2", "--ulysses-degree", "2") as both:
        same_picture(both, PLAIN, ASKED, 40)
        reports = both.reports(at_least=2)
    assert len(reports) == 2
    assert len(set(reports)) == 1


def test_without_that_rounding_two_ranks_make_the_picture_of_one(model, tmp_path):
    precise = ["--dit-precision", "fp32", "--text-encoder-precisions", "fp32", "fp32", "fp32"]
    pictures = []
    for name, ranks in {"one": ("1",), "two": ("2", "--enable-cfg-parallel")}.items():
        (tmp_path / name).mkdir()
        with sglang(model, tmp_path / name, *precise, "--num-gpus", *ranks) as server:
            pictures.append(several(server, ASKED))
            assert {report[0] <= 0.75 * report[1] for report in server.reports()} == {True}
    assert min(map(decibels, *pictures)) > 60  # the file has 8 bits


def test_the_diffusers_backend(model, tmp_path):
    with sglang(model, tmp_path, "--num-gpus", "1", "--backend", "diffusers") as server:
        same_picture(server, PLAIN | {"size": "32x32"}, ASKED | {"size": "32x32"}, 40)  # it knows the factor


def test_a_picture_in_colour(tmp_path):
    """A StableDiffusionPipeline, which SGLang has no code for: it takes that of diffusers without being told."""
    with sglang(shipped_path("emoji"), tmp_path, "--num-gpus", "1") as server:
        plain, _ = same_picture(server, PLAIN | COLOUR, ASKED | COLOUR, 60)
    assert plain.std(axis=2).max() > 0.2


@pytest.mark.parametrize(
    "stage",
    [
        "model_specific_stages.ltx_2.denoising.LTX2DenoisingStage",
        "model_specific_stages.ideogram.Ideogram4DenoisingStage",
        "model_specific_stages.wan_animate_2.denoising.WanAnimate2DenoisingStage",
        "model_specific_stages.hunyuan3d.shape.Hunyuan3DShapeDenoisingStage",
        "model_specific_stages.moss_image.MOSSImageDenoisingStage",
    ],
)
def test_stages_with_a_step_of_their_own(stage):
    from thg.serving.sglang import own_method

    assert own_method(pkgutil.resolve_name(f"sglang.multimodal_gen.runtime.pipelines_core.stages.{stage}"))


def test_a_request_without_the_common_loop_has_one_line_in_the_log(caplog):
    """As those of stages that have nothing in common with the others."""
    from sglang.multimodal_gen.configs.sample.sampling_params import SamplingParams
    from sglang.multimodal_gen.runtime.pipelines_core.schedule_batch import Req
    from sglang.multimodal_gen.runtime.pipelines_core.stages import InputValidationStage

    from thg.serving.sglang import SEEN, Hooks

    hooks = Hooks(ServerSetting("1%", planned("1%")))
    caplog.set_level("INFO", "thg.serving.sglang")
    for extra in ({SEEN: True}, {"diffusers_kwargs": {"thg": "off"}}, {}):
        batch = Req(sampling_params=SamplingParams(prompt="a boot", request_id="7"), extra=extra)
        hooks.answered(batch, None, [InputValidationStage.__new__(InputValidationStage)], batch, None)
    (line,) = caplog.messages
    assert line == ("thg: request 7 runs as it is: SGLang's common denoising loop is in none of InputValidationStage")


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
