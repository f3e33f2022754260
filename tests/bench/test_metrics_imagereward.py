"""ImageReward on a tiny file with the authors' names, against the network written out from those names."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.bench.tiny_models import save_bert_tokenizer
from thg.bench.metrics import Batch
from thg.bench.metrics.imagereward import build_network, load_image_reward
from thg.errors import MissingExtraError

WIDTH, TEXT, PATCH, TOKENS = 128, 64, 8, 15


def tiny_file(path):
    """Two vision blocks of two heads, two text layers of one head, five linear layers, under the authors' names."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return 0.2 * torch.randn(*shape, generator=generator)

    def linear(name, outputs, inputs):
        return {f"{name}.weight": draw(outputs, inputs), f"{name}.bias": draw(outputs)}

    def norm(name, size):
        return {f"{name}.weight": 1 + draw(size), f"{name}.bias": draw(size)}

    vision = {
        "cls_token": draw(1, 1, WIDTH),
        "pos_embed": draw(1, 10, WIDTH),
        "patch_embed.proj.weight": draw(WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": draw(WIDTH),
        **norm("norm", WIDTH),
    }
    for n in range(2):
        block = f"blocks.{n}"
        vision |= norm(f"{block}.norm1", WIDTH) | norm(f"{block}.norm2", WIDTH)
        vision |= linear(f"{block}.attn.qkv", 3 * WIDTH, WIDTH) | linear(f"{block}.attn.proj", WIDTH, WIDTH)
        vision |= linear(f"{block}.mlp.fc1", 96, WIDTH) | linear(f"{block}.mlp.fc2", WIDTH, 96)
    text = {
        "embeddings.position_ids": torch.arange(40)[None],
        "embeddings.word_embeddings.weight": draw(TOKENS, TEXT),
        "embeddings.position_embeddings.weight": draw(40, TEXT),
        **norm("embeddings.LayerNorm", TEXT),
    }
    for n in range(2):
        layer = f"encoder.layer.{n}"
        for kind, inputs in (("attention", TEXT), ("crossattention", WIDTH)):
            text |= linear(f"{layer}.{kind}.self.query", TEXT, TEXT)
            text |= linear(f"{layer}.{kind}.self.key", TEXT, inputs) | linear(
                f"{layer}.{kind}.self.value", TEXT, inputs
            )
            text |= linear(f"{layer}.{kind}.output.dense", TEXT, TEXT) | norm(f"{layer}.{kind}.output.LayerNorm", TEXT)
        text |= linear(f"{layer}.intermediate.dense", 80, TEXT) | linear(f"{layer}.output.dense", TEXT, 80)
        text |= norm(f"{layer}.output.LayerNorm", TEXT)
    sizes = (TEXT, 32, 16, 8, 4, 1)
    head = {}
    for number, inputs, outputs in zip((0, 2, 4, 6, 7), sizes[:-1], sizes[1:], strict=True):
        head |= linear(str(number), outputs, inputs)
    tensors = {f"blip.visual_encoder.{k}": v for k, v in vision.items()}
    tensors |= {f"blip.text_encoder.{k}": v for k, v in text.items()} | {f"mlp.layers.{k}": v for k, v in head.items()}
    tensors |= linear("blip.vision_proj", 4, WIDTH)
    torch.save(tensors, path)
    return tensors


def by_hand(t, pixels, tokens, mask):
    """BLIP's image-grounded text encoder and the linear head, with nothing but tensor operations."""

    def linear(x, name):
        return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]

    def norm(x, name, eps):
        return F.layer_norm(x, x.shape[-1:], t[f"{name}.weight"], t[f"{name}.bias"], eps)

    def attend(q, k, v, allowed=None):
        def heads(x):
            return x.unflatten(-1, (-1, 64)).transpose(1, 2)

        scores = heads(q) @ heads(k).transpose(-1, -2) / 8
        if allowed is not None:
            scores = scores.masked_fill(allowed[:, None, None, :] == 0, -math.inf)
        return (scores.softmax(-1) @ heads(v)).transpose(1, 2).flatten(2)

    v = "blip.visual_encoder"
    x = F.conv2d(pixels, t[f"{v}.patch_embed.proj.weight"], t[f"{v}.patch_embed.proj.bias"], stride=PATCH)
    x = (
        torch.cat([t[f"{v}.cls_token"].expand(len(pixels), -1, -1), x.flatten(2).transpose(1, 2)], 1)
        + t[f"{v}.pos_embed"]
    )
    for n in range(2):
        block = f"{v}.blocks.{n}"
        q, k, value = linear(norm(x, f"{block}.norm1", 1e-6), f"{block}.attn.qkv").chunk(3, -1)
        x = x + linear(attend(q, k, value), f"{block}.attn.proj")
        x = x + linear(F.gelu(linear(norm(x, f"{block}.norm2", 1e-6), f"{block}.mlp.fc1")), f"{block}.mlp.fc2")
    seen = norm(x, f"{v}.norm", 1e-6)

    e = "blip.text_encoder.embeddings"
    words = t[f"{e}.word_embeddings.weight"][tokens] + t[f"{e}.position_embeddings.weight"][: tokens.shape[1]]
    y = norm(words, f"{e}.LayerNorm", 1e-12)
    for n in range(2):
        layer = f"blip.text_encoder.encoder.layer.{n}"
        for kind, source, allowed in (("attention", None, mask), ("crossattention", seen, None)):
            one = f"{layer}.{kind}.self"
            other = y if source is None else source
            mixed = attend(
                linear(y, f"{one}.query"), linear(other, f"{one}.key"), linear(other, f"{one}.value"), allowed
            )
            y = norm(y + linear(mixed, f"{layer}.{kind}.output.dense"), f"{layer}.{kind}.output.LayerNorm", 1e-12)
        inner = F.gelu(linear(y, f"{layer}.intermediate.dense"))
        y = norm(y + linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm", 1e-12)
    reward = y[:, 0]
    for number in (0, 2, 4, 6, 7):
        reward = linear(reward, f"mlp.layers.{number}")
    return (reward[:, 0] - 0.16717362830052426) / 1.0333394966054072


def test_network_by_hand(tmp_path):
    tensors = tiny_file(tmp_path / "ImageReward.pt")
    network = build_network(tensors, tmp_path / "ImageReward.pt").eval()
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(3, 3, 24, 24, generator=generator)
    tokens = torch.randint(0, TOKENS, (3, 9), generator=generator)
    mask = (torch.arange(9)[None] < torch.tensor([[9], [5], [2]])).long()
    with torch.no_grad():
        found, expected = network(pixels, tokens, mask), by_hand(tensors, pixels, tokens, mask)
    assert expected.std() > 0.01, "the case must tell pairs apart"
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_metric_from_files(tmp_path):
    tiny_file(tmp_path / "ImageReward.pt")
    tokenizer = save_bert_tokenizer(tmp_path / "bert")
    metric = load_image_reward(tmp_path / "ImageReward.pt", str(tokenizer))
    pictures = torch.rand(2, 3, 24, 24)
    together = metric.fresh()
    together.update(Batch(pictures, prompts=("a red dog", "the cat")))
    for picture, prompt in zip(pictures, ("a red dog", "the cat"), strict=True):
        metric.update(Batch(picture[None], prompts=(prompt,)))
    assert metric.compute() == pytest.approx(together.compute(), abs=1e-5)


def test_errors_say_what_is_missing(tmp_path):
    with pytest.raises(MissingExtraError, match="hf download THUDM/ImageReward"):
        load_image_reward(tmp_path / "ImageReward.pt")
    torch.save({"blip.visual_encoder.norm.weight": torch.zeros(2)}, tmp_path / "other.pt")
    tokenizer = save_bert_tokenizer(tmp_path / "bert")
    with pytest.raises(MissingExtraError, match="cls_token"):
        load_image_reward(tmp_path / "other.pt", str(tokenizer))
    with pytest.raises(MissingExtraError, match="absent-bert"):
        load_image_reward(tmp_path / "other.pt", "thg-tests/absent-bert")
