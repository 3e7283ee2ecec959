"""The C++ program in examples/cpp is built by CMake, runs without Python, and finds the bits of Python; what does not fit it tells."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

_ROOT = Path(__file__).parents[2]
_MISSING = [name for name in ("cmake", "c++", "make") if shutil.which(name) is None]


@pytest.mark.skipif(bool(_MISSING), reason=f"needs {', '.join(_MISSING)}")
def test_example_gives_the_bits_of_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, build = tmp_path / "files", tmp_path / "build"
    found = importlib.util.spec_from_file_location("make_files", _ROOT / "examples/cpp/make_files.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    refused = subprocess.run(
        ["cmake", "-S", _ROOT / "examples/cpp", "-B", build, f"-DATTN_FILES={files}"], capture_output=True, text=True, check=False
    )
    assert refused.returncode and "invented.h" in refused.stderr
    assert module.main([str(files)]) == 0
    assert "11 arrays" in capsys.readouterr().out
    subprocess.run(["cmake", "-S", _ROOT / "examples/cpp", "-B", build, f"-DATTN_FILES={files}"], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", build], check=True, capture_output=True)
    for threads in ("1", "2"):
        ran = subprocess.run([build / "attention", files, threads], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert ran.stdout.count("the bits of Python") == 6
    wanted = np.load(files / "d_k.npy")
    wanted[1, 1, 300, 63] = np.nextafter(wanted[1, 1, 300, 63], np.float32(9))
    np.save(files / "d_k.npy", wanted)
    ran = subprocess.run([build / "attention", files], capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "d_k: DIFFERS" in ran.stdout
    np.save(files / "v.npy", np.zeros((2, 2, 300, 64), np.float32))
    ran = subprocess.run([build / "attention", files], capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and "error 3: v has 300 positions but k has 301" in ran.stderr
