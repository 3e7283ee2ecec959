"""Split-KV: few queries see long caches in parts, combined by the derived merge."""

from typing import Any

import pytest
import torch

from attn_mlir import ArgumentError, UnsupportedError, attention, rows
from attn_mlir.backends.cpu.parts import LEAST, MOST_PARTS, PART, parts_of
from attn_mlir.frontend.elementary import exp
from partial_cases import Case, inputs, two_reductions


@pytest.mark.parametrize("row", ["softmax", "relu", "two_reductions"])
@pytest.mark.parametrize("queries", [1, 5])
def test_parts_are_the_whole(row: str, queries: int) -> None:
    """With captures, masks and grouped heads; parts that no query sees, and fully masked rows."""
    case = Case(row, torch.tensor([0.5, -1.0, 2.0, 0.0]))
    for keys, splits in ((1000, 7), (127, 127), (17, 3), (1, 4)):
        q, k, v = inputs(queries, keys)
        wanted = case.reference(q, k, v)
        o, lse = attention(q, k, v, **case.options(), num_splits=splits, return_lse=True)
        assert (o.double() - wanted).abs().max() <= 2e-5 * wanted.abs().max() + 1e-6
        _, right = attention(q, k, v, **case.options(), num_splits=1, return_lse=True)
        torch.testing.assert_close(lse, right, atol=1e-5, rtol=1e-5)


def test_parts_of_bf16_and_ungrouped_heads() -> None:
    for heads in (4, 2):
        k, v = torch.randn(2, 2, 2, 999, 16).bfloat16()
        q = torch.randn(2, heads, 1, 16).bfloat16()
        o, whole = (attention(q, k, v, num_splits=n) for n in (5, 1))
        assert o.dtype == torch.bfloat16
        torch.testing.assert_close(o, whole, atol=1e-3, rtol=1e-2)


def test_the_end_reads_captures_and_masks_leave_rows_empty() -> None:
    q, k, v = inputs(3, 127)
    options: dict[str, Any] = {
        "row": rows.softmax_sink(torch.tensor([0.3, -1.0, 2.0, 0.5])),
        "mask_mod": lambda b, h, q_idx, kv_idx: kv_idx < 20 * q_idx,
    }
    o, whole = (attention(q, k, v, **options, num_splits=n) for n in (6, 1))
    torch.testing.assert_close(o, whole, atol=1e-5, rtol=1e-5)
    assert not o[:, :, 0].any()


def test_the_same_bits_for_any_threads_and_batch() -> None:
    q, k, v = inputs(1, LEAST + 100)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found += [attention(q, k, v), torch.cat([attention(q[b : b + 1], k[b : b + 1], v[b : b + 1]) for b in range(2)])]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(o, found[0]) for o in found)
    whole = attention(q, k, v, num_splits=1)
    torch.testing.assert_close(found[0], whole, atol=1e-5, rtol=1e-5)
    assert not torch.equal(found[0], whole)  # so that parts were seen


@pytest.mark.parametrize("keys", [0, 1, PART, LEAST - 1, LEAST, 100_001, 10**7])
def test_parts_cover_all_keys_once(keys: int) -> None:
    for wanted in (0, 1, 3, 1024):
        count, length = parts_of(keys, wanted)
        assert keys <= count * length or not keys
        assert not keys or (count - 1) * length < keys
        assert count <= (wanted or MOST_PARTS)
    assert parts_of(keys)[0] == 1 or parts_of(keys)[1] >= PART


def test_what_is_refused() -> None:
    q, k, v = inputs(1, 17)

    def temperature(s: Any) -> Any:
        e = exp(s / ((s * s).mean() + 1e-3).sqrt())
        return e / e.sum()

    with pytest.raises(UnsupportedError, match="not seen in parts"):
        attention(q, k, v, row=temperature, num_splits=3)
    with pytest.raises(UnsupportedError, match="16 queries at most"):
        attention(inputs(17, 17)[0], k, v, num_splits=3)
    with pytest.raises(ArgumentError, match="num_splits must be an integer"):
        attention(q, k, v, row=two_reductions, num_splits=-1)


def test_outputs_of_one_sum_are_not_split() -> None:
    q, k = torch.randn(1, 2, 1, 16), torch.randn(1, 2, 8192, 16)
    o, twice = attention(q, k, k, row=lambda s: (s.softmax(-1), s.softmax(-1) * 2))
    assert (o - attention(q, k, k, num_splits=1)).abs().max() < 1e-6
    assert (twice - 2 * o).abs().max() < 1e-6
