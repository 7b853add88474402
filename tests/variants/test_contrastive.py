"""The contrastive objective: what is shuffled, and what the loss is."""

import itertools
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizer_texts import SCRIPTS

from model import GPTNeo, GPTNeoConfig
from nanostories.corpus.tokenizer import GPT2_VOCAB_SIZE, cut, learn_bpe
from nanostories.variants.contrastive import Contrastive, sentence_ends, shuffle_sentences

TEXT = 'Once upon a time. Tom said, "Go!" He ran. "Why?" asked Mia. It rained'
STORIES = ["It ran. A dog sat. The cat hid! No one came.", TEXT, "One sentence."]


@pytest.fixture(scope="module")
def tokenizer():
    """With the tokens of these stories, the quotes that close a sentence among them."""
    gpt2_ids = cut(np.zeros(GPT2_VOCAB_SIZE), GPT2_VOCAB_SIZE).encode(" ".join(STORIES))
    return cut(np.bincount(gpt2_ids, minlength=GPT2_VOCAB_SIZE), 400)


@pytest.fixture(scope="module")
def tokens(tokenizer) -> torch.Tensor:
    """Two rows: the end of a story, three whole ones."""
    ends = [["cut off. " + end, *STORIES] for end in ("The end.", "He was gone.")]
    rows = [
        sum([[*tokenizer.encode(text), tokenizer.end_of_text] for text in texts], [])
        for texts in ends
    ]
    n = min(map(len, rows))
    return torch.tensor([row[:n] for row in rows])


def test_sentences_change_places_within_their_story(tokenizer, tokens):
    orders = set()
    for seed in range(200):
        keys = torch.rand(
            len(tokens), tokens.size(1) + 1, generator=torch.Generator().manual_seed(seed)
        )
        result = shuffle_sentences(tokens, sentence_ends(tokenizer), tokenizer.end_of_text, keys)
        assert torch.equal(result == tokenizer.end_of_text, tokens == tokenizer.end_of_text)
        before, after = (
            tokenizer.decode(x[0].tolist()).split("<|endoftext|>") for x in (tokens, result)
        )
        for a, b in zip(before, after):
            assert sorted(a) == sorted(b)
        assert after[3] == "One sentence."
        orders.add(after[1])
        for sentence in (' Tom said, "Go!"', ' "Why?"', " He ran.", " asked Mia.", " It rained"):
            assert sentence in after[2]  # a closing quote belongs to its sentence
    sentences = ["It ran.", " A dog sat.", " The cat hid!", " No one came."]
    assert orders == {"".join(order) for order in itertools.permutations(sentences)}


def test_sentences_end_in_other_scripts():
    tokenizer = learn_bpe(SCRIPTS, 500)
    for text, mark in zip(SCRIPTS[::2], "।."):
        ids = tokenizer.encode(text)
        assert sentence_ends(tokenizer)[ids].sum() == text.count(mark)


@pytest.fixture
def model() -> GPTNeo:
    torch.manual_seed(0)
    return GPTNeo(GPTNeoConfig(vocab_size=400, block_size=64, n_layer=2, n_head=2, n_embd=16))


def cross_entropy(model: GPTNeo, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs)[0].flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("n_windows", [1, 4, 16])
def test_as_published_a_third_of_the_stories_is_shuffled_and_read_alone(n_windows, model):
    """Stories of four sentences, of one word (2, 3, …) and a mark (1) each; 0 begins a story. Some
    windows cut them."""
    texts = [
        [0, *itertools.chain(*((word, 1) for word in range(i, i + 4)))] for i in range(2, 160, 4)
    ]
    tokens = torch.tensor(sum(texts, [])[: 21 * n_windows]).view(n_windows, 21)
    pieces = [re.split("(?<=.)(?=\0)", "".join(map(chr, row))) for row in tokens.tolist()]
    pieces = [
        {*map(ord, piece)} - {0, 1} for piece in sum(pieces, [])
    ]  # the words that a window holds of each story
    piece_of = {word: i for i, piece in enumerate(pieces) for word in piece}
    batches, drawn, first = [], set(), set()

    def loss_of(*batch):
        batches.append(batch)
        return model(*batch)[1]

    objective = Contrastive(loss_of, torch.arange(400) == 1, 0, 5.0)
    for seed in range(30):
        torch.manual_seed(seed)
        loss = objective(tokens[:, :-1], tokens[:, 1:])
        (inputs, targets), (x, y) = batches[-2:]
        assert inputs.equal(tokens[:, :-1]) and targets.equal(tokens[:, 1:])
        l_n, l_c = cross_entropy(model, inputs, targets), cross_entropy(model, x, y)
        torch.testing.assert_close(loss, l_n + 5 / (l_c + 0.01))
        words = torch.cat([x[:, :1].where(y[:, :1] >= 0, -100), y], dim=1).flatten().tolist()
        groups = [
            (i, [*group])
            for i, group in itertools.groupby((w for w in words if w > 1), piece_of.get)
        ]
        assert (
            len(groups) == round(0.33 * len(pieces)) or y[-1, -1] >= 0
        )  # a full window may cut the last one
        assert all(
            {*group} == pieces[i] and len(group) == len(pieces[i]) for i, group in groups[:-1]
        )
        drawn |= {i for i, _ in groups}
        first |= {group[0] % 4 for i, group in groups if len(pieces[i]) == 4}
    assert drawn == set(range(len(pieces))) and len(first) == 4
