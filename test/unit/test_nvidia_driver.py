"""The NVIDIA driver without a GPU: programs, their memory, the cache, errors. A fake libcuda records what it is told."""

import ctypes
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir import driver
from attn_mlir.backends import disk_cache
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.kernel import KernelCode, KernelParameter
from attn_mlir.backends.host import Argument, Host, HostStep, StepResult
from attn_mlir.backends.nvidia import codegen, compiled_kernels, cuda, pipeline
from attn_mlir.backends.nvidia import compile as nvcc
from attn_mlir.backends.nvidia import driver as nvidia
from attn_mlir.backends.nvidia import program as of_programs
from attn_mlir.backends.nvidia.program import NvidiaLaunchPlan
from attn_mlir.backends.sizes import like
from attn_mlir.errors import ArgumentError, UnsupportedError
from nvidia_fakes import BINARY, FakeCuda, code, fake_gpu, heads, kernel, naive_emitter, parameter, set_apart

SOFTMAX = (Path(__file__).parent.parent / "Inputs" / "causal-softmax.mlir").read_text()
HALF = SOFTMAX.replace("x64xf32", "x64xf16")


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_apart(monkeypatch, tmp_path / "cache")


@pytest.fixture
def gpu() -> Iterator[FakeCuda]:
    with fake_gpu() as fake:
        yield fake


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """nvcc is not asked."""
    monkeypatch.setattr(nvcc, "_run", lambda *_: BINARY)


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
    assert next(iter(stages)) == "traced" and "extern" in stages["cuda"] and '"tile.dot"' in stages["attn-tile-rows"]


def test_the_short_way(gpu: FakeCuda, compiled: None) -> None:
    """The same inputs again need no plan; what a kernel is told is the same."""
    q, k, v = heads(1, 2, 100, 64), heads(1, 2, 100, 64), heads(1, 2, 100, 64)
    with naive_emitter():
        found: Any = driver.compile(HALF, "cuda")
    for layout in ("bhsd", "bhsd", "bshd", "bshd"):
        o, _ = found.run(q, k, v, [], layout)
        assert o.stride() == ((12800, 6400, 64, 1) if layout == "bhsd" else (12800, 64, 128, 1))
        assert parameter(gpu.named("cuLaunchKernelEx")[-1], 3, ctypes.c_uint64) == o.data_ptr()
    assert len(found.program._calls) == 3  # the second layout also as its user has it
    found.run(q, k[..., ::2].repeat(1, 1, 1, 2)[..., ::1], v, [])
    wide = heads(1, 2, 100, 128)
    found.run(q, wide[..., ::2], v, [])
    assert len(found.program._calls) == 4  # copies are made again each time
    with pytest.raises(ArgumentError, match=r"of torch\.bfloat16"):
        found.run(q.view(torch.bfloat16), k, v, [])


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_the_same_call_again(gpu: FakeCuda, compiled: None, layout: str) -> None:
    """Tensors come as the user has them; the kernel is told the same as by `run`."""
    given = [heads(1, 2, 100, 64) if layout == "bhsd" else heads(1, 100, 2, 64) for _ in "qkv"]
    views = given if layout == "bhsd" else [x.transpose(1, 2) for x in given]
    with naive_emitter():
        found: Any = driver.compile(HALF, "cuda")
    assert found.again(given, layout) is None
    o, lse = found.run(*views, [], layout)
    run = gpu.named("cuLaunchKernelEx")[-1]
    again: Any = None
    for _ in range(2):
        again = found.again(given, layout)
        assert again[0].shape == given[0].shape and again[0].is_contiguous() and again[1].shape == lse.shape
        made = gpu.named("cuLaunchKernelEx")[-1]
        assert made["grid"] == run["grid"] and parameter(made, 3, ctypes.c_uint64) == again[0].data_ptr()
        for number in (1, 2, *range(5, 18)):
            assert parameter(made, number, ctypes.c_uint64) == parameter(run, number, ctypes.c_uint64)
    assert o.stride() == (again[0] if layout == "bhsd" else again[0].transpose(1, 2)).stride()
    elsewhere = [heads(*given[0].shape), *given[1:]]
    moved = found.again(elsewhere, layout)
    made = gpu.named("cuLaunchKernelEx")[-1]
    assert moved[0].shape == given[0].shape and moved[0].stride() == again[0].stride()
    assert [parameter(made, number, ctypes.c_uint64) for number in (1, 2, 3)] == [x.data_ptr() for x in (elsewhere[0], given[2], moved[0])]
    for number in range(5, 18):
        assert parameter(made, number, ctypes.c_uint64) == parameter(run, number, ctypes.c_uint64)
    assert found.again([torch.cat([x, x], -1)[..., :64] for x in given], layout) is None  # other strides
    odd = torch.zeros(given[0].numel() + 1, dtype=torch.float16)[1:].view(given[0].shape)
    assert found.again([odd, *given[1:]], layout) is None  # an address that the copy engine may not read
    if layout == "bhsd":
        assert found.again(given, "bshd") is None


def test_empty_problems_launch_nothing(gpu: FakeCuda, compiled: None) -> None:
    with naive_emitter():
        found = driver.compile(HALF, "cuda")
    some, none = heads(1, 2, 5, 64), heads(1, 2, 0, 64)
    for launches in range(2):
        for q, k in ((heads(0, 2, 5, 64), heads(0, 2, 5, 64)), (none, some), (some, none)):
            for _ in range(2):
                o, lse = found.run(q, k, k, [])
                assert o.shape == q.shape and not o.any() and lse.shape == q.shape[:3]
        assert len(gpu.named("cuLaunchKernelEx")) == launches
        found.run(some, some, some, [])  # now the kernel is loaded


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
        with pytest.raises(UnsupportedError, match="head dimension 1032, and kernels for NVIDIA GPUs take up to 1024"):
            driver.compile(HALF.replace("x64x", "x1032x"), "cuda")
        with pytest.raises(UnsupportedError, match="head dimension 1032, and kernels for NVIDIA GPUs take up to 1024"):
            driver.compile_derivative(HALF.replace("x64x", "x1032x"), "cuda", "jvp", ["q"])


def test_a_tangent_of_wide_heads_has_kernels_for_its_stages() -> None:
    found: Any = driver.compile_derivative(HALF.replace("x64x", "x320x"), "cuda", "jvp", ["q"])
    assert len(found.host.steps) == 1 and len(found.units) == 4
    (step,) = found.host.steps
    assert [stage.kernel for stage in found.units[step.kernel].pairs.stages] == [name for name in found.units if name != step.kernel]


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
    unit = GpuKernel(kernel(), code(KernelParameter("descriptor", 0, box=(64, 8))), {"emitter": "hopper", "block": 3}, ("f16",))
    host = Host(
        "f",
        (Argument("f16", (-1, -1, -1, 64)),),
        (HostStep("f", (0,), (StepResult(like(0, 4), Argument("f16", (-1, -1, -1, 64))),)),),
        (1,),
    )
    data, fields = compiled_kernels.pack(host, {"f": unit}, {"f": BINARY})
    assert compiled_kernels.unpack(data, json.loads(json.dumps(fields))) == (host, {"f": unit}, {"f": BINARY})


def backward(kind: str, schedule: dict[str, Any], disjoint: tuple[bool, ...] = (), columns: int = 64) -> NvidiaLaunchPlan:
    """A program of one kernel of pairs that takes q, k and a tensor [5], and adds up a tensor."""
    head, table = Argument("f16", (-1, -1, -1, columns)), Argument("f32", (-1,))
    result = StepResult(like(0, 4), dataclasses.replace(head, element="f32")) if kind == "accumulate" else StepResult(like(2, 1), table)
    host = Host("f", (head, head, table), (HostStep("f", (0, 1, 2), (result,)),), (3,))
    parameters = (KernelParameter("pointer", 3), *(KernelParameter("stride", 3, dim) for dim in range(4)), KernelParameter("scalar", 4))
    unit = GpuKernel(kernel("pairs", 1, (kind,), disjoint=(disjoint,)), code(*parameters), schedule, ("f32",))
    return NvidiaLaunchPlan("", "", {}, host, {"f": unit}, {"f": BINARY})


@pytest.mark.parametrize(
    ("kind", "disjoint", "schedule", "strides"),
    [
        ("accumulate", (), {}, (0, 4 * 40 * 64, 40 * 64, 64)),
        ("accumulate", (), {"deterministic": 1}, (0, 4 * 40 * 64, 40 * 64, 64)),  # the kernel's programs have semaphores
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
    host = Host("f", (head, head), (HostStep("f", (0, 1), (StepResult(like(0, 4), head),)),), (2,))
    unit = GpuKernel(kernel(), code(KernelParameter("descriptor", 2, box=(64, 64)), KernelParameter("stride", 2, 2)), {}, ("f16",))
    program = NvidiaLaunchPlan("", "", {}, host, {"f": unit}, {"f": BINARY})
    for layout, strides in (("bhsd", (4000, 2000, 100, 1)), ("bshd", (4000, 100, 200, 1))):
        (result,) = program.run([heads(1, 2, 20, 100), heads(1, 2, 20, 100)], layout)
        assert result.stride() == strides
        assert parameter(gpu.named("cuLaunchKernelEx")[-1], 1, ctypes.c_int) == 104
    assert not program._calls


def test_long_sequences_have_kernels_of_their_own(gpu: FakeCuda) -> None:
    head = Argument("f16", (-1, -1, -1, 64))
    host = Host("f", (head, head), (HostStep("f", (0, 1), (StepResult(like(0, 4), head),)),), (2,))

    def program(block: int, **schedule: int) -> NvidiaLaunchPlan:
        parameters = (KernelParameter("descriptor", 2, box=(64, 64)),)
        return NvidiaLaunchPlan(
            "", "", {}, host, {"f": GpuKernel(kernel(), code(*parameters), {"block": block, **schedule}, ("f16",))}, {"f": BINARY}
        )

    short, long, asked = program(1, longer=100), program(2), []
    short.compile_longer = lambda keys: (asked.append(keys), long)[1]
    few, many = [heads(1, 2, 20, 64), heads(1, 2, 99, 64)], [heads(1, 2, 20, 64), heads(1, 2, 100, 64)]
    for inputs in (few, many, few, many):
        short.run(inputs)
    assert asked == [100]  # later calls on the same tensors find their launch
    assert short._launchers.keys() == long._launchers.keys() and len(gpu.named("cuModuleLoadData")) == 2
    assert [call.launcher for call in short._calls.values()] == [*short._launchers.values(), *long._launchers.values()]
    fixed = short.with_work(0, True)
    fixed.run(many)
    assert asked == [100] and [call.launcher for call in fixed._calls.values()] == [*short._launchers.values()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_programs, "LIMIT", 4)
        for keys in range(100, 120):
            short.run([few[0], heads(1, 2, keys, 64)])
    assert max(len(short._calls), len(short._elsewhere)) <= 8


def test_what_is_compiled_ahead_is_for_the_keys_of_the_call(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: when the forward pass itself is compiled."""
    head, told = Argument("f16", (-1, -1, -1, 64)), list[int]()
    host = Host("f", (head, head), (HostStep("f", (0, 1), (StepResult(like(0, 4), head),)),), (2,))
    unit = GpuKernel(kernel(), code(KernelParameter("descriptor", 2, box=(64, 64))), {}, ("f16",))
    program = NvidiaLaunchPlan("", "", {}, host, {"f": unit})
    program.beside = told.append
    monkeypatch.setattr(of_programs, "compile_all", lambda codes: [BINARY for _ in codes])
    monkeypatch.setattr(of_programs.background, "in_background", lambda work: work())
    for keys in (99, 20):
        program.run([heads(1, 2, 20, 64), heads(1, 2, keys, 64)])
    assert told == [99]


def test_gradients_are_rounded_where_they_are_written() -> None:
    """dk and dv are stored in the type of q; dq, to which programs add, stays f32."""

    def emit(kernel: Any) -> KernelCode:
        return dataclasses.replace(code(KernelParameter("pointer", 0)), name=str(kernel.attributes["sym_name"]).strip('"'))

    with naive_emitter(), pytest.MonkeyPatch.context() as patch:  # undone before what is around it
        patch.setattr(pipeline, "KERNEL", pipeline.KERNEL + ",tile-schedule{target=nvidia}")
        patch.setattr(codegen, "plan", lambda kernel: {"emitter": "hopper"})
        patch.setattr(codegen, "emit", emit)
        found: Any = driver.compile_derivative(HALF, "cuda", "bwd", ("q", "k", "v"))
    told = {name.rpartition("_")[2]: (unit.kernel.outputs, unit.outputs) for name, unit in found.units.items()}
    assert told["pairs"] == (("store", "accumulate", "store"), ("f16", "f32", "f16"))
    assert told["elements"][1] == ("f32", "f32")


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
