"""`thg studio` as a process of its own: it says what it loads, prints its address, serves, and ends on Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from tests.studio.tiny import tiny_stable_diffusion
from tests.studio.wishes import events, run_wish
from thg.cli import main

QUIET = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(tmp_path):
    tiny_stable_diffusion().save_pretrained(tmp_path / "a-model")
    command = [sys.executable, "-m", "thg", "studio", "--model", "a-model", "--port", "0", "--no-browser"]
    command += ["--device", "cpu", "--host", "127.0.0.1"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=QUIET, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "thg studio: loading a-model ...\n"
            address = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", process.stdout.readline())
            assert address is not None
            with httpx.Client(trust_env=False, follow_redirects=True, timeout=60) as client:
                assert "thg studio" in client.get(address[0]).text
                root = address[0].partition("?")[0]
                answer = client.get(f"{root}api/model").json()
                assert answer["name"] == "a-model"
                assert answer["pipeline"] == "StableDiffusionPipeline"
                wish = run_wish(steps=150, batch=9, scheduler=None)
                with client.stream("POST", f"{root}api/runs", json=wish, headers={"Origin": root[:-1]}) as running:
                    assert running.status_code == 200
                    heard = events(running)
                    while next(heard)[0] != "step":
                        pass
                    process.send_signal(signal.SIGINT)  # in the middle of a run
                    assert list(heard)[-1] == ("failed", {"message": "the studio was closed"})
            assert process.wait(60) == 0
        finally:
            process.kill()
        assert process.stdout.read() == "the studio has closed\n"


def test_a_port_in_use_is_said_before_anything_is_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["studio", "--port", str(taken.getsockname()[1]), "--model", "/nowhere"]) == 2
    assert "--port 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--model", "/nowhere/at/all"], "/nowhere/at/all"), (["--profile", "/nowhere.json"], "/nowhere.json")],
)
def test_what_cannot_be_loaded_is_named(options, said, capsys):
    assert main(["studio", "--port", "0", "--no-browser", *options]) == 2
    assert said in capsys.readouterr().err
