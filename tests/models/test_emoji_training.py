"""The emoji model's training code, run for real on Debian's font."""

import random
from collections import Counter

import diffusers
import pytest
import torch
from safetensors.torch import load_file

from thg.models import load_folder
from thg.models.emoji_prompts import EMOJI_PROMPTS
from thg.models.judge import EmojiJudge, EmojiJudgeNetwork
from training.emoji import decoder, denoiser, export
from training.emoji.autoencoder import CHANNELS, DEVIATION, build_autoencoder, compute_encoder, encode, load_autoencoder
from training.emoji.batches import FAMILY_EXPONENT, RECOLOURED_SHARE, Batches, emoji_tokenizer, family_weights
from training.emoji.captions import caption, caption_words
from training.emoji.data import COLOURED, FONT, NAMES, as_floats, in_scope, load_emoji, read_names
from training.emoji.recolour import PAINTS, painted, recoloured
from training.loop import save_atomically
from training.tokenizer import MAX_LENGTH

needs_emoji = pytest.mark.skipif(
    not (FONT.is_file() and NAMES.is_file()), reason="needs the Debian packages fonts-noto-color-emoji and unicode-data"
)
pytestmark = needs_emoji


@pytest.fixture(autouse=True)
def keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def basic():
    return load_emoji("basic")


@pytest.fixture(scope="module")
def network(basic):
    network = build_autoencoder()
    compute_encoder(network, basic[1])
    return network


def test_names_are_taken_apart():
    firefighter = next(one for one in read_names() if one.full_name == "woman firefighter: dark skin tone")
    assert (firefighter.name, firefighter.tone, firefighter.gender) == ("woman firefighter", "dark", "woman")
    assert firefighter.family == "firefighter"
    assert firefighter.subgroup == "person-role"
    heart = next(one for one in read_names() if one.name == "blue heart")
    assert (heart.family, heart.held_out) == ("heart", False)


def test_pictures_are_the_font_s(basic):
    emoji, pictures = basic
    assert pictures.shape == (len(emoji), 3, 64, 64)
    shown = pictures[[one.name for one in emoji].index("red circle")]
    assert shown[:, 0, 0].tolist() == [255, 255, 255]
    red, green, blue = shown[:, 32, 32].tolist()
    assert red > 180 > 100 > max(green, blue)


@pytest.mark.parametrize(("scope", "least"), [("basic", 19), ("all", 48)])
def test_held_out_combinations_are_new_only_as_combinations(scope, least):
    """Each role, gender, tone, colour and shape of a held-out combination is seen in training."""
    emoji = [one for one in read_names() if in_scope(one, scope)]
    seen = [one for one in emoji if not one.held_out]
    families, pairs = {one.family for one in seen}, {(one.gender, one.tone) for one in seen}
    words = {word for one in seen for word in one.name.split()}
    held_out = [one for one in emoji if one.held_out]
    assert len(held_out) >= least
    for one in held_out:
        assert one.family in families
        assert (one.gender, one.tone) in pairs
        assert set(one.name.split()) <= words


def test_no_held_out_combination_is_drawn(tmp_path, network):
    save_atomically(network.encoder.state_dict(), tmp_path / "emoji_encoder.safetensors")
    batches = Batches(tmp_path, "basic", emoji_tokenizer())
    assert not any(one.held_out for one in batches.emoji)
    is_recoloured = torch.tensor([not one.characters for one in batches.emoji])
    share = batches.weights[is_recoloured].sum() / batches.weights.sum()
    assert share.item() == pytest.approx(RECOLOURED_SHARE, abs=1e-4)
    latents, tokens = batches.draw(3, torch.Generator().manual_seed(0))
    assert (latents.shape, tokens.shape) == ((3, CHANNELS, 16, 16), (3, MAX_LENGTH))


def test_a_recoloured_picture_has_the_colour_of_its_name_on_white(basic):
    emoji, pictures = basic
    chosen = [index for index, one in enumerate(emoji) if one.name in ("panda", "grinning face")]
    for colour in PAINTS.values():
        shown = painted(pictures[chosen], colour)
        assert shown[:, :, 0, 0].unique().tolist() == [255]
        distance = (shown - torch.tensor(colour)[:, None, None]).abs().amax(1)
        assert ((distance < 25).flatten(1).float().mean(1) > 0.05).all()


def test_recoloured_pictures_show_no_other_emoji_and_no_held_out_combination(basic):
    """Hearts, circles, squares and people keep their colours; "black cat" is an emoji of its own."""
    emoji, pictures = basic
    found, shown = recoloured(emoji, pictures)
    names = [one.name for one in found]
    assert len(shown) == len(names) == len(set(names)) > 1000
    assert {"blue panda", "purple fox", "large green diamond", "yellow triangle pointed up"} <= set(names)
    assert not set(names) & {one.name for one in read_names()}
    assert not [name for name in names if set(name.split()) & {*COLOURED, "artist", "teacher"}]
    assert all(len(set(name.split()) & set(PAINTS)) == 1 for name in names)
    assert {one.character_names for one in found} == {""}  # such as "panda face", which says nothing of blue


def test_families_are_drawn_more_evenly_than_pictures():
    emoji = [one for one in read_names() if in_scope(one, "core")]
    weights = family_weights(emoji)
    of_family: Counter[str] = Counter()
    for one, weight in zip(emoji, weights.tolist(), strict=True):
        of_family[one.family] += weight
    assert of_family["firefighter"] == pytest.approx(18**FAMILY_EXPONENT, rel=1e-5)
    assert of_family["unicorn"] == pytest.approx(1.0)


def test_captions_fit_and_their_words_are_tokens():
    emoji = [one for one in read_names() if in_scope(one, "all")]
    tokenizer, dice = emoji_tokenizer(), random.Random(0)
    texts = [caption(one, dice) for one in emoji]
    assert max(len(tokens) for tokens in tokenizer(texts).input_ids) <= MAX_LENGTH
    words = caption_words(emoji)
    assert {len(tokens) for tokens in tokenizer(words).input_ids} == {3}
    assert 0.05 < texts.count("") / len(texts) < 0.2


def test_encoder_is_the_principal_components_of_squares(basic, network):
    """No eight values of a square keep more of its variance; the latents have mean 0 and deviation 1."""
    pictures = basic[1]
    latents = encode(network, pictures)
    assert latents.mean().item() == pytest.approx(0.0, abs=1e-3)
    assert latents.std().item() == pytest.approx(1.0, abs=1e-2)
    assert network.config.scaling_factor == 1 / DEVIATION
    pixels = torch.nn.functional.pixel_unshuffle(as_floats(pictures), 4).movedim(1, 3).flatten(0, 2)
    values = latents.movedim(1, 3).flatten(0, 2)
    values = torch.cat([values, torch.ones(len(values), 1)], dim=1)
    rest = pixels - values @ torch.linalg.lstsq(values, pixels).solution
    least = torch.linalg.eigvalsh(torch.cov(pixels.T))[:-CHANNELS].sum()
    assert float(rest.square().sum(1).mean() / least) == pytest.approx(1.0, abs=1e-3)


def test_judge_ranks_by_likeness():
    torch.manual_seed(0)
    tokenizer = emoji_tokenizer()
    judge = EmojiJudge(EmojiJudgeNetwork(len(tokenizer), tokenizer.pad_token_id), tokenizer)
    pictures, captions = torch.rand(2, 3, 64, 64), ["red heart", "lion", "fox", "a nice lemon"]
    likeness = judge.network.of_pictures(pictures) @ judge.network.of_captions(judge.tokens(captions)).T
    order = likeness.argsort(dim=1, descending=True)
    asked = [int(order[0, 0]), int(order[1, 2])]
    assert judge.ranks(pictures, asked, captions).tolist() == [0, 2]


def test_example_prompts_are_names_of_the_basic_scope():
    seen = {one.full_name for one in read_names() if in_scope(one, "basic") and not one.held_out}
    assert set(EMOJI_PROMPTS) <= seen


def test_the_decoder_learns_from_latents_that_the_model_has_made(tmp_path):
    """From the shipped weights: they are near those of pictures, but not the same, and each stage can go on."""
    command = ["--work", str(tmp_path), "--threads", "1", "--batch", "3", "--checkpoint-every", "1", "--count", "4"]
    before = load_autoencoder(tmp_path).decoder.state_dict()
    decoder.main([*command, "--steps", "1"])
    made = load_file(tmp_path / "emoji_denoised.safetensors")
    assert (made["latents"].shape, made["of"].shape) == ((4, CHANNELS, 16, 16), (4,))
    batches = Batches(tmp_path, "basic", emoji_tokenizer())
    difference = (made["latents"] - batches.latents[made["of"]]).std().item()
    assert 0.05 < difference < 0.8
    once = load_autoencoder(tmp_path).decoder.state_dict()
    decoder.main([*command, "--steps", "2"])
    twice = load_autoencoder(tmp_path).decoder.state_dict()
    changed = [any((a[name] != b[name]).any() for name in a) for a, b in ((before, once), (once, twice))]
    assert changed == [True, True]


def test_places_that_show_something_else_are_left_out():
    real = torch.zeros(2, CHANNELS, 16, 16)
    made = real.clone()
    made[1, :, :, 8:] = 1.0
    faithful = decoder.faithful_places(made, real)
    assert faithful[0].all()
    assert faithful[1].any(0).nonzero().flatten().tolist() == list(range(6))  # the surroundings of others are wrong
    with pytest.raises(SystemExit, match="train it first"):
        decoder.faithful_places(real + 1, real)


def test_the_decoder_s_loss_counts_spots_more_than_shades_and_nothing_where_it_cannot_be_seen():
    pixels = torch.zeros(1, 3, 16, 16)
    pixels[:, :, :, 8:] = 1.0
    counted = torch.ones(1, 4, 4)
    shade = torch.zeros(1, 3, 16, 16)
    shade[:, :, 4:8, 2:6] = 0.1
    spots = 0.1 * (torch.arange(16)[:, None] + torch.arange(16)).remainder(2) * (shade > 0)
    losses = [float(decoder.restoration_loss(pixels + wrong, pixels, counted)) for wrong in (0, shade, spots)]
    assert losses[0] == 0.0 < losses[1] < losses[2]
    whiter = (pixels == 1) * 0.3
    assert float(decoder.restoration_loss(pixels + whiter, pixels, counted)) == 0.0
    assert float(decoder.restoration_loss(pixels - whiter, pixels, counted)) > 0.1
    assert float(decoder.restoration_loss(pixels - shade, pixels, torch.zeros(1, 4, 4))) == 0.0


def test_trained_model_is_exported_as_a_pipeline(tmp_path, network):
    """From two updates to a picture; training goes on from its checkpoint."""
    save_atomically(network.encoder.state_dict(), tmp_path / "emoji_encoder.safetensors")
    command = ["--work", str(tmp_path), "--scratch", "--threads", "1", "--batch", "2", "--checkpoint-every", "1"]
    denoiser.main([*command, "--steps", "1"])
    denoiser.main([*command, "--steps", "2"])
    export.main(["--work", str(tmp_path), "--models", str(tmp_path / "models")])
    pipe = load_folder(tmp_path / "models" / "emoji")
    assert type(pipe) is diffusers.StableDiffusionPipeline
    pipe.set_progress_bar_config(disable=True)
    picture = pipe("a red heart", num_inference_steps=2, guidance_scale=5.0).images[0]
    assert (picture.mode, picture.size) == ("RGB", (64, 64))
