"""Copies the part of thg that the ComfyUI nodes use into their folder, so that users need nothing else.

    python comfyui/make_core.py

What is copied follows from what the nodes import. Imports of thg become relative ones; packages lose what their
`__init__` re-exports. A test checks that the copy is current.
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
NODES = HERE / "tortoise_hare_guidance"
SOURCE = HERE.parent / "src" / "thg"

USED = re.compile(r"^from \.core\.([\w.]+) import ", re.MULTILINE)
IMPORT = re.compile(r"^from thg(?:\.([\w.]+))? import (.+)$", re.MULTILINE)
HEADER = "# A copy of src/thg/{path}, made by comfyui/make_core.py: change it there.\n"


def core_files() -> dict[str, str]:
    """The files of the copy: their paths below `core` and what is in them."""
    todo = {name for path in NODES.glob("*.py") for name in USED.findall(path.read_text(encoding="utf-8"))}
    files: dict[str, str] = {"__init__.py": HEADER.format(path="")}
    while todo:
        module = todo.pop()
        path = module.replace(".", "/") + ".py"
        if path in files:
            continue
        text = (SOURCE / path).read_text(encoding="utf-8")
        todo |= {name for found in IMPORT.finditer(text) for name in _modules(found)}
        dots = "." * len(module.split("."))
        files[path] = HEADER.format(path=path) + IMPORT.sub(lambda found, dots=dots: _relative(found, dots), text)
        for package in Path(path).parents:
            if package != Path():
                files[f"{package}/__init__.py"] = HEADER.format(path=package)
    return files


def _modules(found: re.Match[str]) -> set[str]:
    """The modules that `from thg... import ...` needs: the one that is named, or those that it takes from a package."""
    package, names = found[1], [name.strip() for name in found[2].split(",")]
    if package and (SOURCE / (package.replace(".", "/") + ".py")).exists():
        return {package}
    return {f"{package}.{name}" if package else name for name in names}


def _relative(found: re.Match[str], dots: str) -> str:
    return f"from {dots}{found[1] or ''} import {found[2]}"


def main() -> None:
    core = NODES / "core"
    files = core_files()
    for path in core.rglob("*.py"):
        if str(path.relative_to(core)) not in files:
            path.unlink()
    for path, text in files.items():
        (core / path).parent.mkdir(parents=True, exist_ok=True)
        (core / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
