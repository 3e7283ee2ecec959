"""Lets the lanes of a warp share the bits of dropout: those of 16 keys are one call of Philox."""

import math
from dataclasses import dataclass

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.forming.dropped import Dropped, dropped_in
from attn_mlir.backends.nvidia.forming.facts import said, wanted
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.dialects.numbers import i64, number
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import settled
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all

_SHARE, _ROUNDS = 64, 7
"""Columns of a row whose bits a lane makes, and rounds of Philox that are made for each of its calls."""


@dataclass(frozen=True)
class ShareDropout(Pass):
    """Where a map asks for each element whether dropout keeps it (`attn.kept`), and only makes the first factor of a product 0 where not,
    the map makes the factor as without dropout, and `warp.drop` makes elements of it 0, once they are rounded: each lane makes the bits of
    a row and 64 keys for its warp.

    So what follows is the kernel without dropout but for this op: masks merge, queries stay in registers, and weights that tell whether a
    maximum is too old are those before dropout. A kernel stays as it is, with the reason in `warp.refused`, where nothing is dropped, or
    something else depends on it, keys of columns do not follow each other, blocks have no multiple of 128 keys, or the schedule has
    `dropout` = "own".
    """

    name = "warp-share-dropout"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _share)
        return True


def _share(kernel: ir.Operation) -> None:
    if said(kernel, "dropout", "lanes") == "own":
        raise Refused("the schedule asks for each element (dropout = 'own')")
    roles = [(role, dropped_in(role)) for role in find_all(kernel, "warp.role")]
    if not any(found for _, found in roles):
        raise Refused("nothing is dropped")
    for role, found in roles:
        sizes = {each: math.prod(each.type.shape) // _SHARE * number(role, "warpgroups") * 4 for each in found}
        with role.location, ir.InsertionPoint(role), build.named("kept_bits"):
            buffers = {size: _buffer(size) for size in dict.fromkeys(sizes.values())}
        for each, size in sizes.items():
            _change(role, each, buffers[size])


def _buffer(count: int) -> ir.Value:
    return build.op("alloc", results=[build.shared_type([1, count], ir.IntegerType.get_signless(32), 0)]).result


def _change(role: ir.Operation, dropped: Dropped, bits: ir.Value) -> None:
    """Puts `warp.drop` between a map and the products of its tile."""
    widest = max(settled(product.results[0].type).shape[1] for product in dropped.products)
    # Wide rows whose loops are joined have a loop over rounds: 0.99 of causal masks where 0.88; all others are faster without (H200).
    rolled = widest > thresholds.ROLLED_DROPOUT and wanted(role.parent, "join")
    attributes = {"unroll": i64(1 if rolled else _ROUNDS)}
    dropped.choice.results[0].replace_all_uses_with(dropped.choice.operands[1])
    with dropped.map.location, ir.InsertionPoint.after(dropped.map):
        made = ir.Operation.create("warp.drop", [dropped.type], [dropped.result, bits], attributes, regions=1)
        block = made.regions[0].blocks.append(*[ir.IndexType.get()] * 2, arg_locs=[a.location for a in dropped.block.arguments])
        known = dict(zip(dropped.block.arguments, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for op in dropped.needed:
                clone_op(op, known)
            build.yield_([known[dropped.kept.results[0]]])
    for product in dropped.products:
        product.operands[1] = made.results[0]
    for op in (dropped.choice, *reversed(dropped.needed)):
        if not any(list(result.uses) for result in op.results):
            op.erase()
    _read_once(role, made)


def _read_once(role: ir.Operation, drop: ir.Operation) -> None:
    """Reads the numbers from memory that bits are made of, as seeds are, at the begin of the role."""
    kernel = role.parent
    todo = [value for op in drop.regions[0].blocks[0].operations for value in op.operation.operands]
    first = next(iter(role.regions[0].blocks[0].operations)).operation
    for cast in dict.fromkeys(v.owner.operation for v in todo if not isinstance(v.owner, ir.Block)):
        if cast.name != "arith.index_cast" or isinstance(cast.operands[0].owner, ir.Block):
            continue
        load = cast.operands[0].owner.operation
        if load.name == "memref.load" and len(list(load.operands)) == 1 and load.block != drop.regions[0].blocks[0] and kernel is not None:
            load.move_before(first)
            cast.move_before(first)
