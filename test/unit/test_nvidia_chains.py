"""Programs of several kernels without a GPU: their memory besides inputs and results, and the short way through them."""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir import Attention
from attn_mlir.backends.nvidia import cuda, driver, program
from attn_mlir.backends.nvidia.repeated_kernels import Chain
from attn_mlir.backends.nvidia.workspace import ALIGNMENT, Workspace
from attn_mlir.frontend.emit import Inputs
from nvidia_fakes import BINARY, FakeCuda, fake_gpu, heads, parameter, set_apart

_SOFTMAX = (Path(__file__).parents[1] / "Inputs" / "derivatives" / "softmax.mlir").read_text()
_DELTA = (Path(__file__).parents[1] / "Inputs" / "linear" / "gated-delta-half.mlir").read_text()
TEXT = "module {\n" + _SOFTMAX.replace("x64xf32", "x64xf16").replace("x32xf32", "x64xf16") + "}\n"


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_apart(monkeypatch, tmp_path / "cache")
    monkeypatch.setattr(program, "compile_all", lambda codes: [BINARY] * len(codes))


@pytest.fixture
def gpu() -> Iterator[FakeCuda]:
    with fake_gpu() as fake:
        yield fake


@pytest.fixture
def patch(gpu: FakeCuda) -> Iterator[pytest.MonkeyPatch]:
    """Changes of the fake GPU, undone before it goes."""
    with pytest.MonkeyPatch.context() as made:
        yield made


def test_parts_of_a_workspace() -> None:
    """They do not overlap; what must be zero is zero, and nothing else is written."""
    workspace = Workspace()
    parts = [
        workspace.take((3, 5), torch.int32, zeros=1),
        workspace.take((4, 300), torch.float32, zeros=0.5),
        workspace.take((7,), torch.float16),
        workspace.take((2,), torch.float32, zeros=1),
    ]
    assert workspace.zeros == [(0, ALIGNMENT + 2400), (parts[3].offset, 8)]  # the first two at once
    memory = workspace.make(torch.device("cpu"))
    ends = [part.offset + part.of(memory).nbytes for part in parts]
    assert all(end <= part.offset for end, part in zip(ends, parts[1:], strict=False)) and ends[-1] <= memory.numel() == workspace.size
    assert all(part.offset % ALIGNMENT == 0 and part.of(memory).shape == part.shape for part in parts)
    assert not parts[0].of(memory).any() and not parts[1].of(memory)[:2].any() and not parts[3].of(memory).any()


def gradients(**options: Any) -> Any:
    return driver.compile_derivative(TEXT, "bwd", ("q", "k", "v"), **options)


def arguments(batch: int, query_heads: int, key_heads: int, length: int) -> list[torch.Tensor]:
    q, k, v, o, do = (heads(batch, n, length, 64) for n in (query_heads, key_heads, key_heads, query_heads, query_heads))
    return [q, k, v, o, torch.zeros(batch, query_heads, length), torch.ones(batch, query_heads, length), do]


def source(found: Any) -> str:
    """That of the kernel of pairs."""
    return next(unit.code.source for unit in found.units.values() if unit.kernel.grid == "pairs")


def address(text: str, launch: dict[str, Any], name: str, kind: Any = ctypes.c_uint64) -> Any:
    """A parameter of a launch by its name in the source of the kernel."""
    declared = text[text.index('extern "C"') :].partition(") {")[0]
    declared = declared[declared.index("(", declared.index("__launch_bounds__") + 18) + 1 :]
    names = [part.split()[-1] for part in declared.split(",")]
    return parameter(launch, names.index(name), kind)


def named(found: Any, launch: dict[str, Any], name: str, kind: Any = ctypes.c_int) -> Any:
    """The same for the kernel of pairs."""
    return address(source(found), launch, name, kind)


def test_a_device_that_is_not_current(gpu: FakeCuda, patch: pytest.MonkeyPatch) -> None:
    """All memory comes from the tensors' device, and their short way is found although another one is current."""
    current, of_tensors = [0], [1]

    class Using:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            self.former, current[0] = current[0], self.index

        def __exit__(self, *error: object) -> None:
            current[0] = self.former

    def empty(size: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
        assert current == of_tensors
        return torch.empty_strided(size, strides, dtype=dtype)

    for name, function in {"index_of": lambda tensor: of_tensors[0], "current_device": lambda: current[0], "empty": empty}.items():
        patch.setattr(cuda, name, function)
    patch.setattr(torch.cuda, "device", Using)
    found, inputs = gradients(), arguments(2, 4, 2, 300)
    found.run(inputs)
    before = len(gpu.named("cuLaunchKernelEx"))
    (chain,) = found._elsewhere.values()
    assert isinstance(chain, Chain) and chain.launcher.index == 1 and not gpu.named("cuMemsetD8Async")
    found.run(inputs)
    assert gpu.named("cuMemsetD8Async") and len(gpu.named("cuLaunchKernelEx")) == 2 * before and current == [0]
    of_tensors[0] = 0  # the same addresses on the other device
    found.run(inputs)
    assert [each.launcher.index for each in found._elsewhere.values() if each is not None] == [1, 0]


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_short_way(gpu: FakeCuda, layout: str, deterministic: bool) -> None:
    """The same inputs again: the same launches, behind memsets that clear dq and the semaphores."""
    found = gradients(deterministic=deterministic).for_keys(1 << 20)  # few keys need no zeros of dq: `test_nvidia_claims.py`
    inputs = arguments(2, 16, 8, 300)
    first = found.run(inputs, layout)
    before = gpu.named("cuLaunchKernelEx")
    (chain,) = found._elsewhere.values()
    assert isinstance(chain, Chain) and not gpu.named("cuMemsetD8Async")
    again = found.run(inputs, layout)
    after = gpu.named("cuLaunchKernelEx")[len(before) :]
    assert [made["grid"] for made in after] == [made["grid"] for made in before]
    assert [(x.shape, x.dtype, x.stride()) for x in again] == [(x.shape, x.dtype, x.stride()) for x in first]
    *others, (address, value, size, stream) = gpu.named("cuMemsetD8Async")
    assert (address, value, size, stream) == (again[0].data_ptr(), 0, 4 * again[0].numel(), 77)
    if deterministic:
        ((address, value, size, stream),) = others
        (schedule,) = [unit.schedule for unit in found.units.values() if "semaphore_rows" in unit.schedule]
        blocks = -(-300 // int(schedule["semaphore_rows"])) * int(schedule["semaphore_parts"])
        assert (value, size, stream) == (0, 4 * 2 * 16 * blocks, 77) and address == named(found, after[-1], "semaphores", ctypes.c_uint64)
    else:
        assert not others
    assert named(found, after[-1], "q_n2") == 300
    maps = [given["address"] for given in gpu.named("cuTensorMapEncodeTiled") if given["box"][:2] == [32, 64]]
    assert maps == [first[0].data_ptr(), again[0].data_ptr()] or first[0].data_ptr() == again[0].data_ptr()
    found.run([x.clone() for x in inputs], layout)
    assert len(found._elsewhere) == 1  # tensors of the same shapes elsewhere


def test_results_of_kernels_are_found_by_the_next(gpu: FakeCuda) -> None:
    """What one kernel writes to the workspace is what another one reads, and nothing else is there."""
    found = gradients()
    inputs = arguments(2, 16, 8, 300)
    found.run(inputs)
    found.run(inputs)
    dots, rows, pairs = gpu.named("cuLaunchKernelEx")[-3:]
    sources = [unit.code.source for unit in found.units.values()]
    written = [address(sources[i], launch, "out0") for i, launch in enumerate((dots, rows))]
    assert len(set(written)) == 2
    assert {address(sources[2], pairs, name) for name in ("delta_o", "row_0")} == set(written)


def test_no_short_way_where_something_is_copied(gpu: FakeCuda) -> None:
    found = gradients()
    inputs = arguments(1, 2, 2, 300)
    inputs[6] = heads(1, 2, 300, 128)[..., ::2]
    found.run(inputs)
    found.run(inputs)
    assert not any(found._elsewhere.values()) and len(gpu.named("cuLaunchKernelEx")) == 6


def test_graphs_have_counters_of_their_own(gpu: FakeCuda, patch: pytest.MonkeyPatch) -> None:
    """The kernel of pairs takes programs from a counter: a capture goes the long way, which makes one."""
    found = gradients()
    inputs = arguments(1, 2, 2, 300)
    found.run(inputs)
    (chain,) = found._elsewhere.values()
    assert chain.counts
    patch.setattr(cuda, "is_capturing", lambda index: True)
    found.run(inputs)
    assert not gpu.named("cuMemsetD8Async") and len(gpu.named("cuLaunchKernelEx")) == 6
    captured, earlier = (address(source(found), launch, "counter") for launch in gpu.named("cuLaunchKernelEx")[-1:-5:-3])
    assert captured != earlier


def test_sums_over_columns_of_a_delta_rule(gpu: FakeCuda) -> None:
    """Gradients of numbers of rows are added up by programs of blocks, heads and batch entries, in one place that is cleared first."""
    written, erased = _DELTA.split('"attn.erase"')
    text = written.replace("%beta: tensor<?x?x?xf32>)", "%beta: tensor<?x?x?xf32>, %shares: tensor<?x?x?xf32>)")
    text += '"attn.erase"' + erased.replace("extract %beta", "extract %shares")
    found = driver.compile_derivative(text, "bwd", ("q", "k", "v", "arg5", "arg6"))
    rows, numbers, states = (1, 2, 600, 64), torch.zeros(1, 2, 600), torch.zeros(1, 2, 64, 64)
    q, k, v, o, u, do = torch.zeros(6, *rows, dtype=torch.bfloat16)
    inputs = [q, k, v, numbers, states, numbers, numbers.clone(), o, states, u, torch.zeros(1, 2, 128, 64), do, states]
    inputs = [x.clone() if x is numbers or x is states else x for x in inputs]
    first = found.run(inputs)
    before = gpu.named("cuLaunchKernelEx")
    (chain,) = found._elsewhere.values()
    assert isinstance(chain, Chain) and not gpu.named("cuMemsetD8Async")
    again = found.run(inputs)
    after = gpu.named("cuLaunchKernelEx")[len(before) :]
    assert [made["grid"] for made in after] == [made["grid"] for made in before]
    assert [(x.shape, x.dtype, x.stride()) for x in again] == [(x.shape, x.dtype, x.stride()) for x in first]
    cleared = {(made[0], made[2]) for made in gpu.named("cuMemsetD8Async")}
    assert cleared == {(x.data_ptr(), 4 * 2 * 600) for x in again[3:]}


@pytest.mark.parametrize(
    ("batch", "length", "cleared"), [(1, 256, False), (2, 512, False), (2, 504, True), (2, 1023, True), (5, 4096, True)]
)
def test_stored_tiles_need_no_memset(gpu: FakeCuda, batch: int, length: int, cleared: bool) -> None:
    """The short way clears a gradient of a bias where the long way does: not where programs store each of its tiles, in turn."""
    bias = torch.zeros(2, length, length, dtype=torch.float16)
    call = Attention(score_mod=lambda s, b, h, q, k: s + bias[h, q, k])
    call.__dict__.update(_last=Inputs("f16", 64, 64), _form=None)
    found = driver.compile_derivative(call.ir(), "bwd", ("q", "k", "v", "arg3"))
    q, k, v, o, do = (heads(batch, 2, length, 64) for _ in range(5))
    numbers = [torch.ones(batch, 2, length) for _ in range(len(found.host.arguments) - 6)]
    inputs = [q, k, v, bias, o, *numbers, do]
    found.run(inputs)
    (chain,) = found._elsewhere.values()
    assert isinstance(chain, Chain) and not gpu.named("cuMemsetD8Async")
    made = found.run(inputs)[3]
    assert made.dtype == (torch.float16 if batch < 5 and length % 8 == 0 else torch.float32)
    assert (made.data_ptr() in [address for address, *_ in gpu.named("cuMemsetD8Async")]) == cleared
