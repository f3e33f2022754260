"""The tokenizer: CLIP's byte-level BPE with a vocabulary so small that each caption word is one token.

Any other text is cut into bytes, so an unknown word is never an error.
"""

from itertools import pairwise

from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPTokenizer

from training.captions import caption_words

MAX_LENGTH = 24
END = "</w>"


def _merge(pieces: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Byte-pair encoding: join the neighbouring pair of lowest rank until no pair is known."""
    while True:
        pairs = [pair for pair in pairwise(pieces) if pair in ranks]
        if not pairs:
            return pieces
        best = min(pairs, key=ranks.__getitem__)
        position = next(i for i in range(len(pieces) - 1) if (pieces[i], pieces[i + 1]) == best)
        pieces = [*pieces[:position], "".join(best), *pieces[position + 2 :]]


def build_merges(words: list[str]) -> list[tuple[str, str]]:
    """Merges that make each word one token.

    A word's own merges are put after all earlier ones, and the lowest rank is joined first, so no later word can
    disturb an earlier one.
    """
    ranks: dict[tuple[str, str], int] = {}
    for word in words:
        pieces = _merge([*word[:-1], word[-1] + END], ranks)
        while len(pieces) > 1:
            ranks[pieces[0], pieces[1]] = len(ranks)
            pieces = _merge(pieces, ranks)
    return list(ranks)


def build_tokenizer(words: list[str] | None = None) -> CLIPTokenizer:
    """A tokenizer with one token for each of these words; by default the tokenizer of both garment models."""
    letters = sorted(ByteLevel.alphabet())
    merges = build_merges(caption_words() if words is None else words)
    tokens = letters + [letter + END for letter in letters] + ["".join(pair) for pair in merges]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    for special in ("<|startoftext|>", "<|endoftext|>"):
        vocabulary[special] = len(vocabulary)
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=MAX_LENGTH)
