"""Reads of captured tensors outside of their bounds are found before a kernel runs, and only those."""

import gc
import pathlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from attn_mlir.errors import ArgumentError
from attn_mlir.passes.intervals.capture_bounds import ReadPlan, make_plan
from masks import module_text

ALIBI = pathlib.Path(__file__).parent.parent / "Inputs" / "alibi-causal-softmax.mlir"
Read = Callable[..., Any]


def _plan(mask: Read, *captures: Any) -> ReadPlan:
    arrays = [c.numpy() if isinstance(c, torch.Tensor) else c for c in captures]
    return make_plan(module_text(mask, arrays), names=["table", "other"])


def _check(plan: ReadPlan, *captures: Any, heads: int = 4, sq: int = 10, skv: int = 12, batch: int = 2) -> None:
    plan.check((batch, heads, heads, sq, skv, 8, 8), captures)


def _table(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def test_the_message_names_tensor_dimension_range_and_size() -> None:
    plan = make_plan(ALIBI.read_text())
    plan.check((1, 4, 4, 10, 10, 64, 64), [torch.zeros(4)])
    expected = "captured tensor 'slopes' has size 4 in dimension 0, but is read at h, which runs over 0..7."
    with pytest.raises(ArgumentError, match=f"^{re.escape(expected)}$"):
        plan.check((1, 8, 8, 10, 10, 64, 64), [torch.zeros(4)])


@pytest.mark.parametrize(
    ("read", "fits", "too_small"),
    [
        (lambda b, h, q, k, t: t[q] == t[k], (12,), (11,)),
        (lambda b, h, q, k, t: t[b, h] == 0, (2, 4), (2, 3)),
        (lambda b, h, q, k, t: t[h // 2] == 0, (2,), (1,)),
        (lambda b, h, q, k, t: t[q - k + 11] == 0, (21,), (20,)),
        (lambda b, h, q, k, t: t[(q * 3 + k) % 7] == 0, (7,), (6,)),
        (lambda b, h, q, k, t: t[abs(q - k)] == 0, (12,), (11,)),
        (lambda b, h, q, k, t: t[(k - q).clip(0, 5)] == 0, (6,), (5,)),
    ],
)
def test_sizes_that_just_fit(read: Read, fits: tuple[int, ...], too_small: tuple[int, ...]) -> None:
    plan = _plan(read, _table(*fits))
    _check(plan, _table(*fits))
    with pytest.raises(ArgumentError, match="captured tensor 'table' has size"):
        _check(plan, _table(*too_small))


def test_indices_below_zero() -> None:
    plan = _plan(lambda b, h, q, k, t: t[q - 3] == 0, _table(9))
    with pytest.raises(ArgumentError, match=r"read at q_idx - 3, which runs over -3\.\.6\. Masked positions are read as well.*clamp"):
        _check(plan, _table(9))


WRAPPED = """
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %bias: tensor<?xf32>, %shift: index)
    -> tensor<?x?x?x8xf32> {
  %c0 = arith.constant 0 : index
  %size = tensor.dim %bias, %c0 : tensor<?xf32>
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.key"() ({
    ^bb0(%x: f32, %b: index, %h_kv: index, %kv_idx: index, %d: index):
      %i = arith.subi %h_kv, %shift : index
      %below = arith.cmpi slt, %i, %c0 : index
      %from_end = arith.addi %i, %size : index
      %at = arith.select %below, %from_end, %i : index
      %e = tensor.extract %bias[%at] : tensor<?xf32>
      "attn.yield"(%e) : (f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}"""


def test_negative_indices_wrap_once_and_scalars_count() -> None:
    plan = make_plan(WRAPPED)
    plan.check((1, 8, 2, 5, 5, 8, 8), [torch.zeros(4), 4])
    plan.check((1, 8, 2, 5, 5, 8, 8), [torch.zeros(4), -2])
    with pytest.raises(ArgumentError, match=r"'bias' has size 4 .* read at h_kv - shift, which runs over -5\.\.-4\.$"):
        plan.check((1, 8, 2, 5, 5, 8, 8), [torch.zeros(4), 5])
    with pytest.raises(ArgumentError, match=r"runs over 3\.\.4"):
        plan.check((1, 8, 2, 5, 5, 8, 8), [torch.zeros(4), -3])


def test_indices_from_data() -> None:
    plan = _plan(lambda b, h, q, k, table, other: table[other[q] + 1] == 0, _table(5), _table(10))
    assert plan.has_data_checks
    ids = torch.arange(10) % 4
    sizes = (1, 1, 1, 10, 10, 8, 8)
    plan.check(sizes, [_table(5), ids])
    plan.check_data(sizes, [_table(5), ids])
    ids[7] = 4
    with pytest.raises(ArgumentError, match=r"read at other\[q_idx\] \+ 1, which with these elements runs over 1\.\.5"):
        plan.check_data(sizes, [_table(5), ids])
    plan.check_data((1, 1, 1, 7, 10, 8, 8), [_table(5), ids])  # rows stop before the bad element


def test_an_index_of_unknown_range_must_be_clamped() -> None:
    computed = "%n = arith.fptosi %x : f32 to i64\n      %i = arith.index_cast %n : i64 to index"
    text = WRAPPED.replace("%i = arith.subi %h_kv, %shift : index", computed)
    with pytest.raises(ArgumentError, match=r"whose range is not known; bound it with \.clamp\(0, 3\)"):
        make_plan(text).check((1, 1, 1, 5, 5, 8, 8), [torch.zeros(4), 0])


def test_nothing_is_read_without_rows_or_keys() -> None:
    plan = _plan(lambda b, h, q, k, t: t[q - 3] == 0, _table(0))
    plan.check((1, 1, 1, 0, 5, 8, 8), [_table(0)])


def test_plans_are_exact_on_random_affine_reads() -> None:
    rng = np.random.default_rng(3)
    for _ in range(40):
        a, c, offset, modulus = (int(x) for x in (*rng.integers(-4, 5, 2), rng.integers(-20, 40), rng.integers(2, 30)))
        q, k = np.arange(10)[:, None], np.arange(12)[None, :]
        indices = (q * a + k * c + offset) % modulus // 2
        plan = _plan(lambda b, h, q, k, t, a=a, c=c, offset=offset, m=modulus: t[(q * a + k * c + offset) % m // 2] == 0, _table(1))
        _check(plan, _table((modulus - 1) // 2 + 1))
        with pytest.raises(ArgumentError):
            _check(plan, _table(int(indices.max())))


def test_a_plan_outlives_its_module_and_does_not_grow() -> None:
    plan = _plan(lambda b, h, q, k, t: t[q - k + 20] == 0, _table(1))
    gc.collect()
    before = len(plan.pool._nodes)
    for size in range(60, 80):
        _check(plan, _table(size), sq=size - 50)
    assert len(plan.pool._nodes) == before


def test_plans_of_several_threads() -> None:
    text = ALIBI.read_text()
    with ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(make_plan, [text] * 12))
    expected = make_plan(text)
    assert {(plan.names, len(plan.reads)) for plan in plans} == {(expected.names, len(expected.reads))}
