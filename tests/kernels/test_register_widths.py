"""nanostories/kernels/*.cpp for narrower registers than this processor's: the same numbers come out
of every width."""

import functools
import platform

import pytest
import torch
from random_models import random_model
from test_attention import SHAPES, assert_as_written_out, random_qkv, random_starts

from nanostories.generation.decoders import make_decoder
from nanostories.kernels import compile_cpp, cpu_features
from nanostories.kernels.cpu_features import InstructionSet
from nanostories.kernels.cross_entropy import cross_entropy_, pytorch_cross_entropy_

# "x86-64" has registers of four floats, as NEON.
CLASSES = {"x86-64": InstructionSet("x86-64", needs=[], compiler_flags=["-march=x86-64"])}
for isa in cpu_features.X86:
    if isa.name in ("avx2", "avx512_bf16"):
        CLASSES[isa.name] = isa


@pytest.fixture(params=CLASSES)
def processor(request, monkeypatch):
    """Kernels compiled for this class of processors."""
    isa = CLASSES[request.param]
    if platform.machine() != "x86_64" or cpu_features.instruction_set().name == isa.name:
        pytest.skip("not an x86 processor, or its own class, which all other tests run")
    if not all(torch.cpu.get_capabilities().get(name) for name in isa.needs):
        pytest.skip(f"this processor has no {isa.name}")
    monkeypatch.setattr(cpu_features, "instruction_set", lambda: isa)
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
            assert_as_written_out(qkv, window, starts, tolerance)


@DTYPES
def test_cross_entropy(processor, dtype, tolerance):
    logits = 5 * torch.randn(5, 203).to(dtype)
    targets = torch.tensor([3, 202, -100, 0, 17])
    reference = logits.clone()
    torch.testing.assert_close(
        cross_entropy_(logits, targets), pytorch_cross_entropy_(reference, targets)
    )
    torch.testing.assert_close(logits, reference, atol=tolerance, rtol=tolerance)


@DTYPES
@torch.inference_mode()
def test_decoding(processor, dtype, tolerance):
    model = random_model()
    tokens = torch.randint(97, (2, 30))
    reference = model(tokens)[0]
    decoder = make_decoder(model, 2, 40, exact=dtype == torch.float32)
    for slot in range(2):
        decoder.read(slot, tokens[slot, :10].tolist())
    logits = [decoder.step([0, 1], tokens[:, t].tolist()).clone() for t in range(10, 30)]
    error = torch.stack(logits, dim=1) - reference[:, 10:]
    assert error.norm() < 3 * tolerance * reference[:, 10:].norm()
