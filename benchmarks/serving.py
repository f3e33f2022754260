"""thg in a real server, beside the engine alone and SGLang's own gate of the guidance.

    make test-serving-sglang    # installs the engine once; for the other engine vllm-omni in place of sglang
    PYTHONPATH=src:. build/serving/sglang/bin/python benchmarks/serving.py --engine sglang --out runs/serving.json

A shipped model on one server with one worker: `flow` in the engine's own code; with `--model emoji` a model in colour,
by the engine's way of running diffusers pipelines, which has no gate. For each number of requests in flight at once:
evaluations per request, seconds of the wall clock and of the processor per request. PSNR is against the pictures of the
engine alone, over the largest number of requests. On a busy machine the seconds of the processor are the ones to
compare.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.serving_engines import shipped_model, test_sglang, test_vllm_omni
from tests.serving_engines.server import COLOUR, Server, decibels
from thg.distribution import environment
from thg.files import write_atomically
from thg.models.shipped import shipped_path

PROMPTS = {
    "flow": ("a dark ankle boot", "a light dress", "a striped shirt", "a small bag"),
    "emoji": ("smiling face with sunglasses", "red heart", "cat face", "red apple"),
}
TOLERANCE, BUDGET = "1%", 0.5


@dataclass(frozen=True)
class Engine:
    """asked: the request of its tests. parameters: where a request's own are. diffusers: the server's arguments for a
    pipeline of diffusers."""

    asked: dict[str, Any]
    parameters: str
    server: Callable[..., AbstractContextManager[Server]]
    diffusers: tuple[str, ...] = ()


ENGINES = {
    "sglang": Engine(test_sglang.ASKED, "diffusers_kwargs", test_sglang.sglang),
    "vllm-omni": Engine(
        test_vllm_omni.ASKED, "extra_params", test_vllm_omni.vllm_omni, ("--diffusion-load-format", "diffusers")
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--model", choices=PROMPTS, default="flow")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 4, 16])
    options = parser.parse_args()
    engine, colour = ENGINES[options.engine], options.model == "emoji"
    asked = [
        {**engine.asked, **(COLOUR if colour else {}), "prompt": PROMPTS[options.model][seed % 4], "seed": seed}
        for seed in range(max(options.in_flight))
    ]
    with tempfile.TemporaryDirectory() as folder:
        model = shipped_path("emoji") if colour else shipped_model.save(Path(folder))
        arguments = engine.diffusers if colour else ()
        with engine.server(model, Path(folder), *arguments, setting="on request") as server:
            server.picture(**asked[0])  # what is done once is not measured
            has_gate = options.engine == "sglang" and not colour
            rows = measured(server, asked, engine.parameters, options.in_flight, has_gate)
    print(table(rows, options.in_flight))
    content = {"environment": environment("cpu"), "engine": options.engine, "model": options.model, "rows": rows}
    write_atomically(options.out, json.dumps(content).encode())


def measured(
    server: Server, asked: list[dict[str, Any]], parameters: str, in_flight: list[int], has_gate: bool
) -> list[dict[str, Any]]:
    """A row for each way of running. asked: the requests. parameters: where a request's own parameters are."""
    plain = row(server, "the engine alone", asked, in_flight)
    rows = [plain] + [
        row(server, f"thg, `{value}`", [{**each, parameters: {"thg": value}} for each in asked], in_flight)
        for value in (TOLERANCE, BUDGET)
    ]
    if has_gate:
        steps = asked[0]["num_inference_steps"]
        gate = rows[1]["evaluations"] / steps - 1  # after this share of the run a step has one evaluation, not two
        gated = [{**each, "cfg_gate_step": gate} for each in asked]
        rows.append(row(server, f"its `cfg_gate_step` = {gate:.2g}", gated, in_flight))
        rows[-1]["evaluations"] = rows[1]["evaluations"]
    for other in rows[1:]:
        found = [decibels(a, b) for a, b in zip(other["pictures"], plain["pictures"], strict=True)]
        other["psnr"] = {"mean": float(np.mean(found)), "worst": min(found)}
    for each in rows:
        del each["pictures"]
    return rows


def row(server: Server, name: str, asked: list[dict[str, Any]], in_flight: list[int]) -> dict[str, Any]:
    """One way of running, with each number of requests at once."""
    seconds: dict[int, float] = {}
    processor: dict[int, float] = {}
    pictures: list[Any] = []
    before = len(server.reports())
    for number in in_flight:
        began, spent = time.perf_counter(), processor_time(server)
        with ThreadPoolExecutor(number) as pool:
            pictures = list(pool.map(lambda each: server.picture(**each), asked[:number]))
        seconds[number] = (time.perf_counter() - began) / number
        processor[number] = (processor_time(server) - spent) / number
        print(f"{name}, {number} in flight: {seconds[number]:.2f} s, {processor[number]:.2f} s of CPU", flush=True)
    made = {report[0] for report in server.reports()[before:]} or {2 * asked[0]["num_inference_steps"]}
    (evaluations,) = made  # the same for each request
    return {
        "name": name,
        "evaluations": evaluations,
        "seconds": seconds,
        "processor_seconds": processor,
        "pictures": pictures,
    }


def processor_time(server: Server) -> float:
    """Of all processes of the server, in seconds."""
    parent = psutil.Process(server.pid)
    times = [process.cpu_times() for process in (parent, *parent.children(recursive=True))]
    return sum(spent.user + spent.system for spent in times)


def table(rows: list[dict[str, Any]], in_flight: list[int]) -> str:
    """Markdown."""
    heads = [f"{number} in flight" for number in in_flight]
    lines = ["| | evaluations | PSNR, mean / worst | " + " | ".join(heads) + " |", "|" + " --- |" * (3 + len(heads))]
    for each in rows:
        psnr = "{mean:.1f} / {worst:.1f} dB".format(**each["psnr"]) if "psnr" in each else ""
        times = [f"{each['seconds'][n]:.2f} s ({each['processor_seconds'][n]:.2f})" for n in in_flight]
        lines.append(f"| {each['name']} | {each['evaluations']} | {psnr} | " + " | ".join(times) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
