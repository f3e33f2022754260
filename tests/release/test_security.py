"""Nothing that thg reads can run code: no pickle, no remote code, no shell, no eval."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import thg
from tests.bench.runs import save_model, values
from tests.release.commands import refused
from tests.release.test_fuzz import as_toml

SOURCE = Path(thg.__file__).parent
ROOT = Path(__file__).parents[2]
FILES = sorted([*SOURCE.rglob("*.py"), *(ROOT / "training").glob("*.py"), *(ROOT / "examples").glob("*.py")])

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "jsonpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.hub.load"}
PIPELINE_LOADERS = ("pipeline.from_pretrained", "pipeline_class.from_pretrained")
HARMLESS = {"pickle.UnpicklingError"}  # to catch what torch raises when it refuses a file


def named(node: ast.AST) -> str:
    """The dotted name of an expression, as far as it has one."""
    if isinstance(node, ast.Attribute):
        return f"{named(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, name: str):
    """The literal value of a keyword argument; None if it is not there, or not a literal."""
    return next((getattr(k.value, "value", None) for k in call.keywords if k.arg == name), None)


def objections(tree: ast.AST):
    """What in a module could run code from a file, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = []
        yield from ((node.lineno, n) for n in names if n.split(".")[0] in FORBIDDEN_MODULES and n not in HARMLESS)
        if not isinstance(node, ast.Call):
            continue
        called = named(node.func)
        if called in FORBIDDEN_CALLS:
            yield node.lineno, called
        if called == "torch.load" and keyword(node, "weights_only") is not True:
            yield node.lineno, "torch.load without weights_only=True"
        if called in ("np.load", "numpy.load") and keyword(node, "allow_pickle") is not False:
            yield node.lineno, "np.load without allow_pickle=False"
        if keyword(node, "shell") is True:
            yield node.lineno, "shell=True"
        for k in node.keywords:
            if k.arg in ("trust_remote_code", "custom_pipeline"):
                yield node.lineno, k.arg


def test_the_source_has_nothing_that_could_run_code():
    assert len(FILES) > 100
    found = [f"{p}:{line}: {what}" for p in FILES for line, what in objections(ast.parse(p.read_text()))]
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from yaml import load",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "subprocess.run(words, shell=True)",
        "eval(text)",
        "load_dataset(name, trust_remote_code=True)",
    ],
)
def test_the_search_would_find_it(line):
    assert list(objections(ast.parse(line)))


def test_every_pipeline_is_loaded_from_safetensors():
    calls = [
        (path.name, node)
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and named(node.func).lower().endswith(("pipeline.from_pretrained", "class.from_pretrained"))
    ]
    assert calls
    assert all(keyword(call, "use_safetensors") is True for _, call in calls), calls


class Payload:
    """What an attacker puts into a pickle: it runs on loading."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.write_text, (self.mark, "ran")


@pytest.fixture
def pickled(tmp_path):
    """A model whose network is a .bin file, as old models have, with code in it; and the file that this code writes."""
    mark = tmp_path / "ran"
    model = save_model(tmp_path)
    (weights,) = model.glob("unet/*.safetensors")
    weights.unlink()
    torch.save({"weight": Payload(mark)}, model / "unet" / "diffusion_pytorch_model.bin")
    return model, mark


def test_a_model_in_pickle_files_is_refused(pickled, tmp_path):
    model, mark = pickled
    out = tmp_path / "a.png"
    assert "safetensors" in refused("generate", "a bag", "--model", model, "-o", out)
    config = values(model={"source": str(model)}, prompts={"file": str(tmp_path / "prompts.txt")})
    (tmp_path / "bench.toml").write_text(as_toml(config))
    assert "safetensors" in refused("bench", "--config", tmp_path / "bench.toml", "--out", tmp_path / "run", "--quiet")
    assert not mark.exists()
    assert not out.exists()


def test_a_checkpoint_file_is_refused(tmp_path):
    mark, path = tmp_path / "ran", tmp_path / "model.ckpt"
    torch.save(Payload(mark), path)
    refused("generate", "a bag", "--model", path, "-o", tmp_path / "a.png")
    assert not mark.exists()


def test_code_in_a_models_folder_does_not_run(tmp_path):
    """A pipeline or a network of the model's own would need trust_remote_code, which nobody passes."""
    mark, model = tmp_path / "ran", save_model(tmp_path)
    index = model / "model_index.json"
    (model / "pipeline.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    index.write_text(index.read_text().replace('"StableDiffusionPipeline"', '["pipeline", "OwnPipeline"]'))
    refused("generate", "a bag", "--model", model, "-o", tmp_path / "a.png")
    assert not mark.exists()


def test_importing_thg_opens_no_connection():
    code = "import socket; socket.socket.connect = None; import thg.cli.generate, thg.bench.runner; print('done')"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr
