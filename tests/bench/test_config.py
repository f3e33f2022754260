"""Configurations: the shipped ones are sound; a wrong one is an error that names the key and the nearest known one."""

import copy
from pathlib import Path

import pytest

pytest.importorskip("diffusers", reason="the benchmark needs diffusers")

import thg
from thg.bench.config import SHIPPED_CONFIG, load_config, override, parse_config
from thg.bench.samples import load_pipeline, make_scheduler
from thg.bench.tables import ConfigError
from thg.errors import PlanError, ProfileError

ROOT = Path(__file__).parents[2]
TABLES = sorted((ROOT / "benchmarks").glob("*.toml"))

SMALL = {
    "title": "small",
    "steps": 10,
    "guidance_scale": 5.0,
    "count": 4,
    "model": {"source": "somewhere"},
    "prompts": {"file": "prompts.txt"},
    "methods": [{"name": "CFG", "policy": "cfg"}, {"name": "cache", "policy": "cfg-cache", "nfe": 14}],
}


def changed(path="", value=None, **top):
    """SMALL with one value changed; `path` is written as a.b or methods.1.nfe."""
    config = copy.deepcopy(SMALL) | top
    if path:
        *parents, last = path.split(".")
        place = config
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
        place[int(last) if isinstance(place, list) else last] = value
    return config


def parse(config):
    return parse_config(config, Path("/base"))


def test_the_small_one_is_sound():
    config = parse(SMALL)
    assert config.reference_method.name == "CFG"
    assert [method.steps for method in config.methods] == [10, 10]
    assert config.prompts.file == Path("/base/prompts.txt")
    assert config.batch_size == 16


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_configurations_of_the_papers_tables_are_sound(path):
    config = load_config(path)
    assert config.methods[0].paper or path.stem.startswith(("shipped", "figure", "converged"))


@pytest.mark.parametrize("name", ["eps", "flow", "emoji"])
def test_against_the_converged_result_thg_takes_the_steps_of_plan_for(name):
    config = load_config(ROOT / "benchmarks" / f"converged_{name}.toml")
    pipe = load_pipeline(config.model, "cpu")
    own = pipe.scheduler
    assert config.reference_method.steps == 250
    for method in config.methods:
        if method.policy != "cfg":
            pipe.scheduler = own if method.scheduler is None else make_scheduler(config.model_of(method), own.config)
            assert thg.plan_for(pipe, method.nfe, guidance_scale=config.guidance_scale)[0] == method.steps
    assert [m.nfe for m in config.methods[1:]] == [m.nfe for m in config.methods[1:] if m.nfe in (30, 40, 50, 60, 70)]


def test_each_table_of_the_paper_has_its_configuration():
    expected = {
        "sd15_ddim": (50, 7.5, 30_000, "DDIMScheduler"),
        "sd15_dpm_solver2": (50, 7.5, 30_000, "DPMSolverSinglestepScheduler"),
        "sd15_lms2": (50, 7.5, 30_000, "DEISMultistepScheduler"),
        "sd35_large": (28, 3.5, 1_000, None),
        "audioldm2": (50, 3.5, 2_230, "DDIMScheduler"),
        "ablation_boost": (50, 7.5, 30_000, "DDIMScheduler"),
        "ablation_rho": (50, 7.5, 30_000, "DDIMScheduler"),
        "ablation_guidance_scale": (50, 7.5, 30_000, "DDIMScheduler"),
        "equal_nfe": (50, 7.5, 30_000, "DDIMScheduler"),
    }
    configs = {path.stem: load_config(path) for path in TABLES}
    found = {
        name: (c.steps, c.guidance_scale, c.count, c.model.scheduler) for name, c in configs.items() if name in expected
    }
    assert found == expected


def test_budgets_of_the_papers_rows_are_the_papers_numbers():
    for path in TABLES:
        for method in load_config(path).methods:
            if method.nfe is not None and "nfe" in method.paper:
                assert method.nfe == method.paper["nfe"], (path.name, method.name)


def test_the_default_configuration_is_sound():
    config = load_config(SHIPPED_CONFIG)
    assert config.model.shipped == "eps"
    assert {method.policy for method in config.methods} >= {
        "cfg",
        "cfg-cache",
        "cfg-cache-fft",
        "selective-guidance",
        "guidance-interval",
        "adaptive-guidance",
        "thg",
        "uniform",
    }


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (changed(stpes=3), r"unknown key 'stpes'; did you mean 'steps'\?"),
        (changed("methods.0.scheduler_options", {"beta": 1}), "scheduler_options without a scheduler"),
        (changed("model.sheduler", "X"), r"unknown key 'sheduler' in model; did you mean 'scheduler'\?"),
        (changed("methods.1.interwal", 5), r"unknown key 'interwal' in methods 2; did you mean 'interval'\?"),
        (changed("methods.1.policy", "cfg-cash"), r"'cfg-cash'; did you mean 'cfg-cache'\?"),
        (changed("sheet.methods", ["cach"]), r"no method 'cach'; did you mean 'cache'\?"),
        (changed(metrics=["psnr", "fidd"]), r"no metric 'fidd'; did you mean 'fid'\?"),
        (changed(reference="CGF"), r"no method 'CGF'; did you mean 'CFG'\?"),
        (changed("networks.clip_scor", "x"), r"unknown key 'clip_scor' in networks; did you mean 'clip_score'\?"),
        (changed("packages.lpip", "x"), r"unknown key 'lpip' in packages; did you mean 'lpips'\?"),
        (changed(steps="many"), "steps must be a whole number, not 'many'"),
        (changed(steps=True), "steps must be a whole number, not True"),
        (changed(steps=0), "steps must be at least 1, not 0"),
        (changed(guidance_scale=1), "guidance_scale must be above 1, not 1"),
        (changed(guidance_scale=float("nan")), "guidance_scale must be finite"),
        (
            changed("methods.1", {"name": "t", "policy": "uniform", "nfe": 14, "corrector": float("nan")}),
            "methods 2.corrector must be finite",
        ),
        (changed(methods=[]), r"write one \[\[methods\]\]"),
        (changed(methods=[{"name": "a", "policy": "uniform", "nfe": 14}]), "no plain CFG"),
        (changed("methods.1.name", "cfg!"), "two methods are called"),
        (changed("methods.1.name", "…"), "letters or digits"),
        (changed("methods.1.nfe", "x"), "nfe must be a whole number"),
        (changed("methods.0.nfe", 1), "methods 1.nfe must be at least 2, not 1"),
        (changed("methods.1.interval", 1), "methods 2.interval must be at least 2, not 1"),
        (changed("model.shipped", "eps"), "model needs exactly one of"),
        (changed(prompts={}), "where are the prompts"),
        (changed("prompts.dataset", "x/y"), "not from both"),
        (changed("sheet.region", [1, 2]), "left, top, right, bottom"),
        (changed("methods.1", {"name": "t", "policy": "thg"}), "thg takes one of preset"),
        (changed("methods.1", {"name": "t", "policy": "adaptive-guidance"}), "exactly one of nfe = 70 and threshold"),
        (changed("methods", {"name": "t"}), "methods must be an array of tables"),
    ],
)
def test_a_wrong_configuration_is_an_error_that_teaches(config, says):
    with pytest.raises(ConfigError, match=says):
        parse(config)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (changed("methods.1.nfe", 10), "method 'cache': nfe=10 is 10 evaluations, but 10 steps need 11 to 20"),
        (
            changed("methods.1", {"name": "t", "policy": "thg", "preset": "sd15"}),
            "method 't': the plan is for 50 steps",
        ),
        (changed("methods.1", {"name": "t", "policy": "thg", "coarse": [0, 4], "nfe": 14}), "makes 12 evaluations"),
        (changed("methods.1", {"name": "t", "policy": "thg", "coarse": [1, 4]}), "must begin with 0"),
        (
            changed("methods.1", {"name": "t", "policy": "thg", "preset": "sd51"}),
            "method 't': there is no preset 'sd51'",
        ),
        (changed("methods.0.nfe", 15), "makes 14 evaluations in 7 steps, but its budget is nfe=15; write nfe=14"),
    ],
)
def test_a_budget_that_a_method_cannot_meet_is_an_error_before_anything_runs(config, says):
    with pytest.raises(PlanError, match=says):
        parse(config)


def test_a_missing_profile_is_an_error_before_anything_runs():
    method = {"name": "t", "policy": "thg", "rho": 1.1, "profile": "no.json"}
    with pytest.raises(ProfileError, match=r"/base/no.json"):
        parse(changed("methods.1", method))


def test_files_that_are_not_toml_name_the_file(tmp_path):
    file = tmp_path / "bad.toml"
    with pytest.raises(ConfigError, match=r"bad.toml: No such file"):
        load_config(file)
    file.write_text("steps = ")
    with pytest.raises(ConfigError, match=r"bad.toml is not valid TOML"):
        load_config(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bad.toml is not UTF-8"):
        load_config(file)
    file.write_text("stpes = 3\nsteps = 10\nguidance_scale = 2.0\ntitle = 'x'\n")
    with pytest.raises(ConfigError, match=r"bad.toml: "):
        load_config(file)


def test_the_identity_changes_with_the_pictures_and_with_nothing_else():
    config = parse(SMALL)
    same = [override(config, count=9, batch_size=2), parse(changed(metrics=["psnr"])), parse(changed(title="other"))]
    same += [parse(changed("methods.1.name", "renamed")), parse(changed("methods.1.interval", 5))]  # 5 is the default
    assert {c.identity() for c in same} == {config.identity()}
    others = [
        override(config, seed=1),
        parse(changed("methods.1.interval", 4)),
        parse(changed(steps=11)),
        parse(changed("model.dtype", "float16")),
        parse(changed("prompts.file", "others.txt")),
    ]
    assert len({c.identity() for c in [config, *others]}) == len(others) + 1


@pytest.mark.parametrize(("key", "value"), [("count", 0), ("batch_size", -1), ("seed", -1)])
def test_overrides_are_checked(key, value):
    with pytest.raises(ConfigError, match=f"{key} must be at least"):
        override(parse(SMALL), **{key: value})
