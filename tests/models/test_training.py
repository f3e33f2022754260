"""The training code, run for real on a few hundred pictures."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests import forked
from tests.models.conftest import needs_dataset
from training import autoencoder, eps, evaluate, export, flow, judge, latents
from training.captions import caption, caption_words
from training.export import averaged_weights
from training.loop import save_atomically
from training.tokenizer import MAX_LENGTH, build_tokenizer

TINY = ["--limit", "300", "--batch", "4", "--threads", "1", "--checkpoint-every", "2"]


def stage(main, work: Path, steps: int) -> None:
    main(["--work", str(work), "--steps", str(steps), *TINY])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """A work folder with a barely trained autoencoder and its latents."""
    work = tmp_path_factory.mktemp("training")
    stage(autoencoder.main, work, 2)
    latents.main(["--work", str(work), "--limit", "300", "--threads", "1"])
    return work


@pytest.fixture(autouse=True)
def keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_caption_word_is_one_token():
    tokenizer = build_tokenizer()
    for word in caption_words():
        assert len(tokenizer(word).input_ids) == 3, word


def test_captions_fit_and_vary():
    tokenizer, dice = build_tokenizer(), random.Random(0)
    texts = [caption(number % 10, number % 3, dice) for number in range(500)]
    lengths = [len(tokens) for tokens in tokenizer(texts).input_ids]
    assert sum(length > MAX_LENGTH for length in lengths) < 5
    assert len(set(texts)) > 250


def test_padding_counted_is_the_padding_spelt_out():
    """One token that counts 256-fold gives what the pipeline computes with 256 zero tokens."""
    torch.manual_seed(0)
    model = flow.build_model(build_tokenizer())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tokens = build_tokenizer()(["a dark coat", ""], padding="max_length", return_tensors="pt").input_ids
    context, pooled = flow.encode(model, tokens)
    noisy, times = torch.randn(2, 4, 8, 8), torch.tensor([300.0, 900.0])
    inputs = {"pooled_projections": pooled, "timestep": times}
    with torch.inference_mode():
        spelt_out = torch.nn.functional.pad(context, (0, 0, 0, 255))
        expected = model["transformer"](noisy, encoder_hidden_states=spelt_out, **inputs).sample
        counted = flow.CountedPadding()
        counted.log_counts = torch.full((2,), 256.0).log()
        model["transformer"].set_attn_processor(counted)
        actual = model["transformer"](noisy, encoder_hidden_states=context, **inputs).sample
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@needs_dataset
def test_tones_are_thirds_with_unclear_borders(prepared):
    from safetensors.torch import load_file

    tones = load_file(prepared / "latents.safetensors")["tones"]
    counts = {tone: int((tones == tone).sum()) for tone in (-1, 0, 1, 2)}
    assert sum(counts.values()) == 300
    assert 0 < counts[-1] < 100
    assert min(counts[0], counts[1], counts[2]) > 50


@needs_dataset
def test_chain_from_pictures_to_report(prepared, tmp_path):
    for module in (judge, eps, flow):
        stage(module.main, prepared, 2)
    export.main(["--work", str(prepared), "--models", str(tmp_path)])
    for name, padding in (("eps", []), ("flow", ["--padding", "1"])):
        report, sheet = tmp_path / f"{name}.json", tmp_path / f"{name}.png"
        short = ["--per-garment", "1", "--steps", "1", "--limit", "200", *padding]
        where = ["--models", str(tmp_path), "--report", str(report), "--sheet", str(sheet)]
        evaluate.main(["--name", name, *short, *where])
        assert json.loads(report.read_text())["pictures"] == 10
        with Image.open(sheet) as picture:
            assert picture.size == (12 * 32 * 3, 10 * 32 * 3)


@needs_dataset
@pytest.mark.parametrize("module", [eps, flow], ids=["eps", "flow"])
def test_killed_and_resumed_run_ends_in_the_same_bytes(prepared, tmp_path, module):
    name = module.__name__.rpartition(".")[2]
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    for work in (straight, broken):
        work.mkdir()
        (work / "latents.safetensors").symlink_to(prepared / "latents.safetensors")
    stage(module.main, straight, 6)

    process = forked.start(tmp_path, stage, module.main, broken, 6)
    checkpoint = broken / f"{name}.ckpt.safetensors"
    while not checkpoint.exists():
        assert process.is_alive(), (tmp_path / "err.txt").read_text()
        time.sleep(0.005)
    process.kill()
    assert forked.finish(process) == -signal.SIGKILL
    assert not (broken / f"{name}.safetensors").exists()

    stage(module.main, broken, 6)
    assert (broken / f"{name}.safetensors").read_bytes() == (straight / f"{name}.safetensors").read_bytes()


def test_a_training_that_goes_on_after_an_end_is_exported_from_its_checkpoint(tmp_path):
    final, checkpoint = tmp_path / "a.safetensors", tmp_path / "a.ckpt.safetensors"
    save_atomically({"w": torch.zeros(1)}, final)
    save_atomically({"average.w": torch.ones(1), "model.w": torch.zeros(1)}, checkpoint)
    for newer, wanted in ((checkpoint, 1.0), (final, 0.0)):
        for path in (final, checkpoint):
            os.utime(path, (1000 + (path is newer),) * 2)
        assert averaged_weights(tmp_path, "a")["w"].tolist() == [wanted]
