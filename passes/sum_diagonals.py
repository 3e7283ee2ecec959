"""Sums weights of pairs along diagonals before they are added to where a captured tensor is read by the difference of the positions."""

from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import block_of, clone_op, find_all, maker, pieces
from attn_mlir.passes.sequences import packing_of, pages_of
from attn_mlir.passes.tiling.positions import Positions

_QUERY = 2
_NAMES = ("b", "h", "q_idx", "kv_idx")
_HALVES = ("f16", "bf16")


@dataclass(frozen=True)
class SumDiagonals(Pass):
    """Makes two ops of an `attn.scatter` of pairs whose place depends on positions by their difference alone, as that of T5's buckets does.

    The first one adds each weight to a place of its diagonal, in a tensor [B, Hq, Sq + Skv]; the second one adds these sums to
    where the scatter added weights. Whatever becomes of the difference (limits, buckets, another table), programs add at addresses that
    grow by 1 with it, where they would wait for each other at those of a few buckets. `Positions.along_diagonals` tells: steps of an index
    with q_idx and kv_idx add up to 0, or it is made, by any operations without effects, of such numbers, of comparisons of numbers whose
    difference is one, and of what is the same for all pairs of a head. Packed and paged tensors stay, and others than f16 and bf16.
    """

    name = "attn-sum-diagonals"

    def run(self, module: ir.Operation) -> bool:
        for scatter in find_all(module, "attn.scatter"):
            pairs = maker(scatter.operands[0], "attn.pairs")
            if pairs is not None and _is_summed(pairs) and _is_along_diagonals(scatter):
                _rewrite(scatter, pairs)
        return True


def _is_summed(pairs: ir.Operation) -> bool:
    halves = [str(ir.RankedTensorType(value.type).element_type) in _HALVES for op in pieces(pairs, "attn.product") for value in op.operands]
    return all(halves) and packing_of(pairs, "query") is None and packing_of(pairs, "key") is None and pages_of(pairs) is None


def _is_along_diagonals(scatter: ir.Operation) -> bool:
    block = block_of(scatter)
    positions = Positions(block, _QUERY, tensors=True)
    indices = list(block.operations[-1].operation.operands)
    along = [positions.along_diagonals(index) for index in indices]
    same = [steps is not None and steps.same for steps in map(positions.steps, indices)]
    return any(along) and all(a or b for a, b in zip(along, same, strict=True))


def _rewrite(scatter: ir.Operation, pairs: ir.Operation) -> None:
    key = pieces(pairs, "attn.product")[0].operands[1]
    like, weight = scatter.operands[1], ir.IntegerAttr(scatter.attributes["weight"]).value
    type_ = ir.RankedTensorType(scatter.results[0].type)
    with scatter.location, ir.InsertionPoint(scatter):
        dynamic = ir.ShapedType.get_dynamic_size()
        shape = ir.RankedTensorType.get([dynamic] * 3, type_.element_type)
        sums = build.scatter(scatter.operands[0], key, weight, shape, _NAMES, _diagonal(key))
        sums.owner.attributes["diagonals"] = ir.UnitAttr.get()
        elements = build.elements(sums, lambda *at: [tensor.ExtractOp(sums, list(at)).result])
        made = build.scatter(elements, like, 0, type_, ("b", "h", "d"), lambda b, h, d: _places(scatter, (b, h, d), key))
    scatter.results[0].replace_all_uses_with(made)
    scatter.erase()


def _diagonal(key: ir.Value) -> Callable[..., list[ir.Value]]:
    """The place of a pair in the sums."""

    def index(b: ir.Value, h: ir.Value, q_idx: ir.Value, kv_idx: ir.Value) -> list[ir.Value]:
        return [b, h, arith.AddIOp(arith.SubIOp(q_idx, kv_idx).result, _length(key)).result]

    return index


def _places(scatter: ir.Operation, at: tuple[ir.Value, ir.Value, ir.Value], key: ir.Value) -> list[ir.Value]:
    """Where a diagonal's sum belongs.

    Diagonals without pairs, as those that a mask leaves out, have the sum 0: they read other tables, and go, anywhere inside.
    """
    b, h, d = at
    block = block_of(scatter)
    *operations, last = (view.operation for view in block.operations)
    known = dict(zip(block.arguments, [b, h, arith.SubIOp(d, _length(key)).result, _constant(0)], strict=True))
    for op in operations:
        if op.name != "tensor.extract":
            clone_op(op, known)
            continue
        source, *indices = (known.get(value, value) for value in op.operands)
        known[op.results[0]] = tensor.ExtractOp(source, _inside(source, indices)).result
    return _inside(scatter.operands[1], [known.get(value, value) for value in last.operands])


def _inside(source: ir.Value, indices: list[ir.Value]) -> list[ir.Value]:
    """Indices, or the nearest ones that a tensor has."""
    sizes = [tensor.DimOp(source, _constant(axis)).result for axis in range(len(indices))]
    lasts = [arith.SubIOp(size, _constant(1)).result for size in sizes]
    limited = [arith.MinSIOp(index, last).result for index, last in zip(indices, lasts, strict=True)]
    return [arith.MaxSIOp(index, _constant(0)).result for index in limited]


def _length(key: ir.Value) -> ir.Value:
    return tensor.DimOp(key, _constant(2)).result


def _constant(number: int) -> ir.Value:
    return arith.ConstantOp(ir.IndexType.get(), number).result
