"""Ray Serve: the program of docs/serving.md, with the shipped model in colour on a CPU."""

from __future__ import annotations

import io
import json
import re
import urllib.request

import numpy as np
import pytest
import torch
from PIL import Image

import thg
from tests.serving_engines.server import ANSWERS_WITHIN, CLOSE, ROOT, decibels, served
from thg.models.shipped import shipped_path

ASKED = {"prompt": "smiling face with sunglasses", "num_inference_steps": 30, "guidance_scale": 5.0}
HERE = {  # what the page says, and what this machine has
    '"num_gpus": 1': '"num_cpus": 1',
    "stabilityai/stable-diffusion-3-medium-diffusers": str(shipped_path("emoji")),
    "torch.float16": "torch.float32",
    '"cuda"': '"cpu"',
}
PATIENT = {"RAY_raylet_start_wait_time_s": "300", "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300"}  # on a busy machine
STARTS = """
import sys
import ray
ray.init(num_cpus=1, include_dashboard=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
serve.run(app, blocking=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The page's program."""
    page = (ROOT / "docs" / "serving.md").read_text()
    (program,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "from ray" in code]
    for said, here in HERE.items():
        assert said in program
        program = program.replace(said, here)
    folder = tmp_path_factory.mktemp("ray")
    (folder / "pictures.py").write_text(program + STARTS)
    with served(["pictures.py"], folder, "/-/healthz", **PATIENT) as server:
        yield server


def test_the_program_of_the_page_makes_the_same_picture_from_fewer_evaluations(server):
    request = urllib.request.Request(server.address, json.dumps(ASKED | {"seed": 3}).encode())
    with urllib.request.urlopen(request, timeout=ANSWERS_WITHIN) as answer:
        found = np.asarray(Image.open(io.BytesIO(answer.read())).convert("RGB")) / 255
        made, _, of = answer.headers["x-thg"].split()
    plain = thg.shipped_pipeline("emoji")(**ASKED, generator=torch.Generator().manual_seed(3), output_type="np").images[
        0
    ]
    print(f"{made} of {of} evaluations, {decibels(found, plain):.1f} dB")
    assert int(of) == 60
    assert int(made) <= 0.75 * int(of)
    assert decibels(found, plain) > CLOSE
