"""Schedules of kernels over rows, and what they need of a multiprocessor."""

from collections.abc import Mapping

from attn_mlir.backends.gpu import printed
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.emitters import Refusal
from attn_mlir.backends.gpu.grid import depends_on_block
from attn_mlir.backends.gpu.input_limits import PAGE_ROWS
from attn_mlir.backends.gpu.passes.share_reciprocals import SHARED
from attn_mlir.backends.gpu.program import BY_PARTS, BY_ROWS
from attn_mlir.backends.gpu.scalars import dependence
from attn_mlir.backends.gpu.structure import body, chains, operations
from attn_mlir.backends.nvidia import narrow_windows, thresholds
from attn_mlir.backends.nvidia.hopper.flat import fits
from attn_mlir.backends.nvidia.hopper.gathered_rows import GATHERING
from attn_mlir.backends.nvidia.hopper.row_kernels import RowsKernel
from attn_mlir.backends.nvidia.hopper.score_exchange import EXCHANGES
from attn_mlir.backends.nvidia.hopper.stale_maximum import is_lean, keeps_reference, sum_by_product
from attn_mlir.backends.nvidia.hopper.steps import read_chain
from attn_mlir.backends.nvidia.hopper.tiles import ROWS
from attn_mlir.backends.nvidia.hopper.widened_rings import WIDENED, widens
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk

_USUAL: Fields = {"lazy_rescale": 0, "sums": "own"}
"""What schedules have without the savings of the flat loop."""


def plan_rows(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | Refusal | None:
    """The schedule of a kernel over rows: see docs/nvidia-hopper.md. None without matrix products.

    Keys in pages are copied by all warps of the producer in the flat loop where these bring nothing else; else one
    thread asks for them. Raises UnsupportedError for choices that the chip cannot run.
    """
    if "gather" not in choices and "paged" in ir.DictAttr(kernel.attributes["tile.kernel"]) and not widens(kernel):
        try:
            fields = _plan_rows(kernel, target, {**choices, "gather": BY_PARTS})
        except UnsupportedError:  # due to other choices, perhaps
            fields = None
        if isinstance(fields, dict) and fields["flow"] == "flat":  # others were not run on a GPU
            return fields
    return _plan_rows(kernel, target, choices)


def _plan_rows(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | Refusal | None:
    """See `plan_rows`."""
    sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
    rows, keys = (ir.IntegerAttr(sizes[name]).value for name in ("block_q", "block_kv"))
    dots = find_all(kernel, *DOTS)
    if not dots or rows == 1:  # a single row merges parts, see `gpu.simt.merge`
        return None
    if rows % ROWS or keys % 16 or not 1 <= rows // ROWS <= 4 or keys > 256:
        return Refusal(f"blocks have a multiple of 64 rows up to 256 and of 16 keys up to 256, not {rows} and {keys}")
    for load in find_all(kernel, "tile.load"):
        element, made = ir.MemRefType(load.operands[0].type).element_type, ir.RankedTensorType(load.results[0].type).element_type
        if str(element) not in ("f16", "bf16", *WIDENED) or str(made) not in ("f16", "bf16"):
            return Refusal(f"matrix products take f16 or bf16, not {element}", load)
    warpgroups, wide = rows // ROWS, widens(kernel)
    if wide and choices.get("gather"):
        return Refusal(f"keys of 8 bits in pages are widened where these have a multiple of {PAGE_ROWS} positions")
    looks = _looks(kernel)
    consumer, producer = (thresholds.LOOKING_REGISTERS if looks else thresholds.ROW_REGISTERS)[warpgroups]
    columns = max(ir.RankedTensorType(load.results[0].type).shape[1] for load in find_all(kernel, "tile.load"))
    narrow, uneven = columns <= thresholds.NARROW_COLUMNS, is_uneven(kernel)
    fields: Fields = {
        "pin": 0, "ping_pong": 1, "vote": 1, "queries": "shared", "order": "dynamic", "reverse": 1,
        "group": _heads_together(columns, uneven),
        "consumer_registers": consumer, "producer_registers": producer, **_USUAL,
    }  # fmt: skip
    if (dropout := choices.get("dropout", "own")) not in ("lanes", "own"):
        raise UnsupportedError(f"in a schedule dropout is 'lanes' or 'own', not {dropout!r}")
    flow, able = _flow(kernel), _abilities(kernel)
    fields.update({name: choices[name] for name in ("windows", "gather", "few") if name in choices})
    if choices.get("gather") and warpgroups in GATHERING and (warpgroups == 1 or choices["gather"] == BY_ROWS):
        fields |= dict(zip(("consumer_registers", "producer_registers"), GATHERING[warpgroups], strict=True))
    if wide:
        made = (thresholds.WIDENED_STAGES[0], *thresholds.WIDENING[warpgroups])
        fields |= dict(zip(("widen", "wideners", "consumer_registers", "producer_registers"), made, strict=True))
    if narrow and warpgroups == 3 and _lean(kernel) and not looks:
        fields.update(able)
    elif not narrow and columns <= 128 and warpgroups == 2 and not _gathers(kernel):
        fields["lazy_rescale"] = able["lazy_rescale"]
    if not narrow and flow == "flat" and _shares(kernel):
        flow = thresholds.SHARED_RECIPROCALS
    shared = int(choices.get("cluster", 1)) > 1
    if shared:
        fields |= {"cluster": choices["cluster"], "order": "tiles", "lazy_rescale": 0, "exchange": "stores"}
        fields["ahead"] = 0 if choices.get("windows") else thresholds.SCORES_AHEAD
        if not looks:
            fields |= dict(zip(("consumer_registers", "producer_registers"), thresholds.CLUSTER_REGISTERS, strict=True))
    fields.update({name: value for name, value in choices.items() if name in fields or name in ("longer", narrow_windows.NARROW)})
    producers = -(-(1 + int(fields["wideners"])) // 4) if wide else 1
    check_registers(warpgroups, int(fields["consumer_registers"]), int(fields["producer_registers"]), target, producers)
    for name, usual in _USUAL.items():
        if fields.get(name, usual) not in (usual, able[name]):
            possible = " or ".join(repr(value) for value in dict.fromkeys((usual, able[name])))
            raise UnsupportedError(f"in a schedule of this program {name} can be {possible}, not {fields[name]!r}")
    if shared:
        if fields["order"] == "dynamic" or choices.get("flow", "each") != "each":  # each thread block would draw tiles of its own
            raise UnsupportedError("hopper: thread blocks share columns in the loop inside each program (flow = 'each'), in a fixed order")
        if fields["exchange"] not in EXCHANGES or fields["ahead"] not in (0, 1, 2):
            asked = f"not {fields['exchange']!r}, {fields['ahead']}"
            raise UnsupportedError(f"hopper: scores are exchanged by {' or '.join(EXCHANGES)}, 0 to 2 ahead, {asked}")
        return _fitting(kernel, fields, {**choices, "flow": "each"}, True, thresholds.USUAL_STAGES, keys, target)
    flow = thresholds.UNMASKED_NARROW if flow == "flat" and narrow and not uneven and not fields["lazy_rescale"] else flow
    usual, stale = thresholds.NARROW_STAGES
    stages = (usual if uneven or not fields["lazy_rescale"] else stale) if narrow else thresholds.USUAL_STAGES
    if narrow and not uneven and choices.get("windows") == 1:
        fields["group"] = int(choices.get("group", thresholds.HEADS_OF_BIASES))
    return _fitting(kernel, fields, {"flow": flow, **choices}, "flow" in choices, stages, keys, target)


def _heads_together(columns: int, uneven: bool) -> int:
    """How many heads run together, of so many columns; `uneven`: under a mask."""
    if not uneven:
        return thresholds.HEADS_TOGETHER["even"]
    if columns <= thresholds.NARROW_COLUMNS:
        return thresholds.NARROW_HEADS_TOGETHER
    return thresholds.HEADS_TOGETHER["masked 128" if columns <= 128 else "masked"]


def _looks(kernel: ir.Operation) -> bool:
    return "paged" in ir.DictAttr(kernel.attributes["tile.kernel"]) and bool(find_all(kernel, "attn.range"))


def _fitting(
    kernel: ir.Operation, fields: Fields, choices: Mapping[str, int | str], chosen: bool, stages: int, keys: int, target: NvidiaTarget
) -> Fields | Refusal:
    """The schedule with the first flow, number of stages and place of outputs that shared memory has room for, or why there is none.

    `chosen`: no other flow than that of the choices will do. Raises UnsupportedError where nothing fits due to choices.
    """
    flow = str(choices["flow"])
    layouts = [("flat", stages, "query"), ("flat", 2, "query")] if flow == "flat" else []
    second = "each" if flow != "plain" else "plain"
    if choices.get("windows") == 1 and stages > 2:
        layouts += [(second, 4, "own"), (second, 3, "own")]
    layouts += [(second, 2, "own"), (second, 2, "query"), (second, 1, "own"), (second, 1, "query")]
    wanted = [flow if chosen else None, choices.get("stages"), choices.get("staging")]
    if wanted[1] is not None and int(wanted[1]) > 0:
        layouts = [(name, int(wanted[1]), place) for name, _, place in layouts]
    needed, refusal = 0, None
    depths: tuple[int, ...] = (0,)
    if "widen" in fields:
        depths = (int(choices["widen"]),) if "widen" in choices else thresholds.WIDENED_STAGES
    for layout, depth in ((layout, depth) for layout in dict.fromkeys(layouts) for depth in depths):
        if any(choice is not None and choice != value for choice, value in zip(wanted, layout, strict=True)):
            continue
        planned: Fields = {**fields, **dict(zip(("flow", "stages", "staging"), layout, strict=True))}
        planned |= {"widen": depth} if depth else {}
        if layout[0] != "flat":
            # The loop inside each program can keep maxima, too. Three warpgroups do so only in the flat loop, unless asked to.
            able = {"lazy_rescale"} if layout[0] == "each" and ("lazy_rescale" in choices or fields["sums"] == "own") else set()
            planned.update({name: usual for name, usual in _USUAL.items() if name not in able})
            if any(choices.get(name, usual) != usual for name, usual in _USUAL.items() if name not in able):
                continue
        elif "queries" not in choices and _have_room(kernel, keys, planned):
            planned["queries"] = "registers"
        try:
            needed = printed.tried(kernel, "hopper", planned, RowsKernel(kernel, planned).emit()).shared_bytes
        except UnsupportedError as error:
            refusal = Refusal.of(error)
            continue
        if needed <= target.shared_bytes:
            return planned
    if needed and any(choice is not None for choice in wanted):
        raise UnsupportedError(
            f"this schedule needs {needed} bytes of shared memory, the chip has {target.shared_bytes}: choose smaller blocks"
        )
    return refusal or Refusal(f"it needs {needed} bytes of shared memory, and {target.arch} has {target.shared_bytes}")


def _have_room(kernel: ir.Operation, keys: int, fields: Fields) -> bool:
    """Whether a thread has registers for queries beside scores, weights, sums and a few more.

    Not where masks or scores need others of their own in every step: values of columns, elements of captured tensors; nor for longer
    score functions where the step may be done again.
    """
    available = int(fields["consumer_registers"]) - thresholds.OTHER_REGISTERS
    for step in read_chain(chains(body(kernel))[0]) or []:
        queries, values = (ir.RankedTensorType(value.type).shape[1] for value in (step.scores.operands[0], step.sums.results[0]))
        if step.sums.name != "tile.dot_rescale" or keys // 2 + keys // 4 + values // 2 + queries // 4 > available:
            return False
        maps = [op for op in step.rest if op.name == "tile.map"]
        if any(_needs_more(op.regions[0].blocks[0]) for op in maps):
            return False
        scores = [op for op in maps if len(op.operands) > 1]
        if fields["lazy_rescale"] and step.whole and any(len(operations(body(op))) > thresholds.SHORT_SCORES for op in scores):
            return False
    return True


def _needs_more(block: ir.Block) -> bool:
    depends = dependence(block)
    for op in operations(block):
        arguments = [operand for operand in op.operands if isinstance(operand.owner, ir.Block) and operand not in depends]
        scalars = any(value.owner.owner.operation.name == "func.func" and not isinstance(value.type, ir.ShapedType) for value in arguments)
        of_columns = any(isinstance(result.type, ir.FloatType) and depends[result] == {1} for result in op.results)
        if op.name == "memref.load" or scalars or of_columns:
            return True
    return False


def _gathers(kernel: ir.Operation) -> bool:
    """Whether scores take elements of captured tensors that differ from key to key: then registers do not suffice to do a step again."""
    for step in (step for chain in chains(body(kernel)) for step in read_chain(chain) or []):
        for op in step.rest if step.whole else ():
            depends = dependence(op.regions[0].blocks[0]) if op.name == "tile.map" else {}
            if any(
                1 in places and value.owner.name == "memref.load" for value, places in depends.items() if isinstance(value, ir.OpResult)
            ):
                return True
    return False


def _shares(kernel: ir.Operation) -> bool:
    """Whether weights without a maximum are quotients that share reciprocals, as those of sigmoid."""
    steps = [step for chain in chains(body(kernel)) for step in read_chain(chain) or []]
    divisions = [op for step in steps if step.sums.name == "tile.dot_add" for op in find_all(step.loop, "arith.divf")]
    return any(SHARED in op.attributes for op in divisions)


def _flow(kernel: ir.Operation) -> str:
    """ "flat", "each" (overlapped in each program) or "plain"."""
    found = chains(body(kernel))
    steps = [read_chain(chain) for chain in found]
    if len(found) == 1 and steps[0] is not None and fits(kernel, found[0]):
        return "flat"
    return "each" if any(step is not None and all(part.some is None for part in step) for step in steps) else "plain"


def _abilities(kernel: ir.Operation) -> Fields:
    """What the flat loop can save of this kernel's work."""
    found = chains(body(kernel))
    steps = read_chain(found[0]) if len(found) == 1 else None
    if steps is None or not fits(kernel, found[0]):
        return _USUAL
    kept = any(step.whole and keeps_reference(step) is not None for step in steps)
    return {"lazy_rescale": int(kept), "sums": "own" if sum_by_product(steps) is None else "product"}


def _lean(kernel: ir.Operation) -> bool:
    """Whether whole blocks that keep their maxima need only exponentials of scores: else registers do not suffice for three warpgroups."""
    steps = [step for chain in chains(body(kernel)) for step in read_chain(chain) or [] if step.whole]
    kept = [keeps_reference(step) for step in steps]
    return bool(steps) and all(needed is not None and is_lean(step, needed) for step, needed in zip(steps, kept, strict=True))


def is_uneven(kernel: ir.Operation) -> bool:
    """Whether some blocks of rows have more keys than others: the bounds of the loops depend on the block, or blocks are skipped."""
    if any(op.name == "scf.if" for op in walk(kernel)):
        return True
    for loop in find_all(kernel, "scf.for"):
        if any(depends_on_block(value) for value in list(loop.operands)[:2]):
            return True
    return False


def check_registers(warpgroups: int, consumer: int, producer: int, target: NvidiaTarget, producers: int = 1) -> None:
    """Raises UnsupportedError if the roles ask for more registers than the launch gives: the kernel would wait for them for ever."""
    threads = 128 * (warpgroups + producers)
    launch = min(255, target.registers // threads) // 8 * 8
    asked = 128 * (warpgroups * consumer + producers * producer)
    if asked > launch * threads:
        raise UnsupportedError(
            f"{warpgroups} consumer warpgroups with {consumer} registers a thread and a producer with {producer} need {asked} registers, "
            f"but {threads} threads start with {launch} each, {launch * threads} in all: the kernel would hang; ask for fewer"
        )
    if any(count % 8 or not 24 <= count <= 240 for count in (consumer, producer)):
        raise UnsupportedError(f"registers of a role are multiples of 8 from 24 to 240, not {consumer} and {producer}")
