"""browser/quantize.py: what the rounding does to weights, and that its price is measured right."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from random_models import random_model
from tokenizer_texts import TEXT, count_tokens

from browser.pack_model import pack_storyteller
from browser.quantize import DTYPES, int8_rows, pack, quality, rounded
from corpus.tokenizer import cut
from generation.backends import LocalBackend

SIZES = {"float32": 4, "float16": 2, "int8": 1}


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_weights_are_the_rounded_ones(dtype):
    """Read back by numpy, in the order and with the padding that the engine expects."""
    model = random_model(vocab_size=97, n_embd=36)  # rows of 36: some matrices need padding
    shapes, data = pack(model, dtype)
    at, parameters = 0, dict(rounded(model, dtype).named_parameters())
    assert [name for name, *_ in shapes] == list(parameters)

    def take(kind: str, *shape: int) -> np.ndarray:
        nonlocal at
        values = np.frombuffer(data, kind, math.prod(shape), at).reshape(shape)
        at += -(-values.nbytes // 4) * 4
        return values

    for name, *shape in shapes:
        if len(shape) == 1:
            found = take("<f4", *shape)
        elif dtype == "int8":
            scale = (take("<u2", shape[0]).astype(np.uint32) << 16).view(np.float32)
            found = scale[:, None] * take("i1", *shape)
        else:
            found = take({"float16": "<f2", "float32": "<f4"}[dtype], *shape).astype(np.float32)
        assert np.array_equal(found, parameters[name].detach().numpy()), name
    assert at == len(data) <= 1.2 * SIZES[dtype] * model.num_params() + 5000


def test_int8_is_wrong_by_half_a_step_at_most():
    weight = torch.randn(50, 64) * torch.logspace(-12, 3, 50)[:, None]
    weight[7] = 0
    rows, scale = int8_rows(weight)
    assert ((rows * scale[:, None].float() - weight).abs() <= 0.76 * scale[:, None].float()).all()  # 0.5, and the clamp
    assert rows.abs().amax(1)[8:].min() >= 126 and not rows[7].any()


def test_quality_is_what_the_formulas_say():
    model = random_model(vocab_size=97)
    ids = np.random.default_rng(0).integers(97, size=40).astype(np.uint16)
    counted, byte_lengths = np.arange(40) >= 10, np.arange(97) % 5 + 1
    found = quality(model, [(ids, counted)], byte_lengths)
    targets = torch.from_numpy(ids[10:].astype(np.int64))
    exact = model(torch.from_numpy(ids[None, :-1].astype(np.int64)))[0][0, 9:].detach()
    assert found["float32"]["kl"] == 0
    nats = F.cross_entropy(exact, targets, reduction="sum").item()
    assert found["float32"]["bpb"] == pytest.approx(nats / math.log(2) / byte_lengths[ids[10:]].sum(), rel=1e-5)
    coarse = rounded(model, "int8")(torch.from_numpy(ids[None, :-1].astype(np.int64)))[0][0, 9:].detach()
    expected = F.kl_div(coarse.double().log_softmax(-1), exact.double().softmax(-1), reduction="batchmean").item()
    assert found["int8"]["kl"] == pytest.approx(expected, rel=1e-3)
    assert 0 < found["float16"]["kl"] < found["int8"]["kl"]


def test_broken_weights_are_refused():
    model = random_model()
    model.ln_f.weight.data[3] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        pack(model, "int8")


def test_weights_too_large_for_float16_are_refused_and_its_row_left_out():
    model = random_model(vocab_size=300)
    model.wte.weight.data[3] = 7e4
    pack(model, "float32")
    with pytest.raises(ValueError, match="wte.weight: a weight of 7e.04 is too large for float16: --dtype float32"):
        pack(model, "float16")
    texts = [(np.arange(20), np.ones(20, dtype=bool))]
    facts, _ = pack_storyteller("hf:a model", LocalBackend(model, cut(count_tokens(TEXT), 300), []), "float32", texts)
    assert "float16" not in [row["dtype"] for row in facts["quality"]] and len(facts["quality"]) == 2
