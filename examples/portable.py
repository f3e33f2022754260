"""The whole method without any dependency: a table of weights for a sampler, from its noise levels.

    python examples/portable.py

A sampler that is linear in the network's outputs needs nothing else from thg: at each step it gets the sum of these
weights times the outputs that were evaluated so far. docs/portable.md explains each function; the file of test vectors
has the constants and the results to expect.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

Vector = list[float]
Step = Callable[[int, Vector, Vector], Vector]  # (index, state, output of the network) -> the next state

VECTORS = Path(__file__).parents[1] / "docs" / "test_vectors.json"
LONGEST_LEAP, NEGLIGIBLE, SMALLEST_RESPONSE, WEAK = 8, 0.05, 0.02, 0.1


# -- samplers: how far a step moves the state, from the noise level sigma / alpha before and after it


def added(a: float, x: Vector, b: float, y: Vector) -> Vector:
    return [a * p + b * q for p, q in zip(x, y, strict=True)]


def euler(levels: Sequence[float]) -> Step:
    """Euler on the state x0 + sigma noise, and flow matching's Euler, whose levels are its sigmas."""
    return lambda i, x, output: added(1.0, x, levels[i + 1] - levels[i], output)


def ddim(levels: Sequence[float]) -> Step:
    alphas = [1 / math.hypot(1, level) for level in levels]
    return lambda i, x, output: added(alphas[i + 1] / alphas[i], x, alphas[i + 1] * (levels[i + 1] - levels[i]), output)


def dpmpp_2m(levels: Sequence[float]) -> Step:
    """DPM++ 2M; its first and last steps are of first order."""
    alphas = [1 / math.hypot(1, level) for level in levels]
    before: list[Vector] = []  # the predicted data of the step before

    def step(i: int, x: Vector, output: Vector) -> Vector:
        alpha, then = alphas[i], alphas[i + 1]
        data = added(1 / alpha, x, -levels[i], output)
        ratio = levels[i + 1] / levels[i]  # exp(-h)
        used = data
        if before and levels[i + 1] > 0:
            r = math.log(levels[i - 1] / levels[i]) / -math.log(ratio)
            used = added(1 + 0.5 / r, data, -0.5 / r, before[0])
        before[:] = [data]
        return added(ratio * then / alpha, x, then * (1 - ratio), used)

    return step


SAMPLERS: dict[str, Callable[[Sequence[float]], Step]] = {
    "ddim": ddim,
    "euler": euler,
    "flow_euler": euler,
    "dpmpp_2m": dpmpp_2m,
}


def response(step: Step, steps: int) -> list[Vector]:
    """Row n: the state after step n, started at zero, if the output of step k is the k-th unit vector."""
    rows, state = [], [0.0] * steps
    for n in range(steps):
        state = step(n, state, [float(k == n) for k in range(steps)])
        rows.append(state)
    return rows


# -- the plan: at which steps the network runs


def evaluations(
    angles: Vector, final: Vector, error: float, guidance_scale: float | None, prior: dict[str, Any]
) -> int:
    """How many steps are evaluated. angles: as for `grid`. final: the response of the final state to each output."""
    steps, q = len(final), prior["power_of_steps"]
    usual: float = (prior["evaluations"] ** -q + steps**-q) ** (-1 / q)
    count: float = (0.01 / error) ** (1 / prior["order"]) * usual
    if guidance_scale is not None:
        count *= max(1.0, (guidance_scale - 1) / 4) ** prior["guidance"]
    enough = few = math.floor(usual + 0.5)
    allowed = prior["usual"] * sum(map(abs, final)) ** prior["power_of_response"]
    while enough < steps:
        evaluated = grid(enough, angles, final, None, prior)
        if predicted_error(evaluated, angles, final, prior) <= allowed:
            break
        enough += 1
    count *= enough / usual if enough > few else 1.0
    return min(steps, max(int(prior["fewest"]), math.floor(count + 0.5)))


def predicted_error(evaluated: Sequence[int], angles: Vector, final: Vector, prior: dict[str, Any]) -> float:
    """Of the leaps between these steps, up to a factor that belongs to the network."""
    levels = [math.log(prior["deviation"] * math.tan(angle)) for angle in angles]
    found = 0.0
    for start, end in pairwise(evaluated):
        leap = abs(levels[start] - levels[end]) * abs(angles[start] - angles[end])
        found += leap * sum(abs(response) for response in final[start + 1 : end])
    return found


def grid(count: int, angles: Vector, final: Vector, guidance_scale: float | None, prior: dict[str, Any]) -> list[int]:
    """The steps that are evaluated. angles: arctan(sigma / (deviation alpha)) at the start of each step."""
    if guidance_scale is not None:
        (start, over), (power, most) = prior["start"], prior["start_by_guidance"]
        prior = {**prior, "start": (start * min(max(1.0, (guidance_scale - 1) / 4) ** power, most), over)}
    steps, first = len(angles), min(prior["first"], max(2, count // 4), count - 1)
    if count >= steps or first < 1:
        return list(range(min(count, steps)))
    sizes = [abs(a - b) for a, b in zip(angles, [*angles[1:], 0.0], strict=True)]
    total, covered, by_angle = sum(sizes), 0.0, []
    for size in sizes:
        by_angle.append(tapering((covered + size / 2) / total, prior) * size)
        covered += size
    by_index = [tapering((i + 0.5) / steps, prior) for i in range(steps)]
    share = prior["by_index"]
    density = [
        share * a / sum(by_index) + (1 - share) * b / sum(by_angle) for a, b in zip(by_index, by_angle, strict=True)
    ]
    mean = sum(map(abs, final)) / steps
    weights = [max(abs(weight), SMALLEST_RESPONSE * mean) for weight in final]
    inner = lightest(density[first - 1 :], weights[first - 1 :], count - first + 1, prior)
    return [*range(first - 1), *(first - 1 + i for i in inner)]


def tapering(x: float, prior: dict[str, Any]) -> float:
    (start, over), (end, under) = prior["start"], prior["end"]
    return float(1 + start * math.exp(-((x / over) ** 2)) + end * math.exp(-(((1 - x) / under) ** 2)))


def lightest(density: Vector, response: Vector, count: int, prior: dict[str, Any]) -> list[int]:
    """`count` steps from the first to the last whose leaps have the least total weight, by dynamic programming."""
    steps = len(density)
    longest = min(steps - 1, LONGEST_LEAP * steps // count)

    def weight(begin: int, end: int) -> float:
        if end - begin == 1:
            return 0.0  # nothing is predicted
        skipped = sum(response[begin + 1 : end]) ** prior["response_power"]
        return float(sum(density[begin:end]) ** prior["power"] * skipped)

    best: list[tuple[float, list[int]]] = [(0.0, [0])] + [(math.inf, [])] * (steps - 1)
    for _ in range(count - 1):
        best = [
            min(
                (
                    (best[b][0] + weight(b, end), [*best[b][1], end])
                    for b in range(end - 1, max(end - longest, 0) - 1, -1)
                ),
                key=lambda found: found[0],
                default=(math.inf, []),
            )
            for end in range(steps)
        ]
    return best[-1][1]


# -- predictions and corrections


def line(nodes: Sequence[int], at: int, slope: float) -> dict[int, float]:
    """The weights of the last two evaluations in a prediction."""
    before, last = nodes
    w = slope * (at - last) / (last - before)
    return {before: -w, last: 1 + w}


def parabola(nodes: Sequence[int], at: int) -> dict[int, float]:
    """The weights of three evaluations in the parabola through them."""
    return {n: math.prod((at - m) / (n - m) for m in nodes if m != n) for n in nodes}


def gains(matrix: list[Vector], start: int, missed: list[dict[int, float]]) -> list[dict[int, float]]:
    """What to add from the step after a leap on, so that the sampler reaches the states that it has missed.

    missed[k]: the missing weights of the evaluations at step start + k. Row n - 1 of the matrix is the state that step
    n begins with, so missing[i] belongs to the state after step end + i.
    """
    end, nodes = start + len(missed), list(missed[0])
    missing = [[sum(row[start + k] * m[n] for k, m in enumerate(missed)) for n in nodes] for row in matrix[end:]]
    negligible = NEGLIGIBLE * max(abs(value) for row in missing for value in row)
    found: list[Vector] = []
    for i in range(len(missing)):
        own = matrix[end + i][end + i]
        following = matrix[end + i + 1][end + i + 1] if end + i + 1 < len(matrix) else 0.0
        gain = [value / own if abs(own) > WEAK * abs(following) else 0.0 for value in missing[i]]
        for later, row in enumerate(matrix[end:]):
            missing[later] = added(1.0, missing[later], -row[end + i], gain)
        found.append(gain)
        if all(abs(value) <= negligible for row in missing[i + 1 :] for value in row):
            final = matrix[-1][end + i]
            if abs(final) > 0.1 * abs(own):  # the last one makes the final state exact
                found[-1] = added(1.0, gain, 1 / final, missing[-1])
            break
    return [dict(zip(nodes, gain, strict=True)) for gain in found]


def table(evaluated: Sequence[int], matrix: list[Vector], prior: dict[str, Any]) -> list[dict[int, float]]:
    """For each step, the weights of the evaluated outputs in what the sampler gets."""
    rows: list[dict[int, float]] = []
    corrections: list[dict[int, float]] = [{} for _ in matrix]
    for step in range(len(matrix)):
        before = [e for e in evaluated if e < step]
        if step not in evaluated:
            rows.append(line(before[-2:], step, prior["slope"]))
            continue
        rows.append({step: 1.0})
        if len(before) > 1 and step - before[-1] > 1:
            missed = []
            for at in range(before[-1], step):
                used = line(before[-2:], at, prior["slope"])
                better = parabola((*before[-2:], step), at)
                missed.append({n: prior["corrector"] * (b - used.get(n, 0.0)) for n, b in better.items()})
            for i, gain in enumerate(gains(matrix, before[-1], missed)):
                for n, value in gain.items():
                    corrections[step + i][n] = corrections[step + i].get(n, 0.0) + value
    for row, correction in zip(rows, corrections, strict=True):
        for n, value in correction.items():
            row[n] = row.get(n, 0.0) + value
    return rows


def main(vectors: dict[str, Any]) -> None:
    prior = vectors["prior"]
    for case in vectors["cases"]:
        steps = case["steps"]
        matrix = response(SAMPLERS[case["sampler"]](case["levels"]), steps)
        flow = case["sampler"] == "flow_euler"
        deviation, final = prior["deviation"], matrix[-1]
        angles = [math.atan2(level, deviation * (1 - level if flow else 1)) for level in case["levels"][:steps]]
        count = evaluations(angles, final, vectors["error"], case["guidance_scale"], prior)
        evaluated = grid(count, angles, final, case["guidance_scale"], prior)
        assert evaluated == case["evaluated"], case["name"]
        found, expected = table(evaluated, matrix, prior), [dict(row) for row in case["weights"]]
        off = max(
            abs(row.get(n, 0.0) - want.get(n, 0.0))
            for row, want in zip(found, expected, strict=True)
            for n in {*row, *want}
        )
        assert off < 1e-4, f"{case['name']}: a weight differs by {off}"
        print(f"{case['name']}: {len(evaluated)} of {steps} steps, the weights agree within {off:.0e}")


if __name__ == "__main__":
    main(json.loads(VECTORS.read_text()))
