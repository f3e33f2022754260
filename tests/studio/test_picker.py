"""Other models on the page: the shipped ones, and those below the folder of --models."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from tests.studio.browsing import expect, generate, set_up
from tests.studio.conftest import serve
from tests.studio.tiny import tiny_stable_diffusion
from tests.studio.wishes import finished, run_wish, stream
from thg.cli import main
from thg.models import SHIPPED
from thg.models.pretrained import Source
from thg.studio.engine import Engine
from thg.studio.model import Model, local_models

pytestmark = pytest.mark.filterwarnings("ignore:.*torch_dtype.*")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A folder as people have it: pipelines, single files, and other things."""
    folder = tmp_path_factory.mktemp("library")
    tiny_stable_diffusion().save_pretrained(folder / "mine" / "tiny")
    (folder / "files").mkdir()
    (folder / "files" / "broken.safetensors").write_bytes(b"nothing")
    (folder / "notes.txt").write_text("nothing")
    shutil.copytree(folder / "mine" / "tiny", folder / ".cache" / "tiny")
    return folder


@pytest.fixture(scope="module")
def choosing(library):
    source = Source("eps", device="cpu")
    with serve(Engine(Model.load(source), source, library)) as running:
        yield running


def test_pipelines_and_files_are_found_and_their_parts_are_not(library):
    assert local_models(library) == ["files/broken.safetensors", "mine/tiny"]


def test_a_model_is_chosen_by_its_name_in_the_list(choosing, library):
    with choosing.client() as client:
        names = client.get("/api/models").json()
        assert names == [*SHIPPED, "files/broken.safetensors", "mine/tiny"]
        finished(client, run_wish(steps=2))
        assert stream(client, "/api/model", {"name": "mine/tiny"})[-1][0] == "done"
        assert client.get("/api/model").json()["key"] == "mine/tiny"
        heard = finished(client, run_wish(steps=2))
        plain = next(data for name, data in heard if name == "side")
        assert "warming" in [name for name, _ in heard]
        assert not plain["remembered"]  # it was another model's
        assert (
            f"DiffusionPipeline.from_pretrained({str(choosing.engine._library / 'mine' / 'tiny')!r}"
            in heard[-1][1]["script"]
        )
        assert stream(client, "/api/model", {"name": "flow"})[-1][1]["steps"] == SHIPPED["flow"].steps


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("files/broken.safetensors", "is not a complete safetensors file"),
        ("../secret", "there is no model '../secret' here"),
        ("/etc", "there is no model '/etc' here"),
        ("some/hub-id", "there is no model 'some/hub-id' here"),
    ],
)
def test_the_present_model_stays_when_another_cannot_be_loaded(choosing, name, says):
    with choosing.client() as client:
        before = client.get("/api/model").json()["key"]
        last, data = stream(client, "/api/model", {"name": name})[-1]
        assert last == "failed"
        assert says in data["message"]
        assert client.get("/api/model").json()["key"] == before


def test_a_model_from_elsewhere_can_be_chosen_again(library):
    """With its options, which are not those of the others."""
    source = Source(str(library / ".cache" / "tiny"), device="cpu", dtype="float16", variant="fp16")
    engine = Engine(Model.load(replace(source, variant=None)), source, library / "mine")
    names = engine.models()
    assert list(names) == ["tiny", *SHIPPED]
    assert names["tiny"] == source
    assert names["emoji"] == Source("emoji", device="cpu", dtype="float16")


def test_without_a_way_to_load_there_is_nothing_to_choose(studio):
    with studio.client() as client:
        assert client.get("/api/models").json() == []
        assert stream(client, "/api/model", {"name": "emoji"})[-1][0] == "failed"


def test_a_folder_that_is_none(capsys, tmp_path):
    assert main(["studio", "--models", str(tmp_path / "none"), "--no-browser"]) == 2
    assert "there is no such folder" in capsys.readouterr().err


@pytest.mark.browser
def test_the_picker(opened, choosing, shots):
    page = opened(url=choosing.url)
    page.screenshot(path=shots / "picker.png")
    page.select_option("#models", "mine/tiny")
    expect(page.locator("#models")).to_have_value("mine/tiny")
    expect(page.locator("#model-name")).to_have_text("cpu")
    page.wait_for_selector("body[data-ready]")
    page.select_option("#models", "files/broken.safetensors")
    expect(page.locator("#status.bad")).to_contain_text("is not a complete safetensors file")
    expect(page.locator("#models")).to_have_value("mine/tiny")
    set_up(page, seed=3, steps=6)
    generate(page)
    page.close()
