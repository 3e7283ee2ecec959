"""Launches without a GPU: parameters, descriptors, grids, copies, errors. A fake libcuda records what it is told."""

import contextlib
import ctypes
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir.backends.gpu.kernel import KernelParameter
from attn_mlir.backends.gpu.packed import Ragged
from attn_mlir.backends.gpu.packing import value_of
from attn_mlir.backends.nvidia import cuda, launch, own_kernel, repeated_kernel
from attn_mlir.backends.nvidia.launch import CudaLauncher
from attn_mlir.errors import ArgumentError, UnsupportedError
from nvidia_fakes import BINARY, FakeCuda, code, fake_gpu, heads, kernel, moving_maps, parameter, set_apart


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_apart(monkeypatch, tmp_path / "cache")


@pytest.fixture
def gpu() -> Iterator[FakeCuda]:
    with fake_gpu() as fake:
        yield fake


@pytest.fixture
def patch(gpu: FakeCuda) -> Iterator[pytest.MonkeyPatch]:
    """Changes of the fake GPU, undone before it goes."""
    with pytest.MonkeyPatch.context() as made:
        yield made


def launcher(*parameters: KernelParameter, over: int = 0, **more: Any) -> CudaLauncher:
    return CudaLauncher(kernel(over=over), code(*parameters, **more), BINARY, torch.device("cpu"), 0)


def test_parameters_of_every_kind(gpu: FakeCuda) -> None:
    x, rows = heads(2, 3, 300, 64), torch.zeros(2, 3, 300)
    run = launcher(
        KernelParameter("pointer", 1), KernelParameter("size", 0, 2), KernelParameter("stride", 0, 1, "long long"),
        KernelParameter("scalar", 2, type="float"), KernelParameter("scalar", 3, type="int"), KernelParameter("blocks"),
        KernelParameter("descriptor", 0, type="", box=(64, 128)),
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
    run = launcher(KernelParameter("descriptor", 0, box=(32, 16), swizzle=64))
    run([x])
    (made,) = gpu.named("cuTensorMapEncodeTiled")
    assert made == {
        "type": 6, "address": x.data_ptr(), "dims": [64, 5, 3, 1], "strides": [384, 128, 16], "box": [32, 16, 1, 1], "swizzle": 2,
    }  # fmt: skip
    run([x])
    launcher(KernelParameter("descriptor", 0, box=(32, 16), swizzle=64))([x])
    assert len(gpu.named("cuTensorMapEncodeTiled")) == 1 and len(gpu.named("cuLaunchKernelEx")) == 3
    other = heads(1, 3, 5, 64, dtype=torch.bfloat16)
    run([other])
    assert gpu.named("cuTensorMapEncodeTiled")[1]["type"] == 9


def test_tensors_of_the_same_shapes_elsewhere(gpu: FakeCuda, patch: pytest.MonkeyPatch) -> None:
    """Only addresses are written again, where descriptions are known to differ in nothing else."""
    moving_maps(patch)
    run = launcher(
        KernelParameter("pointer", 1, align=4), KernelParameter("stride", 0, 1, "long long"), KernelParameter("scalar", 2, type="int"),
        KernelParameter("descriptor", 0, type="", box=(64, 128)), KernelParameter("ragged", 3, type="", box=(64, 128)),
    )  # fmt: skip
    packed: list[Any] = []
    patch.setattr(launch, "value_of", lambda *given: packed.append(given) or value_of(*given))

    def told(x: torch.Tensor, rows: torch.Tensor, number: int, ragged: torch.Tensor) -> int:
        run([x, rows, number, Ragged(ragged)])
        made, before = gpu.named("cuLaunchKernelEx")[-1], len(packed)
        pointers = (ctypes.c_void_p * 5).from_address(made["parameters"])
        maps = [ctypes.string_at(pointers[place], 128) for place in (3, 4)]
        assert [int.from_bytes(one[:8], "little") for one in maps] == [x.data_ptr(), ragged.data_ptr()]
        assert all(one[8:] == bytes(range(120)) and pointers[place] % 128 == 0 for one, place in zip(maps, (3, 4), strict=True))
        assert parameter(made, 0, ctypes.c_uint64) == rows.data_ptr() and parameter(made, 1, ctypes.c_longlong) == x.stride(1)
        assert parameter(made, 2, ctypes.c_int) == number
        return before

    def tensors() -> Any:
        return heads(1, 2, 40, 64), torch.zeros(1, 2, 40), 3, heads(1, 2, 30, 64)

    kept = [tensors() for _ in range(4)]
    assert [told(*given) for given in kept] == [3] * 4
    assert told(heads(1, 2, 44, 64), kept[0][1], 3, kept[0][3]) == 6  # another shape
    assert told(kept[1][0], kept[1][1], 4, kept[2][3]) == 9  # another number
    odd = torch.zeros(81)[1:].view(1, 2, 40)
    made = run([kept[0][0], odd, 3, Ragged(kept[0][3])])
    assert made == (1,)  # what the kernel cannot read is copied, as ever


def test_zeros_of_both_signs_are_two_numbers(gpu: FakeCuda) -> None:
    """They are equal, but functions may divide by them."""
    run, x, form = launcher(KernelParameter("scalar", 1, type="float")), heads(1, 1, 3, 64), repeated_kernel.form_of
    for number in (0.0, -0.0, 0.0):
        run([x, number])
        assert math.copysign(1, parameter(gpu.named("cuLaunchKernelEx")[-1], 0, ctypes.c_float)) == math.copysign(1, number)
        others = [x, x, x, -number]
        assert form([x, x, x, number], "bshd") != form(others, "bshd")
        assert repeated_kernel.key_of([x, x, x, number], "bshd") != repeated_kernel.key_of(others, "bshd")


def test_sums_of_all_chunks_are_described_as_one_tensor(gpu: FakeCuda) -> None:
    sums = torch.zeros(2, 3, 40, 64).expand(4, 2, 3, 40, 64)
    launcher(KernelParameter("descriptor", 0, box=(32, 64)), over=1)([sums, heads(2, 3, 40, 64)])
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
    run = launcher(KernelParameter("descriptor", 0, box=(64, 8)), KernelParameter("pointer", 0), KernelParameter("stride", 0, 2))
    for _ in range(2):  # each time again, as the elements may have changed
        run([x])
    for made, described in zip(gpu.named("cuLaunchKernelEx"), gpu.named("cuTensorMapEncodeTiled"), strict=False):
        assert parameter(made, 0, ctypes.c_char) and parameter(made, 1, ctypes.c_uint64) != x.data_ptr()
        assert all(stride % 16 == 0 for stride in described["strides"])
    copied = launch.tiled_copy(x)
    assert torch.equal(copied, x) and launch.is_tiled(copied) and not launch.is_tiled(x)


def test_pointers_take_any_strides(gpu: FakeCuda) -> None:
    x = heads(2, 3, 8, 128)[..., ::2]
    run = launcher(KernelParameter("pointer", 0), KernelParameter("stride", 0, 3))
    run([x])
    (made,) = gpu.named("cuLaunchKernelEx")
    assert parameter(made, 0, ctypes.c_uint64) == x.data_ptr() and parameter(made, 1, ctypes.c_int) == 2


def test_grids(gpu: FakeCuda) -> None:
    q = heads(2, 3, 1000, 64)
    launcher(KernelParameter("pointer", 0), grid="persistent")([heads(1, 2, 300, 64)])
    launcher(KernelParameter("pointer", 0), grid="persistent", cluster=2)([heads(8, 16, 1000, 64)])
    launcher(KernelParameter("pointer", 0), grid="persistent", occupancy=2)([heads(8, 16, 1000, 64)])
    launcher(KernelParameter("pointer", 0), grid="persistent", cluster=4)([heads(1, 2, 300, 64)])
    launcher(KernelParameter("pointer", 0), cluster=2)([q[:, :, :300]])
    launcher(KernelParameter("pointer", 0), KernelParameter("pointer", 1), over=1)([heads(1, 1, 1, 64), q])
    made = gpu.named("cuLaunchKernelEx")
    assert [each["grid"] for each in made] == [(6, 1, 1), (132, 1, 1), (264, 1, 1), (24, 1, 1), (6, 3, 2), (8, 3, 2)]
    assert [each["cluster"] for each in made] == [1, 2, 1, 4, 2, 1]  # a cluster runs a tile together
    with pytest.raises(UnsupportedError, match="parts of the batch"):
        launcher(KernelParameter("pointer", 0))([torch.empty(70000, 1, 1, 64, dtype=torch.float16)])


def test_programs_that_cannot_be_counted(gpu: FakeCuda) -> None:
    many = torch.empty(1, dtype=torch.float16).expand(30000, 30000, 300, 64)
    with pytest.raises(ArgumentError, match="30000 with 30000 heads of 300 rows does not fit into one launch"):
        launcher(KernelParameter("counter"), grid="persistent")([many])
    assert not gpu.named("cuLaunchKernelEx")


def test_shared_memory(gpu: FakeCuda) -> None:
    launcher(KernelParameter("pointer", 0), shared_bytes=200_000)([heads(1, 1, 1, 64)])
    ((_, attribute, size),) = gpu.named("cuFuncSetAttribute")
    assert (attribute, size) == (8, 200_000) and gpu.named("cuLaunchKernelEx")[0]["shared"] == 200_000
    with pytest.raises(UnsupportedError, match="NVIDIA Fake"):
        launcher(KernelParameter("pointer", 0), shared_bytes=300_000)


def test_a_counter_for_each_stream(gpu: FakeCuda, patch: pytest.MonkeyPatch) -> None:
    run = launcher(KernelParameter("counter"), KernelParameter("pointer", 0))
    x = heads(1, 1, 1, 64)
    used = []
    for stream in (5, 7, 5):
        patch.setattr(cuda, "current_stream", lambda index, stream=stream: stream)
        run([x])
        used.append(parameter(gpu.named("cuLaunchKernelEx")[-1], 0, ctypes.c_uint64))
    assert used[0] == used[2] != used[1] and not any(counter.any() for counter in launch._COUNTERS.values())
    patch.setattr(cuda, "is_capturing", lambda index: index == 0)
    patch.setattr(launch, "_counter", lambda *_: pytest.fail("a graph has a counter of its own"))
    (memory,) = {counter.untyped_storage().data_ptr() for counter in launch._SPARE[0]}
    captured: list[int] = []  # parameters are gone after a launch
    patch.setattr(CudaLauncher, "start", lambda _, made: captured.append(parameter({"parameters": made.parameters}, 0, ctypes.c_uint64)))
    for _ in range(2):
        run([x])
    assert [(address - memory) // 4 for address in captured] == [launch._SPARES - 1, launch._SPARES - 2]
    assert launch._NEVER_FREED[-1].data_ptr() == memory and not launch._NEVER_FREED[-1].any()
    launch._SPARE[0].clear()
    made: list[Any] = []
    zeros = torch.zeros
    patch.setattr(torch, "zeros", lambda *given, **named: made.append(zeros(*given, **named)) or made[-1])
    run([x])  # the graph makes one
    assert captured[2:] == [made[0].data_ptr()]


def test_threads_that_meet_share_the_counter_of_their_stream(gpu: FakeCuda, patch: pytest.MonkeyPatch) -> None:
    """None keeps the address of one that is freed: a second thread comes while the first one makes it."""
    run, others = (launcher(KernelParameter("counter"), KernelParameter("pointer", 0)) for _ in range(2))
    x, zeros = heads(1, 1, 1, 64), torch.zeros
    patch.setattr(cuda, "current_stream", lambda index: 11)

    def made(*given: Any, **named: Any) -> torch.Tensor:
        patch.setattr(torch, "zeros", zeros)
        others([x])
        return zeros(*given, **named)

    patch.setattr(torch, "zeros", made)
    run([x])
    used = {parameter(each, 0, ctypes.c_uint64) for each in gpu.named("cuLaunchKernelEx")}
    assert used == {launch._COUNTERS[0, 11].data_ptr()}


def test_one_handle_for_several_streams(gpu: FakeCuda, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cuda, "current_stream", lambda index: 2)
    launcher(KernelParameter("pointer", 0))([heads(1, 1, 1, 64)])
    with pytest.raises(UnsupportedError, match=r"default streams of threads.*torch\.cuda\.Stream"):
        launcher(KernelParameter("counter"), KernelParameter("pointer", 0))([heads(1, 1, 1, 64)])


def test_numbers_that_do_not_fit(gpu: FakeCuda) -> None:
    run = launcher(KernelParameter("pointer", 0), KernelParameter("scalar", 1, type="int"))
    with pytest.raises(ArgumentError, match="must fit into 32 bits"):
        run([heads(1, 1, 1, 64), 2**40])


def test_tensors_in_other_places(gpu: FakeCuda, patch: pytest.MonkeyPatch) -> None:
    run = launcher(KernelParameter("pointer", 0), KernelParameter("pointer", 1))
    patch.setattr(cuda, "index_of", lambda tensor: -1 if tensor.dim() == 1 else 0)
    with pytest.raises(ArgumentError, match="argument 1 of this kernel is on cpu"):
        run([heads(1, 1, 1, 64), torch.zeros(3)])


def test_errors_of_the_driver() -> None:
    words = r"loading the kernel f: CUDA_ERROR_NO_BINARY_FOR_GPU \(209\).*another GPU"
    with fake_gpu(cuModuleLoadData=209), pytest.raises(cuda.CudaError, match=words):
        launcher(KernelParameter("pointer", 0))
    with fake_gpu(cuLaunchKernelEx=701), pytest.raises(cuda.CudaError, match="launching a kernel"):
        launcher(KernelParameter("pointer", 0))([heads(1, 1, 1, 64)])


def test_a_thread_without_a_context_enters_it(gpu: FakeCuda) -> None:
    run = launcher(KernelParameter("pointer", 0))
    gpu.failing["cuLaunchKernelEx"] = 201
    with pytest.raises(cuda.CudaError):  # the fake never gets one
        run([heads(1, 1, 1, 64)])
    assert [name for name, _ in gpu.calls][-5:-2] == ["cuLaunchKernelEx", "cuCtxSetCurrent", "cuLaunchKernelEx"]


@pytest.mark.parametrize("failing", [{}, {"cuModuleLoadData": 209}])
def test_a_kernel_loaded_on_another_device_leaves_the_context(failing: dict[str, int]) -> None:
    """Which torch's current device is of; a thread that had none keeps that of the kernel."""
    with fake_gpu(**failing) as fake:
        for former in (0x77, 0):
            fake.current = former
            with contextlib.suppress(cuda.CudaError):
                cuda.load_function(b"ELF", "f", 0, 1)
            assert fake.current == (former or cuda._context(1))
        entered, *back = [x.value for (x,) in fake.named("cuCtxSetCurrent")][:2]
        assert entered == cuda._context(1) and back == [0x77]


@pytest.mark.parametrize("device", [0, 1])
def test_kernels_of_our_own_start_on_the_device_of_their_tensors(device: int, gpu: FakeCuda, patch: pytest.MonkeyPatch) -> None:
    """Whatever torch's current device is, which is 0 here, and afterwards again."""
    current = [0]

    @contextlib.contextmanager
    def entered(index: int) -> Iterator[None]:
        current.append(index)
        yield
        current.pop()

    started: list[int] = []
    patch.setattr(torch.cuda, "device", entered)
    patch.setattr(cuda, "launcher", lambda: lambda *given: started.append(current[-1]) or 0)
    patch.setattr(own_kernel, "compile_code", lambda code: BINARY)
    own_kernel.start("f", lambda: "", b"1234", (1, 1, 1), (32, 0, 0), (77, device))
    own_kernel._function.cache_clear()
    assert started == [device] and current == [0]


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
