"""The two tokenizers, with vocabularies so small that each caption word is one token; other words become letters."""

import string

from transformers import RobertaTokenizer, T5Tokenizer

from training.audio.captions import caption_words

MAX_LENGTH = 24
SPACE = "Ġ"
"""How RoBERTa's byte-level vocabulary writes the space before a word."""


def roberta_tokenizer() -> RobertaTokenizer:
    """For CLAP's text tower. A word is joined letter by letter from its start, so words cannot disturb each other."""
    letters = [*string.ascii_letters, *string.digits, *string.punctuation, SPACE]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *letters]
    merges: dict[tuple[str, str], None] = {}
    for word in caption_words():
        start = SPACE
        for letter in word:
            merges[start, letter] = None
            start += letter
    tokens += ["".join(pair) for pair in merges]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    return RobertaTokenizer(vocab=vocabulary, merges=list(merges), add_prefix_space=True, model_max_length=MAX_LENGTH)


def t5_tokenizer() -> T5Tokenizer:
    """For T5: whole words are more likely than their letters."""
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0)]
    words = [(f"▁{word}", -2.0) for word in caption_words()] + [(sign, -2.0) for sign in (",", "-", "hat")]
    letters = [(letter, -6.0) for letter in string.ascii_letters + string.digits]
    pieces = list(dict([*special, *words, *letters]).items())
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=MAX_LENGTH)
