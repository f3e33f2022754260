"""A real SGLang-Diffusion server with the shipped flow model: one rank, two ranks, and its diffusers backend."""

from __future__ import annotations

import re
import urllib.error

import pytest

from tests.serving_engines.server import decibels, served

ASKED = {
    "prompt": "a dark ankle boot",
    "num_inference_steps": 20,
    "guidance_scale": 4.0,
    "size": "64x64",  # it assumes a factor of 8 where this model has 4
    "seed": 3,
    "response_format": "b64_json",
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


def test_the_metrics_endpoint_counts(server):
    server.picture(**ASKED)
    text = server.ask("/metrics").decode()
    made, skipped = (
        float(re.search(rf"^thg:{name}_total(?:{{.*}})? (\S+)", text, re.MULTILINE)[1])
        for name in ("network_evaluations", "network_evaluations_skipped")
    )
    assert made > 0
    assert skipped > 0


@pytest.mark.parametrize("ranks", [("--enable-cfg-parallel",), ("--tp-size", "2")], ids=["cfg", "tensor"])
def test_two_ranks_skip_the_same_steps(model, server, tmp_path, ranks):
    alone = server.picture(**PLAIN)
    with sglang(model, tmp_path, "--num-gpus", "2", *ranks) as both:
        plain = both.picture(**PLAIN)
        found = both.picture(**ASKED)
        reports = both.reports()
    assert len(reports) == 2
    assert reports[0] == reports[1]
    assert reports[0][0] <= 0.75 * reports[0][1]
    assert decibels(found, plain) > CLOSE
    assert decibels(plain, alone) > CLOSE


def test_the_diffusers_backend(model, tmp_path):
    with sglang(model, tmp_path, "--num-gpus", "1", "--backend", "diffusers") as server:
        plain, found = server.picture(**PLAIN), server.picture(**ASKED)
        (report,) = server.reports()
    assert report[0] <= 0.75 * report[1]
    assert decibels(found, plain) > CLOSE
