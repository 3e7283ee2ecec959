"""Backward passes on Hopper whose sums over keys (dQ) are added in a fixed order: who adds, in which order, and that they are right."""

import re

import pytest
import torch

import attn_mlir
from attn_mlir import masks
from masked_gradients import check_gradients, draw
from test_nvidia_pairs import NVCC, kernels, multiplying

ORDERED = "{deterministic = 1 : i64}"
_NAMES = ("derivatives/softmax", "causal-softmax")


def in_order(text: str, parts: list[str]) -> bool:
    """Whether all `parts` are there, each one's first place behind that of the one before."""
    places = [text.index(part) for part in parts]
    return places == sorted(places)


@pytest.mark.parametrize(("name", "descending"), [("derivatives/softmax", False), ("causal-softmax", True), ("sliding-window", True)])
@pytest.mark.parametrize("head", [64, 128])
def test_order(name: str, descending: bool, head: int) -> None:
    """Under a mask steps go to the first queries, and the longest programs come first; each waits for the one of the keys before."""
    ((schedule, code),) = kernels(name, head, choices=ORDERED)
    assert schedule["emitter"] == "hopper" and bool(schedule.get("descending")) == descending
    loops = re.findall(r"for \(int (query0\w*) = .*; (?:\1) (<|>=) .*; (?:\1) (\+=|-=) \d+\)", code.source)
    assert len(loops) >= 4 and all(loop[1:] == ((">=", "-=") if descending else ("<", "+=")) for loop in loops)
    place, number = ("inside / width", "block") if descending else ("blocks - 1 - inside / width", "block + 2")
    assert f"const int block = {place}," in code.source
    waits = re.findall(r"if \((.*?)(?: && !\(semaphore == ahead && seen == .*\))?\) attn::semaphore_wait\(semaphore, (.*)\);", code.source)
    passes = code.source.count("attn::semaphore_pass(semaphore, block + 1);")
    assert len(waits) == passes and all(wait[1] == number and wait[0].startswith("block &&") == descending for wait in waits)


@pytest.mark.parametrize(("head", "most"), [(64, 64), (128, 16)])
def test_heads_together(head: int, most: int) -> None:
    """Programs of one head wait for each other when they begin: many heads run together."""
    ((_, code),) = kernels("causal-softmax", head, choices=ORDERED)
    assert f"const int together = min(pairs, max(16, min({most}, 512 / blocks)));" in code.source


def test_one_warpgroup() -> None:
    """Of 64 keys there is one part, and one warp that adds it; it looks at the next step's turn before it passes on this one's."""
    choices = "{deterministic = 1 : i64, block_q = 64 : i64, block_kv = 64 : i64}"
    ((schedule, code),) = kernels("causal-softmax", 128, choices=choices)
    assert (schedule["emitter"], schedule["semaphore_parts"]) == ("hopper", 1)
    adder = code.source.split("else if (warp >= 2 && warp < 3) {")[1].split("return;")[0]
    assert adder.count("const int part = warp - 2;") == 1 and "* 1 + part" not in adder
    for step in adder.split("for (int query0")[1:]:
        turn = [
            "!(semaphore == ahead && seen == block)) attn::semaphore_wait(semaphore, block);",
            "attn::named_sync(3 + part, 160);",
            "attn::tma_add(",
            ">= 64) ahead = semaphore - 1, seen = attn::semaphore_now(ahead);",
            "attn::bulk_wait<0>();",
            "attn::semaphore_pass(",
        ]
        assert in_order(step, turn)


@pytest.mark.parametrize("name", _NAMES)
def test_warpgroup_hands_over(name: str) -> None:
    """At 64 columns the warpgroup that makes dQ stages it, and two warps of the producer add it, for steps in turn."""
    ((schedule, code),) = kernels(name, 64, choices=ORDERED)
    assert (schedule["key_sums"], schedule["reduction_warps"], schedule["semaphore_parts"]) == ("warpgroup", 1, 1)
    own, rest = code.source.split("if (warpgroup == 2)")[1].split("if (warpgroup == 3)")
    assert "attn::tma_add(" not in own and "semaphore" not in own
    adders = rest.split("else if (warp >= 2 && warp < 4) {")[1].split("attn::more_registers")[0]
    for step in adders.split("for (int query0")[1:]:
        turn = [
            "if (step % 2 == part) {",
            "attn::named_sync(3 + part, 160);",
            "attn::semaphore_wait(",
            "attn::tma_add(",
            "attn::bulk_wait_read<0>();",
            "attn::barrier_arrive(",
            "attn::bulk_wait<0>();",
            "attn::semaphore_pass(",
        ]
        assert in_order(step, turn)
    for step in own.split("for (int query0")[1:]:
        staged = ["attn::barrier_wait(", "attn::store_shared2(", "attn::fence_proxy_async();", "attn::named_arrive(3 + step % 2, 160);"]
        assert in_order(step, staged) and "step / 2 & 1 ^ 1" in step


def test_one_warp_adds_both_parts() -> None:
    """In steps of 80 queries two warps make numbers of rows, and one adds both parts, for which it takes and passes one turn."""
    ((schedule, code),) = kernels("derivatives/softmax", 128, choices=ORDERED, rounded=True)
    assert (schedule["semaphore_rows"], schedule["semaphore_parts"], schedule["key_sums"]) == (80, 1, "late")
    rows = code.source.split("else if (warp < 3) {")[1].split("else if (warp >= 3 && warp < 4) {")
    assert rows[0].count("first = 32 * (warp - 1) + lane; first < 80; first += 64)") == 2
    for step in rows[1].split("attn::more_registers")[0].split("for (int query0")[1:]:
        turn = [
            "attn::semaphore_wait(",
            "attn::named_sync(3 + 0, 160);",
            "attn::named_sync(3 + 1, 160);",
            "attn::bulk_wait<0>();",
            "attn::semaphore_pass(",
        ]
        assert in_order(step, turn) and step.count("attn::semaphore_pass(") == step.count("attn::semaphore_wait(") == 1
    # Results leave from where the last sums have been read by that warp.
    assert code.source.count("attn::barrier_wait(barriers + 104 + 8 * warpgroup, step & 1 ^ 1);") == 2


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize("element", ["f16", "bf16"])
@NVCC
def test_machine_code(name: str, head: int, element: str) -> None:
    """Products overlap, and nothing spills but registers of the step with less than 80 queries."""
    ((_, code),) = kernels(name, head, choices=ORDERED, element=element, rounded=True)
    assert multiplying(code).spills <= (24 if (name, head) == ("derivatives/softmax", 128) else 0)


@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize(
    ("lengths", "mask"),
    [
        ((1, 1), "full"),
        ((17, 127), "causal"),
        ((130, 200), "full"),
        ((300, 77), "bottom_right"),
        ((77, 300), "bottom_right"),
        ((1000, 1000), "causal"),
        ((700, 700), "window"),
        ((3000, 3000), "causal"),
        ((3000, 3000), "full"),
    ],
)
@pytest.mark.gpu
def test_numbers(head: int, lengths: tuple[int, int], mask: str) -> None:
    """Gradients against float64, keys shared by two heads, fully masked rows among them; the same bits in every run."""
    drawn = draw(lengths, head)
    given = [x.clone().requires_grad_() for x in drawn[:3]]
    near = lambda b, h, i, j: (i >= j) & (i - j <= 100)  # noqa: E731
    mods = {"full": None, "causal": masks.causal(), "bottom_right": masks.causal("bottom_right"), "window": near}
    o = attn_mlir.attention(given[0], given[1], given[2], mask_mod=mods[mask], deterministic=True)
    got = torch.autograd.grad(o, given, drawn[3], retain_graph=True)
    check_gradients(got, drawn, mask)
    for _ in range(3):
        again = torch.autograd.grad(o, given, drawn[3], retain_graph=True)
        assert all(torch.equal(one, two) for one, two in zip(got, again, strict=True))
