"""Small benchmarks on tiny models of the paper's classes, saved to disk as the hub has them."""

import string
from pathlib import Path

import torch
from diffusers import AudioLDM2Pipeline, AutoencoderKL, DDIMScheduler
from diffusers.pipelines.audioldm2 import AudioLDM2ProjectionModel, AudioLDM2UNet2DConditionModel
from transformers import (
    ClapFeatureExtractor,
    ClapModel,
    GPT2Config,
    GPT2LMHeadModel,
    RobertaTokenizer,
    SpeechT5HifiGan,
    SpeechT5HifiGanConfig,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

from tests.bench.tiny_models import save_clap
from tests.calibrate.pipelines import PROMPTS, stable_diffusion
from thg.bench.config import BenchConfig, parse_config, slug
from thg.bench.measurer import measure_samples
from thg.bench.report import Comparison, reduce_rows, write_report
from thg.bench.runner import make_samples
from thg.bench.store import BenchmarkRun
from thg.processes import Shard

STEPS = 6

METHODS = [
    {"name": "CFG", "policy": "cfg"},
    {"name": "CFG-Cache", "policy": "cfg-cache", "nfe": 9},
    {"name": "thg uniform", "policy": "uniform", "nfe": 9},
]


def save_model(folder: Path) -> Path:
    """A tiny model and its prompts. Returns the model's folder."""
    torch.set_num_threads(1)
    stable_diffusion().save_pretrained(folder / "model")
    prompts = [f"{prompt} {word}" for word in ("big", "small", "old", "new") for prompt in PROMPTS]
    (folder / "prompts.txt").write_text("\n".join(prompts) + "\n")
    return folder / "model"


def save_sound_model(folder: Path, upsampling: tuple[int, ...] = (2, 2)) -> Path:
    """A tiny AudioLDM 2 with all of its text encoders. Returns its folder.

    upsampling: of the vocoder, in several steps; 160 in all, as the real one has, makes long sounds cheap.
    """
    torch.manual_seed(0)
    clap = save_clap(folder / "clap")
    letters = [(letter, -2.0) for letter in string.ascii_lowercase]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0), *letters]
    width, blocks = 16, {"block_out_channels": (16, 16), "norm_num_groups": 4}
    unet = AudioLDM2UNet2DConditionModel(
        **blocks,
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=(width, width),
        attention_head_dim=2,
    )
    vae = AutoencoderKL(
        **blocks,
        in_channels=1,
        out_channels=1,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    vocoder = SpeechT5HifiGanConfig(
        model_in_dim=16,
        sampling_rate=16_000,
        upsample_initial_channel=2 ** len(upsampling),
        upsample_rates=list(upsampling),
        upsample_kernel_sizes=[2 * rate + rate % 2 for rate in upsampling],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1]],
    )
    t5 = T5Config(vocab_size=len(pieces), d_model=width, d_kv=4, d_ff=8, num_layers=1, num_heads=1)
    gpt2 = GPT2Config(vocab_size=8, n_positions=64, n_embd=width, n_layer=1, n_head=1, max_new_tokens=4)
    AudioLDM2Pipeline(
        vae=vae,
        text_encoder=ClapModel.from_pretrained(clap),
        text_encoder_2=T5EncoderModel(t5),
        projection_model=AudioLDM2ProjectionModel(
            text_encoder_dim=8, text_encoder_1_dim=width, langauge_model_dim=width
        ),
        language_model=GPT2LMHeadModel(gpt2),
        tokenizer=RobertaTokenizer.from_pretrained(clap, model_max_length=12),
        tokenizer_2=T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=12),
        feature_extractor=ClapFeatureExtractor.from_pretrained(clap),
        unet=unet,
        scheduler=DDIMScheduler(clip_sample=False),
        vocoder=SpeechT5HifiGan(vocoder),
    ).save_pretrained(folder / "sound")
    return folder / "sound"


def values(**changes):
    """The values of a small configuration; its paths are relative to the folder of `save_model`."""
    return {
        "title": "tiny",
        "steps": STEPS,
        "guidance_scale": 5.0,
        "count": 6,
        "batch_size": 3,
        "metrics": ["psnr"],
        "model": {"source": "model"},
        "prompts": {"file": "prompts.txt"},
        "methods": METHODS,
        **changes,
    }


def config_in(folder: Path, **changes) -> BenchConfig:
    given = values(**changes)
    if given["model"].get("source") == "model":
        given["model"] = {**given["model"], "source": str(folder / "model")}
    return parse_config(given, folder)


def run_in(config: BenchConfig, path: Path) -> BenchmarkRun:
    """A run with a store of its own, so that tests do not share samples."""
    return BenchmarkRun.start(config, path, path / "store")


def silent(text: str) -> None:
    pass


def quietly(config: BenchConfig, path: Path, shard: Shard | None = None) -> None:
    """Samples."""
    make_samples(run_in(config, path), shard or Shard(), silent)


def measured(config: BenchConfig, path: Path) -> Comparison:
    """The numbers of a sampled run."""
    run = run_in(config, path)
    measurer = measure_samples(run, Shard(), silent)
    assert measurer is not None
    return reduce_rows(measurer)


def report(config: BenchConfig, path: Path) -> str:
    """The report of a sampled run; its table is returned."""
    run = run_in(config, path)
    measurer = measure_samples(run, Shard(), silent)
    assert measurer is not None
    return write_report(measurer)


def sample_file(path: Path, name: str) -> Path:
    """A file of a run's samples by method and name: "cfg/000004.json"."""
    called, _, file = name.partition("/")
    run = BenchmarkRun.stored(path)
    method = next(method for method in run.config.methods if slug(method.name) == called)
    return run.series()[method.name].path / "samples" / file


def _files(path: Path, suffix: str) -> dict[str, bytes]:
    run = BenchmarkRun.stored(path)
    return {
        f"{slug(name)}/{file.name}": file.read_bytes()
        for name, series in run.series().items()
        if series.ready
        for file in sorted((series.path / "samples").glob(f"[0-9]*{suffix}"))  # a kill may leave a hidden file
    }


def pictures(path: Path) -> dict[str, bytes]:
    """All pictures of a run by method and name."""
    return _files(path, ".png")


def records(path: Path) -> dict[str, bytes]:
    return _files(path, ".json")
