"""Backward passes on Hopper whose sums over keys (dQ) a warpgroup of its own makes: when, how, and that they are right."""

import re
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import masks
from attn_mlir.backends.gpu.emitters import SLOW, Refusal
from attn_mlir.backends.nvidia import driver, hopper, pipeline, thresholds
from attn_mlir.backends.nvidia.hopper import pairs_plan
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.frontend.emit import Inputs
from machine_code import compiled
from masked_gradients import check_gradients, draw
from test_nvidia_pairs import NVCC, kernels

_NAMES = ("derivatives/softmax", "causal-softmax")


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_roles(name: str, element: str) -> None:
    """Two warpgroups hand over dS; the third one multiplies it with keys and adds dQ; the fourth one loads."""
    ((schedule, code),) = kernels(name, element=element, choices=f"{{length = {thresholds.CLAIMED_KEYS[True]} : i64}}")
    assert schedule["key_sums"] == "warpgroup" and not schedule["reduction_warps"] and code.threads == 512
    own, rest = code.source.split("if (warpgroup == 2)")[1].split("if (warpgroup == 3)")
    loads, consumers = rest.split("attn::more_registers<200>();")
    assert "attn::fewer_registers<88>();" in own and "attn::fewer_registers<24>();" in loads
    assert "attn::tma_add(" in own and "attn::tma_add(" not in consumers + loads
    assert "attn::exp2f(" not in own and "wgmma_m64n64k16_ss" in own and not re.search("wgmma_m64n64k16_ss", consumers)
    # No consumer waits for the other one: they meet the warpgroup that multiplies, each at barriers of its own.
    assert "named_sync(1, 256)" not in consumers and consumers.count("named_arrive(10 + step % 2, 384)") == own.count("10 + step % 2, 384")


def test_blocks_are_chosen_again() -> None:
    """What the pass has written does not change what it chooses."""
    ((schedule, code),) = kernels("causal-softmax", choices='{key_sums = "auto"}')
    assert schedule["key_sums"] == "warpgroup" and code.source == kernels("causal-softmax")[0][1].source


@pytest.mark.parametrize(
    ("mask", "head", "emitter", "chosen"),
    [
        (masks.sliding_window(100), 64, "warp", "warpgroup"),
        (masks.sliding_window(100, 20), 64, "warp", "warpgroup"),
        (masks.sliding_window(100), 128, "warp", "late"),
        (lambda b, h, q_idx, kv_idx: q_idx % 4 >= kv_idx % 4, 64, "hopper", None),
    ],
)
def test_windows(mask: Any, head: int, emitter: str, chosen: str | None) -> None:
    """Sliding windows of 64 columns have such a warpgroup, of 128 columns sums a step late; other masks of as many ops have neither."""
    call = attn_mlir.Attention(mask_mod=mask)
    call.__dict__.update(_last=Inputs("f16", head, head), _form=None)
    outline = prepare_derivative("bwd", ("q", "k", "v"), pipeline.outline("sm_90a"))
    _, units = driver._lower(call.ir(), *outline, {"arch": "sm_90a"})  # pyright: ignore[reportPrivateUsage]
    (schedule,) = [unit.schedule for name, unit in units.items() if "pairs" in name]
    assert schedule["emitter"] == emitter and schedule.get("key_sums") == chosen


def test_dropout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    call = attn_mlir.Attention()
    call.__dict__.update(_last=Inputs("f16", 64, 64), _form=("tensor", "tensor"))
    asked = {"arch": "sm_90a", "key_sums": "warpgroup", "block_q": 128, "block_kv": 64}
    outline = prepare_derivative("bwd", ("q", "k", "v"), pipeline.outline("sm_90a"))
    planned: list[object] = []

    def plan(*given: Any) -> None:
        """Ends there: what TileLang makes of it instead takes long."""
        planned.append(pairs_plan.plan_pairs(*given))
        raise AssertionError

    monkeypatch.setattr(hopper, "plan_pairs", plan)
    with pytest.raises(Exception, match="AssertionError"):
        driver._lower(call.ir(), *outline, asked)  # pyright: ignore[reportPrivateUsage]
    (refusal,) = planned
    assert isinstance(refusal, Refusal) and "no dropout" in refusal.reason


@pytest.mark.parametrize("name", _NAMES)
@NVCC
def test_machine_code(name: str) -> None:
    """Products overlap, nothing spills."""
    ((_, code),) = kernels(name)
    binary = compiled(code)
    assert binary.spills == 0 and not [text for text in binary.warnings if "C75" in text]


@pytest.mark.usefixtures("unlowered")
@pytest.mark.parametrize(
    ("head", "choices", "why"),
    [
        (128, "", ""),
        (64, "{reduction_warps = 1 : i64}", ""),
        (64, "{block_q = 128 : i64, block_kv = 128 : i64}", ""),
        (64, "{block_q = 128 : i64, block_kv = 64 : i64}", ""),
        (
            128,
            '{key_sums = "warpgroup", block_q = 128 : i64, block_kv = 64 : i64}',
            "heads of at most 64 columns|registers",
        ),
        (
            64,
            '{key_sums = "warpgroup", block_q = 128 : i64, block_kv = 128 : i64}',
            "registers a thread",
        ),
    ],
)
def test_others(head: int, choices: str, why: str) -> None:
    """Other kernels stay; where it is asked for and cannot be, another emitter makes the kernel, and the schedule says why."""
    ((schedule, code),) = kernels("causal-softmax", head, choices=choices)
    if why:
        assert schedule["emitter"] != "hopper" and re.search(why, str(schedule[SLOW]))
    else:
        assert schedule.get("key_sums") != "warpgroup" and code.threads == 384


@pytest.mark.parametrize(
    ("lengths", "mask"),
    [((1, 1), "full"), ((17, 127), "causal"), ((130, 200), "full"), ((300, 77), "bottom_right"), ((257, 257), "causal")],
)
@pytest.mark.gpu
def test_numbers(lengths: tuple[int, int], mask: str) -> None:
    """Gradients of q, k and v against float64, keys shared by two heads; queries without a key have none."""
    drawn = draw(lengths, 64)
    given = [x.clone().requires_grad_() for x in drawn[:3]]
    mod = {"full": None, "causal": masks.causal(), "bottom_right": masks.causal("bottom_right")}[mask]
    o = attn_mlir.attention(given[0], given[1], given[2], mask_mod=mod)
    got = torch.autograd.grad(o, given, drawn[3])
    check_gradients(got, drawn, mask)
