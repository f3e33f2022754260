"""What a release needs: a version that fits its tag, and addresses that also work on the package index.

    python .github/release.py check v0.2.0
    python .github/release.py addresses https://host/owner/thg v0.2.0
    python .github/release.py manual https://host/owner/thg main

The second changes README.md and pyproject.toml in place, before a build: relative links and pictures become absolute
ones of this tag, the project gets its addresses, and README installs by name instead of from a clone. The third does
the same for the manual's links to files beside docs/, which its site does not have. In the repository they stay
relative, so that forks are right too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = ROOT / "src" / "thg" / "distribution.py"
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#|mailto:)([^)\s]+)\)")
IMAGE = re.compile(r'(<img src=")(?!https?://)')


def check(tag: str) -> None:
    """Stops if the tag is not that of the version, or if the changelog does not know it."""
    version = re.search(r'^__version__ = "(.+)"$', VERSION.read_text(encoding="utf-8"), re.MULTILINE)
    if version is None or tag != f"v{version[1]}":
        raise SystemExit(
            f"the tag is {tag}, and the version in {VERSION.relative_to(ROOT)} is {version and version[1]}"
        )
    if f"## {version[1]}" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        raise SystemExit(f"CHANGELOG.md has no section ## {version[1]}")


def absolute(text: str, home: str, tag: str) -> str:
    """The text with its relative links and pictures below `home`, as of the tag."""

    def replaced(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        return f"{picture}[{words}]({home}/{'raw' if picture else 'blob'}/{tag}/{target})"

    return IMAGE.sub(rf"\1{home}/raw/{tag}/", LINK.sub(replaced, text))


def by_name(text: str) -> str:
    """README of a release: its installations from a clone are those from the package index."""
    text = re.sub(r" in a clone\s+\(the distribution is called tortoise-hare-guidance\)", "", text)
    return text.replace('pip install ".[', 'pip install "tortoise-hare-guidance[')


def with_addresses(text: str, home: str) -> str:
    """pyproject.toml with the project's addresses."""
    pages = {"Homepage": "", "Documentation": "/tree/main/docs", "Changelog": "/blob/main/CHANGELOG.md"}
    lines = "".join(f'{name} = "{home}{page}"\n' for name, page in {**pages, "Issues": "/issues"}.items())
    return text.replace("[project.urls]\n", f"[project.urls]\n{lines}")


def addresses(home: str, tag: str) -> None:
    readme, project = ROOT / "README.md", ROOT / "pyproject.toml"
    readme.write_text(absolute(by_name(readme.read_text(encoding="utf-8")), home, tag), encoding="utf-8")
    project.write_text(with_addresses(project.read_text(encoding="utf-8"), home), encoding="utf-8")


def manual(home: str, branch: str) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        page.write_text(outside(page.read_text(encoding="utf-8"), home, branch), encoding="utf-8")


def outside(text: str, home: str, branch: str) -> str:
    """A page of the manual with its links to files beside docs/ below `home`."""
    return text.replace("](../", f"]({home}/blob/{branch}/")


if __name__ == "__main__":
    {"check": check, "addresses": addresses, "manual": manual}[sys.argv[1]](*sys.argv[2:])
