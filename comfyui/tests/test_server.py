"""The real server: it loads the copied folder, lists the nodes, and runs the example workflows."""

import io
import json
import re
import urllib.parse

import pytest
import torch
from comfy.latent_formats import LatentFormat
from http_server import EXAMPLES, as_prompt
from PIL import Image
from sampling import CFG, EMOJI, PROMPTS, psnr
from torch import tensor


def example(server, name, model, seed=42):
    """An example workflow, with a shipped model in place of the checkpoint and what fits it."""
    if model == "emoji" and not hasattr(LatentFormat, "spacial_downscale_ratio"):
        pytest.skip("this version of ComfyUI takes eight pixels for each latent for granted")
    prompt = as_prompt(server.example(name), server.get("/object_info"))
    for node in prompt.values():
        if node["class_type"] == "CheckpointLoaderSimple":
            node.update(class_type="LoadShippedModel", inputs={"name": model})
        if node["class_type"] == "EmptyLatentImage":
            node["inputs"].update(width=64, height=64)
        if node["class_type"] == "CLIPTextEncode":
            prompt_of_model = EMOJI[0] if model == "emoji" else PROMPTS[0]
            node["inputs"]["text"] = prompt_of_model if "lighthouse" in node["inputs"]["text"] else ""
        if node["class_type"] == "KSampler":
            node["inputs"].update(seed=seed, cfg=CFG[model])
            node["inputs"].update({"scheduler": "simple"} if model == "flow" else {})
    return prompt


def picture(server, found):
    query = "&".join(f"{key}={found[key]}" for key in ("filename", "subfolder", "type"))
    with Image.open(io.BytesIO(server.get(f"/view?{query}"))) as image:
        return tensor(list(image.convert("L").tobytes())).reshape(1, 1, *image.size[::-1]) / 255


def test_the_nodes_are_listed(server):
    nodes = server.get("/object_info")
    assert nodes["TortoiseHareGuidance"]["display_name"] == "Tortoise and Hare Guidance"
    assert nodes["TortoiseHareReport"]["output"] == ["LATENT", "STRING"]
    assert nodes["TortoiseHareReport"]["output_node"]
    assert "IMPORT FAILED: tortoise" not in server.log.read_text()


def test_searches_find_the_nodes_and_the_examples(server):
    """The page looks for templates by their names, and for nodes by their names and these words."""
    nodes = server.get("/object_info")
    if not any("search_aliases" in node for node in nodes.values()):
        pytest.skip("this version of ComfyUI finds nodes by their names alone")
    for word in ("tortoise", "faster", "speed", "cfg"):
        assert all(word in name.lower() for name in EXAMPLES)
        assert all(word in nodes[name]["search_aliases"] for name in ("TortoiseHareGuidance", "TortoiseHareReport"))


def test_the_examples_are_among_the_templates(server):
    assert set(server.get("/workflow_templates")["tortoise_hare_guidance"]) == set(EXAMPLES)


@pytest.mark.parametrize("model", ["emoji", "eps", "flow"])
def test_the_example_twice(server, model):
    pictures = []
    for seed in (42, 43):
        outputs = server.queue(example(server, EXAMPLES[0], model, seed))
        (report,) = (out["text"][0] for out in outputs.values() if "text" in out)
        (image,) = (out["images"][0] for out in outputs.values() if "images" in out)
        saved = re.match(r"(\d+)% saved", report)
        assert saved, report
        assert 40 <= int(saved[1]) <= 60, "about half"
        assert report in server.log.read_text()
        pictures.append(picture(server, image))
        assert pictures[-1].std() > 0.1
    assert not torch.equal(*pictures)


@pytest.mark.parametrize("model", ["emoji", "eps", "flow"])
def test_beside_a_plain_run(server, model):
    outputs = server.queue(example(server, EXAMPLES[1], model))
    ours, plain = (picture(server, out["images"][0]) for _, out in sorted(outputs.items()) if "images" in out)
    found = psnr(ours, plain)
    print(f"{model} {found:.1f} dB")
    assert found > 30


def test_an_error_of_the_user_is_told(server):
    prompt = example(server, EXAMPLES[0], "eps")
    node = next(node for node in prompt.values() if node["class_type"] == "TortoiseHareGuidance")
    for steps, told in (("0, two", "is not a step; write it like"), ("0-999999999", "goes beyond step 9999")):
        node["inputs"]["steps"] = steps
        with pytest.raises(AssertionError, match=told):
            server.queue(prompt)
    assert json.dumps(server.get("/queue")["queue_running"]) == "[]"


def test_a_report_belongs_to_its_sampler(server):
    """The same run on the plain model, with a report node of its own, has none."""
    off = "ask for every evaluation"  # the latents are equal, bit for bit
    for seed, preset, said in ((44, "off", off), (45, "fast", "saved")):
        prompt = example(server, EXAMPLES[1], "eps", seed)
        plain = next(key for key, node in prompt.items() if node["inputs"].get("model") == ["1", 0] and key != "5")
        prompt["report"] = {"class_type": "TortoiseHareReport", "inputs": {"samples": [plain, 0]}}
        prompt["5"]["inputs"]["preset"] = preset
        outputs = server.queue(prompt)
        assert said in outputs["8"]["text"][0]
        assert outputs["report"]["headline"] == ["no report"]


def test_help_pages_and_translations(server):
    nodes = server.get("/object_info")
    own = {name: node for name, node in nodes.items() if name.startswith("TortoiseHare")}
    translations = server.get("/i18n")
    for name, node in own.items():
        page = server.get(f"/extensions/tortoise_hare_guidance/docs/{name}.md").decode()
        inputs = {*node["input"].get("required", {}), *node["input"].get("optional", {})}
        assert all(f"`{key}`" in page for key in inputs)
        for language in ("de", "zh"):
            assert set(translations[language]["nodeDefs"][name]["inputs"]) == inputs


def test_examples_have_pictures(server):
    for name in EXAMPLES:
        path = urllib.parse.quote(f"/api/workflow_templates/tortoise_hare_guidance/{name}.jpg")
        with Image.open(io.BytesIO(server.get(path))) as image:
            assert min(image.size) >= 200
