"""Reads what a map needs of columns while the product that it waits for flies."""

from collections.abc import Hashable
from dataclasses import dataclass

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.forming.facts import said
from attn_mlir.backends.nvidia.forming.maps import number_in
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.backends.nvidia.forming.rings import COPIES, filled_by
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker

_AUTO = "auto"


@dataclass(frozen=True)
class ReadEarly(Pass):
    """In loops, takes out of a map of the first product the number that it computes of its column and of numbers in shared memory alone,
    such as the log-sum-exp of a query: a map of its own makes it before the wait for the product, so that nobody waits for shared memory
    after it. A thread holds these numbers in registers meanwhile, one for each of its columns. Maps of later products that compute the
    same number read it there, too.

    It comes behind `warp-split-maps`. `early` in `warp.schedule` says whether it is done (1) or not (0); without a word, kernels that
    copy tiles of 128 columns have it. A kernel stays as it is, with the reason in `warp.refused`, where no map has such a number.
    """

    name = "warp-read-early"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _read)
        return True


def _read(kernel: ir.Operation) -> None:
    asked = said(kernel, "early", _AUTO)
    if asked not in (_AUTO, "0", "1"):
        raise Refused(f"`early` in the schedule is 0 or 1, not '{asked}'")
    widest = max((ir.MemRefType(filled_by(op)[0].type).shape[-1] for op in find_all(kernel, *COPIES)), default=0)
    if asked == "0" or (asked == _AUTO and widest < thresholds.LATE_COLUMNS):
        raise Refused("the schedule reads numbers of columns where they are needed")
    blocks = [loop.regions[0].blocks[0] for loop in find_all(kernel, "scf.for")]
    made = {op.operands[1] for op in find_all(kernel, "warp.make_rows")}
    change_parts(blocks, lambda block: _change(block, made), "no loop multiplies")


def _change(block: ir.Block, made: set[ir.Value]) -> None:
    """Splits the first map of a loop. Raises Refused, with nothing changed, where it has no such number.

    `made`: the barriers of numbers that another role makes. A wait for them behind the product comes before.
    """
    ops = [view.operation for view in block.operations]
    waits = [op for op in ops if op.name == "warp.mma_wait"]
    if len(waits) < 2:
        raise Refused("no loop has several products")
    results = [wait.results[0] for wait in waits]
    maps = [op for op in ops if op.name == "warp.map" and len(list(op.regions[0].blocks[0].arguments)) == 2]
    read = [{value for value in results if value in [v for inner in find_all(op, "tensor.extract") for v in inner.operands]} for op in maps]
    found = next((op for op, products in zip(maps, read, strict=True) if products == {results[0]}), None)
    if found is None:
        raise Refused("no map needs the first product alone")
    number, needed = _number(found)
    between = ops[ops.index(waits[0]) : ops.index(found)]
    place = max([ops.index(waits[0]), *(ops.index(op) + 1 for op in between if op.name == "warp.wait" and op.operands[0] in made)])
    for op in needed:
        needs = [by for v in op.operands if (by := maker(v)) is not None]
        if any(each.block == block and ops.index(each) >= place for each in needs):
            raise Refused("what a map reads is known behind the product alone")
    own = found.regions[0].blocks[0]
    type_ = ir.RankedTensorType(waits[0].results[0].type)

    def body(*places: ir.Value) -> list[ir.Value]:
        known: dict[ir.Value, ir.Value] = dict(zip(own.arguments, places, strict=True))
        for op in needed:
            clone_op(op, known)
        return [known[number]]

    with found.location, ir.InsertionPoint(ops[place]):
        early = build.map_(list(type_.shape), [type_], [""], body)[0]
    first = needed[-1]
    with first.location, ir.InsertionPoint(first):
        again = ir.Operation.create("tensor.extract", results=[number.type], operands=[early, *own.arguments]).result
    key = number_in(number, own)
    number.replace_all_uses_with(again)
    _erase_unused(needed)
    for map_ in maps[maps.index(found) + 1 :]:
        _share(map_, early, key)


def _share(map_: ir.Operation, early: ir.Value, key: Hashable) -> None:
    """Lets a later map read a number that it computes as well."""
    block = map_.regions[0].blocks[0]
    ops = [view.operation for view in block.operations]
    for op in ops:
        if len(op.results) == 1 and number_in(op.results[0], block) == key:
            with op.location, ir.InsertionPoint(op):
                again = ir.Operation.create("tensor.extract", results=[op.results[0].type], operands=[early, *block.arguments]).result
            op.results[0].replace_all_uses_with(again)
            _erase_unused(ops[: ops.index(op) + 1])
            return


def _erase_unused(ops: list[ir.Operation]) -> None:
    """Erases those of some ops, in their order, whose results nothing reads."""
    for op in reversed(ops):
        if not any(True for result in op.results for _ in result.uses):
            op.erase()


def _number(map_: ir.Operation) -> tuple[ir.Value, list[ir.Operation]]:
    """The number of a map that is made of its column and of shared memory, and the ops that make it. Raises Refused of several."""
    block = map_.regions[0].blocks[0]
    row = block.arguments[0]
    late, loads = [row], []
    for view in block.operations:
        op = view.operation
        if op.name == "tensor.extract" or any(v in late for v in op.operands):
            late += list(op.results)
        elif op.name == "memref.load":
            loads.append(op)
    if not loads:
        raise Refused("a map reads no numbers of columns")
    reached = [load.results[0] for load in loads]
    ends: list[ir.Value] = []
    for view in block.operations:
        op = view.operation
        if any(v in late for v in op.operands) or not len(op.results):
            ends += [v for v in op.operands if v in reached and v not in ends]
        elif any(v in reached for v in op.operands):
            reached += list(op.results)
    if len(ends) != 1 or str(ends[0].type) != "f32" or maker(ends[0], "tensor.extract") is not None:
        raise Refused("a map needs several numbers of its columns")
    wanted, needed = [ends[0]], []
    for op in reversed([view.operation for view in block.operations]):
        if any(result in wanted for result in op.results):
            needed.append(op)
            wanted += list(op.operands)
    return ends[0], needed[::-1]
