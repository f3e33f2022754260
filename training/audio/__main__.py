"""All stages in order. A stage that has finished is not repeated; one that was killed goes on."""

import argparse
from pathlib import Path

from training.audio import autoencoder, denoiser, evaluate, export, judge, latents, sounds, vocoder
from training.audio.sounds import DEBIAN_FONT, WORK


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(WORK), help="folder of all intermediate files")
    parser.add_argument("--font", type=Path, default=DEBIAN_FONT, help="a General MIDI sound font")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    work = ["--work", str(options.work)]
    threads = ["--threads", str(options.threads)]
    if not (options.work / "sounds.test.safetensors").exists():
        sounds.main([*work, "--font", str(options.font)])
    autoencoder.main([*work, *threads, "--batch", "16"])
    judge.main([*work, *threads, "--batch", "32"])
    if not (options.work / "restored.safetensors").exists():
        latents.main([*work, *threads])
    vocoder.main([*work, *threads, "--batch", "8"])
    denoiser.main([*work, *threads, "--batch", "32"])
    export.main(work)
    evaluate.main([*work, *threads])


if __name__ == "__main__":
    main()
