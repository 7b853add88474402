"""Without a GPU: its path on fake CUDA tensors has the right devices and dtypes, and no step waits
for the device (tests/fake_gpu.py)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


@pytest.mark.slow  # fake_gpu.cpp takes several seconds to compile
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.skipif(torch.version.cuda is not None, reason="PyTorch for CUDA has its own hooks")
def test_no_wait_no_copy_no_product_in_float32_and_nothing_on_the_host(tmp_path):
    library = tmp_path / "fake_gpu.so"
    parts = Path(torch.__file__).parent
    flags = ["-std=c++20", "-shared", "-fPIC", f"-I{parts}/include", f"-L{parts}/lib"]
    flags += ["-lc10", "-ltorch_cpu", f"-Wl,-rpath,{parts}/lib"]
    subprocess.run(["g++", HERE / "fake_gpu.cpp", "-o", library, *flags], check=True)
    subprocess.run([sys.executable, HERE / "fake_gpu.py", library], check=True)
