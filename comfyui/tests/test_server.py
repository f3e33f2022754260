"""The real server: it loads the copied folder, lists the nodes, and runs the example workflows."""

import io
import json
import re

import pytest
import torch
from http_server import as_prompt
from PIL import Image
from sampling import CFG, psnr
from torch import tensor

EXAMPLES = ("text_to_image", "beside_plain_guidance")


def example(server, name, model, seed=42):
    """An example workflow, with a shipped model in place of the checkpoint and what fits it."""
    workflow = server.get(f"/api/workflow_templates/tortoise_hare_guidance/{name}.json")
    prompt = as_prompt(workflow, server.get("/object_info"))
    for node in prompt.values():
        if node["class_type"] == "CheckpointLoaderSimple":
            node.update(class_type="LoadShippedModel", inputs={"name": model})
        if node["class_type"] == "EmptyLatentImage":
            node["inputs"].update(width=64, height=64)
        if node["class_type"] == "CLIPTextEncode":
            node["inputs"]["text"] = "a dark ankle boot" if "lighthouse" in node["inputs"]["text"] else ""
        if node["class_type"] == "KSampler":
            node["inputs"].update(seed=seed, cfg=CFG[model])
            node["inputs"].update({} if model == "eps" else {"scheduler": "simple"})
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


def test_the_examples_are_among_the_templates(server):
    assert set(server.get("/workflow_templates")["tortoise_hare_guidance"]) == set(EXAMPLES)


@pytest.mark.parametrize("model", ["eps", "flow"])
def test_the_example_twice(server, model):
    pictures = []
    for seed in (42, 43):
        outputs = server.queue(example(server, "text_to_image", model, seed))
        (report,) = (out["text"][0] for out in outputs.values() if "text" in out)
        (image,) = (out["images"][0] for out in outputs.values() if "images" in out)
        saved = re.search(r"(\d+) network evaluations instead of 80 \((\d+)% saved", report)
        assert saved, report
        assert 30 <= int(saved[2]) <= 40, "about a third"
        assert report in server.log.read_text()
        pictures.append(picture(server, image))
        assert pictures[-1].std() > 0.1
    assert not torch.equal(*pictures)


@pytest.mark.parametrize("model", ["eps", "flow"])
def test_beside_plain_guidance(server, model):
    outputs = server.queue(example(server, "beside_plain_guidance", model))
    ours, plain = (picture(server, out["images"][0]) for _, out in sorted(outputs.items()) if "images" in out)
    found = psnr(ours, plain)
    print(f"{model} {found:.1f} dB")
    assert found > 30


def test_an_error_of_the_user_is_told(server):
    prompt = example(server, "text_to_image", "eps")
    node = next(node for node in prompt.values() if node["class_type"] == "TortoiseHareGuidance")
    node["inputs"]["steps"] = "0, two"
    with pytest.raises(AssertionError, match="is not a step; write it like"):
        server.queue(prompt)
    assert json.dumps(server.get("/queue")["queue_running"]) == "[]"
