"""Tiny models of the real classes, with tokenizers and processors, saved as the hub has them."""

import torch

WORDS = ["a", "dog", "cat", "barks", "red", "photo", "of", "the", "rain", "falls"]


def save_clip(folder):
    """A CLIPModel, its tokenizer and its image processor. Returns the folder."""
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

    torch.manual_seed(0)
    layer = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = CLIPConfig(
        text_config={**layer, **ids, "vocab_size": 64, "max_position_embeddings": 12, "projection_dim": 8},
        vision_config={**layer, "image_size": 24, "patch_size": 8, "projection_dim": 8},
        projection_dim=8,
    )
    CLIPModel(config).eval().save_pretrained(folder)
    save_clip_tokenizer(folder)
    CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}).save_pretrained(folder)
    return folder


def save_clip_tokenizer(folder):
    """Byte-pair encoding without merges: each word is its letters, the last one marked as such."""
    from transformers import CLIPTokenizer

    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    CLIPTokenizer(vocab=vocabulary, merges=[]).save_pretrained(folder)


def save_clap(folder):
    """A ClapModel with its processor: a Roberta tokenizer and the log-mel front end. Returns the folder."""
    from transformers import ClapConfig, ClapFeatureExtractor, ClapModel, ClapProcessor, RobertaTokenizer

    torch.manual_seed(0)
    config = ClapConfig(
        text_config={
            "vocab_size": 300,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "max_position_embeddings": 20,
        },
        audio_config={
            "spec_size": 64,
            "num_mel_bins": 16,
            "window_size": 4,
            "patch_size": 4,
            "patch_stride": [4, 4],
            "hidden_size": 16,
            "patch_embeds_hidden_size": 8,
            "depths": [1, 1],
            "num_hidden_layers": 2,
            "num_attention_heads": [2, 2],
            "num_classes": 3,
            "enable_fusion": False,
            "projection_dim": 8,
        },
        projection_dim=8,
    )
    model = ClapModel(config).eval()
    model.save_pretrained(folder)
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    letters = [*"abcdefghijklmnopqrstuvwxyz", *(f"Ġ{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"), "Ġ"]
    tokenizer = RobertaTokenizer(vocab={token: n for n, token in enumerate([*specials, *letters])}, merges=[])
    extractor = ClapFeatureExtractor(
        feature_size=16, sampling_rate=8000, hop_length=80, max_length_s=1, fft_window_size=256,
        frequency_min=50, frequency_max=4000, truncation="rand_trunc", padding="repeatpad",
    )  # fmt: skip
    ClapProcessor(feature_extractor=extractor, tokenizer=tokenizer).save_pretrained(folder)
    return folder
