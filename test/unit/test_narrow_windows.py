"""Windows of few keys: heads of a group packed into blocks of rows, blocks of keys from the first key on, numbers of tiles told.

The evaluator of scheduled kernels runs them, and finds races; results are compared with float64.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import masks, mods, rows
from attn_mlir.api.masks import Align
from attn_mlir.backends.fields import Fields
from attn_mlir.backends.nvidia import driver as hopper
from attn_mlir.backends.nvidia import narrow_windows, pipeline, thresholds
from attn_mlir.backends.nvidia.emulation import driver
from attn_mlir.backends.program import OUTLINE, prepare_derivative
from attn_mlir.driver import compile_derivative
from attn_mlir.frontend.emit import Inputs
from attn_mlir.runtime import programs
from nvidia_fakes import fake_gpu
from program_texts import text_of

Call = Callable[..., list[torch.Tensor]]
HEADS = (16, 2)


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Sets choices of all kernels on the emulated chip, `pack` among them, which also asks for the second form of backward passes.

    Afterwards kernels must have packed as many heads as were asked for.
    """
    derivative, asked = driver.derivative, dict[str, Any]()

    def chosen(**more: int | str) -> None:
        _forget()
        asked.update(more)
        monkeypatch.setattr(driver, "choices_of", lambda device: {"arch": "sm_90a", **more})

        def prepared(*arguments: Any) -> tuple[str, str]:
            name, text = derivative(*arguments)
            return name, narrow_windows.prepared(text) if "pack" in more else text

        monkeypatch.setattr(driver, "derivative", prepared)

    yield chosen
    made = [unit.schedule.get("pack", 1) for plan in driver._PROGRAMS.values() for unit in plan.units.values()]  # pyright: ignore[reportPrivateUsage]
    _forget()
    assert max(made) == asked.get("pack", 1)


def _forget() -> None:
    """Forgets compiled programs: those of the driver, and those that traces have."""
    driver._PROGRAMS.clear()  # pyright: ignore[reportPrivateUsage]
    for program in programs._TABLE.values():  # pyright: ignore[reportPrivateUsage]
        program.kernels.clear()
        program.derivatives.clear()


def _inputs(queries: int, keys: int, heads: tuple[int, int] = HEADS, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    return [torch.randn(1, h, n, 64).to(dtype) for h, n in ((heads[0], queries), (heads[1], keys), (heads[1], keys))]


def _formula(q: Any, k: Any, v: Any, sides: tuple[int, int], shift: int = 0, sinks: Any = None) -> torch.Tensor:
    """Attention under a window in float64; fully masked rows are zeros."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    i, j = torch.arange(q.shape[2])[:, None] + shift, torch.arange(k.shape[2])[None]
    s = torch.where((i - j <= sides[0]) & (j - i <= sides[1]), q @ k.mT / 8, -torch.inf)
    if sinks is not None:
        column = sinks.double()[None, :, None, None].expand(*s.shape[:3], 1)
        return torch.cat([s, column], -1).softmax(-1)[..., :-1] @ v
    return s.softmax(-1).nan_to_num(0) @ v


def _apart(got: torch.Tensor, right: torch.Tensor) -> float:
    return float((got.double() - right).norm() / right.norm())


PACKED: dict[str, Any] = {"emitter": "warp", "pack": 8, "block_q": 192, "block_kv": 80, "tell": 1, "draw": 1}
FORMS = {
    "three warpgroups": PACKED,
    "one block": {**PACKED, "block_q": 128, "block_kv": 144},
    "two thread blocks": {**PACKED, "block_q": 64, "block_kv": 48, "occupancy": 2, "stages": 2},
    "no packs": {"emitter": "warp", "block_q": 64, "block_kv": 64, "occupancy": 3, "stages": 2, "tell": 1, "draw": 1},
    "static": {"emitter": "warp", "pack": 8, "block_q": 128, "block_kv": 48},
}


@pytest.mark.parametrize("form", FORMS)
def test_windows_are_those_of_the_formula(choose: Callable[..., None], form: str) -> None:
    choose(**FORMS[form])
    last: Align = "bottom_right"
    cases: list[tuple[int, int, tuple[int, int], Align]]
    cases = [(70, 70, (20, 0), "top_left"), (17, 127, (30, 5), last), (1, 100, (13, 0), last)]
    for queries, keys, sides, align in cases:
        q, k, v = _inputs(queries, keys)
        call = attn_mlir.Attention(mask_mod=masks.sliding_window(*sides, align), device="cuda-emulated", return_lse=True)
        o, lse = call(q, k, v)
        shift = keys - queries if align == last else 0
        right = _formula(q.double(), k.double(), v.double(), sides, shift)
        assert _apart(o, right) < 4e-3 and lse.isfinite().all()


def test_rows_without_keys_are_zeros_where_heads_are_packed(choose: Callable[..., None]) -> None:
    choose(**PACKED)
    q, k, v = _inputs(90, 40)
    o = attn_mlir.Attention(mask_mod=masks.sliding_window(5), device="cuda-emulated")(q, k, v)
    assert not o[:, :, 45:].any() and _apart(o, _formula(q.double(), k.double(), v.double(), (5, 0))) < 4e-3


@pytest.mark.parametrize("sinks", [False, True])
def test_gradients_are_those_of_the_formula(choose: Callable[..., None], sinks: bool) -> None:
    choose(pack=8)
    given = [x.requires_grad_() for x in _inputs(60, 60)]
    numbers = torch.randn(HEADS[0]) if sinks else None
    row: dict[str, Any] = {"row": rows.softmax_sink(numbers)} if numbers is not None else {}
    call = attn_mlir.Attention(mask_mod=masks.sliding_window(20), device="cuda-emulated", **row)
    o = call(*given)
    sent = torch.randn(o.shape).to(o.dtype)
    wide = [x.detach().double().requires_grad_() for x in given]
    q, k, v = wide
    right = _formula(q, k, v, (20, 0), sinks=numbers)
    assert _apart(o.detach(), right.detach()) < 4e-3
    wanted = torch.autograd.grad(right, wide, sent.double())
    for got, each in zip(torch.autograd.grad(o, given, sent), wanted, strict=True):
        assert _apart(got, each) < 6e-3


def test_numbers_of_heads_are_those_of_each_row(choose: Callable[..., None]) -> None:
    """Terms of positions with a slope of each head, and a cap: read by row where rows of a block are of several heads."""
    slopes = torch.rand(HEADS[0])

    def biased(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return mods.softcap(20.0)(s, b, h, i, j) + slopes[h] * (j - i)

    choose(**PACKED)
    q, k, v = _inputs(70, 70)
    o = attn_mlir.Attention(mask_mod=masks.sliding_window(20), score_mod=biased, device="cuda-emulated")(q, k, v)
    wide = k.double().repeat_interleave(8, 1), v.double().repeat_interleave(8, 1)
    i, j = torch.arange(70)[:, None], torch.arange(70)[None]
    s = 20 * (q.double() @ wide[0].mT / 8 / 20).tanh() + slopes.double()[None, :, None, None] * (j - i)
    right = torch.where((i - j <= 20) & (j <= i), s, -torch.inf).softmax(-1) @ wide[1]
    assert _apart(o, right) < 4e-3


def test_which_calls_have_a_narrow_window() -> None:
    q, k, v = (torch.empty(1, h, 1024, 64, device="meta") for h in (64, 8, 8))
    most, fewer = thresholds.NARROW_KEYS["rows"], thresholds.NARROW_KEYS["pairs"]
    assert narrow_windows.pack_of([q, k, v, 127, 0], most) == narrow_windows.pack_of([q, k, v, 127, 0], fewer) == 8
    assert narrow_windows.pack_of([q, k, v, fewer, 0], most) == 8 and narrow_windows.pack_of([q, k, v, fewer, 0], fewer) == 0
    assert narrow_windows.pack_of([q[:, :24], k, v, 127, 0], most) == 1  # three heads each
    assert narrow_windows.pack_of([q[:, :24], k, v, 127, 0], fewer) == 0
    assert narrow_windows.pack_of([q, k, v, most - 1, 1], most) == 0
    assert narrow_windows.pack_of([q, k, v, -1, 0], most) == 0  # no limit
    assert narrow_windows.pack_of([q, k, v], most) == 0
    assert narrow_windows.pack_of([q, k[:, :, :100], v, 127, 0], most) == 0
    wide = [torch.empty(1, h, 1024, 128, device="meta") for h in (24, 8, 8)]
    assert narrow_windows.pack_of([*wide, 127, 0], most) == 0  # no form for single heads of 128 columns


def _schedules(kind: str, columns: int = 64, **choices: int) -> dict[str, Fields]:
    """Of the kernels of a window on Hopper, whose sizes are numbers of a call: `kind` is a derivative, or "" for the forward pass alone."""
    call = attn_mlir.Attention(mask_mod=masks.sliding_window(127))
    call.__dict__.update(_last=Inputs("bf16", columns, columns), _form=None)
    name, text = prepare_derivative(kind, ("q", "k", "v"), pipeline.outline("sm_90a")) if kind else ("attention", OUTLINE)
    text = narrow_windows.prepared(text) if "pack" in choices else text
    _, units = hopper._lower(call.ir(), name, text, {"arch": "sm_90a", **choices})  # pyright: ignore[reportPrivateUsage]
    return {name: unit.schedule for name, unit in units.items() if unit.schedule["emitter"] != "simt"}


@pytest.mark.parametrize("columns", [64, 128])
def test_a_fixed_order_of_sums_is_hoppers_own(columns: int) -> None:
    """Sizes of a window are numbers of a call; a choice by them does not depend on the keys, so that bounds still grow with these."""
    (schedule,) = _schedules("bwd", columns, deterministic=1).values()
    assert schedule["emitter"] == "hopper" and schedule["deterministic"] == 1


def test_forms_of_a_window() -> None:
    """The usual kernels say for how many keys another form is better; that packs heads, and dq is a kernel over rows."""
    assert [schedule.get("few_keys") for kind in ("", "fwd", "bwd") for schedule in _schedules(kind).values()] == [1024, 1024, 256]
    (forward,) = _schedules("", pack=8).values()
    assert forward["emitter"] == "warp" and forward["pack"] == 8
    pairs, rows_ = _schedules("bwd", pack=8).values()
    assert (pairs["emitter"], rows_["emitter"], rows_["pack"]) == ("hopper", "warp", 8)


def test_packed_sequences_in_every_batch_alike_have_one_form() -> None:
    """Which form a call takes depends on how many keys all sequences have together."""
    x, cu = torch.randn(40, 2, 128).bfloat16(), torch.tensor([0, 10, 40], dtype=torch.int32)
    text = text_of(lambda: attn_mlir.attention_varlen(x, x, x, cu, cu, mask_mod=masks.sliding_window(9)))
    with fake_gpu():
        made: Any = compile_derivative(text, "cuda", "fwd", ["q", "k", "v"])
    assert made._narrow and not made.with_work(0, True)._narrow
