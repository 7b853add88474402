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
STEPS = ("AdamW", "Muon", "packed", "dropout", "GPT-2", "compressor", "contrast")
# what is found where nothing is wrong: a window's mask once in each of four forward passes
MASKS = {"AdamW": 4, "Muon": 4, "dropout": 4, "packed": 8, "contrast": 8}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """{case: {what: times}}"""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    library = tmp_path_factory.mktemp("fake_gpu") / "fake_gpu.so"
    torch = Path(importlib.util.find_spec("torch").origin).parent
    flags = ["-std=c++20", "-shared", "-fPIC", f"-I{torch}/include", f"-L{torch}/lib"]
    flags += ["-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch}/lib"]
    subprocess.run(["g++", HERE / "fake_gpu.cpp", "-o", library, *flags], check=True)
    command = [sys.executable, HERE / "fake_gpu.py", library]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def without_masks(case: dict) -> dict:
    """Without the copies of the corpus, either."""
    expected = ("mask in visibility", "copy from the host in __init__")
    return {what: n for what, n in case.items() if what not in expected}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_has_no_wait_no_copy_and_no_product_in_float32(name, found):
    assert without_masks(found[name]) == {}
    assert found[name].get("mask in visibility", 0) == MASKS.get(name, 0)


def test_float16_waits_once_a_step_and_float32_never(found):
    products = {"float32 product in orthogonalized": 120}  # two steps, 4 shapes, 5 iterations of 3
    assert without_masks(found["float16"]) == {"wait in train_step": 2} | products
    assert all(what.startswith("float32 product") for what in without_masks(found["float32"]))


def test_evaluation_waits_once(found):
    waits = {what: n for what, n in found["evaluation"].items() if "wait" in what}
    assert waits == {"wait in evaluate": 1}
    assert not any("product" in what for what in found["evaluation"])


@pytest.mark.parametrize(
    "name, mistake",
    [
        ("wait", "wait in waiting"),
        ("data on the CPU", "FakeTensorDeviceMismatchError"),
        ("sums on the CPU", "FakeTensorDeviceMismatchError"),
        ("momentum on the CPU", "FakeTensorDeviceMismatchError"),
        ("no autocast", "float32 product in add_mlp"),
        ("table from the host", "copy from the host in with_table"),
    ],
)
def test_planted_mistakes_are_found(name, mistake, found):
    assert any(what.startswith(mistake) for what in found[name])


def test_a_mask_for_each_layer_is_found(found):
    assert found["mask for each layer"]["mask in visibility"] > MASKS["AdamW"]


@pytest.mark.parametrize("name", ["resume", "decoder"])
def test_resuming_and_decoding_have_no_wrong_device(name, found):
    assert not any("Error" in what for what in found[name])
