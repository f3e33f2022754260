"""The package as a whole: its public names, its import direction, and that it works without diffusers."""

import ast
import builtins
import graphlib
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import thg
from thg import errors

SOURCE = Path(thg.__file__).parent

# Left never imports right (names are modules or packages below thg).
LAYERS = [
    {"errors", "files", "distribution", "lazy", "processes", "rows"},
    {"plans"},
    {"ode"},
    {"profiles"},
    {"pipelines"},
    {"calibration", "models", "prompts", "serving"},
    {"media"},
    {"plots", "sampling"},
    {"bench"},
    {"cli", "studio"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
CORE = {name for layer in LAYERS[:4] for name in layer}

PUBLIC = {  # a name that goes or comes is a decision, and belongs in the changelog
    "PRESETS",
    "Batched",
    "GuidedDenoiser",
    "Plan",
    "PlanError",
    "Profile",
    "Schedule",
    "Sequential",
    "Summary",
    "THGError",
    "TortoiseHareGuidance",
    "UnsupportedPipelineError",
    "__version__",
    "calibrate",
    "disable",
    "enable",
    "enabled",
    "is_enabled",
    "plan_for",
    "preset",
    "preview",
    "read_schedule",
    "sample",
    "shipped_pipeline",
    "summary",
    "supported",
    "tapered",
    "tune",
    "uniform",
    "within",
}


LAZY = {  # third-party packages that not every installation has, or that take seconds: imported where they are used
    "accelerate",
    "cache_dit",
    "cleanfid",
    "frechet_audio_distance",
    "huggingface_hub",
    "ImageReward",
    "laion_clap",
    "lpips",
    "datasets",
    "DeepCache",
    "diffusers",
    "fastapi",
    "matplotlib",
    "PIL",
    "safetensors",
    "sglang",
    "vllm_omni",
    "prometheus_client",
    "starlette",
    "torch",
    "tqdm",
    "transformers",
    "uvicorn",
}


def _modules():
    for path in sorted(SOURCE.rglob("*.py")):
        relative = path.relative_to(SOURCE)
        yield path, relative.with_suffix("").parts[0]


def _runtime(tree):
    """The tree without what is imported for annotations only."""
    for node in ast.walk(tree):
        for name, block in ast.iter_fields(node):
            if isinstance(block, list):
                kept = [n for n in block if not (isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test))]
                setattr(node, name, kept)
    return tree


def _names(node):
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _imports(path):
    for node in ast.walk(_runtime(ast.parse(path.read_text()))):
        yield from _names(node)


def _imports_in_functions(path):
    for node in ast.walk(_runtime(ast.parse(path.read_text()))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                yield from _names(inner)


def test_import_direction():
    wrong = []
    for path, layer in _modules():
        if layer in ("__init__", "__main__"):
            continue
        assert layer in RANK, f"{path.name} belongs to no layer; add it to LAYERS"
        for name in _imports(path):
            parts = name.split(".")
            if parts[0] == "thg" and len(parts) > 1 and RANK.get(parts[1], -1) > RANK[layer]:
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong


def test_no_import_cycles():
    """Not within a layer either; a package's __init__ counts as its door, not as one of its rooms."""
    paths = {_dotted(path): path for path, _ in _modules() if path.name not in ("__init__.py", "__main__.py")}
    graph = {module: sorted({name for name in _imports(path) if name in paths}) for module, path in paths.items()}
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        raise AssertionError(f"an import cycle: {' <- '.join(error.args[1])}") from None


def _dotted(path):
    return ".".join(("thg", *path.relative_to(SOURCE).parts)).removesuffix(".py")


def test_imports_stand_at_the_top_of_a_module():
    """Except for optional dependencies."""
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name} inside a function"
        for path, _ in _modules()
        for name in _imports_in_functions(path)
        if name.split(".")[0] not in LAZY
    ]
    assert not wrong


def test_no_name_hides_a_module():
    """`from thg.plans.x import x` in a package would make `thg.plans.x.x` an error."""
    hidden = []
    for folder in [SOURCE, *(path.parent for path in SOURCE.rglob("__init__.py"))]:
        package = importlib.import_module(_dotted(folder))
        for found in pkgutil.iter_modules([str(folder)]):
            value = getattr(package, found.name, None)
            if value is not None and not inspect.ismodule(value):
                hidden.append(f"{package.__name__}.{found.name}")
    assert not hidden


def test_the_core_imports_torch_and_numpy_only():
    allowed = {*sys.stdlib_module_names, "thg", "torch", "numpy", "safetensors"}
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path, layer in _modules()
        if layer in CORE
        for name in _imports(path)
        if name.split(".")[0] not in allowed
    ]
    assert not wrong


def test_public_names():
    assert set(dir(thg)) == set(thg.__all__) == PUBLIC
    for name in thg.__all__:
        assert getattr(thg, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = thg.nothing


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Run", "thg.plans.RunInfo"),
        ("m_max", "thg.plans.m_max"),
        ("look_before_you_leap", "thg.plans.look_before_you_leap"),
        ("ScheduleError", "thg.errors.ScheduleError"),
        ("ProfileError", "thg.errors.ProfileError"),
        ("NonFiniteError", "thg.errors.NonFiniteError"),
        ("MissingExtraError", "thg.errors.MissingExtraError"),
        ("ConcurrentRunError", "thg.errors.ConcurrentRunError"),
    ],
)
def test_a_name_that_has_moved_still_works_for_one_version(old, new):
    package, name = new.rsplit(".", 1)
    with pytest.warns(DeprecationWarning, match=f"thg.{old} goes with 0.3; write {new}"):
        assert getattr(thg, old) is getattr(importlib.import_module(package), name)


def test_import_works_without_diffusers():
    code = """
import sys
sys.modules["diffusers"] = sys.modules["transformers"] = sys.modules["accelerate"] = None
import thg
print(thg.Plan(4, (0, 2)).nfe, thg.uniform(every=2).every)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["6", "2"]


def test_every_error_is_listed():
    """The tree in the docstring of `errors` has each exception that is defined anywhere in thg."""
    defined = {
        node.name
        for path, _ in _modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and any("Error" in ast.unparse(base) for base in node.bases)
    }
    assert len(defined) > 8
    assert not {name for name in defined if f"── {name} " not in errors.__doc__}


def test_a_class_has_a_name_of_its_own_and_no_file_is_too_long():
    lines = {_dotted(path): len(path.read_text().splitlines()) for path, _ in _modules()}
    assert {name: count for name, count in lines.items() if count > 600} == {}
    classes = Counter(
        node.name
        for path, _ in _modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in classes.items() if count > 1] == []


def test_errors_of_python_do_not_reach_the_caller():
    """They are raised only where the caller is Python or a library that reports them in its own way."""
    raised = {
        (_dotted(path), node.exc.func.id)
        for path, _ in _modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)
        if hasattr(builtins, node.exc.func.id) and node.exc.func.id != "AssertionError"  # of unreachable lines
    }
    assert raised == {
        ("thg.lazy", "AttributeError"),
        ("thg.studio.specs", "ValueError"),  # for pydantic
        ("thg.bench.metrics.package_scripts", "RuntimeError"),  # a script for another Python, without thg
    }


def test_every_error_is_a_thg_error():
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    assert len(classes) >= 8
    assert all(issubclass(cls, thg.THGError) for cls in classes)
