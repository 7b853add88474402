"""Every text comes back to the byte, and a cut vocabulary is an ordinary, shorter BPE."""

import random

import numpy as np
import tokenizers
from tokenizer_texts import SCRIPTS, TEXT, count_tokens, random_text

from nanostories.corpus.tokenizer import (
    GPT2_VOCAB_SIZE,
    cut,
    gpt2,
    learn_bpe,
)


def test_every_text_comes_back_to_the_byte(any_tokenizer):
    """And several stories in one call have the ids of each, wherever <|endoftext|> is text."""
    rng = random.Random(0)
    many_spaces = f"a{' ' * 1_000_000}b{chr(10) * 1_000_000}c"
    texts = [many_spaces, *(random_text(rng) for _ in range(300))]
    stories = []
    for text in texts:
        ids = any_tokenizer.encode(text)
        assert any_tokenizer.decode_bytes(ids) == text.encode()
        assert any_tokenizer.end_of_text not in ids
        stories.append([*ids, any_tokenizer.end_of_text])
    for i in range(0, len(texts), 4):
        ids = any_tokenizer.encode_stories(texts[i : i + 4])
        assert ids.tolist() == sum(stories[i : i + 4], [])


def test_a_cut_has_as_many_ids_as_are_asked_for():
    for vocab_size in range(257, 350, 7):
        assert cut(count_tokens(TEXT), vocab_size).vocab_size == vocab_size
    ties = cut(np.zeros(GPT2_VOCAB_SIZE), 400)
    assert ties.vocabulary["tokens"] == gpt2().vocabulary["tokens"][:399]


def test_learning_gives_the_tokens_and_ids_of_tokenizers():
    """Its own byte-level BPE, which splits words as GPT-2 does: the same where no marks are."""
    reference = tokenizers.ByteLevelBPETokenizer()
    texts = [TEXT, SCRIPTS[1], SCRIPTS[3]]
    reference.train_from_iterator(texts, vocab_size=449, min_frequency=2)
    ours = learn_bpe(texts, 450)
    for text in texts:
        assert ours.encode(text) == reference.encode(text).ids
    assert learn_bpe(["A cat."], 1000).vocab_size == 257  # no pair is there twice


def test_marks_stay_within_their_words():
    tokenizer = learn_bpe(SCRIPTS, 500)
    tokens = [tokenizer.decode([i]) for i in tokenizer.encode("एक लड़की थी।")]
    assert tokens == ["एक", " लड़की", " थी", "।"]
