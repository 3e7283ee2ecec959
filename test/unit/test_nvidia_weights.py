"""Backward passes on Hopper whose consumers have a weight each (`consumers = "weights"`): when, how, and that they are right."""

import re
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
import torch

import attn_mlir
from attn_mlir import masks, mods, rows
from attn_mlir.backends.gpu.emitters import SLOW
from attn_mlir.backends.nvidia import driver, pipeline
from attn_mlir.backends.nvidia.hopper import pairs_roles, pairs_weights
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, ops_of
from attn_mlir.backends.nvidia.passes import split_pairs
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.frontend.emit import Inputs
from machine_code import compiled
from masked_gradients import check_gradients, draw
from test_nvidia_pairs import NVCC

_CAUSAL = {"mask_mod": masks.causal()}
_ROWS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "causal": _CAUSAL,
    "window": {"mask_mod": masks.sliding_window(100)},
    "softcap": {**_CAUSAL, "score_mod": mods.softcap(20.0)},
    "sigmoid": {"row": rows.sigmoid},
}


_BIAS = torch.zeros(4, 8, 8)


def units(
    columns: tuple[int, int],
    written: dict[str, Any],
    element: str = "f16",
    wrt: tuple[str, ...] = ("q", "k", "v"),
    form: Any = None,
    **choices: int,
) -> dict[str, Any]:
    """The kernels over pairs of a backward pass; `form`: kinds of the numbers of dropout."""
    call = attn_mlir.Attention(**written)
    call.__dict__.update(_last=Inputs(element, *columns), _form=form)
    outline = prepare_derivative("bwd", wrt, pipeline.outline("sm_90a"))
    found = driver._lower(call.ir(), *outline, {"arch": "sm_90a", **choices})[1]  # pyright: ignore[reportPrivateUsage]
    return {name: unit for name, unit in found.items() if "pairs" in name}


@pytest.mark.parametrize("name", list(_ROWS))
@pytest.mark.parametrize("columns", [(256, 256), (192, 136), (136, 256)], ids=str)
def test_one_kernel(name: str, columns: tuple[int, int]) -> None:
    """dk and dv have one kernel, in which each product is made once: scores go from the first warpgroup to the second one."""
    ((_, unit),) = units(columns, _ROWS[name]).items()
    assert (unit.schedule["emitter"], unit.schedule["consumers"]) == ("hopper", "weights")
    consumers = unit.code.source.split("attn::more_registers<240>();")[1]
    first, second = consumers.split("if (warpgroup == 1) {")
    steps = first.split("for (int query0")[1:]
    assert len(steps) == len(second.split("for (int query0")[1:])
    for text, own, other in ((first, "hand_over", "take_over"), (second, "take_over", "hand_over")):
        assert text.count(f"attn::{own}(") == len(steps) and other not in text
        clears = re.findall(r"attn::wgmma_m64n64k16_ss_f16\(product\w*, a, b, 0\);", text)
        assert len(clears) == len(steps)


@pytest.mark.parametrize("name", list(_ROWS))
@pytest.mark.parametrize("columns", [(192, 128), (136, 128), (160, 160)], ids=str)
def test_both_sums(name: str, columns: tuple[int, int]) -> None:
    """Of up to 320 columns together each warpgroup has both sums of 64 keys, in steps of 48 queries."""
    ((_, unit),) = units(columns, _ROWS[name]).items()
    consumers = unit.code.source.split("attn::more_registers<240>();")[1]
    assert unit.schedule["emitter"] == "hopper" and "consumers" not in unit.schedule and "float product[24];" in consumers


def test_named_barriers() -> None:
    """The second consumer tells once more that it has taken scores over than it is waited for in steps: the first one waits at its end."""
    ((_, unit),) = units((256, 256), {}).items()
    first, second = unit.code.source.split("attn::more_registers<240>();")[1].split("if (warpgroup == 1) {")
    wait, tell = "attn::named_sync(13, 256);", "attn::named_arrive(13, 256);"
    assert first.count(wait) == second.count(tell) and first.rindex(wait) > first.rindex("bulk_wait_read")
    assert second.index(tell) < second.index("round = step")


def test_one_stage() -> None:
    """Each consumer gives back the tile of its sum before it waits for that of its product: the other one's product needs that stage."""
    ((_, unit),) = units((256, 256), _CAUSAL, stages=1).items()
    assert (unit.schedule["consumers"], unit.schedule["stages"]) == ("weights", 1)
    consumers = unit.code.source.split("attn::more_registers<240>();")[1]
    steps = [text.split("++step;")[0] for text in consumers.split("for (int query0")[1:]]
    assert len(steps) == 6 and all("attn::wgmma_wait<1>" not in step for step in steps)
    for step in steps:
        given_back, own = step.index("+ 8 * sum_stage, lane == 0);"), step.index("attn::barrier_wait(")
        assert step.index("attn::wgmma_wait<0>();") < given_back < own < step.index("attn::wgmma_begin();")


def test_sums_multiply_the_other_tile() -> None:
    """A consumer whose sum multiplied the tile of its product would give that back twice, and the other one never."""
    found: list[pairs_roles.Roles | None] = []

    def roles_of(kernel: PairsKernel) -> pairs_roles.Roles | None:
        roles, sums = pairs_roles.roles_of(kernel), [ops_of(step, "tile.dot_add") for step in kernel.steps]
        for _ in range(2):
            for one, two in sums:
                one.operands[2], two.operands[2] = two.operands[2], one.operands[2]
            found.append(pairs_roles.roles_of(kernel))
        return roles

    with mock.patch.object(pairs_weights, "roles_of", roles_of):
        units((256, 256), {})
    assert found[0] is None and found[1] is not None


def _bias(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + _BIAS[h, q_idx, kv_idx]


@pytest.mark.parametrize(("columns", "written"), [((128, 128), {}), ((256, 256), {"score_mod": _bias})], ids=["narrow", "bias"])
def test_others(columns: tuple[int, int], written: dict[str, Any]) -> None:
    """Sums that fit into a warpgroup, and pairs that have a number of their own in memory, stay as they are."""
    assert not any("consumers" in unit.schedule for unit in units(columns, written).values())


@pytest.mark.parametrize("together", [False, True])
def test_odd_columns(together: bool) -> None:
    """Results go to shared memory 8 columns at a time: others are refused, in one kernel for each sum, as before, or in one for both."""
    with ExitStack() as stack:
        for owner, name in ((driver.tilelang, "emit_ahead"), (driver.codegen, "emit")):  # TileLang takes its time
            stack.enter_context(mock.patch.object(owner, name))
        if together:
            stack.enter_context(mock.patch.object(split_pairs, "_has_roles", return_value=True))
        found = units((250, 250), _CAUSAL)
    assert len(found) == 2 - together and all("consumers" not in unit.schedule for unit in found.values())
    assert all(unit.schedule["emitter"] == "tilelang" and "multiples of 8, got 250" in str(unit.schedule[SLOW]) for unit in found.values())


def test_dropout() -> None:
    """Each consumer makes the bits of its weight."""
    ((_, unit),) = units((256, 256), _CAUSAL, form=("tensor", "tensor")).items()
    assert (unit.schedule["consumers"], unit.schedule["dropout"]) == ("weights", "own")


def test_gradients_of_keys_alone() -> None:
    """Without dq the kernel is the same."""
    ((_, unit),) = units((256, 256), _CAUSAL, wrt=("k", "v")).items()
    assert unit.schedule["consumers"] == "weights"


@pytest.mark.parametrize("name", list(_ROWS))
@pytest.mark.parametrize(("columns", "element"), [((256, 256), "f16"), ((256, 256), "bf16"), ((192, 128), "f16")], ids=str)
@NVCC
def test_machine_code(name: str, columns: tuple[int, int], element: str) -> None:
    """Products overlap with the other warpgroup's, and no sum spills."""
    ((_, unit),) = units(columns, _ROWS[name], element).items()
    binary = compiled(unit.code)
    serial = [text for text in binary.warnings if re.search("C75(07|1[0-8])", text)]
    assert binary.spills <= 96 and not serial


@pytest.mark.parametrize("columns", [(256, 256), (192, 128)], ids=str)
@pytest.mark.parametrize(
    ("lengths", "mask"),
    [
        ((1, 1), "full"),
        ((17, 127), "causal"),
        ((300, 77), "bottom_right"),
        ((257, 130), "full"),
        ((1000, 1000), "causal"),
        ((700, 700), "window"),
    ],
)
@pytest.mark.gpu
def test_numbers(columns: tuple[int, int], lengths: tuple[int, int], mask: str) -> None:
    """Gradients of q, k and v against float64, keys shared by two heads; dk and dv twice the same bits."""
    queries, keys, _, upstream = draw(lengths, columns[0])
    values = torch.randn(*keys.shape[:3], columns[1], device="cuda").half()
    drawn = [queries, keys, values, upstream[..., : columns[1]].contiguous()]
    given = [x.clone().requires_grad_() for x in drawn[:3]]
    hidden = {
        "full": None,
        "causal": masks.causal(),
        "bottom_right": masks.causal(align="bottom_right"),
        "window": masks.sliding_window(100),
    }[mask]
    o = attn_mlir.attention(given[0], given[1], given[2], mask_mod=hidden)
    got = [torch.autograd.grad(o, given, drawn[3], retain_graph=True) for _ in range(2)]
    check_gradients(got[0], drawn, mask)
    assert all(torch.equal(a, b) for a, b in zip(*got, strict=True))
