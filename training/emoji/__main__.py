"""All stages of the emoji model with one command: `python -m training.emoji`.

It can be killed and started again, and goes on where it was. In a new work folder it goes on from the shipped weights;
with --scratch it begins anew. The denoiser takes most of the time, and the model can be exported at any moment with
`python -m training.emoji.export`.
"""

import argparse
from pathlib import Path
from typing import get_args

from training.emoji import autoencoder, decoder, denoiser, evaluate, export, judge
from training.emoji.data import Scope


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/training"), help="folder of all intermediate files")
    parser.add_argument("--scope", choices=get_args(Scope), default="basic", help="the emoji that the denoiser learns")
    parser.add_argument("--scratch", action="store_true", help="do not begin with the shipped weights")
    parser.add_argument("--steps", type=int, default=3000, help="updates of the denoiser")
    parser.add_argument("--decoder-steps", type=int, default=2500, help="updates of the decoder")
    parser.add_argument("--refine-steps", type=int, default=12000, help="updates of the decoder on the model's latents")
    parser.add_argument("--judge-steps", type=int, default=1200, help="updates of the judge")
    parser.add_argument("--bfloat16", action="store_true", help="for the denoiser, on a CPU that has it")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    common = ["--work", str(options.work), "--threads", str(options.threads)]
    start = ["--scratch"] if options.scratch else []
    precision = ["--bfloat16"] if options.bfloat16 else []

    autoencoder.main([*common, *start, "--steps", str(options.decoder_steps)])
    judge.main([*common, "--steps", str(options.judge_steps)])
    denoiser.main([*common, *start, *precision, "--scope", options.scope, "--steps", str(options.steps)])
    decoder.main([*common, "--scope", options.scope, "--steps", str(options.refine_steps)])
    export.main(["--work", str(options.work), "--scope", options.scope])
    evaluate.main(
        ["--scope", options.scope, "--threads", str(options.threads), "--sheet", str(options.work / "emoji.png")]
    )


if __name__ == "__main__":
    main()
