"""Heads of any multiple of 8 columns on the emulated Hopper chip, and outputs that leave through the stage of the queries; float64."""

from typing import Any

import pytest
import torch

from attn_mlir import attention, masks, mods, rows
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry
from contexts import loaded_context
from warp_forming import Program, formed, missed

DEVICE = "cuda-emulated"
WIDTHS = (16, 24, 32, 72, 80, 96, 112, 160, 256)


def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
    """A causal one whose rows 3 and 20 to 29 see nothing."""
    return (i >= j) & (i != 3) & ((i < 20) | (i > 29))


def relu(s: Any) -> Any:
    weights = s.max(0.0)
    return weights / (weights.sum() + 1e-6)


def layer_norm(s: Any) -> Any:
    centred = s - s.mean()
    return centred / ((centred * centred).mean() + 1e-5).sqrt()


def two_passes(s: Any) -> Any:
    return (s - s.max() - (s * s).mean()).tanh()


SLOPES, TABLE = torch.linspace(0.5, 0.1, 4), torch.sin(torch.arange(200.0))


def alibi(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + SLOPES[h] * (j - i)


def table(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + TABLE[i + j]


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, atol: float, **options: Any) -> torch.Tensor:
    """Compares with float64 on the CPU, relative to the largest element."""
    o = attention(q, k, v, device=DEVICE, **options)
    wanted = attention(q.double(), k.double(), v.double(), device="cpu", **options)
    torch.testing.assert_close(o.double(), wanted, rtol=0, atol=atol * max(1.0, float(wanted.abs().max())))
    return o


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("lengths", [(1, 1), (17, 17), (127, 127), (70, 300)], ids=str)
def test_odd_lengths_groups_and_fully_masked_rows(columns: int, lengths: tuple[int, int]) -> None:
    queries, keys = lengths
    q, k, v = (torch.randn(2, heads, length, columns).half() for heads, length in ((4, queries), (2, keys), (2, keys)))
    o = check(q, k, v, 4e-3, mask_mod=mask)
    assert not o[:, :, 3].any() if queries > 3 else True


ROWS: dict[str, tuple[Any, Any]] = {
    "softmax": (rows.softmax, None),
    "capped": (rows.softmax, mods.softcap(20.0)),
    "alibi": (rows.softmax, alibi),
    "table": (rows.softmax, table),
    "sigmoid": (rows.sigmoid, None),
    "relu": (relu, None),
    "retention": (rows.retention, None),
    "norm": (layer_norm, None),
    "passes": (two_passes, None),
}


@pytest.mark.parametrize("columns", [64, 128, 256])
@pytest.mark.parametrize("name", ROWS)
def test_rows_with_grouped_heads_and_fully_masked_rows(columns: int, name: str) -> None:
    row, score = ROWS[name]
    q, k, v = (torch.randn(1, heads, length, columns).half() for heads, length in ((4, 150), (2, 43), (2, 43)))
    check(q, k, v, 6e-3, row=row, score_mod=score, mask_mod=mask)


@pytest.mark.parametrize("columns", [32, 96, 256])
@pytest.mark.parametrize("name", ["softmax", "sigmoid", "relu"])
def test_rows_in_bf16_without_a_mask(columns: int, name: str) -> None:
    q, k, v = (torch.randn(1, 2, 150, columns).to(torch.bfloat16) for _ in range(3))
    check(q, k, v, 2e-2, row=ROWS[name][0])


def test_values_of_other_columns_than_keys() -> None:
    for columns, values in ((96, 32), (32, 112), (256, 80), (40, 64), (64, 40)):
        q, k, v = (torch.randn(1, 1, 140, n).half() for n in (columns, columns, values))
        check(q, k, v, 4e-3, mask_mod=masks.causal())


@pytest.mark.parametrize("columns", [32, 80, 160])
def test_gradients(columns: int) -> None:
    """Products over 16 columns at a time; those behind the last one are zeros in shared memory, and are not stored."""
    q, k, v = (torch.randn(1, heads, 100, columns).half() for heads in (2, 1, 1))
    do, made = torch.randn(1, 2, 100, columns).half(), []
    for device, dtype in ((DEVICE, torch.float16), ("cpu", torch.float64)):
        inputs = [x.clone().to(dtype).requires_grad_() for x in (q, k, v)]
        o = attention(inputs[0], inputs[1], inputs[2], mask_mod=mask, device=device)
        made.append([grad.double() for grad in torch.autograd.grad(o, inputs, do.to(dtype))])
    for mine, theirs in zip(*made, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-2 * max(1.0, float(theirs.abs().max())))


def through_queries() -> str:
    """A kernel whose outputs have no buffer: its shared memory is full."""
    before, _, _ = pipeline.SCHEDULE.partition("warp-stage-stores")
    text = str(formed(Program("causal-softmax"), before.removesuffix(",")))
    buffers = (128 + 3 * 2 * 64) * 64 * 2
    with loaded_context():
        module = ir.Module.parse(text.replace("shared_limit = 232448", f"shared_limit = {buffers + 8192}"))
        Pipeline.parse("warp-stage-stores,canonicalize,cse", registry()).run(module)
    return str(module)


def test_outputs_leave_through_the_stage_of_the_queries() -> None:
    text = through_queries()
    assert '"warp.store_async"' in text and '"warp-stage-stores"' not in text
    assert not missed(text, Program("causal-softmax"))


@pytest.mark.parametrize(("old", "new"), [
    ('"warp.store_wait"() {pending = 0 : i64, read = true}', '"warp.store_wait"() {pending = 1 : i64, read = true}'),
    ('"warp.fence_async"() : () -> ()', ""),
])  # fmt: skip
def test_queries_that_come_where_outputs_are_still_read_are_found(old: str, new: str) -> None:
    text = through_queries()
    assert old in text
    assert missed(text.replace(old, new), Program("causal-softmax"))


@pytest.mark.parametrize(("columns", "documents"), [(192, False), (64, True)])
def test_blocks_of_queries_that_are_not_full_stay_apart(columns: int, documents: bool) -> None:
    """Of whole blocks and the last one neither begins elsewhere: numbers of queries behind the last one are not read."""
    ids = torch.randint(-3, 4, (1, 100))
    q, k, v = (torch.randn(1, heads, 90, columns).half() for heads in (2, 1, 1))
    do, made = torch.randn(1, 2, 90, columns).half(), []
    options: Any = {"mask_mod": lambda b, h, i, j: ids[b, i] == ids[b, j]} if documents else {}
    for device, dtype in ((DEVICE, torch.float16), ("cpu", torch.float64)):
        inputs = [x.clone().to(dtype).requires_grad_() for x in (q, k, v)]
        o = attention(inputs[0], inputs[1], inputs[2], device=device, **options)
        made.append([grad.double() for grad in torch.autograd.grad(o, inputs, do.to(dtype))])
    for mine, theirs in zip(*made, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-2 * max(1.0, float(theirs.abs().max())))
