"""Keys in pages in kernels of the `warp` dialect for Hopper: several queries in the evaluator, in several orders, against float64; planted
faults; what is launched.
"""

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attn_mlir import attention_varlen, masks
from attn_mlir.backends.nvidia import driver, warp
from attn_mlir.backends.nvidia.emulation import kernel as emulated
from attn_mlir.backends.program import OUTLINE
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.warp import Fault
from attn_mlir.reference.warp.schedules import schedules
from generated_code import complaints
from program_texts import text_of
from test_column_clusters import COMPILER
from test_varlen_paged import in_pages, ints
from varlen_cases import offsets

DEVICE = "cuda-emulated"
QUERIES, KEYS = (17, 1, 0, 127, 3, 1), (17, 127, 5, 300, 0, 1)
"""Odd lengths, no queries, no keys."""
CAUSAL: dict[str, Any] = {"mask_mod": masks.causal("bottom_right")}
WINDOW: dict[str, Any] = {"mask_mod": masks.sliding_window(40, 3, align="bottom_right")}
Tensor = torch.Tensor
Runs = Callable[..., int]


def given(dim: int, queries: Sequence[int] = QUERIES, keys: Sequence[int] = KEYS, heads: tuple[int, int] = (2, 1)) -> list[Tensor]:
    """q, k and v in f16."""
    q, (k, v) = torch.randn(sum(queries), heads[0], dim).half(), torch.randn(2, sum(keys), heads[1], dim).half()
    return [q, k, v]


def paged(x: Sequence[Tensor], size: int, queries: Sequence[int] = QUERIES, keys: Sequence[int] = KEYS, **options: Any) -> Tensor:
    """Of caches with NaN behind the last key of each sequence, and tables of no page behind its last one."""
    (k, table), (v, _) = (in_pages(each, keys, size) for each in x[1:])
    options = {"device": DEVICE, "max_q": max(queries), "max_k": max(keys), **options}
    return attention_varlen(x[0], k, v, offsets(queries), seqused_k=ints(*keys), block_table=table, **options)


def packed(x: Sequence[Tensor], queries: Sequence[int] = QUERIES, keys: Sequence[int] = KEYS, **options: Any) -> Tensor:
    """The same in float64."""
    q, k, v = (each.double() for each in x)
    return attention_varlen(q, k, v, offsets(queries), offsets(keys), **options)


def compare(got: Tensor, wanted: Tensor) -> None:
    assert torch.isfinite(got).all()
    assert float((got.double() - wanted).norm()) <= 1e-3 * float(wanted.norm())


@pytest.mark.parametrize(("dim", "size", "options"), [
    (64, 48, {}), (64, 256, WINDOW), (128, 16, CAUSAL), (96, 32, CAUSAL),
], ids=["full", "window", "causal", "causal of 96"])  # fmt: skip
def test_odd_lengths(dim: int, size: int, options: dict[str, Any]) -> None:
    x = given(dim, heads=(4, 2) if dim == 96 else (2, 1))
    compare(paged(x, size, **options), packed(x, **options))


def test_what_is_launched_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """With numbers that are told, and blocks of 80 keys, whose five parts four warps share."""
    x = given(64)
    for more in ({"tell": 1}, {"tell": 1, "block_kv": 80}):
        fields = {
            "arch": "sm_90a",
            "pieces": 0,
            "emitter": "warp",
            "order": "dynamic",
            "stages": 3,
            "block_q": 128,
            "block_kv": 128,
            **more,
        }
        monkeypatch.setattr("attn_mlir.backends.nvidia.emulation.driver.choices_of", lambda _, fields=fields: fields)
        compare(paged(x, 16, **CAUSAL), packed(x, **CAUSAL))


def orders(run: Runs, change: Callable[[list[Any]], None] = lambda _: None) -> Runs:
    """Runs a kernel in several orders, which give the same results, on arguments that are changed before."""

    def every(kernel: Any, arguments: Sequence[Any], schedule: Any, blocks: int) -> int:
        roles = [inst for inst in kernel.blocks[0][1] if inst.name == "warp.role"]
        names = [f"{role.attributes['sym_name']} {n}" for role in roles for n in range(role.attributes["warpgroups"])]
        change(list(arguments))
        made = []
        for other in schedules(names, 2).values():
            own = [each.copy() if isinstance(each, np.ndarray) else each for each in arguments]
            # Copies of views of packed tensors share no memory between their entries: only the others are run on their own.
            own = [a if isinstance(a, np.ndarray) and a.strides != b.strides else b for a, b in zip(arguments, own, strict=True)]
            run(kernel, own, other, blocks)
            made.append([np.array(a) for a in own if isinstance(a, np.ndarray)])
        assert all(np.array_equal(a, b, equal_nan=True) for each in made for a, b in zip(each, made[0], strict=True))
        return len(made)

    return every


def test_orders_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated, "run_scheduled", orders(emulated.run_scheduled))
    queries, keys = (70, 3), (150, 20)
    x = given(64, queries, keys, (2, 1))
    compare(paged(x, 16, queries, keys, **CAUSAL), packed(x, queries, keys, **CAUSAL))


def test_pages_that_there_are_not_are_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """As copy engines have it; where nobody checks, on a GPU, nothing else is read."""
    queries, keys, size = (40, 5), (100, 33), 16

    def change(arguments: list[Any]) -> None:
        (table,) = (each for each in arguments if isinstance(each, np.ndarray) and each.shape == (2, 8))
        table[0, 2], table[1, 0] = -1, 1 << 30

    monkeypatch.setattr(emulated, "run_scheduled", orders(emulated.run_scheduled, change))
    x = given(64, queries, keys)
    o = paged(x, size, queries, keys, **CAUSAL)
    for each in x[1:]:
        each[32:48] = each[100:116] = 0
    compare(o, packed(x, queries, keys, **CAUSAL))


def _operand(which: str, number: int, value: int) -> Callable[[ir.Operation], None]:
    """Adds to an operand of every search for pages, or copy of them."""
    name = {"find": "warp.find_pages", "copy": "warp.copy_pages_async"}[which]

    def change(kernel: ir.Operation) -> None:
        for op in find_all(kernel, name):
            with op.location, ir.InsertionPoint(op):
                op.operands[number] = arith.AddIOp(op.operands[number], build.index(value)).result

    return change


def _no_wait(kernel: ir.Operation) -> None:
    """Copies to stages that are in use."""
    for op in find_all(kernel, "warp.copy_pages_async"):
        ops = [view.operation for view in op.block.operations]
        last = [each for each in ops[: ops.index(op)] if each.name == "warp.wait"][-1]
        last.erase()


def _arrivals(kernel: ir.Operation) -> None:
    """Barriers that await one warp of four."""
    for full in {op.operands[7] for op in find_all(kernel, "warp.copy_pages_async")}:
        full.set_type(ir.Type.parse(re.sub(r"4 : i64>$", "1 : i64>", str(full.type))))


def edited(change: Callable[[ir.Operation], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs changed copies of kernels."""
    call = emulated.EvaluatedKernel.__call__

    def run(self: Any, arguments: Sequence[Any], outputs: Any) -> None:
        kept, clone = self._read, self._kernel.clone()
        with self._context:
            change(clone)
        try:
            self._read = emulated.read_kernel(clone)
            call(self, arguments, outputs)
        finally:
            self._read = kept
            clone.erase()

    monkeypatch.setattr(emulated.EvaluatedKernel, "__call__", run)


@pytest.mark.parametrize(("change", "kinds"), [
    (_operand("find", 3, 8), "out of bounds"), (_operand("find", 1, 5), "out of bounds"), (_operand("copy", 3, 1), "out of bounds"),
    (_no_wait, "overwritten while read overwritten twice"), (_arrivals, "too many arrivals read before full wrong phase"),
], ids=["rows within a part", "another sequence", "another head", "no wait", "arrivals"])  # fmt: skip
def test_faults_are_found(change: Callable[[ir.Operation], None], kinds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edited(change, monkeypatch)
    queries, keys = (70,), (500,)
    with pytest.raises(Fault) as found:
        paged(given(64, queries, keys, (1, 1)), 16, queries, keys)
    assert found.value.kind in kinds


def test_rows_behind_the_last_key_are_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above see copies that read too far."""
    edited(_operand("copy", 5, 9), monkeypatch)
    assert not torch.isfinite(paged(given(64, (5,), (20,), (1, 1)), 16, (5,), (20,))).all()


@pytest.mark.parametrize(("dim", "options"), [(64, CAUSAL), (128, {}), (128, WINDOW)], ids=["causal", "full", "window"])
def test_launched_kernels(dim: int, options: dict[str, Any]) -> None:
    """Four warps copy 64 or 16 rows at a time, those of the part that a sequence ends in one by one; keys and values are no views."""
    q, k, used = torch.randn(30, 16, dim).half(), torch.randn(6, 16, 1, dim).half(), ints(30, 17, 1)
    table = torch.arange(6).int().view(3, 2)
    text = text_of(lambda: attention_varlen(q, k, k, offsets([9, 20, 1]), seqused_k=used, block_table=table, **options))
    _, units = driver._lower(text, "attention", OUTLINE, {"arch": "sm_90a"})
    (unit,) = units.values()
    assert unit.schedule["emitter"] == "warp" and unit.kernel.paged == (1, 2) and not complaints(unit.code)
    assert unit.code.source.count(f"attn::copy_pages<128, {dim // 64}, 64, 128, 4>(") == 2
    boxes = {(each.argument, each.box): each.kind for each in unit.code.parameters if each.argument in (1, 2) and each.box[0]}
    assert boxes == {(n, (64, rows)): "descriptor" for n in (1, 2) for rows in (64, 16, 1)}


PAGES = r"""
#include <cmath>
#include <cstdio>
#include <initializer_list>
#define ATTN_DEVICE static inline
constexpr int kPartRows = 16;
@PAGE_OF@
int main() {
  for (int size : {1, 2, 3, 4, 5, 6, 7, 9, 12, 16, 25, 31, 48, 63, 100, 127, 255, 1000, 1023, 4095, 65535, 1 << 19, (1 << 20) - 1})
    for (float near : {0.f, 1.f, 2.f})  // the quotient of a GPU is up to two of its last bits away
      for (int part = 0; part < 1 << 20; ++part) {
        const float reciprocal = std::nextafter(std::nextafter(1.f / size, near), near);
        if (page_of(part * 16 + 15, reciprocal) != part / size) return std::printf("%d of %d\n", part, size), 1;
      }
}
"""


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_pages_of_all_positions(tmp_path: Path) -> None:
    assert COMPILER is not None
    header = (Path(warp.__file__).parent / "attn_page_copies.cuh").read_text()
    function = re.search(r"ATTN_DEVICE int page_of\(.*?\n}", header, flags=re.DOTALL)
    assert function is not None
    path = tmp_path / "pages.cpp"
    path.write_text(PAGES.replace("@PAGE_OF@", f"using std::fmaf;\n{function[0]}"))
    subprocess.run([COMPILER, "-std=c++20", "-O2", "-ffp-contract=off", "-w", str(path), "-o", str(tmp_path / "pages")], check=True)
    made = subprocess.run([str(tmp_path / "pages")], capture_output=True, text=True, check=False, timeout=120)
    assert not made.returncode, made.stdout
