"""The Python script that makes the same picture without the studio."""

from __future__ import annotations

from thg.studio.model import Model
from thg.studio.specs import RunRequest


def reproduce(model: Model, request: RunRequest, choice: str, kind: str) -> str:
    """A script: load, enable, run with the same seeds, save. `choice` is the second argument of `thg.enable`."""
    lines = ["import thg, torch", *model.source, *model.schedulers.source(request.scheduler)]
    lines.sort(key=lambda line: not line.startswith(("import ", "from ")))  # a stable sort: imports first
    lines.append(f"thg.enable(pipe, {choice})")
    lines.append(f"made = pipe({', '.join(_arguments(model, request))})")
    lines.append(_save(kind, request))
    return "\n".join(lines) + "\n"


def _arguments(model: Model, request: RunRequest) -> list[str]:
    several = request.batch > 1
    seeds = f"range({request.seeds.start}, {request.seeds.stop})"
    times = f" * {request.batch}" if several else ""

    def words(text: str) -> str:
        return f"[{text!r}]{times}" if several else repr(text)

    arguments = [words(request.prompt)]
    if (negative := model.negative(request.negative_prompt)) is not None:
        arguments.append(f"negative_prompt={words(negative)}")
    arguments.append(f"num_inference_steps={request.steps}")
    arguments.append(f"{model.guidance_name}={request.guidance_scale}")
    arguments += [f"{name}={value}" for name, value in (("width", request.width), ("height", request.height)) if value]
    arguments += [f"{name}={value!r}" for name, value in model.call.items()]
    one = f"torch.Generator().manual_seed({request.seed})"
    arguments.append(
        f"generator=[torch.Generator().manual_seed(seed) for seed in {seeds}]" if several else f"generator={one}"
    )
    return arguments


def _save(kind: str, request: RunRequest) -> str:
    first = request.seeds.start
    if kind == "image":
        return f'[image.save(f"thg-{{seed}}.png") for seed, image in enumerate(made.images, {first})]'
    if kind == "audio":
        return f"sounds = made.audios  # one array for each seed from {first}"
    return f"videos = made.frames  # the frames for each seed from {first}"
