"""Metrics by the packages that own them, on the files of samples.

A script that imports nothing of thg, so that it runs in any Python: these packages need torchvision, torchaudio or
older versions of numpy and transformers, and may live in an environment of their own.

    python package_scripts.py image_reward < job.json      {"samples": [...], "prompts": [...], "plain": [...], ...}
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

Job = dict[str, list[str]]
"""samples, plain (plain CFG's for the same prompts) and references are paths of files; prompts are texts."""


def lpips(job: Job) -> list[float]:
    """Zhang et al., 2018, with AlexNet, as the authors recommend for comparisons."""
    import lpips as package  # type: ignore[import-not-found, unused-ignore]

    network = package.LPIPS(net="alex", verbose=False).eval()

    def read(path: str) -> Any:
        return package.im2tensor(package.load_image(path))

    pairs = zip(job["samples"], job["plain"], strict=True)
    return [float(network(read(sample), read(plain))) for sample, plain in pairs]


def image_reward(job: Job) -> list[float]:
    """Xu et al., 2023."""
    import ImageReward  # type: ignore[import-not-found, unused-ignore]

    network = ImageReward.load("ImageReward-v1.0")
    return [float(network.score(*pair)) for pair in zip(job["prompts"], job["samples"], strict=True)]


def clap_score(job: Job) -> list[float]:
    """Wu et al., 2023: cos(E_A, E_C)."""
    import laion_clap  # type: ignore[import-not-found, unused-ignore]

    network = laion_clap.CLAP_Module(enable_fusion=False)
    network.load_ckpt(verbose=False)
    sounds = network.get_audio_embedding_from_filelist(job["samples"])
    texts = network.get_text_embedding(job["prompts"])
    lengths = (sounds**2).sum(1) ** 0.5 * (texts**2).sum(1) ** 0.5
    return [float(cosine) for cosine in (sounds * texts).sum(1) / lengths]


def fad(job: Job) -> list[float]:
    """Kilgour et al., 2019, with VGGish; as in the evaluations of AudioLDM, without PCA and the last ReLU."""
    from frechet_audio_distance import FrechetAudioDistance  # type: ignore[import-not-found, unused-ignore]

    measure = FrechetAudioDistance(model_name="vggish", use_pca=False, use_activation=False)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("references", "samples"):  # it takes folders
            os.mkdir(os.path.join(folder, kind))
            for number, path in enumerate(job[kind]):
                os.symlink(os.path.abspath(path), os.path.join(folder, kind, f"{number:06d}.wav"))
        return [float(measure.score(os.path.join(folder, "references"), os.path.join(folder, "samples")))]


SCRIPTS: dict[str, tuple[Callable[[Job], list[float]], str, str]] = {
    "lpips": (lpips, "lpips", "lpips"),
    "image_reward": (image_reward, "ImageReward", "image-reward"),
    "clap_score": (clap_score, "laion_clap", "laion-clap"),
    "fad": (fad, "frechet_audio_distance", "frechet-audio-distance"),
}
"""Of each metric: the function, the module that it imports, and the name of its package on PyPI."""


def main(name: str, check: bool) -> None:
    script, module, _ = SCRIPTS[name]
    if check:
        sys.exit(0 if importlib.util.find_spec(module) else 1)
    printed, sys.stdout = sys.stdout, sys.stderr  # packages print what they load
    values = script(json.load(sys.stdin))
    print(json.dumps(values), file=printed)


if __name__ == "__main__":
    main(sys.argv[1], "--check" in sys.argv)
