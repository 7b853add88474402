"""Without a GPU: its path on fake CUDA tensors has the right devices and dtypes, and no step waits
for the device (tests/fake_gpu.py). Mistakes that are planted there are found."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # fake_gpu.cpp takes several seconds to compile
HERE = Path(__file__).parent
FORWARD_PASSES = 4  # of two steps: a window's mask is made once in each
MASK = "mask in visibility"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """{case: {what: times}}, but for the copies of the corpus"""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    library = tmp_path_factory.mktemp("fake_gpu") / "fake_gpu.so"
    torch = Path(importlib.util.find_spec("torch").origin).parent
    flags = ["-std=c++20", "-shared", "-fPIC", f"-I{torch}/include", f"-L{torch}/lib"]
    flags += ["-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch}/lib"]
    subprocess.run(["g++", HERE / "fake_gpu.cpp", "-o", library, *flags], check=True)
    command = [sys.executable, HERE / "fake_gpu.py", library]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    cases = json.loads(done.stdout.splitlines()[-1])
    for case in cases.values():
        case.pop("copy from the host in __init__", None)
    return cases


@pytest.mark.parametrize(
    "name, expected",
    [
        ("AdamW", {MASK: FORWARD_PASSES}),
        ("Muon", {MASK: FORWARD_PASSES}),
        ("dropout", {MASK: FORWARD_PASSES}),
        ("packed", {MASK: 2 * FORWARD_PASSES}),
        ("contrast", {MASK: 2 * FORWARD_PASSES, "copy from the host in training_loss": 1}),
        ("GPT-2", {}),
        ("compressor", {}),
        # products: two steps, 4 shapes, 5 iterations of 3
        (
            "float16",
            {
                MASK: FORWARD_PASSES,
                "wait in clip_and_update": 2,
                "float32 product in orthogonalized": 120,
            },
        ),
    ],
)
def test_a_step_has_no_wait_no_copy_and_no_product_in_float32(name, expected, found):
    assert found[name] == expected


def test_where_more_is_found_nothing_waits_but_once_in_an_evaluation(found):
    for name in ("float32", "evaluation", "resume", "decoder"):
        assert not any("Error" in what for what in found[name])
    assert not any("wait" in what or "copy" in what for what in found["float32"])
    waits = {what: n for what, n in found["evaluation"].items() if "wait" in what}
    assert waits == {"wait in evaluate": 1}
    assert not any("product" in what for what in found["evaluation"])


@pytest.mark.parametrize(
    "name, mistake",
    [
        ("wait", "wait in waiting"),
        ("data on the CPU", "FakeTensorDeviceMismatchError"),
        ("no autocast", "float32 product in add_mlp"),
        ("table from the host", "copy from the host in with_table"),
    ],
)
def test_planted_mistakes_are_found(name, mistake, found):
    assert any(what.startswith(mistake) for what in found[name])


def test_a_mask_for_each_layer_is_found(found):
    assert found["mask for each layer"][MASK] > FORWARD_PASSES
