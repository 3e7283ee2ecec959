"""Projects of attn-generate for GPUs: nvcc and clang build them; that for AMD runs, interpreted, on a libamdhip64 of the tests."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from ahead_hip_calls import load
from amd_tools import needs_clang, needs_objdump
from attn_mlir.backends.amd.clang import find_clang
from attn_mlir.backends.nvidia.compile import find_nvcc
from generate_calls import Library, build, generated, needs_cmake
from generate_hip import TRAITS, run
from machine_code import needs_nvcc
from processes import pool

_INSTANCE = ("--filter", "fmha_fwd_d32_fp16_batch_bhsd_softmax_nlogits_nbias_mtlr_lse_ndropout")
_FAKE = Path(__file__).parents[1] / "Inputs" / "fake_hip.c"
_C = shutil.which("cc") or shutil.which("gcc")


@needs_cmake
@needs_nvcc
def test_nvcc_builds_a_library_that_asks_for_its_driver(tmp_path: Path) -> None:
    manifest = generated(tmp_path, *_INSTANCE, "--target", "cuda:90a")
    build(tmp_path, tmp_path / "build", f"-DATTN_COMPILER={find_nvcc()}")
    library = Library(tmp_path / "build/libattn_fmha.so", device_type=2)
    assert library.find(**TRAITS) == manifest["instances"][0]["name"]
    assert library.find(**{**TRAITS, "dtype": "bf16"}) == "" and "has dtype 'fp16' (not 'bf16')" in library.message()
    q, k, v = torch.randn(3, 1, 2, 21, 32).half()
    assert library.sizes(TRAITS, backward=False, q=q, k=k, v=v).backward_workspace == 0
    if not torch.cuda.is_available():
        code, text = library.call("fwd", TRAITS, q=q, k=k, v=v, o=torch.empty_like(q), lse=torch.empty(1, 2, 21))
        assert code == 10 and "libcuda" in text


@needs_cmake
@needs_clang
@needs_objdump
@pytest.mark.skipif(_C is None, reason="needs a C compiler")
def test_clang_builds_a_library_whose_kernels_agree_with_float64(tmp_path: Path) -> None:
    """Grouped heads, odd lengths, fully masked rows: the embedded code object runs instruction by instruction."""
    generated(tmp_path / "sources", *_INSTANCE, "--target", "hip:gfx90a")
    build(tmp_path / "sources", tmp_path / "build", f"-DATTN_COMPILER={find_clang()}")
    runtime = tmp_path / "libamdhip64.so"
    subprocess.run([str(_C), "-shared", "-fPIC", "-w", "-Wl,-soname,libamdhip64.so", str(_FAKE), "-o", str(runtime)], check=True)
    with pool(load, runtime) as process:
        for found, right in process.submit(run, tmp_path / "build/libattn_fmha.so").result():
            torch.testing.assert_close(found, right, atol=2e-3, rtol=2e-3)
