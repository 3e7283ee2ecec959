"""Backward passes on Hopper whose sums over keys (dQ) consumers make a step late: when, how, and that they are right."""

import re
from unittest import mock

import pytest
import torch

import attn_mlir
from attn_mlir import masks
from attn_mlir.backends.gpu.emitters import SLOW
from attn_mlir.backends.nvidia import driver, pipeline
from attn_mlir.backends.nvidia.hopper.pairs_late import check_apart
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.emit import Inputs
from machine_code import compiled
from masked_gradients import check_gradients, draw
from test_nvidia_pairs import NVCC, kernels

_NAMES = ("derivatives/softmax", "causal-softmax")
_SYNC, _ARRIVE = "attn::named_sync({}, 256);", "attn::named_arrive({}, 256);"
_FULL, _FREE = "12 + {} * 2 + {}", "10 - 4 * ({}) + {}"
_OWN, _BEFORE, _OTHER = "step % 2", "(step + 1) % 2", "1 - warpgroup"


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_step(name: str, element: str) -> None:
    """A step writes its dS, then multiplies that of the step before; what the last one has left is made after the loops."""
    ((schedule, code),) = kernels(name, 128, element=element)
    assert schedule["key_sums"] == "late" and code.threads == 384
    consumers = code.source.split("attn::more_registers<240>();")[1]
    loop, last = consumers.rsplit("for (int query0", 1)[1].split("++step;", 1)
    # In a step: free copy, write, tell; then what both have written, multiply, give back.
    order = [
        _SYNC.format(_FREE.format(_OWN, "warpgroup")),
        _ARRIVE.format(_FULL.format(_OWN, _OTHER)),
        "if (late_row >= 0) " + _SYNC.format(_FULL.format(_BEFORE, "warpgroup")),
        _ARRIVE.format(_FREE.format(_BEFORE, _OTHER)),
        "late_row = ",
    ]
    places = [loop.index(text) for text in order]
    assert places == sorted(places) and all(loop.count(text) == 1 for text in order)
    assert last.count("attn::wgmma_begin();") == 1
    # Both copies are free at first, and each consumer waits at the end as often as it was told so.
    for copy in range(2):
        free = _FREE.format(copy, "{}")
        assert consumers.count(_ARRIVE.format(free.format(_OTHER))) == 1 and last.count(_SYNC.format(free.format("warpgroup"))) == 1


@pytest.mark.parametrize("name", _NAMES)
def test_consumers_begin_apart(name: str) -> None:
    """Under a mask the second one waits in a program's first step until the first one has its scores, as often as told."""
    ((schedule, code),) = kernels(name, 128)
    begun, told = (
        "if (late_row < 0 && warpgroup == 1) attn::named_sync(1, 256);",
        "if (late_row < 0 && warpgroup == 0) attn::named_arrive(1, 256);",
    )
    steps = code.source.split("attn::more_registers<240>();")[1].split("for (int query0")[1:]
    assert bool(schedule.get("apart")) == (name == "causal-softmax")
    for step in steps:
        assert step.count(begun) == step.count(told) == bool(schedule.get("apart"))
        if schedule.get("apart"):
            assert (
                step.index(begun) < step.index("(product") < step.index("attn::wgmma_wait<1>();") < step.index(told) < step.index("exp2f(")
            )
    ((schedule, code),) = kernels(name, 128, choices="{apart = 0 : i64}")
    assert not schedule["apart"] and begun not in code.source


def test_begun_apart_by_scores_alone() -> None:
    """Else nobody would tell the second consumer to begin."""
    layout = mock.Mock(apart=True, late=True, early=False)
    with pytest.raises(UnsupportedError, match="begin programs apart need"):
        check_apart(layout)
    layout.early = True
    check_apart(layout)


@pytest.mark.parametrize("name", ["causal-softmax", "sliding-window"])
def test_weights_lie_as_rows_of_queries(name: str) -> None:
    """Then no left operand of products is transposed, and lanes stage sums as they have them; else they are rows of keys."""
    ((schedule, code),) = kernels(name, 128)
    body = code.source.split("__global__")[1]
    assert schedule["exchange"] == "queries" and "_ta" not in body and "odd_row" not in body and "attn::store_matrices(exchange" not in body
    ((_, code),) = kernels(name, 128, choices='{exchange = "keys"}')
    body = code.source.split("__global__")[1]
    assert "_ss_f16_ta_tb(" in body and "odd_row" in body and "attn::store_matrices_transposed(" not in body


def test_named_barriers_differ() -> None:
    """Those of both copies and consumers are no others, nor those of begins (1), additions (3, 4), results (8, 9), __syncthreads (0)."""
    full = [12 + copy * 2 + warpgroup for copy in range(2) for warpgroup in range(2)]
    free = [10 - 4 * copy + warpgroup for copy in range(2) for warpgroup in range(2)]
    assert len({*full, *free, 0, 1, 3, 4, 8, 9}) == 14 and max(full) < 16


@pytest.mark.parametrize(
    ("head", "choices"),
    [
        (64, ""),
        (96, ""),
        (128, '{key_sums = "consumers"}'),
    ],
)
def test_others(head: int, choices: str) -> None:
    """Other kernels stay."""
    ((schedule, code),) = kernels("causal-softmax", head, choices=choices)
    assert schedule.get("key_sums") != "late" and "late_row" not in code.source


@pytest.mark.parametrize("head", [64, 96])
def test_asked_for(head: int) -> None:
    """Other head dimensions can have it, too."""
    ((schedule, code),) = kernels("causal-softmax", head, choices='{key_sums = "late"}')
    assert schedule["key_sums"] == "late" and "late_row" in code.source


def test_refused() -> None:
    """Where it cannot be, another emitter makes the kernel, and the schedule says why."""
    ((schedule, _),) = kernels("causal-softmax", 128, choices='{key_sums = "late", block_q = 64 : i64, block_kv = 64 : i64}')
    assert schedule["emitter"] != "hopper" and re.search("128 keys a block, not 64", str(schedule[SLOW]))


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_early(element: str) -> None:
    """Under a mask row values are read, and half of the exponentials computed, while the second product is made."""
    ((schedule, code),) = kernels("causal-softmax", 128, element=element)
    assert schedule["early"] == 1
    steps = code.source.split("attn::more_registers<240>();")[1].split("for (int query0")[1:]
    assert len(steps) == 3
    second = "attn::barrier_wait(barriers + 40 + 8 * stage, parity);"
    for step in steps:
        product = re.findall(r"float (product\w*)\[32\];", step)[0]
        # Row values between the products; half of the exponentials, what they stay before, the other half, the wait for the second product.
        order = [
            rf"float {product}\[32\];",
            r"attn::barrier_wait\(barriers \+ 72 \+ 8 \* stage, parity\);",
            r"of_queries\w*\[c\] = attn::load_shared2\(columns \+ 0 ",
            re.escape(second),
            r"attn::wgmma_wait<1>\(\);",
            r"for \(int c = 0; c < 4; \+\+c\) \{\s*const float2 of_query\w* = of_queries\w*\[c\];",
            rf"exp2f\([^}}]*\}}\s*\}}\s*\}}\s*attn::hold\({product}\);\s*{re.escape(second)}\s*attn::hold\({product}\);",
            r"for \(int c = 4; c < 8; \+\+c\)",
            r"exp2f\(",
            r"attn::wgmma_wait<0>\(\);",
        ]
        assert re.search(".*?".join(order), step, re.DOTALL)
        assert step.count(second) == step.count("exp2f(") == 2 and step.count("attn::load_shared2(columns + 0 ") == 1


def test_row_warps() -> None:
    """Without a mask three warps make the numbers of 80 queries at once: each lane arrives for a stage, also one that has no query."""
    ((_, code),) = kernels("derivatives/softmax", 128)
    assert all(f"attn::barrier_init(barriers + {place}, 96);" in code.source for place in (72, 80))
    # Consumers' warps, and three of the producer, read which program is next.
    assert code.source.count("attn::barrier_init(shared + kNextFree + 0, 11 * attn::kWarpArrivals);") == 1
    rows = code.source.split("else if (warp < 4) {")[1].split("attn::more_registers")[0]
    wait, arrive = "attn::barrier_wait(barriers + 88 + 8 * stage, parity ^ 1);", "attn::barrier_arrive(barriers + 72 + 8 * stage);"
    for step in rows.split("for (int query0")[1:]:
        assert step.count("const int first = 32 * (warp - 1) + lane;") == 1 and step.count("min(first, 79)") == 1
        places = [step.index(wait), step.index("if (first < 80) attn::store_shared("), step.index(arrive)]
        assert places == sorted(places) and step.count("attn::store_shared(") == step.count("if (first < 80)") == 2
    assert "else if (warp == 1) {" in kernels("causal-softmax", 128)[0][1].source


@pytest.mark.parametrize(
    ("name", "head", "choices"),
    [
        ("derivatives/softmax", 128, "{early = 0 : i64}"),
        ("derivatives/softmax", 128, "{block_q = 128 : i64, block_kv = 64 : i64}"),
        ("causal-softmax", 128, "{early = 0 : i64}"),
        ("causal-softmax", 64, ""),
        ("causal-softmax", 96, '{key_sums = "late"}'),
        ("causal-softmax", 128, '{key_sums = "consumers"}'),
    ],
)
def test_not_early(name: str, head: int, choices: str) -> None:
    """Not chosen for other steps and columns than were measured, or beside other sums over keys; 0 asks for it not to be."""
    ((schedule, code),) = kernels(name, head, choices=choices)
    assert not schedule.get("early") and "of_queries" not in code.source


def test_early_asked_for() -> None:
    """Other kernels can have it, too."""
    ((schedule, code),) = kernels("causal-softmax", 64, choices="{early = 1 : i64}")
    assert schedule["early"] == 1 and "of_queries" in code.source


def test_early_refused() -> None:
    """Weights that need no number of their query have nothing to be read early; the schedule says why another emitter makes the kernel."""
    ((schedule, _),) = kernels("sigmoid-causal", 128, choices="{early = 1 : i64}")
    assert schedule["emitter"] != "hopper" and re.search("one number of each query", str(schedule[SLOW]))


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_held(element: str) -> None:
    """Under a mask products take the first 16 columns of keys and values from registers, which were read once for a program."""
    ((schedule, code),) = kernels("causal-softmax", 128, element=element)
    assert schedule["held"] == 1
    consumers = code.source.split("attn::more_registers<240>();")[1]
    landed, *steps = consumers.split("for (int query0")
    assert len(steps) == 3 and landed.index("attn::barrier_wait(barriers, round & 1);") < landed.index("uint32_t held[4];")
    for name, offset in (("held", 0), ("held_2", 32768)):
        read = f"attn::load_matrices(shared + {offset} + attn::swizzle_128(place + 32 * (k)), four);"
        assert f"uint32_t {name}[4];" in landed and landed.count(read) == 1
    for step in steps:
        scores, values, *rest = step.split("attn::wgmma_commit();")
        for name, text in (("held", scores), ("held_2", values)):
            calls = re.findall(r"attn::wgmma_m64n64k16_([rs]s)_\w+\(product\w*, (.*), ([01])\);", text)
            assert [(form, clears) for form, _, clears in calls] == [("rs", "0"), *[("ss", "1")] * 7]
            assert calls[0][1] == ", ".join(f"{name}[{i}]" for i in range(4)) + ", b"
            assert calls[1][1] == "attn::advance(a, 32), attn::advance(b, 32)"
        assert "held" not in "".join(rest)


@pytest.mark.parametrize(
    ("name", "head", "choices", "held"),
    [
        ("derivatives/softmax", 128, "", None),
        ("causal-softmax", 64, "", None),
        ("causal-softmax", 128, "{early = 0 : i64}", None),
        ("causal-softmax", 128, "{deterministic = 1 : i64}", None),
        ("causal-softmax", 128, "{held = 0 : i64}", 0),
        ("causal-softmax", 128, "{held = 8 : i64}", 8),
        ("derivatives/softmax", 128, "{held = 6 : i64}", 6),
    ],
)
def test_which_hold(name: str, head: int, choices: str, held: int | None) -> None:
    """As many columns as are asked for, of both swizzle atoms; by itself nothing but what was measured."""
    ((schedule, code),) = kernels(name, head, choices=choices)
    assert schedule["emitter"] == "hopper" and schedule.get("held") == held
    if (held or 0) > 4:
        assert "shared + 0 + k / 4 * 16384 + attn::swizzle_128(place + 32 * (k % 4))" in code.source
        consumers = code.source.split("attn::more_registers<240>();")[1]
        assert len(re.findall(r"_rs_f16\(product", consumers)) == 2 * len(consumers.split("for (int query0")[1:]) * (held or 0)


def test_windows_hold_nothing() -> None:
    """Their queries end before the last one: such passes have not been timed."""
    call = attn_mlir.Attention(mask_mod=masks.sliding_window(1024))
    call.__dict__.update(_last=Inputs("f16", 128, 128), _form=None)
    form = prepare_derivative("bwd", ("q", "k", "v"), pipeline.outline("sm_90a"))
    units = driver._lower(call.ir(), *form, {"arch": "sm_90a"})[1]  # pyright: ignore[reportPrivateUsage]
    (schedule,) = [unit.schedule for name, unit in units.items() if "pairs" in name]
    assert schedule["early"] == 1 and "held" not in schedule


@pytest.mark.parametrize("choices", ["{held = 9 : i64}", '{held = 2 : i64, key_sums = "consumers"}'])
def test_held_refused(choices: str) -> None:
    """The schedule says why another emitter makes the kernel."""
    ((schedule, _),) = kernels("causal-softmax", 128, choices=choices)
    assert schedule["emitter"] != "hopper" and re.search("1 to 8 steps of 16 columns", str(schedule[SLOW]))


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("rounded", [False, True])
@NVCC
def test_machine_code(name: str, element: str, rounded: bool) -> None:
    """Products overlap, and nothing spills but two registers of the step with less than 80 queries, and an address that stores need."""
    ((_, code),) = kernels(name, 128, element=element, rounded=rounded)
    binary = compiled(code)
    assert binary.spills <= (24 if name == "derivatives/softmax" else 0) and not [text for text in binary.warnings if "C75" in text]


@pytest.mark.parametrize(
    ("lengths", "mask"),
    [
        ((1, 1), "full"),
        ((17, 127), "causal"),
        ((130, 200), "full"),
        ((300, 77), "bottom_right"),
        ((257, 257), "causal"),
        ((700, 700), "window"),
    ],
)
@pytest.mark.gpu
def test_numbers(lengths: tuple[int, int], mask: str) -> None:
    """Gradients of q, k and v against float64, keys shared by two heads; queries without a key have none; dk and dv twice the same bits."""
    drawn = draw(lengths, 128)
    given = [x.clone().requires_grad_() for x in drawn[:3]]
    mods = {"full": None, "causal": masks.causal(), "bottom_right": masks.causal("bottom_right"), "window": masks.sliding_window(100)}
    o = attn_mlir.attention(given[0], given[1], given[2], mask_mod=mods[mask])
    got = torch.autograd.grad(o, given, drawn[3], retain_graph=True)
    check_gradients(got, drawn, mask)
    again = torch.autograd.grad(o, given, drawn[3])
    assert all(torch.equal(one, two) for one, two in zip(got[1:], again[1:], strict=True))
