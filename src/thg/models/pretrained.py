"""Loads a pipeline (shipped, from a hub id, a folder that `save_pretrained` wrote, or a single file; safetensors only),
and makes the arguments of its call."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from thg.distribution import missing
from thg.errors import MissingExtraError, THGError, UnsupportedPipelineError
from thg.models.scheduler_choice import scheduler_by_option
from thg.models.shipped import SHIPPED, ShippedName, shipped_path
from thg.processes import best_device, check_device, require_bfloat16

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline
    from PIL.Image import Image


@dataclass(frozen=True)
class Source:
    """Which pipeline, and where it runs: the options of every command that loads one."""

    model: str
    config: str | None = None
    variant: str | None = None
    lora: tuple[tuple[Path, float], ...] = ()
    device: str | None = None
    dtype: str | None = None
    offload: str | None = None
    scheduler: str | None = None

    def load(self, *, from_picture: bool = False) -> Any:
        """The pipeline, or a one-line error. from_picture: its variant that starts from a picture."""
        device = self.device or best_device()
        default = torch.float16 if device.startswith("cuda") else torch.float32
        dtype = getattr(torch, self.dtype) if self.dtype else default
        check_device(device)
        require_bfloat16(dtype, device)
        if self.offload and device == "cpu":
            raise THGError(
                "--offload moves weights to a GPU when they are needed, but this run is on the CPU: remove the option"
            )
        quiet()
        pipe = self._read(dtype)
        add_loras(pipe, self.lora)
        if from_picture:
            pipe = image_to_image(pipe)
        if self.offload == "model":
            pipe.enable_model_cpu_offload(device=device)
        elif self.offload == "sequential":
            pipe.enable_sequential_cpu_offload(device=device)
        else:
            pipe.to(device)
        if self.scheduler:
            pipe.scheduler = scheduler_by_option(self.scheduler, pipe.scheduler)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def _read(self, dtype: torch.dtype) -> Any:
        model: Any = self.model
        shipped = model in SHIPPED
        if self.config is not None and not self.single:
            raise THGError(f"--config is the configuration of a single file, and {model} is none: remove it")
        if self.variant is not None and (self.single or shipped):
            raise THGError(f"--variant names weight files of a folder or hub id, and {model} is none: remove it")
        if self.single:
            return SingleFile.of(model, self.config).load(dtype)
        return shipped_pipeline(model, dtype=dtype) if shipped else pretrained(model, dtype, variant=self.variant)

    @property
    def single(self) -> bool:
        """Does this name one file with all weights, as artists share them?"""
        return Path(self.model).suffix.lower() in (".safetensors", ".ckpt", ".pt", ".pth", ".bin")

    def python(self, pipe: Any) -> list[str]:
        """The Python code that loads the same pipeline. pipe: the loaded one."""
        device, precision = str(pipe.device), str(pipe.dtype)
        lines = []
        if self.model in SHIPPED:
            arguments = "" if device == "cpu" else f", device={device!r}"
            arguments += "" if precision == "torch.float32" else f", dtype={precision}"
            lines += [f"pipe = thg.shipped_pipeline({self.model!r}{arguments})"]
        else:
            if self.single:
                name, loader = type(pipe).__name__, "from_single_file"
                file = SingleFile.of(self.model, self.config)
                options = [] if self.config is None else [f"config={self.config!r}"]
                options += [f"{part}=None" for part in file.absent]
                options += [f"{part}=rest.{part}" for part in file.lacking]
                if file.lacking:
                    rest = [repr(file.config), f"torch_dtype={precision}", *(f"{part}=None" for part in file.present)]
                    lines += ["from diffusers import DiffusionPipeline"]
                    lines += [f"rest = DiffusionPipeline.from_pretrained({', '.join(rest)})"]
            else:
                name, loader = "DiffusionPipeline", "from_pretrained"
                absent = {part for part, value in pipe.components.items() if value is None}
                options = [] if self.variant is None else [f"variant={self.variant!r}"]
                # diffusers needs these for components missing from the folder
                options += [f"{part}=None" for part in sorted(absent - set(pipe._optional_components))]
            how = ", ".join([repr(self.model), f"torch_dtype={precision}", *options])
            lines += [f"from diffusers import {name}", f"pipe = {name}.{loader}({how}).to({device!r})"]
        for number, (path, _) in enumerate(self.lora):
            where = f"{str(path.parent)!r}, weight_name={path.name!r}"
            lines.append(f'pipe.load_lora_weights({where}, adapter_name="lora_{number}")')
        if self.lora:
            names = [f"lora_{number}" for number in range(len(self.lora))]
            lines.append(f"pipe.set_adapters({names}, {[scale for _, scale in self.lora]})")
        return lines


def quiet() -> None:
    """Silences the libraries: the command reports their errors, and their warnings are for developers.

    Of thg's own logger too, whose line after each run is in the summary that a command prints.
    """
    logger = logging.getLogger("thg")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    for name in ("diffusers", "transformers"):
        with suppress(ImportError):
            library = importlib.import_module(f"{name}.utils.logging")
            library.set_verbosity_error()
            library.disable_progress_bar()
    warnings.filterwarnings("ignore", module="huggingface_hub")


# -- folders and hub ids


def shipped_pipeline(
    name: ShippedName = "eps", *, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> DiffusionPipeline:
    """Load a shipped model. Nothing is downloaded.

    "emoji" is a `StableDiffusionPipeline` that draws emoji of 64x64 pixels in colour ("a panda", "blue heart"), "audio"
    an `AudioLDM2Pipeline` that plays notes, chords, melodies and drum patterns ("a soft low trumpet note"). "eps" and
    "flow", a `StableDiffusionPipeline` and a `StableDiffusion3Pipeline`, are smaller and draw grey garments of 32x32
    pixels ("a dark ankle boot").

    device: the CPU unless given.
    dtype: of the weights in memory; float32 unless given (the files contain float16).
    """
    return load_folder(shipped_path(name), device=device, dtype=dtype)


def load_folder(
    folder: Path, *, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> DiffusionPipeline:
    """Load a pipeline from a folder that `training.export` wrote, or raise a one-line error."""
    if not (folder / "model_index.json").exists():
        raise MissingExtraError(f"no model in {folder}: this installation has no weights; reinstall thg")
    try:
        pipe = _from_pretrained(str(folder), dtype or torch.float32, local_files_only=True)
    except MissingExtraError:
        raise
    except Exception as error:  # safetensors, json, diffusers and transformers raise different errors
        reason = f"{type(error).__name__}: {_one_line(error, 300)}"
        raise THGError(f"the model in {folder} is broken ({reason}); reinstall thg") from error
    return pipe if device is None else pipe.to(device)


def pretrained(source: str, dtype: torch.dtype, *, variant: str | None = None, leave_out: Iterable[str] = ()) -> Any:
    """The pipeline, or a one-line error if it cannot be loaded.

    variant: of the weight files, such as "fp16".
    leave_out: components not to load, such as "safety_checker". Those that a folder was saved without are never
        loaded.
    """
    if Path(source).is_dir() and not (Path(source) / "model_index.json").exists():
        raise THGError(f"{source} is not a diffusers pipeline: there is no model_index.json in it")
    try:
        return _from_pretrained(source, dtype, variant=variant, **dict.fromkeys(leave_out))
    except MissingExtraError:
        raise
    except Exception as error:  # the hub client, safetensors and json raise different errors
        raise THGError(
            f"the model {source!r} cannot be loaded ({_one_line(error, 200)}); it must be {', '.join(SHIPPED)}, the "
            "hub id of a pipeline with safetensors weights (once: hf download ID), a folder that save_pretrained "
            "wrote, or a .safetensors file"
        ) from error


def _from_pretrained(source: str, dtype: torch.dtype, **options: Any) -> Any:
    try:
        from diffusers import DiffusionPipeline
    except ImportError as error:
        raise missing("loading a model", "diffusers") from error
    absent = dict.fromkeys(_saved_without(Path(source)))
    with _without_warnings():
        return DiffusionPipeline.from_pretrained(
            source, torch_dtype=dtype, use_safetensors=True, **{**absent, **options}
        )


def _saved_without(folder: Path) -> list[str]:
    """The components that a folder lists as absent; diffusers itself accepts that for some classes only."""
    if not folder.is_dir():
        return []
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    return [name for name, origin in index.items() if origin == [None, None]]


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Diffusers warns of an autoencoder of another class than the pipeline's usual one, and of an argument's old name,
    the only one that older releases know."""
    from diffusers.utils import logging as library

    before = library.get_verbosity()
    library.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*torch_dtype.*", FutureWarning)
            yield
    finally:
        library.set_verbosity(before)


def _one_line(error: Exception, most: int) -> str:
    return " ".join(str(error).split())[:most] or type(error).__name__


# -- single files, LoRA

UNKNOWN = "stable-diffusion-v1-5/stable-diffusion-v1-5"  # what diffusers takes a file for that it does not know


@dataclass(frozen=True)
class SingleFile:
    """All weights of a pipeline in one file, in the layout of the model's authors.

    config: a folder (or hub id) of a diffusers pipeline of the same kind, which has the tokenizers and the sizes of the
        networks, and the networks that the file lacks. pipeline: the name of its class. index: its parts.
    """

    source: str
    config: str
    pipeline: str
    index: Mapping[str, Any]
    lacking: tuple[str, ...]

    @classmethod
    def of(cls, source: str, config: str | None = None) -> SingleFile:
        """Reads the names of the weights, and the configuration.

        config: by default that of the model that the file seems to be made from, which the hub's client downloads once.
        """
        path = Path(source)
        if path.suffix.lower() != ".safetensors":
            raise THGError(
                f"{source} may hold a pickle, which can run any code when it is read; get it as .safetensors"
            )
        try:
            import diffusers
            from diffusers.loaders.single_file_utils import fetch_diffusers_config
        except ImportError as error:
            raise missing("loading a model", "diffusers") from error
        weights = _shapes(path)
        if any("lora" in name for name in weights):
            raise THGError(f"{source} is a LoRA, which changes a model: write --model MODEL --lora {source}")
        known: str = config or fetch_diffusers_config(weights)["pretrained_model_name_or_path"]
        if known == UNKNOWN and not any(name.startswith("model.diffusion_model.") for name in weights):
            raise THGError(
                f"{source} is not the file of a whole model (it has no model.diffusion_model. among its weights); take "
                "the whole model's file or folder, or write --config FOLDER, a diffusers model of the same kind"
            )
        _refuse_pickles(Path(known))
        try:
            index = diffusers.DiffusionPipeline.load_config(known)
            name = index["_class_name"]
        except Exception as error:  # the hub client and json raise different errors
            raise THGError(
                f"{source} needs the configuration (tokenizers and sizes, no weights) of {known}, which cannot be read "
                "here; with a network it is downloaded once, or write --config FOLDER, a diffusers model of the same "
                "kind"
            ) from error
        return cls(source, known, name, index, tuple(_lacking(weights, index)))

    @property
    def present(self) -> list[str]:
        """The other parts of the pipeline."""
        return [name for name, part in self.index.items() if isinstance(part, list) and name not in self.lacking]

    @property
    def absent(self) -> list[str]:
        """The parts that a pipeline of this configuration does without, such as the third text encoder of SD 3."""
        return [name for name, part in self.index.items() if part == [None, None]]

    def load(self, dtype: torch.dtype) -> Any:
        """The pipeline; of its configuration only those weights are loaded that are not in the file."""
        import diffusers

        rest: dict[str, Any] = dict.fromkeys(self.absent)
        if self.lacking:
            try:
                others = _from_pretrained(self.config, dtype, **dict.fromkeys(self.present))
                rest |= {name: getattr(others, name) for name in self.lacking}
            except Exception as error:
                raise THGError(
                    f"{self.source} has no {' and no '.join(self.lacking)}, and {self.config} has no weights for them "
                    "that can be read here; write --config FOLDER, a complete diffusers model of the same kind"
                ) from error
        try:
            loader = getattr(diffusers, self.pipeline).from_single_file
            return loader(self.source, config=self.config, torch_dtype=dtype, **rest)
        except Exception as error:
            reason = f"with the configuration of {self.config} ({_one_line(error, 300)})"
            raise THGError(f"{self.source} cannot be loaded as {self.pipeline} {reason}") from error


def _lacking(weights: Iterable[str], index: Mapping[str, Any]) -> Iterator[str]:
    """The networks that are not among these weights: files of SD 3.5 and Flux seldom have text encoders."""
    clip = ("cond_stage_model.", "conditioner.embedders.", "text_encoders.clip")
    homes = {"CLIPTextModel": clip, "CLIPTextModelWithProjection": clip, "T5EncoderModel": ("text_encoders.t5",)}
    for name, part in index.items():
        library, kind = part if isinstance(part, list) and None not in part else ("", "")
        if name == "vae" and kind:
            prefixes: tuple[str, ...] = ("first_stage_model.", "vae.")
        elif library == "transformers" and not kind.endswith(("Tokenizer", "TokenizerFast", "Processor", "Extractor")):
            prefixes = homes.get(kind, ())
        else:
            continue
        if not any(weight.startswith(prefixes) for weight in weights):
            yield name


def _shapes(path: Path) -> dict[str, torch.Tensor]:
    """The names and shapes of the tensors in a file, without their values."""
    if not path.is_file():
        raise THGError(f"there is no file {path}")
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: torch.empty(file.get_slice(name).get_shape(), device="meta") for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise THGError(f"{path} is not a complete safetensors file ({error})") from error


def _refuse_pickles(folder: Path) -> None:
    """Components that the file lacks come from here, and not every loader prefers safetensors."""
    for path in folder.glob("*/*.bin") if folder.is_dir() else ():
        if not list(path.parent.glob("*.safetensors")):
            raise THGError(f"{path} is a pickle, which can run any code when it is read; save it as .safetensors")


def add_loras(pipe: Any, loras: Iterable[tuple[Path, float]]) -> None:
    """Loads LoRA files, each with its scale."""
    scales: dict[str, float] = {}
    for path, scale in loras:
        if importlib.util.find_spec("peft") is None:
            raise missing("--lora", "lora")
        _shapes(path)  # a missing, damaged or pickled file
        name = f"lora_{len(scales)}"
        try:
            pipe.load_lora_weights(str(path.parent), weight_name=path.name, adapter_name=name, use_safetensors=True)
        except Exception as error:  # of torch, of peft, of a pipeline class without LoRA
            raise THGError(f"{path} does not fit {type(pipe).__name__} ({_one_line(error, 200)})") from error
        if not any(name in names for names in pipe.get_list_adapters().values()):
            raise THGError(f"{path} has no weights for {type(pipe).__name__}: it was made for another kind of model")
        scales[name] = scale
    if scales:
        pipe.set_adapters(list(scales), list(scales.values()))


# -- how a pipeline is called

USUAL_STEPS = 50  # of pipelines whose call has no default


def accepted(pipe: Any) -> frozenset[str]:
    """The names of the arguments of a pipeline's call."""
    return frozenset(inspect.signature(type(pipe).__call__).parameters)


def guidance_name(pipe: Any) -> str:
    """The argument that is the guidance scale."""
    return "true_cfg_scale" if "true_cfg_scale" in accepted(pipe) else "guidance_scale"


def default_of(pipe: Any, name: str) -> Any:
    """The default of a number among the arguments of the pipeline's call; None if it has none."""
    parameter = inspect.signature(type(pipe).__call__).parameters.get(name)
    return parameter.default if parameter is not None and isinstance(parameter.default, int | float) else None


def call_arguments(
    pipe: Any,
    prompts: list[str],
    *,
    steps: int,
    guidance_scale: float | None,
    negative_prompt: str | None = None,
    width: int | None = None,
    height: int | None = None,
    start: Image | None = None,
    strength: float | None = None,
    **further: Any,
) -> dict[str, Any]:
    """The keyword arguments of a pipeline's call. start: the picture to start from, with its `strength`."""
    names = accepted(pipe)
    call: dict[str, Any] = {"prompt": prompts, "num_inference_steps": steps, **further}
    if guidance_scale is not None:
        call[guidance_name(pipe)] = guidance_scale
    if negative_prompt is None and "true_cfg_scale" in call:
        negative_prompt = " "  # without one this scale has no effect
    if negative_prompt is not None:
        call["negative_prompt"] = [negative_prompt] * len(prompts)
    size = {"width": width, "height": height}
    if None in size.values() and (width or height):  # of one alone, diffusers' pipelines take no notice
        size = {name: side or _own_side(pipe) for name, side in size.items()}
    if start is not None:
        start = _fitting(start, pipe, width, height)
        call |= {"image": [start] * len(prompts), "strength": strength}
        size = {name: side for name, side in zip(size, start.size, strict=True) if name in names}
    call |= {name: side for name, side in size.items() if side is not None}
    if unknown := [name for name in call if name not in names]:
        optional = unknown[0] in ("width", "height", "negative_prompt")
        remedy = f"remove --{unknown[0].replace('_', '-')}" if optional else "this command needs one that takes prompts"
        raise THGError(f"{type(pipe).__name__} does not take {unknown[0]}; {remedy}")
    return call


def image_to_image(pipe: Any) -> Any:
    """The same components as a pipeline that starts from a picture."""
    from diffusers import AutoPipelineForImage2Image

    try:
        return AutoPipelineForImage2Image.from_pipe(pipe)
    except ValueError:
        raise UnsupportedPipelineError(
            f"diffusers has no image-to-image variant of {type(pipe).__name__}; leave --image out"
        ) from None


def _fitting(picture: Image, pipe: Any, width: int | None, height: int | None) -> Image:
    """The picture in a size that the pipeline takes: its own, but not larger than the model's."""
    from PIL import ImageOps

    grey = getattr(getattr(getattr(pipe, "vae", None), "config", None), "in_channels", 3) == 1
    picture = ImageOps.exif_transpose(picture).convert("L" if grey else "RGB")
    share = min(1.0, (_own_side(pipe) or max(picture.size)) / max(picture.size))
    wide, high = (max(16, int(share * side) // 16 * 16) for side in picture.size)  # which every autoencoder takes
    return picture.resize((width or wide, height or high))


def _own_side(pipe: Any) -> int | None:
    """The longer side of the pictures that a model makes by default, in pixels."""
    network = getattr(pipe, "unet", None) or getattr(pipe, "transformer", None)
    side = getattr(pipe, "default_sample_size", None) or getattr(getattr(network, "config", None), "sample_size", None)
    if side is None:
        return None
    return int(max(side) if isinstance(side, list | tuple) else side) * int(getattr(pipe, "vae_scale_factor", 1))


def sampling_rate(pipe: Any) -> int:
    """The sampling rate of the sounds that a pipeline makes."""
    for part in (getattr(pipe, "vocoder", None), getattr(pipe, "vae", None)):
        if rate := getattr(getattr(part, "config", None), "sampling_rate", None):
            return int(rate)
    raise UnsupportedPipelineError(f"{type(pipe).__name__} has no sampling rate for its sounds")
