"""8-bit v that many queries read, on Hopper: transposed once in memory, and then a kernel that copies tiles as products take them."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir import Attention, masks
from attn_mlir.backends.nvidia import cuda, driver, thresholds, turned_ahead, turning
from attn_mlir.backends.nvidia.emulation import driver as emulated
from attn_mlir.backends.nvidia.forming.rings import swizzle_of_row
from attn_mlir.backends.nvidia.program import NvidiaLaunchPlan
from attn_mlir.dialects.warp.layouts import column_at, turned_places
from attn_mlir.errors import PerformanceWarning
from attn_mlir.reference.warp import Fault
from fp8_cases import outliers
from gpu_cases import GPU
from host_kernels import host_library
from machine_code import compiled
from test_fp8_hopper import growing
from test_fp8_matrix import check, inputs

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
TURNED = {turned_ahead.TURNED: 1}
Tensor = torch.Tensor
_HOST = """
#include <cstdint>
struct uint4 { uint32_t x, y, z, w; };
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
  const uint64_t both = uint64_t(y) << 32 | x;
  unsigned made = 0;
  for (int n = 0; n < 4; ++n) made |= unsigned(both >> (s >> 4 * n & 7) * 8 & 255) << 8 * n;
  return made;
}
"""
_CALL = """
extern "C" void call(const void *form, int blocks, int threads) { host_launch<AttnTurning>(attn_turn_values, form, blocks, 1, threads, 0); }
"""


def tiles_of(v: Tensor, keys: int) -> Tensor:
    """What the kernel makes of values, by definition."""
    batch, heads, length, columns = v.shape
    count = -(-length // keys)
    whole = torch.zeros(batch, heads, count * keys, columns, dtype=torch.uint8, device=v.device)
    whole[:, :, :length] = v.view(torch.uint8)
    order = torch.tensor([column_at(place) for place in range(keys)], device=v.device)
    turned = whole.reshape(batch, heads, count, keys, columns)[:, :, :, order].mT.reshape(batch, heads, count, -1)
    made, places = torch.empty_like(turned), torch.tensor(turned_places(columns, keys, swizzle_of_row(keys)), device=v.device)
    made[..., places.reshape(-1)] = turned
    return made.reshape(batch, heads, count * keys, columns).view(v.dtype)


def text_of(dim: int = 128, masked: bool = False, dtype: torch.dtype = E4, scales: bool = False, **options: Any) -> str:
    compute = Attention(mask_mod=masks.causal() if masked else None, **options)
    compute(*inputs(1, 1, dim, dtype), **({"k_descale": torch.ones(2), "v_descale": torch.ones(2)} if scales else {}))
    return compute.ir("traced")


def block_of(program: Any) -> int:
    """Keys of a block."""
    (unit,) = program.units.values()
    return (
        int(unit.kernel.block_kv) if hasattr(unit.kernel, "block_kv") else next(p.box[1] for p in unit.code.parameters if p.argument == 2)
    )


@pytest.mark.parametrize(
    ("dtype", "dim", "masked", "sizes"),
    [
        (E4, 128, False, ((1, 1), (17, 127), (130, 1000))),
        (E5, 128, True, ((127, 17), (200, 300))),
        (E4, 64, True, ((70, 300),)),
        (E5, 256, False, ((70, 200),)),
    ],
)
def test_tiles_that_were_transposed_before(dtype: torch.dtype, dim: int, masked: bool, sizes: tuple[tuple[int, int], ...]) -> None:
    """Grouped heads, odd lengths; no warp of the producer transposes any more."""
    program = emulated.compile_program(text_of(dim, masked, dtype), "attention", more=TURNED)
    (unit,) = program.units.values()
    assert "load_matrices_transposed" not in unit.code.source.partition('extern "C"')[2]
    for sq, skv in sizes:
        q, k, v = inputs(sq, skv, dim, dtype)
        mask = torch.ones(sq, skv, dtype=torch.bool)
        check(program.run([q, k, tiles_of(v, block_of(program))])[0], q, k, v, mask.tril() if masked else mask)


def test_warps_step_again_and_scales() -> None:
    program = emulated.compile_program(text_of(scales=True), "attention", more=TURNED)
    q, k, v = growing(130, 600, 128, E4, 8.0)
    scales: dict[str, Any] = {"k_descale": torch.tensor([-0.7, 1.5]), "v_descale": torch.tensor([0.5, -2.0])}
    check(program.run([q, k, tiles_of(v, block_of(program)), *scales.values()])[0], q, k, v, **scales)


def test_a_window_keeps_blocks_at_multiples_of_their_size() -> None:
    """Its blocks of keys begin anywhere where v is transposed in the kernel."""
    compute = Attention(mask_mod=lambda b, h, i, j: (j <= i) & (j > i - 150))
    compute(*inputs(1, 1, 128, E4))
    program = emulated.compile_program(compute.ir("traced"), "attention", more=TURNED)
    q, k, v = inputs(700, 700, 128, E4)
    mask = torch.ones(700, 700, dtype=torch.bool).tril().triu(-149)
    check(program.run([q, k, tiles_of(v, block_of(program))])[0], q, k, v, mask)


def test_values_in_their_own_order_are_wrong() -> None:
    program = emulated.compile_program(text_of(), "attention", more=TURNED)
    q, k, v = inputs(130, 192, 128, E4)
    with pytest.raises(AssertionError):
        check(program.run([q, k, v])[0], q, k, v)
    with pytest.raises(Fault, match="turned tile"):
        program.run([q, k[:, :, :100], v[:, :, :100]])


@pytest.mark.parametrize("masked", [False, True])
def test_machine_code_has_no_spills(masked: bool) -> None:
    (unit,) = driver.compile_program(text_of(128, masked), "attention", more=TURNED).units.values()
    binary = compiled(unit.code)
    assert binary.spills == binary.stack == 0 and not binary.warnings


def on_host(patch: pytest.MonkeyPatch, folder: Path, change: Callable[[str], str] = str) -> None:
    """Starts the kernel as C++ of the host."""
    library = host_library(folder, _HOST + change(turning.source()) + _CALL)

    def start(entry: str, source: Any, form: bytes, grid: tuple[int, int, int], block: tuple[int, int, int], where: Any) -> None:
        library.call(ctypes.c_char_p(form), grid[0], block[0])

    patch.setattr(turning.own_kernel, "start", start)
    patch.setattr(cuda, "current_stream", lambda _: 0)


def right(keys: int, length: int, columns: int, bshd: bool = False) -> bool:
    """Whether the kernel makes what `tiles_of` does, of values in the order of either layout, and writes nothing else."""
    shape = (2, length, 3, columns) if bshd else (2, 3, length, columns)
    v = torch.randint(0, 256, shape, dtype=torch.uint8).view(E4)
    v = v.transpose(1, 2) if bshd else v
    padded = -(-length // keys) * keys
    memory = torch.full((2 * 3 * padded * columns + 64,), 255, dtype=torch.uint8)
    tiles = memory[:-64].view(2, 3, padded, columns).view(E4)
    turning.turn(v, tiles, keys, swizzle_of_row(keys))
    return bool((memory[-64:] == 255).all()) and torch.equal(tiles.view(torch.uint8), tiles_of(v, keys).view(torch.uint8))


@needs_host_clang
def test_the_kernel_on_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_host(monkeypatch, tmp_path)
    for keys, length, columns in ((96, 1, 128), (96, 17, 128), (96, 200, 128), (128, 127, 64), (64, 130, 256), (192, 200, 192)):
        assert right(keys, length, columns) and right(keys, length, columns, bshd=True)


FAULTS = {
    "bytes change places": ("0x5140", "0x4150"),
    "keys behind the last are read": ("key + i < f.keys ?", "true ?"),
    "words have neighbours": ("words[2 * t + 8]", "words[2 * t + 1]"),
    "nothing is swizzled": ("at ^ (at >> 3 & (f.swizzle - 16))", "at"),
    "heads are one": ("head_of_all % unsigned(f.heads) *", "0 *"),
}


@needs_host_clang
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old, new = FAULTS[fault]
    assert old in turning.source()
    on_host(monkeypatch, tmp_path, lambda text: text.replace(old, new))
    assert not right(96, 100, 128)


@pytest.mark.parametrize(
    ("queries", "heads", "keys", "ahead"),
    [(8192, 2, 100, True), (8191, 2, 100, False), (1024, 16, 100, True), (8192, 2, 0, False), (8192, 2, 99, False)],
)
def test_queries_of_a_key_decide(queries: int, heads: int, keys: int, ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turning, "may_turn", lambda v: True)
    monkeypatch.setattr(thresholds, "TURNED_WORK", 2 * 1024 * 16 * 100 * 256)
    q, k = torch.empty(2, heads, queries, 128, device="meta"), torch.empty(2, 2, keys, 128, device="meta")
    assert turned_ahead.pays([q, k, k], 8192) == ahead


def test_which_schedules_have_it() -> None:
    """Softmax of 128 columns; not where somebody chose something, where the number of queries may decide nothing, and once it is done."""
    for masked in (False, True):
        program = driver.compile_program(text_of(128, masked), "attention")
        assert program._turned_from == thresholds.TURNED_VALUES[128, masked][0]
        assert program.with_work(0, True)._turned_from == 0
        assert program.compile_turned is not None and program.compile_turned()._turned_from == 0
    assert driver.compile_program(text_of(64, masked=True), "attention")._turned_from == 0
    assert driver.compile_program(text_of(64), "attention")._turned_from == 8192
    short, longer = (driver.compile_program(text_of(256), "attention", more=more) for more in (None, {"length": 8192}))
    assert short._turned_from == 0 and longer._turned_from == 8192 and longer.compile_turned is not None
    assert "turned" in next(iter(longer.compile_turned().units.values())).schedule
    assert driver.compile_program(text_of(), "attention", more={"stages": 2})._turned_from == 0


class ProgramStub:
    """Stands for the program of transposed tiles."""

    def __init__(self, program: NvidiaLaunchPlan) -> None:
        self.units, self._single, self.seen = program.units, program._single, list[Any]()
        self._calls, self._elsewhere = dict[Any, Any](), dict[Any, Any]()

    def run(self, given: Any, layout: str) -> list[Any]:
        self.seen = [*given, layout]
        return [given[0]]


@needs_host_clang
def test_a_longer_program_tells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the program for more keys has transposed is in the notes of the one that was asked for."""
    on_host(monkeypatch, tmp_path)
    monkeypatch.setattr(turning, "may_turn", lambda v: True)
    monkeypatch.setattr(thresholds, "TURNED_WORK", 1)
    program = driver.compile_program(text_of(256), "attention")
    longer = program.compile_longer(100) if program.compile_longer is not None else program
    assert longer is not program and longer.compile_turned is not None
    stub = ProgramStub(longer.compile_turned())
    monkeypatch.setattr(longer, "compile_turned", lambda: stub)
    monkeypatch.setattr(longer, "_turned_from", 600)
    monkeypatch.setattr(program, "_longer", 100)
    q, k, v = inputs(300, 100, 256, E4)
    assert program.run([q, k, v])[0] is q
    assert program.copies == {"v": f"600 queries read each key: v is transposed before the kernel, {2 * 100 * 256} bytes"}
    (unit,) = program.units.values()
    assert program.with_units({"parts": unit})._copies is program._copies


@needs_host_clang
def test_a_call_that_pays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And `explain()` is told; without memory the kernel transposes."""
    on_host(monkeypatch, tmp_path)
    monkeypatch.setattr(turning, "may_turn", lambda v: True)
    program = driver.compile_program(text_of(), "attention")
    assert program.compile_turned is not None
    stub = ProgramStub(program.compile_turned())
    monkeypatch.setattr(program, "compile_turned", lambda: stub)
    monkeypatch.setattr(program, "_turned_from", 600)
    monkeypatch.setattr(thresholds, "TURNED_WORK", 1)
    monkeypatch.setattr(program._copies, "notes", {})
    q, k, v = inputs(300, 100, 128, E4)
    assert program.run([q, k, v], "bshd")[0] is q
    same, keys, tiles, layout = stub.seen
    assert same is q and keys is k and layout == "bshd" and torch.equal(tiles.view(torch.uint8), tiles_of(v, 96).view(torch.uint8))
    assert program.copies == {"v": f"600 queries read each key: v is transposed before the kernel, {2 * 100 * 128} bytes"}

    def full(*sizes: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(turned_ahead, "empty", full)
    with pytest.warns(PerformanceWarning, match="no memory to transpose 8-bit v"):
        assert program._turned([q, k, v], stub) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [pytest.param(dtype, marks=GPU) for dtype in (E4, E5)])
@pytest.mark.parametrize("masked", [False, True])
def test_on_a_gpu(dtype: torch.dtype, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths, grouped heads, scales, both layouts, growing scores, two launches with the same bits, graphs, other streams."""
    compute = Attention(mask_mod=masks.causal() if masked else None)
    compute(*inputs(1, 1, 128, dtype))
    program = driver.compile_program(compute.ir("traced"), "attention")
    monkeypatch.setattr(program, "_turned_from", 1)
    monkeypatch.setattr(thresholds, "TURNED_WORK", 1)
    for sq, skv in ((1, 1), (17, 127), (127, 17), (1000, 1000), (130, 1000), (2048, 2048)):
        for given in (inputs(sq, skv, 128, dtype), growing(sq, skv, 128, dtype, 8.0)):
            there = [x.cuda() for x in given]
            mask = torch.ones(sq, skv, dtype=torch.bool)
            (o,) = program.run(there)
            check(o.cpu(), given[0], given[1], given[2], mask.tril() if masked else mask)
            assert torch.equal(program.run(there)[0], o)
            by_position = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in there]
            assert torch.equal(program.run(by_position, "bshd")[0], o)
    q, k, v = there
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        (again,) = program.run([q, k, v])
    v.copy_(outliers(*v.shape, seed=9).to(dtype).cuda())
    for _ in range(3):  # memory of calls between is memory of the graph's no more
        graph.replay()
        program.run([q, k, torch.zeros_like(v)])
    torch.cuda.synchronize()
    check(again.cpu(), q.cpu(), k.cpu(), v.cpu(), mask.tril() if masked else mask)
    with torch.cuda.stream(other):
        (aside,) = program.run([q, k, v])
        junk = torch.full((v.numel(),), 255, dtype=torch.uint8, device="cuda")
    other.synchronize()
    assert torch.equal(aside, again) and junk.numel()
    assert program.run([q[:0], k[:0], v[:0]])[0].shape == q[:0].shape
    assert not program.run([q, k[:, :, :0], v[:, :, :0]])[0].any()


@pytest.mark.parametrize("dim", [pytest.param(dim, marks=GPU) for dim in (64, 128, 192, 256)])
def test_the_kernel_on_a_gpu(dim: int) -> None:
    for keys, length in ((96, 1), (96, 1000), (128, 2049), (64, 77)):
        v = torch.randint(0, 256, (2, 3, length, dim), dtype=torch.uint8).cuda().view(E4)
        tiles = torch.full((2, 3, -(-length // keys) * keys, dim), 255, dtype=torch.uint8, device="cuda").view(E4)
        turning.turn(v, tiles, keys, swizzle_of_row(keys))
        assert torch.equal(tiles.view(torch.uint8), tiles_of(v, keys).view(torch.uint8))
