"""Backward passes as kernels of the `warp` dialect: gradients of every form in the evaluator against float64, behind each pass and all."""

from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import attn_mlir
from attn_mlir import attention, masks, rows
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.emulation import driver, kernel
from attn_mlir.backends.nvidia.emulation.program import EmulatedLaunchPlan
from attn_mlir.backends.nvidia.warp import RULES, kernel_code
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.dialects.regions import walk
from attn_mlir.frontend.emit import Inputs
from attn_mlir.mlir import ir
from attn_mlir.reference.warp import Fault, check_registers, schedules_of
from machine_code import compiled
from warp_text import check_text

CAUSAL: dict[str, Any] = {"mask_mod": masks.causal()}
Problem = tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]
"""Inputs, and results in float64."""
Sizes = tuple[int, int, int, int, int]
"""Heads of queries and of keys, queries, keys, head dimension."""


def some(b: Any, h: Any, i: Any, j: Any) -> Any:
    """Queries below 20 see nothing, keys from 60 on are seen by none."""
    return (j < 60) & (i >= 20)


def gradients(sizes: Sizes, device: str, dtype: torch.dtype, options: dict[str, Any], factor: float = 1) -> tuple[torch.Tensor, ...]:
    heads, of_keys, queries, keys, dim = sizes
    draw = np.random.default_rng(0)
    shapes = (heads, queries), (of_keys, keys), (of_keys, keys), (heads, queries)
    q, k, v, do = (torch.from_numpy(draw.standard_normal((1, *shape, dim))).half().to(dtype) for shape in shapes)
    q, k, v = (x.requires_grad_() for x in (q * factor, k, v))
    return torch.autograd.grad(attention(q, k, v, device=device, **options), (q, k, v), do)


@pytest.mark.parametrize(("sizes", "options"), [
    ((2, 1, 130, 130, 64), CAUSAL),
    ((1, 1, 17, 1, 64), CAUSAL),
    ((1, 1, 70, 70, 64), {**CAUSAL, "row": rows.sigmoid}),
    ((1, 1, 150, 90, 128), {}),
    ((1, 1, 70, 70, 64), {"mask_mod": some}),
], ids=["causal", "one key", "sigmoid", "wide", "fully masked rows"])  # fmt: skip
def test_gradients(sizes: Sizes, options: dict[str, Any]) -> None:
    got = gradients(sizes, "cuda-emulated", torch.float16, options)
    for mine, wanted in zip(got, gradients(sizes, "cpu", torch.float64, options), strict=True):
        assert mine.dtype == torch.float16
        assert float((mine.double() - wanted).norm()) <= 2e-3 * float(wanted.norm()) + 1e-3
    if options.get("mask_mod") is some:
        assert (got[0][:, :, :20] == 0).all() and all((each[:, :, 60:] == 0).all() for each in got[1:])


def test_large_scores_and_weights_of_keys_that_do_not_exist() -> None:
    """Where all scores are far below zero, those of missing keys, which are zero, would have infinite weights."""
    sizes, options = (1, 1, 70, 70, 64), {"score_mod": lambda s, b, h, i, j: s - 100.0}
    for mine, wanted in zip(
        *(gradients(sizes, d, t, options, 4) for d, t in (("cuda-emulated", torch.float16), ("cpu", torch.float64))), strict=True
    ):
        assert float((mine.double() - wanted).norm()) <= 2e-2 * float(wanted.norm())


_TIDY = "canonicalize,cse"
_ROLES = f"warp-assign-layouts,{_TIDY},warp-join-loops{{join=true}},{_TIDY},warp-stage-rows,warp-specialize,warp-pipeline-loads,{_TIDY}"
STAGES = {
    "layouts": (f"warp-assign-layouts,{_TIDY}", "all 1 first, copies late"),
    "rows": (f"warp-assign-layouts,warp-stage-rows,{_TIDY}", "all 0 first, copies late"),
    "roles": (_ROLES, "consumer 1 first, copies late"),
    "waits": (f"{_ROLES},warp-delay-waits,{_TIDY}", "producer 0 first, copies late"),
    "maps": (f"{_ROLES},warp-split-maps,warp-delay-waits,{_TIDY}", "consumer 0 first, copies at once"),
    "scaled": (f"{_ROLES},warp-scale-rows,warp-split-maps,warp-delay-waits,{_TIDY}", "producer 0 first, copies late"),
    "bounds": (f"warp-assign-layouts,warp-bound-columns,{_TIDY}", "all 0 first, copies late"),
    "drawn": (f"{_ROLES},warp-draw-tiles{{draw=true}},{_TIDY}", "consumer 0 first, copies late"),
    "stores": (f"{_ROLES},warp-split-maps,warp-delay-waits,warp-stage-stores,{_TIDY}", "consumer 1 first, copies late"),
    "products": (f"{_ROLES},warp-order-products,{_TIDY}", "consumer 1 first, copies late"),
    "products, waits": (f"{_ROLES},warp-order-products,warp-delay-waits,warp-stage-stores,{_TIDY}", "consumer 0 first, copies late"),
    "exchange": (f"{_ROLES},warp-delay-waits,warp-pipeline-exchange,{_TIDY}", "consumer 1 first, copies at once"),
    "meetings": (f"{_ROLES},warp-delay-waits,warp-stage-stores,warp-merge-meetings,{_TIDY}", "consumer 1 first, copies late"),
}
"""Pipelines behind `tile-schedule` and an adverse order of warpgroups; each of the passes ends one."""


def program(
    passes: str, deterministic: bool = False, key_sums: str = "consumers", dim: int = 64, more: Fields | None = None
) -> EmulatedLaunchPlan:
    """The backward pass of causal attention, whose kernel over pairs these passes form; `key_sums`: who makes sums over keys."""
    choices: Fields = {"arch": "sm_90a", "key_sums": key_sums, **({"deterministic": 1} if deterministic else {}), **(more or {})}
    call = attn_mlir.Attention(**CAUSAL)
    call.__dict__.update(_last=Inputs("f16", dim, dim), _form=None)
    prepared = prepare_derivative("bwd", ("q", "k", "v"), pipeline.outline("sm_90a"))
    with mock.patch.object(pipeline, "SCHEDULE", passes):
        return driver._compile(call.ir(), *prepared, choices)  # pyright: ignore[reportPrivateUsage]


def problem(length: int, dim: int = 64) -> Problem:
    """What the backward pass takes, two heads of queries and one of keys, and the gradients in float64."""
    draw = torch.Generator().manual_seed(1)
    q, do = (torch.randn(1, 2, length, dim, generator=draw).half() for _ in range(2))
    k, v = (torch.randn(1, 1, length, dim, generator=draw).half() for _ in range(2))
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    scores = (wide[0] @ wide[1].mT / dim**0.5).masked_fill(~torch.ones(length, length, dtype=torch.bool).tril(), -torch.inf)
    o = scores.softmax(-1) @ wide[2]
    most = scores.amax(-1)
    sums = (scores - most[..., None]).exp().sum(-1)
    inputs = [q, k, v, o.half(), most.float(), sums.float(), do]
    return [x.detach() for x in inputs], torch.autograd.grad(o, wide, do.double())


def right_in_each(made: EmulatedLaunchPlan, schedules: Iterable[Callable[[], Any]], given: Problem) -> None:
    """Runs a program in these schedules of warpgroups: its results are those of float64."""
    inputs, wanted = given
    for make in schedules:
        with mock.patch.object(kernel, "drawn", return_value=make()):
            got = made.run(inputs)
        for mine, theirs in zip(got, wanted, strict=True):
            assert float((mine.double() - theirs).norm()) <= 2e-3 * float(theirs.norm()) + 1e-5


@pytest.mark.parametrize("stage", STAGES)
def test_behind_each_pass(stage: str) -> None:
    passes, name = STAGES[stage]
    made = program(passes)
    right_in_each(made, [schedules_of(pairs_of(made))[name]], problem(140))


def pairs_of(made: EmulatedLaunchPlan) -> ir.Operation:
    """The kernel over pairs."""
    (found,) = (each for name, each in made._kernels.items() if "pairs" in name)  # pyright: ignore[reportPrivateUsage]
    return found._kernel  # pyright: ignore[reportPrivateUsage]


Whole = tuple[EmulatedLaunchPlan, str, str]
"""A program, the name of its kernel over pairs, and its text."""


@pytest.fixture(scope="module")
def whole() -> Whole:
    """The backward pass of all passes, loops joined."""
    return of_pairs(program(pipeline.SCHEDULE.replace("warp-join-loops", "warp-join-loops{join=true}")))


@pytest.fixture(scope="module")
def ordered() -> Whole:
    """With sums in a fixed order, and tiles that are drawn."""
    return of_pairs(program(pipeline.SCHEDULE.replace("warp-draw-tiles", "warp-draw-tiles{draw=true}"), deterministic=True))


def of_pairs(made: EmulatedLaunchPlan) -> Whole:
    (name,) = (name for name in made._kernels if "pairs" in name)  # pyright: ignore[reportPrivateUsage]
    return made, name, pairs_of(made).get_asm(print_generic_op_form=True, assume_verified=True)


def test_machine_code_has_no_spills() -> None:
    """Printed as it stands; registers are those that the evaluator counts at most."""
    made = program(pipeline.SCHEDULE)
    found = pairs_of(made)
    with found.context:
        check_registers(found)
        check_text(found)
        code = kernel_code(found, RULES)
    binary = compiled(code)
    assert binary.spills == 0 and binary.stack == 0


Ops = dict[str, list[ir.Operation]]
_LATE, _EARLY = "overwritten while read", "read before full"


def drop(name: str, number: int) -> Callable[[Ops], None]:
    return lambda ops: ops[name][number].erase()


def drop_all(name: str) -> Callable[[Ops], None]:
    def change(ops: Ops) -> None:
        for op in ops[name]:
            op.erase()

    return change


def number(name: str, which: int, key: str, value: int) -> Callable[[Ops], None]:
    def change(ops: Ops) -> None:
        ops[name][which].attributes[key] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)

    return change


def operand(name: str, which: int, position: int, of: tuple[str, int, int]) -> Callable[[Ops], None]:
    """Gives an op the operand of another op."""

    def change(ops: Ops) -> None:
        ops[name][which].operands[position] = ops[of[0]][of[1]].operands[of[2]]

    return change


def late_wait(ops: Ops) -> None:
    wait = ops["mma_wait"][4]
    block = [view.operation for view in wait.block.operations]
    wait.move_after(next(op for op in block[block.index(wait) :] if op.name == "warp.arrive"))


def one_stage(ops: Ops) -> None:
    """Weights are written to the first stage alone."""
    own = ops["write"][0].operands[1].owner.operation  # type: ignore[union-attr]
    for view in [op for op in ops["view"] if op.operands[0] == own.operands[0]]:
        view.operands[1] = own.operands[3]


def other_stage(ops: Ops) -> None:
    """Weights are multiplied in the first stage, and written to both."""
    own = ops["write"][0].operands[1].owner.operation  # type: ignore[union-attr]
    for view in [op for op in ops["view"] if op.operands[0] == own.operands[0] and op != own]:
        view.operands[1] = own.operands[3]


def not_scaled(ops: Ops) -> None:
    """The numbers of a tensor come as they are, which maps take for what they need."""
    ops["copy_rows_scaled"][0].attributes["factor"] = ir.FloatAttr.get(ir.F32Type.get(), 1.0, ir.Location.unknown())


def behind_the_meeting(ops: Ops) -> None:
    """The thread that added the sums before waits for this when all have met."""
    wait = ops["store_wait"][0].parent
    assert wait is not None
    wait.operation.move_after(ops["named_sync"][0])


def fewer_lanes(ops: Ops) -> None:
    ops["mbarrier"][4].results[0].set_type(ir.Type.parse("!warp.barrier<2 : i64, 33 : i64>"))


FAULTS: list[tuple[str, str, Callable[[Ops], None]]] = [
    ("weights written while others multiply those before", _LATE, one_stage),
    ("weights multiplied in another stage", f"{_EARLY}, {_LATE}", other_stage),
    ("weights multiplied before all are written", f"{_EARLY}, {_LATE}", drop("named_sync", 0)),
    ("weights written without a fence", "missing fence", drop("fence_async", 0)),
    ("a barrier that does not await the lanes that copy rows", f"{_EARLY}, {_LATE}, too many arrivals, wrong phase", fewer_lanes),
    ("numbers of rows copied to the stage of other rows", f"overwritten twice, {_EARLY}, {_LATE}, deadlock",
     operand("copy_rows_scaled", 0, 7, ("copy_async", 0, 7))),
    ("numbers of other rows", "wrong numbers", operand("copy_rows_scaled", 0, 3, ("copy_async", 0, 4))),
    ("numbers of rows that are not scaled", "wrong numbers", not_scaled),
    ("a wait that leaves sums over queries in flight", "product in flight", number("mma_wait", 2, "pending", 3)),
    ("a wait that leaves sums over queries in flight while dq leaves", "product in flight", number("mma_wait", 4, "pending", 1)),
    ("queries given back before their product is done", _LATE, late_wait),
    ("an early map before its product is done", "product in flight", number("mma_wait", 0, "pending", 2)),
    ("a late map before the second product is done", "product in flight", number("mma_wait", 1, "pending", 1)),
    ("sums written while the addition before reads", f"{_LATE}, deadlock", drop("store_wait", 0)),
    ("the addition before awaited behind the meeting", _LATE, behind_the_meeting),
    ("additions not committed", f"unfinished store, {_LATE}", drop("store_commit", 0)),
    ("sums added without a fence", "missing fence", drop("fence_async", 1)),
]  # fmt: skip
"""Of the forming of pairs, and of each pass behind it, two or more: their kinds are those of `Fault`, or "wrong numbers"."""


@pytest.mark.parametrize(("kinds", "plant"), [(kinds, plant) for _, kinds, plant in FAULTS], ids=[name for name, _, _ in FAULTS])
def test_faults_are_found(whole: Whole, kinds: str, plant: Callable[[Ops], None]) -> None:
    find(whole, kinds, plant)


def planted(text: str, plant: Callable[[Ops], None]) -> kernel.EvaluatedKernel:
    """The kernel with a fault."""
    broken = kernel.EvaluatedKernel(text)
    found = broken._kernel  # pyright: ignore[reportPrivateUsage]
    ops: Ops = {}
    for op in walk(found):
        ops.setdefault(op.name.removeprefix("warp."), []).append(op)
    with found.context:
        plant(ops)
    return broken


def find(whole: Whole, kinds: str, plant: Callable[[Ops], None], dim: int = 64) -> None:
    """Plants a fault, and runs the kernel, which must end in one of these kinds."""
    find_in(whole, kinds, plant, problem(300, dim))


def find_in(whole: Whole, kinds: str, plant: Callable[[Ops], None], given: Problem) -> None:
    """The same with these inputs and results."""
    made, name, text = whole
    inputs, wanted = given
    with mock.patch.dict(made._kernels, {name: planted(text, plant)}):  # pyright: ignore[reportPrivateUsage]
        if kinds != "wrong numbers":
            with pytest.raises(Fault, match="|".join(kinds.split(", "))):
                made.run(inputs)
            return
        got = made.run(inputs)
    assert not all(float((a.double() - b).norm()) <= 2e-3 * float(b.norm()) for a, b in zip(got, wanted, strict=True))


def test_a_fixed_order(ordered: Whole) -> None:
    """The same bits in adverse schedules, whichever thread block draws which tile."""
    made, _, _ = ordered
    inputs, wanted = problem(300)
    known = schedules_of(pairs_of(made))
    results = []
    for name in ("consumer 1 first, copies late", "random 1"):
        with mock.patch.object(kernel, "drawn", return_value=known[name]()):
            results.append(made.run(inputs))
    for mine, theirs in zip(results[0], wanted, strict=True):
        assert float((mine.double() - theirs).norm()) <= 2e-3 * float(theirs.norm()) + 1e-5
    assert all(torch.equal(a, b) for others in results[1:] for a, b in zip(results[0], others, strict=True))


def test_a_fixed_order_before_stores_are_staged() -> None:
    """Without a mask, too: all blocks of keys begin with the same queries."""
    options: dict[str, Any] = {}
    with mock.patch.object(pipeline, "SCHEDULE", f"warp-assign-layouts,{_TIDY},warp-order-tiles,{_TIDY}"):
        got = gradients((2, 1, 150, 140, 64), "cuda-emulated", torch.float16, {**options, "deterministic": True})
    for mine, wanted in zip(got, gradients((2, 1, 150, 140, 64), "cpu", torch.float64, options), strict=True):
        assert float((mine.double() - wanted).norm()) <= 2e-3 * float(wanted.norm())


def taken_for_done(ops: Ops) -> None:
    """Semaphores are passed on when additions have read shared memory."""
    for op in ops["store_wait"]:
        op.attributes["read"] = ir.BoolAttr.get(True)


def no_first(ops: Ops) -> None:
    """Every block of keys waits for that of the next ones."""
    for op in ops["order_wait"]:
        op.operands[2] = op.operands[2].owner.operation.operands[1]  # type: ignore[union-attr]


def others_semaphore(ops: Ops) -> None:
    """The semaphore of a block of keys is passed on as its own."""
    for op in ops["order_wait"]:
        op.operands[2] = op.operands[2].owner.operation.operands[2]  # type: ignore[union-attr]


def never_zero(ops: Ops) -> None:
    """The last draw does not know that it is the last."""
    (draw,) = ops["next_tile"]
    tiles_and_others = draw.operands[1].owner.operation  # type: ignore[union-attr]
    tiles_and_others.operands[1] = tiles_and_others.operands[1].owner.operation.operands[0]


def not_told(ops: Ops) -> None:
    """Consumers read a number before it is told."""
    told = ops["mbarrier"][-2].results[0]
    for op in [op for op in ops["wait"] if op.operands[0] == told][1:]:
        op.erase()


ORDER_FAULTS: list[tuple[str, str, Callable[[Ops], None]]] = [
    ("semaphores passed on before additions are done", "unordered additions", taken_for_done),
    ("no semaphore awaited", "unordered additions", drop_all("order_wait")),
    ("a semaphore awaited that nobody passes on", "deadlock", no_first),
    ("every semaphore taken for the first one", "unordered additions, deadlock", others_semaphore),
    ("semaphores not passed on", "deadlock", drop_all("order_pass")),
    ("a counter of tiles that is left", "counter left", never_zero),
    ("a message read before it is told", f"{_EARLY}, {_LATE}, overwritten twice", not_told),
]


@pytest.mark.parametrize(("kinds", "plant"), [(k, p) for _, k, p in ORDER_FAULTS], ids=[name for name, _, _ in ORDER_FAULTS])
def test_faults_of_orders_are_found(ordered: Whole, kinds: str, plant: Callable[[Ops], None]) -> None:
    find(ordered, kinds, plant)
