"""Bits per byte beside a naive scorer, and other architectures beside transformers."""

import math
import shutil
from types import SimpleNamespace

import pytest
import torch

from nanostories.checkpoints.models import open_model
from nanostories.cli import UserError
from nanostories.generation.backends import load_backend
from nanostories.generation.prompts import Sampling
from nanostories.sweeps.bits_per_byte import (
    TIMED,
    bits_per_byte,
    require_lossless,
    seconds_a_story,
)

STORIES = [
    "A cat sat. It was happy.",
    "Tom had a big red ball!",
    "One day, Sue saw a café. " * 6,
    "The end.",
]


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """(directory, model) as transformers wrote them, and our backend: tokens are bytes, and <s>
    comes before every text."""
    transformers = pytest.importorskip("transformers")
    import tokenizers

    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator([], vocab_size=258, special_tokens=["</s>", "<s>"])
    bpe.post_processor = tokenizers.processors.TemplateProcessing(
        "<s> $A", special_tokens=[("<s>", 1)]
    )
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("llama")
    config = transformers.LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=48,
        vocab_size=258,
        intermediate_size=64,
        initializer_range=0.3,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(directory)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, bos_token="<s>", eos_token="</s>"
    )
    fast.save_pretrained(directory)
    return directory, model, load_backend(open_model(f"hf:{directory}"))


@torch.no_grad()
def naive(model, stream, first, context):
    """Bits of stream[first:], one token at a time; windows begin half a context after one
    another."""
    bits = 0.0
    for j in range(first, len(stream)):
        start = 0
        while j > start + context:
            start = min(start + context // 2, len(stream) - 1 - context)
        logits = model(torch.tensor([stream[start:j]])).logits[0, -1]
        bits -= torch.log_softmax(logits.double(), -1)[stream[j]].item() / math.log(2)
    return bits


def test_bits_per_byte_equal_a_naive_scorer_over_transformers(other):
    _, model, backend = other
    n_bytes = len("".join(STORIES).encode())
    encode = backend.tokenizer.tokenizer.encode  # with <s> before
    texts = [[*encode(story), 0] for story in STORIES]
    bits = [naive(model, text, 1, 48) for text in texts]
    stream = [0, *(i for text in texts for i in text[1:])]
    assert len(stream) < 257  # one window for the other protocol
    (mean, _, _), by_windows = bits_per_byte(backend, STORIES).values()
    assert mean == pytest.approx(sum(bits) / n_bytes, abs=1e-4)
    assert by_windows == pytest.approx(naive(model, stream, 1, 48) / n_bytes, abs=1e-4)


@pytest.mark.parametrize(
    "name, old, new",
    [
        ("tokenizer.json", b"{", b""),
        ("config.json", b'"hidden_size": 32', b'"hidden_size": 16'),
        ("model.safetensors", b"model.norm", b""),
    ],
)
def test_what_transformers_cannot_load_is_one_line(other, tmp_path, name, old, new):
    shutil.copytree(other[0], tmp_path, dirs_exist_ok=True)
    good = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(good.replace(old, new, 1))
    with pytest.raises(UserError, match=r"transformers cannot load it: [^\n]+\Z"):
        load_backend(open_model(f"hf:{tmp_path}"))


def test_a_model_without_heads_is_one_line(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1)
    transformers.MambaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="transformers cannot load it"):
        load_backend(open_model(f"hf:{tmp_path}"))


def test_another_architecture_writes_as_transformers_does(other):
    _, model, backend = other
    ids = torch.tensor([backend.encode("Tom had")])
    theirs = model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=0)
    theirs = theirs[0, ids.size(1) :].tolist()
    sampling = Sampling(temperature=0, max_new_tokens=12)
    ((_, text, finished),) = backend.complete({(0, 0): "Tom had"}, sampling)
    assert finished == (0 in theirs)
    assert text == backend.decode([i for i in theirs if i]) and text


def test_a_tokenizer_that_loses_text_is_refused():
    """One that lower-cases: its bits are not those of the text."""
    with pytest.raises(UserError, match=STORIES[0][:20]):
        require_lossless(SimpleNamespace(encode=str.lower, decode=str), STORIES)


def test_the_first_story_is_not_timed(monkeypatch):
    """It may wait for a compiler."""
    now = [0.0]
    durations = iter([100.0] + [2.0] * TIMED)
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def complete(wanted, sampling):
        now[0] += next(durations)
        return []

    assert seconds_a_story(SimpleNamespace(complete=complete), STORIES[0]) == 2
