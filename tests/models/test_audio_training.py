"""The training code of the sound model, run for real on a few sounds."""

import random
from pathlib import Path

import pytest
import torch

from thg.models.sounds import FRAMES, HOP, KINDS, SAMPLES, Sound, all_sounds
from training.audio import autoencoder, denoiser, latents, shipped, vocoder
from training.audio.captions import caption, caption_words
from training.audio.sounds import (
    DEBIAN_FONT,
    Player,
    columns,
    held_out,
    load_sounds,
    melodic_events,
    onsets,
    render,
    sound_of,
)
from training.audio.tokenizers import MAX_LENGTH, roberta_tokenizer, t5_tokenizer
from training.loop import save_atomically

TINY = ["--batch", "2", "--threads", "1", "--checkpoint-every", "1"]


@pytest.fixture(autouse=True)
def keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    """A folder of noise with captions, and no shipped weights to start from."""
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path / "none")
    monkeypatch.setattr(denoiser, "SHIPPED", tmp_path / "none")
    noise = torch.randint(-3000, 3000, (4, SAMPLES), generator=torch.Generator().manual_seed(0))
    sounds = torch.tensor([columns(sound) for sound in all_sounds()[::70]])
    save_atomically({"waves": noise.short(), "sounds": sounds}, tmp_path / "sounds.train.safetensors")
    return tmp_path


def test_a_stage_that_was_stopped_goes_on_to_the_same_weights(work):
    once, twice = work / "once", work / "twice"
    for folder in (once, twice):
        folder.mkdir()
        (folder / "sounds.train.safetensors").symlink_to(work / "sounds.train.safetensors")
    latent = ["--threads", "1"]
    autoencoder.main(["--work", str(once), "--steps", "2", *TINY])
    latents.main(["--work", str(once), *latent])
    (twice / "latents.safetensors").symlink_to(once / "latents.safetensors")
    denoiser.main(["--work", str(once), "--steps", "2", *TINY])
    with pytest.raises(KeyboardInterrupt):
        _stopped_after_one_step(["--work", str(twice), "--steps", "2", *TINY])
    denoiser.main(["--work", str(twice), "--steps", "2", *TINY])
    assert (once / "denoiser.safetensors").read_bytes() == (twice / "denoiser.safetensors").read_bytes()
    vocoder.main(["--work", str(once), "--steps", "1", *TINY])
    assert (once / "vocoder.safetensors").exists()


def _stopped_after_one_step(arguments: list[str]) -> None:
    """Run the denoiser's stage until its first checkpoint is written."""
    from training import loop

    write = loop._save_checkpoint

    def write_and_stop(*given):
        write(*given)
        raise KeyboardInterrupt

    loop._save_checkpoint = write_and_stop
    try:
        denoiser.main(arguments)
    finally:
        loop._save_checkpoint = write


def test_every_caption_word_is_one_token_and_captions_fit():
    roberta, t5 = roberta_tokenizer(), t5_tokenizer()
    for word in caption_words():
        if word.isalpha():
            assert len(roberta(word).input_ids) == 3, word
            assert len(t5(word).input_ids) == 2, word
    dice = random.Random(0)
    texts = [caption(dice.choice(all_sounds()), dice) for _ in range(300)]
    assert len(set(texts)) > 200
    assert max(map(len, roberta(texts).input_ids)) <= MAX_LENGTH
    unknown = t5.unk_token_id
    assert not any(unknown in ids for ids in t5(texts).input_ids)


def test_pitches_are_multiples_of_the_frame_rate_and_beats_are_even():
    dice = random.Random(1)
    for sound in all_sounds()[:264:7]:
        for _, _, keys in melodic_events(sound, sound.register, dice):
            cycles = [440 * 2 ** ((key - 69) / 12) * HOP / 16_000 for key in keys]
            assert cycles == pytest.approx([round(cycle) for cycle in cycles], abs=1e-6)
    slow, fast = onsets("slow", dice), onsets("fast", dice)
    assert len(fast) > 2 * len(slow) > 4
    assert max(slow + fast) < FRAMES


def test_held_out_combinations_are_a_tenth_and_rows_are_reversible():
    assert 20 <= len(held_out()) <= 30
    assert all(sound_of(columns(sound)) == sound for sound in all_sounds())


def test_missing_data_is_named(tmp_path):
    with pytest.raises(SystemExit, match="fluid-soundfont-gm"):
        Player(tmp_path / "none.sf2")
    with pytest.raises(SystemExit, match=r"training\.audio\.sounds"):
        load_sounds(tmp_path)


def test_rendered_notes_have_their_pitch():
    pytest.importorskip("tinysoundfont", reason="pip install tinysoundfont")
    if not DEBIAN_FONT.exists():
        pytest.skip("needs the Debian package fluid-soundfont-gm")
    note = Sound(8, 1, 1, KINDS.index("note"))  # a clarinet: clear harmonics
    waves = render(Player(DEBIAN_FONT), [note], 3, 0)["waves"].float() / 32767
    spectrum = torch.fft.rfft(waves[:, 4000:12000]).abs()
    peaks = spectrum.argmax(1) * 2.0
    assert torch.allclose(peaks, (peaks / 50).round() * 50, atol=4)
    assert waves.abs().amax(1).min() > 0.4
