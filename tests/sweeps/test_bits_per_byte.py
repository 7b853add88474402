"""Bits per byte beside a naive scorer, and other architectures beside transformers."""

import math

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
SHAPE = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=48,
    vocab_size=258,
)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """(directory, model) as transformers wrote them: bytes are ids, and <s> comes before every
    text."""
    transformers = pytest.importorskip("transformers")
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate([*alphabet, "<s>", "</s>"])}
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.post_processor = tokenizers.processors.TemplateProcessing(
        "<s> $A", special_tokens=[("<s>", 256)]
    )
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("llama")
    config = transformers.LlamaConfig(**SHAPE, intermediate_size=64, initializer_range=0.3)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(directory)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<s>", eos_token="</s>"
    )
    fast.save_pretrained(directory)
    return directory, model


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
    directory, model = other
    backend = load_backend(open_model(f"hf:{directory}"))
    n_bytes = len("".join(STORIES).encode())
    encode = backend.tokenizer.tokenizer.encode  # with <s> before
    bits = [naive(model, [*encode(story), 257], 1, 48) for story in STORIES]
    stream = [257, *(i for story in STORIES for i in [*encode(story)[1:], 257])]
    assert len(stream) < 257  # one window for the other protocol
    measured = bits_per_byte(backend, STORIES)
    assert measured["bits per byte by stories"][0] == pytest.approx(sum(bits) / n_bytes, abs=1e-4)
    assert measured["bits per byte by windows of 256"] == pytest.approx(
        naive(model, stream, 1, 48) / n_bytes, abs=1e-4
    )


def test_what_is_no_such_model_is_one_line(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1
    )  # no heads, no context
    transformers.MambaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="transformers cannot load it") as error:
        load_backend(open_model(f"hf:{tmp_path}"))
    assert "\n" not in str(error.value)


def test_another_architecture_writes_as_transformers_does(other):
    directory, model = other
    backend, prompt = load_backend(open_model(f"hf:{directory}")), "Tom had"
    ids = torch.tensor([backend.encode(prompt)])
    greedy = dict(max_new_tokens=12, do_sample=False, eos_token_id=257)
    mask = torch.ones_like(ids)
    theirs = model.generate(ids, attention_mask=mask, **greedy)[0, ids.size(1) :]
    sampling = Sampling(temperature=0, max_new_tokens=12)
    ((_, text, _),) = backend.complete({(0, 0): prompt}, sampling)
    assert text == backend.tokenizer.decode(theirs[theirs != 257].tolist()) and text


def test_a_tokenizer_that_loses_text_is_refused(other):
    """One that lower-cases: its bits are not those of the text."""
    directory, _ = other
    tokenizer = load_backend(open_model(f"hf:{directory}")).tokenizer
    require_lossless(tokenizer, STORIES)
    encode = tokenizer.encode
    tokenizer.encode = lambda text: encode(text.lower())
    with pytest.raises(UserError, match=STORIES[0][:20]):
        require_lossless(tokenizer, STORIES)


def test_the_first_story_is_not_timed(monkeypatch):
    """It may wait for a compiler."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    class Writer:
        seconds = iter([100.0] + [2.0] * TIMED)

        def complete(self, wanted, sampling):
            now[0] += next(self.seconds)
            return []

    assert seconds_a_story(Writer(), STORIES[0]) == 2
