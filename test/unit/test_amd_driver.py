"""The driver for AMD GPUs: what clang makes of a kernel, and how it is loaded and launched through a HIP runtime that records its calls."""

import ctypes
from pathlib import Path

import pytest
import torch

from amd_fakes import fake_gpu
from amd_forward import LOG2_E, arguments, forward_code, inputs
from amd_tools import needs_clang
from attn_mlir.backends import backend_for
from attn_mlir.backends.amd import clang, hip, launch
from attn_mlir.backends.amd.compile import HipBinary, compile_code, parse_log
from attn_mlir.backends.amd.launch import HipLauncher, readable
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.kernel import KernelCode, KernelParameter
from attn_mlir.backends.gpu.packing import PackedArguments, grid_of, values_of
from attn_mlir.backends.host import KernelGrid
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError

BINARY = HipBinary(b"\x7fELF code")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(tmp_path))


def unit(code: KernelCode) -> GpuKernel:
    return GpuKernel(KernelGrid(code.name, 128, "rows", 0, ("store", "store"), ((), ()), False), code, {}, ("f16", "f32"))


def small(*parameters: KernelParameter) -> GpuKernel:
    return unit(KernelCode("f", "f", "", parameters, 64, 0, language="hip", arch="gfx90a", flags=()))


@needs_clang
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
def test_clang_makes_code_without_spills(arch: str) -> None:
    code = KernelCode(**{**forward_code(64, True).__dict__, "arch": arch})
    binary = compile_code(code)
    assert binary.code.startswith(b"\x7fELF")
    assert (binary.spills, binary.scratch, binary.shared, binary.waves) == (0, 0, 32768, 2)
    assert 128 < binary.vgprs + binary.agprs <= 256 and binary.sgprs > 0
    assert compile_code(code) == binary  # from disk


@needs_clang
def test_a_source_that_clang_rejects() -> None:
    code = KernelCode("f", "f", "kernel", (), 64, 0, language="hip", arch="gfx90a", flags=())
    with pytest.raises(CompileError, match=r"clang rejects the kernel f \(source: .*hip\)"):
        compile_code(code)


def test_facts_in_clang_s_words() -> None:
    log = "k.hip:1:1: remark:     VGPRs: 300 [-R]\nremark:     AGPRs: 44 [-R]\nremark:     VGPRs Spill: 7 [-R]\nx: warning: odd\n"
    binary = parse_log(b"", log)
    assert (binary.vgprs, binary.agprs, binary.spills, binary.warnings) == (300, 44, 7, ("x: warning: odd",))
    assert "7 vector registers spilled" in binary.describe()


def test_no_clang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clang, "_candidates", lambda: iter(()))
    with pytest.raises(UnsupportedError, match="apt install clang-22 lld-22"):
        clang.find_clang()
    with pytest.raises(UnsupportedError, match="emulated with clang"):
        clang.find_host_clang()


def test_a_chosen_clang_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_MLIR_CLANG", "/nowhere/clang++")
    with pytest.raises(CompileError, match="/nowhere/clang"):
        clang.find_clang()


def test_a_launch() -> None:
    q, k, v = inputs(64, 256, heads=4, kv_heads=2)
    values = arguments(q, k, v)
    code = forward_code(64, True)
    with fake_gpu(len(code.parameters)) as gpu:
        launcher = HipLauncher(unit(code), BINARY, 0)
        launcher(values, range(3, 5))
        assert gpu.calls() == [
            "load ELF ",
            "function forward of 0x1000",
            "launch 0x2000 grid 2 4 1 block 256 1 1 shared 0 stream 0x4d extra (nil)",
        ]
        assert [gpu.value(i, ctypes.c_void_p) for i in range(5)] == [x.data_ptr() for x in values[:5]]  # type: ignore[union-attr]
        assert [gpu.value(i, ctypes.c_int) for i in (5, 6, 7)] == [256, 4, 2]
        assert gpu.value(8, ctypes.c_float) == pytest.approx(LOG2_E / 8)


def test_parameters_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tensors at the same place with the same sizes; what has to be copied is packed each time."""
    asked, packed = small(KernelParameter("pointer", 0, align=8), KernelParameter("scalar", 1, type="float")), []
    monkeypatch.setattr(launch, "values_of", lambda *given: packed.append(given) or values_of(*given))
    whole = torch.zeros(1, 2, 16, 32, dtype=torch.float16)
    with fake_gpu(2) as gpu:
        launcher = HipLauncher(asked, BINARY, 0)
        for tensor, number in ((whole, 0.5), (whole, 0.5), (whole[:, :, :8], 0.5), (whole, 0.5), (whole, 2.0)):
            launcher([tensor, number], range(0))
            assert gpu.value(0, ctypes.c_void_p) == whole.data_ptr()
            assert gpu.value(1, ctypes.c_float) == number
        for number in (0.0, -0.0, 0.0):
            launcher([whole, number], range(0))
            assert str(gpu.value(1, ctypes.c_float)) == str(number)
        assert len(packed) == 5
        for _ in range(2):
            launcher([whole[..., 1:25], 0.5], range(0))
        assert len(packed) == 7


def test_code_that_the_runtime_refuses() -> None:
    with fake_gpu(0, fails=209), pytest.raises(CompileError, match=r"hipModuleLoadData fails with error 209 .no kernel image is available"):
        HipLauncher(small(), BINARY, 0)


def test_tensors_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gpu(1):
        launcher = HipLauncher(small(KernelParameter("pointer", 0)), BINARY, 0)
        monkeypatch.setattr(hip, "index_of", lambda tensor: 1)
        with pytest.raises(ArgumentError, match="argument 0 of this kernel"):
            launcher([torch.zeros(1, 1, 1, 1)], range(0))
    monkeypatch.undo()


def test_no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hip, "_LIBRARIES", ("libnowhere.so",))
    hip.library.cache_clear()
    with pytest.raises(UnsupportedError, match=r"HIP runtime.*hip-emulated"):
        hip.library()
    hip.library.cache_clear()


def test_kernels_with_a_counter_are_refused() -> None:
    with fake_gpu(1), pytest.raises(UnsupportedError, match="counter"):
        HipLauncher(small(KernelParameter("counter")), BINARY, 0)


def test_rocm_s_cuda_is_the_amd_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    assert getattr(backend_for("cuda"), "name", "") == "nvidia"
    monkeypatch.setattr(torch.version, "hip", "6.4.0")
    assert getattr(backend_for("cuda"), "name", "") == "amd"


def test_what_a_kernel_cannot_read_is_copied() -> None:
    asked = small(KernelParameter("pointer", 0, align=8))
    whole = torch.arange(2 * 16 * 32, dtype=torch.float16).reshape(1, 2, 16, 32)
    for tensor, copied in (
        (whole, False),
        (whole[..., 1:25], True),  # address
        (whole[..., ::2], True),  # columns
        (whole.transpose(1, 2), False),
        (whole[:, :1].expand(1, 4, 16, 32), False),
        (whole[:, :, :1].expand(1, 2, 16, 32), True),  # rows that overlap
    ):
        made = readable(asked, [tensor])[0][0]
        assert (made.data_ptr() != tensor.data_ptr()) == copied
        assert torch.equal(made, tensor)
    assert readable(small(KernelParameter("pointer", 0)), [whole[..., ::2]])[0][0].data_ptr() == whole.data_ptr()


def test_the_argument_segment() -> None:
    tensor = torch.zeros(3, 5)
    parameters = (
        KernelParameter("size", 0, 0), KernelParameter("pointer", 0), KernelParameter("scalar", 1, -1, "float"),
        KernelParameter("stride", 0, 0, "long long"), KernelParameter("blocks"),
    )  # fmt: skip
    packed = PackedArguments(values_of(small(*parameters).code, [tensor, 0.5], 9))
    segment = packed.segment()
    assert len(segment) == 36
    assert int.from_bytes(segment[:4], "little") == 3
    assert int.from_bytes(segment[8:16], "little") == tensor.data_ptr()
    assert int.from_bytes(segment[24:32], "little") == 5
    assert int.from_bytes(segment[32:36], "little") == 9
    pointers = (ctypes.c_void_p * 5).from_address(packed.address)
    assert ctypes.c_float.from_address(pointers[2] or 0).value == 0.5


def test_numbers_and_grids_that_are_too_large() -> None:
    with pytest.raises(ArgumentError, match="32 bits"):
        values_of(small(KernelParameter("scalar", 0)).code, [1 << 31], 0)
    with pytest.raises(UnsupportedError, match="does not fit into one launch"):
        grid_of(small().code, 128, (1 << 16, 1, 1))
    assert grid_of(small().code, 128, (2, 3, 129)) == ((2, 3, 2), 2)
