"""How often a run finds a true story likelier than the same in another order."""

import itertools
import json

import numpy as np
import pytest
import torch
from conftest import settings

import probe
from common.statistics import wilson
from corpus.preparation import prepare
from corpus.tokenizer import GPT2_VOCAB_SIZE, cut
from grading.sentence_order import ORDERS, leads, with_other_order
from model import GPTNeo, GPTNeoConfig
from train import train
from training.config import TrainConfig
from variants.contrastive import sentence_ends

STORY = "It ran. A dog sat. The cat hid! No one came."
TEXT = 'Once upon a time. Tom said, "Go!" He ran. "Why?" asked Mia. It rained'
STORIES = [STORY, TEXT, "One sentence."]


@pytest.fixture(scope="module")
def tokenizer():
    """With the tokens of these stories, the quotes that close a sentence among them."""
    gpt2_ids = cut(np.zeros(GPT2_VOCAB_SIZE), GPT2_VOCAB_SIZE).encode(" ".join(STORIES))
    return cut(np.bincount(gpt2_ids, minlength=GPT2_VOCAB_SIZE), 400)


def small_model() -> GPTNeo:
    torch.manual_seed(0)
    return GPTNeo(GPTNeoConfig(vocab_size=400, block_size=64, n_layer=2, n_head=2, n_embd=16))


def other_orders(story: str, order: str, tokenizer) -> set[str]:
    """What comes of the seeds, without the true order beside it."""
    texts = set()
    for seed in range(100):
        true, other = with_other_order(story, order, tokenizer, sentence_ends(tokenizer), 64, seed)
        assert tokenizer.decode(true.tolist()) == f"<|endoftext|>{story}<|endoftext|>"
        texts.add(tokenizer.decode(other.tolist()))
    return texts


def test_the_other_order_is_another(tokenizer):
    rest = [" A dog sat.", " The cat hid!", " No one came."]
    permutations = [f"<|endoftext|>It ran.{''.join(order)}<|endoftext|>" for order in itertools.permutations(rest)]
    assert other_orders(STORY, "shuffled", tokenizer) == set(permutations[1:])
    assert other_orders(STORY, "swapped", tokenizer) == {permutations[1], permutations[2]}  # two neighbors


@pytest.mark.parametrize("order", ORDERS)
def test_a_story_without_another_order(order, tokenizer):
    ends = sentence_ends(tokenizer)
    assert with_other_order("It ran. A dog sat.", order, tokenizer, ends, 64, 0) is None  # the first one stays
    assert with_other_order("It ran. It ran. It ran.", order, tokenizer, ends, 64, 0) is None
    assert with_other_order("It ran and ran and ran and ran.", order, tokenizer, ends, 4, 0) is None


def test_a_long_story_is_cut_after_a_sentence(tokenizer):
    n = len(tokenizer.encode("It ran. A dog sat. The cat hid! No"))
    true, other = with_other_order(STORY, "swapped", tokenizer, sentence_ends(tokenizer), n, 0)
    assert tokenizer.decode(true.tolist()) == "<|endoftext|>It ran. A dog sat. The cat hid!"
    assert tokenizer.decode(other.tolist()) == "<|endoftext|>It ran. The cat hid! A dog sat."


def test_leads_are_those_of_the_losses(tokenizer):
    model, ends = small_model().eval(), sentence_ends(tokenizer)
    for order in ORDERS:
        of_stories = leads(model, tokenizer, [*STORIES, STORIES[0]], order)
        assert len(of_stories) == 3  # one of them is a single sentence
        for seed, story in ((0, STORIES[0]), (1, TEXT), (3, STORIES[0])):
            pair = with_other_order(story, order, tokenizer, ends, 64, seed)
            true, other = (model(x[None, :-1], x[None, 1:])[1].item() for x in pair)
            assert of_stories.pop(0) == pytest.approx(other - true, abs=1e-5)


def test_probe_py_measures_every_run_below_a_directory(tmp_path, command_line):
    texts = [f"Tom had a {thing}. It was {i}. Mia came. Tom ran home." for i in range(30) for thing in ("hat", "cat")]
    prepare(tmp_path / "data" / "tiny", ["tests"], texts[8:], texts[:8], vocab_size=300)
    for name in "ab":
        train(TrainConfig(**settings(tmp_path / "data", tmp_path) | dict(name=name, block_size=64, max_steps=2)), False)
    probe_py = command_line(probe, tmp_path)
    code, printed = probe_py("out", "--sentence_order", "--markdown")
    assert code == 0 and printed.out.splitlines()[-1] == "wrote orders.json in each run"
    for name in "ab":
        result = json.loads((tmp_path / "out" / name / "orders.json").read_text())
        assert list(result) == list(ORDERS)
        for order, r in result.items():
            assert list(r) == ["share", "low", "high", "stories", "lead"] and r["stories"] == 8
            assert (r["low"], r["high"]) == wilson(r["share"], 8)
            line = (
                f"| out/{name} | {order} | {r['share']:.1%} [{r['low']:.1%}, {r['high']:.1%}] | 8 | {r['lead']:.3f} |"
            )
            assert line in printed.out.splitlines()
    assert not list(tmp_path.rglob("probe*"))
    assert (
        "hf:nowhere: --sentence_order needs a run of train.py"
        in probe_py("--model", "hf:nowhere", "--sentence_order")[0]
    )
