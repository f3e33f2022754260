"""Metrics by the packages that own them, on the files of samples.

A script that imports nothing of thg, so that it runs in any Python: most of these packages need torchvision, torchaudio
or older versions of numpy and transformers, and may live in an environment of their own.

    python package_scripts.py image_reward < job.json      {"samples": [...], "prompts": [...], "plain": [...], ...}
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

NETWORKS = {"clip_score": "openai/clip-vit-large-patch14", "cmmd": "openai/clip-vit-large-patch14-336"}
"""The paper's networks, where a configuration may name others: hub ids or folders."""

Inputs = dict[str, Any]
"""samples, plain (plain CFG's for the same prompts) and references are paths of files; prompts are texts; network is
the hub id or folder that the configuration names, if it does."""


def lpips(job: Inputs) -> list[float]:
    """Zhang et al., 2018, with AlexNet, as the authors recommend for comparisons."""
    import lpips as package  # type: ignore[import-not-found, unused-ignore]
    import torch
    from PIL import Image

    network = package.LPIPS(net="alex", verbose=False).eval()

    def read(path: str) -> Any:  # the package's own reader needs OpenCV, which it does not install
        return package.im2tensor(np.asarray(Image.open(path).convert("RGB")))

    pairs = zip(job["samples"], job["plain"], strict=True)
    with torch.inference_mode():
        return [float(network(read(sample), read(plain))) for sample, plain in pairs]


def clean_fid(job: Inputs, kind: str) -> list[float]:
    """FID (Heusel et al., 2017) or KID (Binkowski et al., 2018), with the resizing of clean-fid (Parmar et al., 2022).

    The references are measured once; the package keeps their statistics under a name.
    """
    import torch
    from cleanfid import fid as package  # type: ignore[import-not-found, unused-ignore]

    how = {"mode": "clean", "num_workers": 0, "verbose": False}
    how["device"] = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    files = json.dumps([(path, os.path.getsize(path)) for path in job["references"]])
    name = f"thg_{hashlib.sha256(files.encode()).hexdigest()[:16]}"
    with _folders(job) as (samples, references):
        if not package.test_stats_exists(name, "clean", metric=kind):
            package.make_custom_stats(name, references, **how)
        compute = package.compute_fid if kind == "FID" else package.compute_kid
        return [float(compute(samples, dataset_name=name, dataset_split="custom", use_dataparallel=False, **how))]


def clip_score(job: Inputs) -> list[float]:
    """max(100 cos(E_I, E_C), 0) of Hessel et al., 2021; longer texts are cut to fit CLIP.

    On transformers' CLIPModel: that of torchmetrics, which the paper used, fails with transformers 5.
    """
    import torch
    from PIL import Image
    from transformers import AutoTokenizer  # type: ignore[import-untyped, unused-ignore]

    source = job["network"] or NETWORKS["clip_score"]
    network, pixels_of = _clip("CLIPModel", source)
    tokenizer = AutoTokenizer.from_pretrained(source)
    longest, values = network.config.text_config.max_position_embeddings, []
    for path, prompt in zip(job["samples"], job["prompts"], strict=True):
        pixels = pixels_of(Image.open(path).convert("RGB"))
        tokens = tokenizer(prompt, truncation=True, max_length=longest, return_tensors="pt")
        with torch.inference_mode():
            cosine = network(pixel_values=pixels, **tokens).logits_per_image / network.logit_scale.exp()
        values.append(max(100 * float(cosine), 0.0))
    return values


def cmmd(job: Inputs) -> list[float]:
    """1000 times the biased MMD under a Gaussian kernel of width 10, on unit CLIP embeddings of the central squares.

    Jayasumana et al., 2024. Our own, on transformers: no package on PyPI has it.
    """
    import torch
    from PIL import Image

    network, pixels_of = _clip("CLIPVisionModelWithProjection", job["network"] or NETWORKS["cmmd"])

    def embedded(path: str) -> torch.Tensor:
        picture = Image.open(path).convert("RGB")
        left, top = ((side - min(picture.size)) // 2 for side in picture.size)
        square = picture.crop((left, top, left + min(picture.size), top + min(picture.size)))
        with torch.inference_mode():
            row = network(pixel_values=pixels_of(square)).image_embeds
        return torch.nn.functional.normalize(row, dim=-1).double()

    def mean(x: torch.Tensor, y: torch.Tensor) -> float:
        parts = (torch.exp(-(torch.cdist(part, y) ** 2) / (2 * 10.0**2)).sum() for part in torch.split(x, 1024))
        return float(sum(parts)) / (len(x) * len(y))

    x, y = (torch.cat([embedded(path) for path in job[kind]]) for kind in ("samples", "references"))
    return [1000 * (mean(x, x) + mean(y, y) - 2 * mean(x, y))]


def _clip(cls: str, source: str) -> tuple[Any, Callable[[Any], Any]]:
    """A CLIP network of transformers, and what turns a picture into its input."""
    import transformers  # type: ignore[import-untyped, unused-ignore]

    processor = getattr(transformers, "CLIPImageProcessorPil", transformers.CLIPImageProcessor).from_pretrained(source)
    network = getattr(transformers, cls).from_pretrained(source).eval()
    return network, lambda picture: processor(images=picture, return_tensors="pt")["pixel_values"]


def image_reward(job: Inputs) -> list[float]:
    """Xu et al., 2023."""
    import ImageReward  # type: ignore[import-not-found, unused-ignore]

    network = ImageReward.load("ImageReward-v1.0")
    return [float(network.score(*pair)) for pair in zip(job["prompts"], job["samples"], strict=True)]


def clap_score(job: Inputs) -> list[float]:
    """Wu et al., 2023: cos(E_A, E_C)."""
    import laion_clap  # type: ignore[import-not-found, unused-ignore]
    import torch

    network = laion_clap.CLAP_Module(enable_fusion=False)
    network.load_ckpt(verbose=False)
    values = []
    for path, prompt in zip(job["samples"], job["prompts"], strict=True):
        np.random.seed(0)  # noqa: NPY002  the package hears ten seconds of longer sounds, from a random point on
        with torch.inference_mode():
            sound, text = network.get_audio_embedding_from_filelist([path]), network.get_text_embedding([prompt])
        values.append(float((sound * text).sum()))  # both have length 1
    return values


def fad(job: Inputs) -> list[float]:
    """Kilgour et al., 2019, with VGGish; as in the evaluations of AudioLDM, without PCA and the last ReLU.

    The package gets VGGish as code from GitHub. torch asks whether it is to be trusted, and nobody is here to answer.
    """
    import torch
    from frechet_audio_distance import FrechetAudioDistance  # type: ignore[import-not-found, unused-ignore]

    if not glob.glob(os.path.join(torch.hub.get_dir(), "harritaylor_torchvggish_*")):
        download = "torch.hub.load('harritaylor/torchvggish', 'vggish', trust_repo=True)"
        raise RuntimeError(
            f'its network is code from GitHub; if you trust it, write once: python -c "import torch; {download}"'
        )
    measure = FrechetAudioDistance(model_name="vggish", use_pca=False, use_activation=False)
    with _folders(job) as (samples, references), redirect_stdout(io.StringIO()) as said:
        distance = float(measure.score(references, samples))
    if distance == -1:  # its way to say that something went wrong
        raise RuntimeError(" ".join(said.getvalue().split()))
    return [distance]


@contextmanager
def _folders(job: Inputs) -> Iterator[list[str]]:
    """The samples and the references as two folders, which some packages take."""
    with tempfile.TemporaryDirectory() as home:
        folders = [os.path.join(home, kind) for kind in ("samples", "references")]
        for folder in folders:
            os.mkdir(folder)
            for number, path in enumerate(job[os.path.basename(folder)]):
                os.symlink(os.path.abspath(path), os.path.join(folder, f"{number:06d}{os.path.splitext(path)[1]}"))
        yield folders


class Script(NamedTuple):
    """A metric: its function, the module that it imports, its package on PyPI; which direction is better, what it needs
    besides the samples ("pairs", "set" or "prompts"), and whether it measures sounds."""

    run: Callable[[Inputs], list[float]]
    module: str
    package: str
    direction: Literal["higher", "lower"]
    need: Literal["pairs", "set", "prompts"]
    hears: bool = False


SCRIPTS = {
    "lpips": Script(lpips, "lpips", "lpips", "lower", "pairs"),
    "fid": Script(partial(clean_fid, kind="FID"), "cleanfid", "clean-fid", "lower", "set"),
    "kid": Script(partial(clean_fid, kind="KID"), "cleanfid", "clean-fid", "lower", "set"),
    "cmmd": Script(cmmd, "transformers", "transformers", "lower", "set"),
    "clip_score": Script(clip_score, "transformers", "transformers", "higher", "prompts"),
    "image_reward": Script(image_reward, "ImageReward", "image-reward", "higher", "prompts"),
    "clap_score": Script(clap_score, "laion_clap", "laion-clap", "higher", "prompts", hears=True),
    "fad": Script(fad, "frechet_audio_distance", "frechet-audio-distance", "lower", "set", hears=True),
}


def main(name: str, check: bool) -> None:
    script = SCRIPTS[name]
    if check:
        sys.exit(0 if importlib.util.find_spec(script.module) else 1)
    printed, sys.stdout = sys.stdout, sys.stderr  # packages print what they load
    values = script.run(json.load(sys.stdin))
    print(json.dumps(values), file=printed)


if __name__ == "__main__":
    main(sys.argv[1], "--check" in sys.argv)
