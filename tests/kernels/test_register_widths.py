"""nanostories/kernels/*.cpp for narrower registers than this processor's: the same numbers come out
of every width."""

import functools
import platform

import pytest
import test_cross_entropy
import test_gelu
import torch
from random_models import random_model
from test_attention import (
    PRECISIONS,
    assert_as_written_out_in_all_shapes,
    assert_dropout_as_written_out,
)

from nanostories.generation.decoders import make_decoder
from nanostories.kernels import compile_cpp, cpu_features
from nanostories.kernels.cpu_features import InstructionSet

# "x86-64" has registers of four floats, as NEON.
CLASSES = {"x86-64": InstructionSet("x86-64", compiler_flags=["-march=x86-64"])}
for isa in cpu_features.X86:
    if isa.name in ("avx2", "avx512_bf16"):
        CLASSES[isa.name] = isa


@pytest.mark.parametrize("dtype, tolerance", PRECISIONS)
@pytest.mark.parametrize("isa", CLASSES.values(), ids=CLASSES)
def test_kernels_for_this_class_of_processors(monkeypatch, isa, dtype, tolerance):
    if platform.machine() != "x86_64" or cpu_features.instruction_set().name == isa.name:
        pytest.skip("not an x86 processor, or its own class, which all other tests run")
    if not all(torch.cpu.get_capabilities().get(name) for name in isa.needs):
        pytest.skip(f"this processor has no {isa.name}")
    monkeypatch.setattr(cpu_features, "instruction_set", lambda: isa)
    monkeypatch.setattr(compile_cpp, "library", functools.cache(compile_cpp.library.__wrapped__))
    if compile_cpp.library("cpu_cross_entropy") is None:
        pytest.skip("no C++ compiler that builds it")
    assert_as_written_out_in_all_shapes(6, dtype, tolerance)
    assert_dropout_as_written_out(6, dtype, tolerance)
    test_cross_entropy.assert_exact(*test_cross_entropy.random_inputs(5, 203), dtype, tolerance)
    test_gelu.assert_exact((5, 203), dtype, tolerance)
    check_decoding(dtype, tolerance)


@torch.inference_mode()
def check_decoding(dtype, tolerance):
    model = random_model()
    tokens = torch.randint(97, (2, 30))
    reference = model(tokens)[0][:, 10:]
    decoder = make_decoder(model, 2, 40, exact=dtype == torch.float32)
    for slot in range(2):
        decoder.read(slot, tokens[slot, :10].tolist())
    logits = [decoder.step([0, 1], tokens[:, t].tolist()).clone() for t in range(10, 30)]
    error = torch.stack(logits, dim=1) - reference
    assert error.norm() < 3 * tolerance * reference.norm()
