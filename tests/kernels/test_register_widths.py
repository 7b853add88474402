"""nanostories/kernels/*.cpp for narrower registers than this processor's: the same numbers come out
of every width."""

import functools
import platform

import pytest
import torch
from random_models import random_model
from test_attention import (
    SHAPES,
    assert_as_written_out,
    kernel_attention,
    random_qkv,
    random_starts,
)

from nanostories.generation.decoders import make_decoder
from nanostories.kernels import compile_cpp, cpu_features
from nanostories.kernels.attention import first_keys
from nanostories.kernels.cross_entropy import cross_entropy_, pytorch_cross_entropy_

CLASSES = {"x86-64": ["-march=x86-64"]}
CLASSES |= {
    isa.name: isa.compiler_flags.split()
    for isa in cpu_features.X86
    if isa.name in ("avx2", "avx512_bf16")
}


@pytest.fixture(params=CLASSES)
def processor(request, monkeypatch):
    """Kernels compiled for this class of processors; "x86-64" has registers of four floats, as
    NEON."""
    names = [isa.name for isa in cpu_features.X86]
    here = cpu_features.detected()
    if (
        platform.machine() != "x86_64"
        or request.param in names[names.index(here.name) if here else 0 :]
    ):
        pytest.skip(
            f"this processor has no {request.param}, or it is its own class, which all other"
            " tests run"
        )
    monkeypatch.setattr(cpu_features, "compiler_flags", lambda: CLASSES[request.param])
    monkeypatch.setattr(compile_cpp, "library", functools.cache(compile_cpp.library.__wrapped__))
    if compile_cpp.library("cpu_cross_entropy") is None:
        pytest.skip("no C++ compiler that builds it")
    torch.manual_seed(0)


DTYPES = pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)]
)


@DTYPES
@pytest.mark.parametrize("D", [6, 32])
def test_attention(processor, D, dtype, tolerance):
    for B, T, H, window in SHAPES:
        for starts in (None, random_starts(B, T, 20)):
            qkv = random_qkv(B, T, H, D).to(dtype)
            assert_as_written_out(
                kernel_attention, qkv, first_keys(T, window, "cpu", starts), tolerance
            )


@DTYPES
def test_cross_entropy(processor, dtype, tolerance):
    logits, targets = 5 * torch.randn(5, 203).to(dtype), torch.tensor([3, 202, -100, 0, 17])
    reference = logits.clone()
    torch.testing.assert_close(
        cross_entropy_(logits, targets), pytorch_cross_entropy_(reference, targets)
    )
    torch.testing.assert_close(logits, reference, atol=tolerance, rtol=tolerance)


@DTYPES
def test_decoding(processor, dtype, tolerance):
    model, tokens = random_model(), torch.randint(97, (2, 30))
    with torch.no_grad():
        decoder, (reference, _) = (
            make_decoder(model, 2, 40, exact=dtype == torch.float32),
            model(tokens),
        )
    for slot in range(2):
        decoder.read(slot, tokens[slot, :10].tolist())
    logits = torch.stack(
        [decoder.step([0, 1], tokens[:, t].tolist()).clone() for t in range(10, 30)], dim=1
    )
    assert (logits - reference[:, 10:]).norm() < 3 * tolerance * reference[:, 10:].norm()
