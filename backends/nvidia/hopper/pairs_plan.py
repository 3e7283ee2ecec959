"""Schedules of kernels over pairs: their layout, who adds sums over keys, and in which order programs run."""

from collections.abc import Mapping

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.emitters import Refusal
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.outputs import NARROW
from attn_mlir.backends.nvidia import narrow_windows, thresholds
from attn_mlir.backends.nvidia.hopper import pairs_dropout
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs import PairsPrinter, pairs_core
from attn_mlir.backends.nvidia.hopper.pairs_claims import FIELD as CLAIMS
from attn_mlir.backends.nvidia.hopper.pairs_claims import check_claims, claims_pay
from attn_mlir.backends.nvidia.hopper.pairs_kernel import check_types, ops_of, read_kernel, semaphore_tensor
from attn_mlir.backends.nvidia.hopper.pairs_key_sums import check_key_sums
from attn_mlir.backends.nvidia.hopper.pairs_late import (
    APART,
    EXCHANGE,
    HELD,
    check_apart,
    check_early,
    check_held,
    check_late,
    early_pays,
    held_pays,
    late_pays,
    turned_pays,
)
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout, is_transposed, plan_layout
from attn_mlir.backends.nvidia.hopper.pairs_loop import check_steps, staged_values
from attn_mlir.backends.nvidia.hopper.pairs_pieces import FIELD as PIECES
from attn_mlir.backends.nvidia.hopper.pairs_pieces import choose_pieces
from attn_mlir.backends.nvidia.hopper.pairs_reduction import may_descend
from attn_mlir.backends.nvidia.hopper.pairs_scheduler import programs_together
from attn_mlir.backends.nvidia.hopper.pairs_tiles import narrow_sums
from attn_mlir.backends.nvidia.hopper.pairs_turns import tile_fields
from attn_mlir.backends.nvidia.hopper.pairs_weights import plan_weights
from attn_mlir.backends.nvidia.hopper.pairs_windows import check_windows
from attn_mlir.backends.nvidia.ordered_sums import depends, is_masked
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all


def plan_pairs(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | Refusal:
    """The schedule of a kernel of pairs, or why this code generator cannot make it. Raises UnsupportedError for an unknown choice."""
    if (dropout := choices.get("dropout", "lanes")) not in ("lanes", "own"):
        raise UnsupportedError(f"in a schedule dropout is 'lanes' or 'own', not {dropout!r}")
    if not find_all(kernel, "tile.accumulate", "tile.scatter_add"):
        choices = {**choices, "deterministic": 0}  # each sum has one writer
    if choices.get(CLAIMS):
        choices = {"reduction_warps": 1, **choices}
    try:
        layout = _layout_with_key_sums(kernel, target, choices) or _layout(kernel, target, choices)
        if choices.get("key_sums", "auto") == "auto" and not layout.key_sums:
            layout.late = late_pays(layout)
        key = layout.kernel.key_loop.regions[0].blocks[0].arguments[0]
        masked, ordered = is_masked(ops_of(layout.kernel.query_loop, "scf.for"), key), bool(choices.get("deterministic"))
        layout.turned |= EXCHANGE not in choices and turned_pays(layout)
        if "early" not in choices:
            layout.early = early_pays(pairs_core(layout.kernel), layout, masked)
        layout.apart = bool(choices.get(APART, masked and layout.late and layout.early))
        check_apart(layout)
        layout.held = int(choices.get(HELD, held_pays(layout, masked and not ordered and _to_the_last_query(layout, key))))
        check_held(layout)
        PairsPrinter(layout, choices).code()
    except UnsupportedError as error:
        return Refusal.of(error)
    fields: Fields = {"kind": "pairs", "stages": layout.stages, "shared": layout.bytes, "warpgroups": layout.warpgroups}
    fields |= {name: choices[name] for name in (narrow_windows.NARROW,) if name in choices}
    fields |= {"consumers": "weights"} if layout.roles else {}
    fields |= {"occupancy": layout.occupancy} if layout.occupancy > 1 or "occupancy" in choices else {}
    fields |= {"windows": layout.stages} if layout.windows or layout.bands else {}
    asked = {"key_sums": "consumers"} if choices.get("key_sums") == "consumers" else {}
    fields |= {"early": int(layout.early)} if layout.early or "early" in choices else {}
    fields |= {APART: int(layout.apart)} if layout.apart or APART in choices else {}
    fields |= {HELD: layout.held} if layout.held or HELD in choices else {}
    fields |= (
        {EXCHANGE: "queries" if layout.turned else "keys"}
        if EXCHANGE in choices or layout.turned != is_transposed(layout.kernel.queries)
        else {}
    )
    fields |= {"key_sums": "warpgroup"} if layout.key_sums else {"key_sums": "late"} if layout.late else asked
    if layout.by_tiles and (narrow := narrow_sums(layout)):
        fields[NARROW] = narrow
    if find_all(kernel, "attn.kept"):
        fields["dropout"] = "lanes" if layout.words is not None else "own"
    # A warpgroup that makes sums over keys adds them, too.
    apart = layout.warpgroups > 1 and masked and not layout.key_sums
    few = _of_few_keys(layout, choices, (masked, ordered))
    fields |= few
    fields["reduction_warps"] = int(choices.get("reduction_warps", ordered or apart or bool(few)))
    fields["order"] = choices.get("order", "dynamic")
    descends = masked and ordered and not pairs_core(layout.kernel).packed and may_descend(layout.kernel)
    fields |= programs_together(layout, choices, (masked, ordered, descends))
    if choices.get("deterministic"):
        # Sums over keys are added in a fixed order, for which each block of queries and warpgroup has a semaphore.
        fields |= {"deterministic": 1, **_semaphores(kernel, layout)}
    layout.reduction_warps = bool(layout.adds) and bool(fields["reduction_warps"])
    if choices.get(CLAIMS, claims_pay(layout.kernel, layout, ordered)):
        try:
            check_claims(layout.kernel, layout, ordered)
        except UnsupportedError as error:
            return Refusal.of(error)
        fields |= {CLAIMS: 1, **_semaphores(kernel, layout)}
    if not {"deterministic", CLAIMS} & fields.keys():
        fields |= tile_fields(layout, choices, _program_semaphores(kernel, layout))
    try:
        return fields | choose_pieces(layout.kernel, layout, fields, choices, target.shared_bytes)
    except UnsupportedError as error:
        return Refusal.of(error)


def _of_few_keys(layout: BackwardLayout, choices: Mapping[str, int | str], kind: tuple[bool, bool]) -> Fields:
    """From how many keys on there is another schedule: for fewer, warps of the producer store and add what a warpgroup makes sums of.

    Nothing where somebody chose who adds, and where no program can store first sums. `kind`: whether there is a mask, and a fixed order.
    """
    masked, ordered = kind
    keys = thresholds.CLAIMED_KEYS[masked]
    asked = {CLAIMS, PIECES, "reduction_warps"} & choices.keys()
    few = int(choices.get("length", 0)) < keys and choices.get("key_sums") == "auto"
    if not layout.key_sums or asked or not few:
        return {}
    layout.reduction_warps = bool(layout.adds)
    return {"longer": keys} if claims_pay(layout.kernel, layout, ordered) else {}


def emit_pairs(kernel: ir.Operation, target: NvidiaTarget, schedule: Fields) -> KernelCode:
    """The source of a kernel of pairs, and how to launch it. Raises UnsupportedError for what it cannot print."""
    layout = _layout(kernel, target, schedule)
    return PairsPrinter(layout, schedule).code()


def _semaphores(kernel: ir.Operation, layout: BackwardLayout) -> Fields:
    """Those of a launch: one for each block of queries of a head and part of its sums that is added alone."""
    over = Core(kernel, 0).arguments.number(semaphore_tensor(layout.kernel))
    return {"semaphore_over": over, "semaphore_rows": layout.kernel.queries, "semaphore_parts": layout.semaphores}


def _program_semaphores(kernel: ir.Operation, layout: BackwardLayout) -> Fields:
    """Those of a launch: one for each program and warpgroup."""
    over = Core(kernel, 0).arguments.number(layout.kernel.over)
    return {"semaphore_over": over, "semaphore_rows": layout.kernel.keys, "semaphore_parts": layout.warpgroups}


def _to_the_last_query(layout: BackwardLayout, key: ir.Value) -> bool:
    """Whether blocks of keys are seen by queries up to one that does not depend on the keys, as under a causal mask."""
    return not depends(ops_of(layout.kernel.query_loop, "scf.for")[-1].operands[1], key)


def _layout_with_key_sums(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> BackwardLayout | None:
    """The layout with a warpgroup for sums over keys, where it was asked for if there can be one (`key_sums = "auto"`)."""
    if choices.get("key_sums") != "auto":
        return None
    try:
        return _layout(kernel, target, {**choices, "key_sums": "warpgroup"})
    except UnsupportedError:
        return None


def _layout(kernel: ir.Operation, target: NvidiaTarget, fields: Mapping[str, int | str]) -> BackwardLayout:
    found = read_kernel(kernel)
    check_types(found)
    check_steps(found)
    core = pairs_core(found)
    slots = max((len(staged_values(core, step)) for step in found.steps), default=0)
    check_windows(found, slots)
    stages = None if "stages" not in fields else int(fields["stages"])
    if (apart := plan_weights(found, target, slots, stages)) is not None:
        apart.held = int(fields.get(HELD, 0))
        check_held(apart)
        return apart
    occupancy = None if "occupancy" not in fields else int(fields["occupancy"])
    if fields.get("key_sums") == "warpgroup":
        layout = plan_layout(found, target, (slots, False), stages, True)
        check_key_sums(layout)
        return _early(core, layout, fields)
    layout, dropout = plan_layout(found, target, (slots, False), stages, occupancy=occupancy), fields.get("dropout", "lanes")
    layout.by_tiles = not fields.get("deterministic") and bool(fields.get("by_tiles", 1))
    if pairs_dropout.possible(found) and dropout == "lanes":
        other = plan_layout(found, target, (slots, True), stages, occupancy=layout.occupancy)
        if (other.stages, other.exchanges, len(other.adds)) == (layout.stages, layout.exchanges, len(layout.adds)):
            other.by_tiles = layout.by_tiles
            layout = other
    if fields.get("key_sums") == "late":
        check_late(layout)
        layout.late, layout.held = True, int(fields.get(HELD, 0))
        check_held(layout)
    return _early(core, layout, fields)


def _early(core: Core, layout: BackwardLayout, fields: Mapping[str, int | str]) -> BackwardLayout:
    layout.turned |= fields.get(EXCHANGE) == "queries"
    layout.apart = bool(fields.get(APART))
    if fields.get("early"):
        check_early(core, layout)
        layout.early = True
    return layout
