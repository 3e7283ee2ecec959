"""The NVIDIA driver without a GPU: launches and their parameters, copies, the cache, errors. A fake libcuda records what it is told."""

import ctypes
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir import driver
from attn_mlir.backends import disk_cache
from attn_mlir.backends.host import Argument, Host, Kernel, Result, Step
from attn_mlir.backends.nvidia import codegen, cuda, launch, pipeline, units
from attn_mlir.backends.nvidia import compile as nvcc
from attn_mlir.backends.nvidia import driver as nvidia
from attn_mlir.backends.nvidia.compile import Binary
from attn_mlir.backends.nvidia.kernel import KernelCode, Parameter
from attn_mlir.backends.nvidia.launch import Launcher
from attn_mlir.backends.nvidia.program import NvidiaProgram
from attn_mlir.backends.nvidia.units import Unit
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError
from nvidia_fakes import FakeCuda, fake_gpu, naive_emitter, parameter

SOFTMAX = (Path(__file__).parent.parent / "Inputs" / "causal-softmax.mlir").read_text()
HALF = SOFTMAX.replace("x64xf32", "x64xf16")
BINARY = Binary(b"ELF", 40, 0, 0, 0)


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Programs, descriptors and files of one test are not those of another."""
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(tmp_path / "cache"))
    for module, name in ((nvidia, "_PROGRAMS"), (nvidia, "_KERNELS"), (launch, "_MAPS"), (launch, "_COUNTERS")):
        monkeypatch.setattr(module, name, {})


@pytest.fixture
def gpu() -> Iterator[FakeCuda]:
    with fake_gpu() as fake:
        yield fake


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """nvcc is not asked."""
    monkeypatch.setattr(nvcc, "_run", lambda *_: BINARY)


def code(*parameters: Parameter, **more: Any) -> KernelCode:
    return KernelCode("f", "f", "", parameters, more.pop("threads", 128), more.pop("shared_bytes", 0), **more)


def kernel(grid: str = "rows", over: int = 0, outputs: tuple[str, ...] = ("store",), **more: Any) -> Kernel:
    return Kernel("f", 128, grid, over, outputs, more.get("disjoint", ((),) * len(outputs)), False)


def launcher(*parameters: Parameter, over: int = 0, **more: Any) -> Launcher:
    return Launcher(kernel(over=over), code(*parameters, **more), BINARY, torch.device("cpu"), 0)


def heads(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def test_parameters_of_every_kind(gpu: FakeCuda) -> None:
    x, rows = heads(2, 3, 300, 64), torch.zeros(2, 3, 300)
    run = launcher(
        Parameter("pointer", 1), Parameter("size", 0, 2), Parameter("stride", 0, 1, "long long"), Parameter("scalar", 2, type="float"),
        Parameter("scalar", 3, type="int"), Parameter("blocks"), Parameter("descriptor", 0, type="", box=(64, 128)),
    )  # fmt: skip
    run([x, rows, 0.25, 7])
    (made,) = gpu.named("cuLaunchKernelEx")
    assert made["grid"] == (3, 3, 2) and made["threads"] == 128 and made["stream"] == 77
    kinds = (ctypes.c_uint64, ctypes.c_int, ctypes.c_longlong, ctypes.c_float, ctypes.c_int, ctypes.c_int)
    values = [parameter(made, number, kind) for number, kind in enumerate(kinds)]
    assert values == [rows.data_ptr(), 300, 300 * 64, 0.25, 7, 3]
    pointers = (ctypes.c_void_p * 7).from_address(made["parameters"])
    assert pointers[6] % 128 == 0 and ctypes.string_at(pointers[6], 128) == bytes([7]) * 128


def test_descriptors(gpu: FakeCuda) -> None:
    """Innermost dimension first; strides in bytes; dimensions of one element have a stride that the copy engine accepts."""
    x = heads(1, 5, 3, 64).transpose(1, 2)
    run = launcher(Parameter("descriptor", 0, box=(32, 16), swizzle=64))
    run([x])
    (made,) = gpu.named("cuTensorMapEncodeTiled")
    assert made == {
        "type": 6, "address": x.data_ptr(), "dims": [64, 5, 3, 1], "strides": [384, 128, 16], "box": [32, 16, 1, 1], "swizzle": 2,
    }  # fmt: skip
    run([x])
    launcher(Parameter("descriptor", 0, box=(32, 16), swizzle=64))([x])
    assert len(gpu.named("cuTensorMapEncodeTiled")) == 1 and len(gpu.named("cuLaunchKernelEx")) == 3
    other = heads(1, 3, 5, 64, dtype=torch.bfloat16)
    run([other])
    assert gpu.named("cuTensorMapEncodeTiled")[1]["type"] == 9


def test_sums_of_all_chunks_are_described_as_one_tensor(gpu: FakeCuda) -> None:
    sums = torch.zeros(2, 3, 40, 64).expand(4, 2, 3, 40, 64)
    launcher(Parameter("descriptor", 0, box=(32, 64)), over=1)([sums, heads(2, 3, 40, 64)])
    (made,) = gpu.named("cuTensorMapEncodeTiled")
    assert made["type"] == 7 and made["dims"] == [64, 40, 3, 2] and made["strides"] == [256, 40 * 256, 120 * 256]


@pytest.mark.parametrize(
    "view",
    [
        lambda: heads(2, 3, 8, 128)[..., ::2],
        lambda: heads(2 * 3 * 8 * 64 + 1)[1:].view(2, 3, 8, 64),
        lambda: heads(2, 3, 8, 67)[..., :64],
        lambda: heads(1, 1, 1, 1).expand(2, 3, 8, 64),
        lambda: heads(2, 3, 8, 100),
    ],
    ids=["columns apart", "misaligned", "rows of odd length", "one number", "columns no multiple of 8"],
)
def test_what_the_copy_engine_cannot_read_is_copied(gpu: FakeCuda, view: Any) -> None:
    x = view()
    run = launcher(Parameter("descriptor", 0, box=(64, 8)), Parameter("pointer", 0), Parameter("stride", 0, 2))
    for _ in range(2):  # each time anew, as the elements may have changed
        run([x])
    for made, described in zip(gpu.named("cuLaunchKernelEx"), gpu.named("cuTensorMapEncodeTiled"), strict=False):
        assert parameter(made, 0, ctypes.c_char) and parameter(made, 1, ctypes.c_uint64) != x.data_ptr()
        assert all(stride % 16 == 0 for stride in described["strides"])
    copied = launch.tiled_copy(x)
    assert torch.equal(copied, x) and launch.is_tiled(copied) and not launch.is_tiled(x)


def test_pointers_take_any_strides(gpu: FakeCuda) -> None:
    x = heads(2, 3, 8, 128)[..., ::2]
    run = launcher(Parameter("pointer", 0), Parameter("stride", 0, 3))
    run([x])
    (made,) = gpu.named("cuLaunchKernelEx")
    assert parameter(made, 0, ctypes.c_uint64) == x.data_ptr() and parameter(made, 1, ctypes.c_int) == 2


def test_grids(gpu: FakeCuda) -> None:
    q = heads(2, 3, 1000, 64)
    launcher(Parameter("pointer", 0), grid="persistent")([heads(1, 2, 300, 64)])
    launcher(Parameter("pointer", 0), grid="persistent", cluster=2)([heads(8, 16, 1000, 64)])
    launcher(Parameter("pointer", 0), cluster=2)([q[:, :, :300]])
    launcher(Parameter("pointer", 0), Parameter("pointer", 1), over=1)([heads(1, 1, 1, 64), q])
    made = gpu.named("cuLaunchKernelEx")
    assert [each["grid"] for each in made] == [(6, 1, 1), (132, 1, 1), (4, 3, 2), (8, 3, 2)]
    assert [each["cluster"] for each in made] == [1, 2, 2, 1]
    with pytest.raises(UnsupportedError, match="parts of the batch"):
        launcher(Parameter("pointer", 0))([torch.empty(70000, 1, 1, 64, dtype=torch.float16)])


def test_programs_that_cannot_be_counted(gpu: FakeCuda) -> None:
    many = torch.empty(1, dtype=torch.float16).expand(30000, 30000, 300, 64)
    with pytest.raises(ArgumentError, match="30000 with 30000 heads of 300 rows does not fit into one launch"):
        launcher(Parameter("counter"), grid="persistent")([many])
    assert not gpu.named("cuLaunchKernelEx")


@pytest.mark.parametrize(
    ("argument", "shape", "message"),
    [
        (1, (1, 2, 1 << 24, 64), r"argument 1 of this program, of shape \[1, 2, 16777216, 64\], has 16777216 positions, .* up to 16773120"),
        (0, (1, 1 << 15, 4, 64), "has 32768 heads"),
        (0, (1 << 15, 2, 4, 64), "has 32768 batches"),
        (2, (1 << 31,), "has 2147483648 elements along dimension 0, .* up to 2147483647"),
    ],
)
def test_tensors_that_are_too_large(gpu: FakeCuda, argument: int, shape: tuple[int, ...], message: str) -> None:
    inputs = [heads(1, 2, 4, 64), heads(1, 2, 4, 64), torch.zeros(5)]
    inputs[argument] = torch.zeros(1, dtype=inputs[argument].dtype).expand(shape)
    program = backward("accumulate", {})
    for _ in range(2):
        with pytest.raises(ArgumentError, match=message):
            program.run(inputs)
    assert not gpu.calls


def test_shared_memory(gpu: FakeCuda) -> None:
    launcher(Parameter("pointer", 0), shared_bytes=200_000)([heads(1, 1, 1, 64)])
    ((_, attribute, size),) = gpu.named("cuFuncSetAttribute")
    assert (attribute, size) == (8, 200_000) and gpu.named("cuLaunchKernelEx")[0]["shared"] == 200_000
    with pytest.raises(UnsupportedError, match="NVIDIA Fake"):
        launcher(Parameter("pointer", 0), shared_bytes=300_000)


def test_a_counter_for_each_stream(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    run = launcher(Parameter("counter"), Parameter("pointer", 0))
    x = heads(1, 1, 1, 64)
    used = []
    for stream in (1, 2, 1):
        monkeypatch.setattr(cuda, "current_stream", lambda index, stream=stream: stream)
        run([x])
        used.append(parameter(gpu.named("cuLaunchKernelEx")[-1], 0, ctypes.c_uint64))
    assert used[0] == used[2] != used[1] and [counter.item() for counter in launch._COUNTERS.values()] == [0, 0]
    monkeypatch.setattr(cuda, "is_capturing", lambda: True)
    monkeypatch.setattr(launch, "_counter", lambda *_: pytest.fail("a graph has a counter of its own"))
    run([x])
    assert len(gpu.named("cuLaunchKernelEx")) == 4


def test_numbers_that_do_not_fit(gpu: FakeCuda) -> None:
    run = launcher(Parameter("pointer", 0), Parameter("scalar", 1, type="int"))
    with pytest.raises(ArgumentError, match="must fit into 32 bits"):
        run([heads(1, 1, 1, 64), 2**40])


def test_tensors_in_other_places(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    run = launcher(Parameter("pointer", 0), Parameter("pointer", 1))
    monkeypatch.setattr(cuda, "index_of", lambda tensor: -1 if tensor.dim() == 1 else 0)
    with pytest.raises(ArgumentError, match="argument 1 of this kernel is on cpu"):
        run([heads(1, 1, 1, 64), torch.zeros(3)])


def test_errors_of_the_driver() -> None:
    words = r"loading the kernel f: CUDA_ERROR_NO_BINARY_FOR_GPU \(209\).*another GPU"
    with fake_gpu(cuModuleLoadData=209), pytest.raises(cuda.CudaError, match=words):
        launcher(Parameter("pointer", 0))
    with fake_gpu(cuLaunchKernelEx=701), pytest.raises(cuda.CudaError, match="launching a kernel"):
        launcher(Parameter("pointer", 0))([heads(1, 1, 1, 64)])


def test_a_thread_without_a_context_enters_it(gpu: FakeCuda) -> None:
    run = launcher(Parameter("pointer", 0))
    gpu.failing["cuLaunchKernelEx"] = 201
    with pytest.raises(cuda.CudaError):  # the fake never gets one
        run([heads(1, 1, 1, 64)])
    assert [name for name, _ in gpu.calls][-5:-2] == ["cuLaunchKernelEx", "cuCtxSetCurrent", "cuLaunchKernelEx"]


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(UnsupportedError, match="no NVIDIA driver"):
        cuda.library.__wrapped__()


def test_import_needs_no_gpu() -> None:
    program = "import attn_mlir.backends.nvidia.driver as d; print(d.current_target().arch)"
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"CUDA_VISIBLE_DEVICES": ""})
    assert made.stdout == "sm_90a\n"


def test_targets() -> None:
    def device(*capability: int) -> cuda.Device:
        return cuda.Device(0, "GPU", (capability[0], capability[1]), 1, 1)

    assert [nvidia.target_of(device(*c)).arch for c in ((9, 0), (8, 0), (8, 9), (10, 0))] == ["sm_90a", "sm_80", "sm_80", "sm_80"]
    with pytest.raises(UnsupportedError, match="older"):
        nvidia.target_of(device(7, 5))


def test_a_program(gpu: FakeCuda, compiled: None) -> None:
    """The whole way, with a code generator for one program."""
    with naive_emitter():
        found = driver.compile(HALF, "cuda")
        assert driver.compile(HALF, "cuda") is found
        q, k, v = heads(2, 4, 100, 64), heads(2, 2, 70, 64), heads(2, 2, 70, 64)
        o, lse = found.run(q, k, v, [])
        stages = found.stages()
    assert o.shape == q.shape and o.dtype == torch.float16 and lse.shape == (2, 4, 100) and lse.dtype == torch.float32
    (made,) = gpu.named("cuLaunchKernelEx")
    assert made["grid"] == (1, 4, 2) and parameter(made, 3, ctypes.c_uint64) == o.data_ptr()
    assert next(iter(stages)) == "traced" and "extern" in stages["cuda"] and '"tile.dot"' in stages["attn-tile"]


def test_the_short_way(gpu: FakeCuda, compiled: None) -> None:
    """The same inputs again need no plan; what a kernel is told is the same."""
    q, k, v = heads(1, 2, 100, 64), heads(1, 2, 100, 64), heads(1, 2, 100, 64)
    with naive_emitter():
        found: Any = driver.compile(HALF, "cuda")
    for layout in ("bhsd", "bhsd", "bshd", "bshd"):
        o, _ = found.run(q, k, v, [], layout)
        assert o.stride() == ((12800, 6400, 64, 1) if layout == "bhsd" else (12800, 64, 128, 1))
        assert parameter(gpu.named("cuLaunchKernelEx")[-1], 3, ctypes.c_uint64) == o.data_ptr()
    assert len(found.program._calls) == 2
    found.run(q, k[..., ::2].repeat(1, 1, 1, 2)[..., ::1], v, [])
    wide = heads(1, 2, 100, 128)
    found.run(q, wide[..., ::2], v, [])
    assert len(found.program._calls) == 3  # copies are made anew each time
    with pytest.raises(ArgumentError, match=r"of torch\.bfloat16"):
        found.run(q.view(torch.bfloat16), k, v, [])


def test_empty_problems_launch_nothing(gpu: FakeCuda, compiled: None) -> None:
    with naive_emitter():
        found = driver.compile(HALF, "cuda")
    some, none = heads(1, 2, 5, 64), heads(1, 2, 0, 64)
    for q, k in ((heads(0, 2, 5, 64), heads(0, 2, 5, 64)), (none, some), (some, none)):
        o, lse = found.run(q, k, k, [])
        assert o.shape == q.shape and not o.any() and lse.shape == q.shape[:3]
    assert not gpu.named("cuLaunchKernelEx")


def test_tensors_on_the_cpu_are_refused(compiled: None) -> None:
    with naive_emitter():
        found = driver.compile(HALF, "cuda")
    some = heads(1, 2, 5, 64)
    with fake_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "index_of", lambda tensor: tensor.get_device())
        with pytest.raises(ArgumentError, match=r"q is on cpu: move the tensors with \.cuda\(\)"):
            found.run(some, some, some, [])


def test_elements_and_head_dimensions_that_no_kernel_takes() -> None:
    with naive_emitter():
        with pytest.raises(UnsupportedError, match=r"f32: cast them with \.half\(\) or \.bfloat16\(\)"):
            driver.compile(SOFTMAX, "cuda")
        with pytest.raises(UnsupportedError, match="head dimension 320"):
            driver.compile(HALF.replace("x64x", "x320x"), "cuda")


def test_the_disk_cache_holds_whole_programs(gpu: FakeCuda, compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with naive_emitter():
        first: Any = driver.compile(HALF, "cuda")
        inputs = [heads(1, 2, 5, 64)] * 3
        first.run(*inputs, [])
        nvidia._PROGRAMS.clear()

        def again(*_: Any) -> None:
            raise RuntimeError("compiled again")

        monkeypatch.setattr(nvidia, "_lower", again)
        monkeypatch.setattr(nvcc, "find_nvcc", again)
        second: Any = driver.compile(HALF, "cuda")
        assert second is not first and second.program.units == first.program.units and second.program.host == first.program.host
        second.run(*inputs, [])
        nvidia._PROGRAMS.clear()
        with pytest.raises(RuntimeError, match="compiled again"):
            driver.compile(HALF.replace("0.125", "0.25"), "cuda")
        # Whatever a file holds, it is used whole or not at all.
        folder = disk_cache.directory()
        assert folder is not None
        for path in folder.glob("*.json"):
            path.write_text(json.dumps({"sha256": "", "fields": {}}))
        with pytest.raises(RuntimeError, match="compiled again"):
            driver.compile(HALF, "cuda")


def test_what_is_kept_of_a_program() -> None:
    unit = Unit(kernel(), code(Parameter("descriptor", 0, box=(64, 8))), {"emitter": "hopper", "block": 3}, ("f16",))
    host = Host("f", (Argument("f16", (-1, -1, -1, 64)),), (Step("f", (0,), (Result("query", Argument("f16", (-1, -1, -1, 64))),)),), (1,))
    data, fields = units.pack(host, {"f": unit}, {"f": BINARY})
    assert units.unpack(data, json.loads(json.dumps(fields))) == (host, {"f": unit}, {"f": BINARY})


def backward(kind: str, schedule: dict[str, Any], disjoint: tuple[bool, ...] = (), columns: int = 64) -> NvidiaProgram:
    """A program of one kernel of pairs that takes q, k and a tensor [5], and adds up a tensor."""
    head, table = Argument("f16", (-1, -1, -1, columns)), Argument("f32", (-1,))
    result = Result("query", dataclasses.replace(head, element="f32")) if kind == "accumulate" else Result("like:2", table)
    host = Host("f", (head, head, table), (Step("f", (0, 1, 2), (result,)),), (3,))
    parameters = (Parameter("pointer", 3), *(Parameter("stride", 3, dim) for dim in range(4)), Parameter("scalar", 4))
    unit = Unit(kernel("pairs", 1, (kind,), disjoint=(disjoint,)), code(*parameters), schedule, ("f32",))
    return NvidiaProgram("", "", {}, host, {"f": unit}, {"f": BINARY})


@pytest.mark.parametrize(
    ("kind", "disjoint", "schedule", "strides"),
    [
        ("accumulate", (), {}, (0, 4 * 40 * 64, 40 * 64, 64)),
        ("accumulate", (), {"deterministic": 1}, (0, 4 * 40 * 64, 40 * 64, 64)),  # the kernel's programs take turns
        ("accumulate", (), {"sums": "slots"}, (2 * 4 * 40 * 64, 4 * 40 * 64, 40 * 64, 64)),
        ("scatter", (False, True, False), {}, (0, 0, 0, 1)),
        ("scatter", (False, False, False), {"deterministic": 1}, (2 * 2 * 5, 2 * 5, 5, 1)),
        ("scatter", (False, True, False), {"deterministic": 1}, (2 * 5, 5, 0, 1)),
        ("scatter", (True, True, True), {"deterministic": 1}, (0, 0, 0, 1)),
    ],
)
def test_memory_of_sums(gpu: FakeCuda, kind: str, disjoint: tuple[bool, ...], schedule: dict[str, Any], strides: tuple[int, ...]) -> None:
    """One slot that all programs add to, or where it is to be deterministic a slot for each that may meet another."""
    program = backward(kind, schedule, disjoint)
    (result,) = program.run([heads(2, 4, 40, 64), heads(2, 2, 300, 64), torch.zeros(5)])
    (made,) = gpu.named("cuLaunchKernelEx")
    assert made["grid"] == (3, 2, 2)
    given = tuple(parameter(made, 1 + dim, ctypes.c_int) for dim in range(4))
    assert given == strides
    assert parameter(made, 5, ctypes.c_int) == 128
    assert result.shape == ((2, 4, 40, 64) if kind == "accumulate" else (5,)) and result.dtype == torch.float32 and not result.any()


def test_slots_that_take_too_much_memory(gpu: FakeCuda) -> None:
    program = backward("scatter", {"deterministic": 1}, (False, False, False))
    with pytest.raises(UnsupportedError, match=r"deterministic=True.*GiB"):
        program.run([heads(1, 1, 4, 64), heads(1, 1, 1, 64).expand(64, 64, 4096, 64), torch.zeros(1 << 14)])


def test_rows_that_the_copy_engine_cannot_write(gpu: FakeCuda) -> None:
    """100 columns of f16 are no multiple of 16 bytes: the kernel writes to padded rows, which are then copied."""
    head = Argument("f16", (-1, -1, -1, 100))
    host = Host("f", (head, head), (Step("f", (0, 1), (Result("query", head),)),), (2,))
    unit = Unit(kernel(), code(Parameter("descriptor", 2, box=(64, 64)), Parameter("stride", 2, 2)), {}, ("f16",))
    program = NvidiaProgram("", "", {}, host, {"f": unit}, {"f": BINARY})
    for layout, strides in (("bhsd", (4000, 2000, 100, 1)), ("bshd", (4000, 100, 200, 1))):
        (result,) = program.run([heads(1, 2, 20, 100), heads(1, 2, 20, 100)], layout)
        assert result.stride() == strides
        assert parameter(gpu.named("cuLaunchKernelEx")[-1], 1, ctypes.c_int) == 104
    assert not program._calls


def test_gradients_are_rounded_where_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """dk and dv are stored in the type of q; dq, to which programs add, stays f32."""

    def emit(kernel: Any) -> KernelCode:
        return dataclasses.replace(code(Parameter("pointer", 0)), name=str(kernel.attributes["sym_name"]).strip('"'))

    with naive_emitter():
        monkeypatch.setattr(pipeline, "KERNEL", pipeline.KERNEL + ",tile-schedule{target=nvidia}")
        monkeypatch.setattr(codegen, "plan", lambda kernel: {"emitter": "hopper"})
        monkeypatch.setattr(codegen, "emit", emit)
        found: Any = driver.compile_derivative(HALF, "cuda", "bwd", ("q", "k", "v"))
    told = {name.rpartition("_")[2]: (unit.kernel.outputs, unit.outputs) for name, unit in found.units.items()}
    assert told["pairs"] == (("store", "accumulate", "store"), ("f16", "f32", "f16"))
    assert told["elements"][1] == ("f32", "f32")


LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas info    : Function properties for f
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16 bytes stack frame, 1024 bytes smem
ptxas warning : setmaxnreg ignored to maintain minimum register requirement
"""


def test_what_ptxas_says() -> None:
    found = nvcc.parse_log(b"x", LOG)
    assert (found.registers, found.spills, found.stack, found.shared) == (168, 56, 16, 1024)
    assert found.warnings == ("ptxas warning : setmaxnreg ignored to maintain minimum register requirement",)
    assert Binary.of(b"x", json.loads(json.dumps(found.facts()))) == found


def test_without_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc.os, "access", lambda *_: False)
    with pytest.raises(UnsupportedError, match="compiled with nvcc, which was not found"):
        nvcc.compile_code(code(Parameter("pointer", 0)))


def test_unknown_include_folders() -> None:
    with pytest.raises(CompileError, match="'other'"):
        nvcc.include_folders(["other"])


needs_nvcc = pytest.mark.skipif(not Path("/usr/local/cuda/bin/nvcc").exists(), reason="nvcc is not installed")


@needs_nvcc
def test_nvcc(tmp_path: Path) -> None:
    source = 'extern "C" __global__ void f(float *x) { x[threadIdx.x] *= 2.f; }'
    good = dataclasses.replace(code(Parameter("pointer", 0)), source=source)
    first, second = nvcc.compile_all([good, dataclasses.replace(good, arch="sm_80")])
    assert first.code[:4] == b"\x7fELF" and 0 < first.registers < 32 and not first.spills and second.code != first.code
    files = sorted((tmp_path / "cache").iterdir())
    assert [path.suffix for path in files].count(".cubin") == 2
    with pytest.raises(CompileError, match=r"nvcc rejects the kernel f \(source: .*\.cu\)") as error:
        nvcc.compile_code(dataclasses.replace(good, source=source.replace("2.f", "y")))
    assert 'identifier "y" is undefined' in str(error.value)
    Path(str(error.value).partition("source: ")[2].partition(")")[0]).unlink()


@needs_nvcc
def test_compiled_kernels_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    good = dataclasses.replace(code(Parameter("pointer", 0)), source='extern "C" __global__ void f(float *x) {}')
    first = nvcc.compile_code(good)
    monkeypatch.setattr(nvcc, "_run", lambda *_: pytest.fail("compiled again"))
    assert nvcc.compile_code(good) == first
