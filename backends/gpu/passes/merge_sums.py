"""Products that are only added up share an accumulator."""

from dataclasses import dataclass

from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker
from attn_mlir.passes.simplification.folding import number


@dataclass(frozen=True)
class MergeSums(Pass):
    """Two products whose elements one map adds become one product that goes on with the other's sums, in kernels over rows.

    The same for two sums over loops that grow by the same factors from zero. So tangents, whose rule is that of products, need as many
    accumulators as what they are the tangents of.
    """

    name = "gpu-merge-sums"

    def run(self, module: ir.Operation) -> bool:
        for kernel in find_all(module, "func.func"):
            if "tile.kernel" not in kernel.attributes or "grid" in ir.DictAttr(kernel.attributes["tile.kernel"]):
                continue  # no kernel over rows
            for map_ in find_all(kernel, "tile.map"):
                while _merge_one(map_):
                    pass
        return True


def _merge_one(map_: ir.Operation) -> bool:
    """Merges the first pair of tiles that the map adds, if there is one."""
    block = map_.regions[0].blocks[0]
    reads = [view.operation for view in block.operations if view.operation.name == "tensor.extract"]
    for second in reads:
        user = _only_user(second.result)
        if user is None or user.name != "arith.addf":
            continue
        rest = user.operands[1] if user.operands[0] == second.result else user.operands[0]
        first = _added(rest)
        if first is None or list(first.operands)[1:] != list(second.operands)[1:]:
            continue
        tiles = [first.operands[0], second.operands[0]]
        if all(_only_user(tile) == read for tile, read in zip(tiles, (first, second), strict=True)) and _merge(tiles[0], tiles[1]):
            user.result.replace_all_uses_with(rest)
            return True
    return False


def _added(value: ir.Value) -> ir.Operation | None:
    """The element of a tile that is a term of this sum, with sign +, and is used nowhere else."""
    op = maker(value)
    if op is None or _only_user(value) is None:
        return None
    if op.name == "tensor.extract":
        return op if ir.RankedTensorType(op.operands[0].type).rank == 2 else None
    return _added(op.operands[0]) if op.name in ("arith.addf", "arith.subf") else None


def _merge(first: ir.Value, second: ir.Value) -> bool:
    """Lets `first` hold the sum of both tiles; False, and nothing is changed, where that cannot be."""
    if first.type != second.type or isinstance(first.owner, ir.Block) or isinstance(second.owner, ir.Block):
        return False
    a, b = first.owner.operation, second.owner.operation
    if a.name == b.name == "tile.dot" and a.block == b.block:
        if not a.is_before_in_block(b):
            return False
        made = _go_on(first, b)
        (use,) = [use for use in first.uses if use.owner.operation != made.owner.operation]
        use.owner.operation.operands[use.operand_number] = made
        return True
    steps = _loops(first, second)
    if not steps:
        return False
    for loop, left, right in steps:
        yielded = loop.regions[0].blocks[0].operations[-1].operation
        one, other = yielded.operands[left], yielded.operands[right]
        yielded.operands[left] = _go_on(one, other.owner.operation)
        yielded.operands[right] = list(loop.regions[0].blocks[0].arguments)[1 + right]
    return True


def _go_on(sum_: ir.Value, product: ir.Operation) -> ir.Value:
    """What `product` multiplies, added to `sum_`."""
    attributes = {"transpose_b": product.attributes["transpose_b"]}
    with product.location, ir.InsertionPoint(product):
        operands = [sum_, *list(product.operands)[-2:]]
        return ir.Operation.create("tile.dot_add", results=[sum_.type], operands=operands, attributes=attributes).result


def _loops(first: ir.Value, second: ir.Value) -> list[tuple[ir.Operation, int, int]]:
    """The loops, from the last to the first, that carry both tiles and change them in the same way, with the tiles' places among what is
    carried; none unless both begin as zeros."""
    steps = []
    while True:
        fills = [maker(value, "tile.fill") for value in (first, second)]
        if fills[0] is not None and fills[1] is not None:
            return steps if all(number(fill.operands[0]) == 0.0 for fill in fills if fill is not None) else []
        a, b = maker(first, "scf.for"), maker(second, "scf.for")
        if a is None or a != b:
            return []
        left, right = (ir.OpResult(value).result_number for value in (first, second))
        block = a.regions[0].blocks[0]
        yielded = list(block.operations[-1].operation.operands)
        arguments = list(block.arguments)[1:]
        products = [yielded[place].owner for place in (left, right)]
        if any(isinstance(product, ir.Block) for product in products):
            return []
        one, other = (product.operation for product in products)
        alike = one.name == other.name in ("tile.dot_add", "tile.dot_rescale") and list(one.operands)[1:-2] == list(other.operands)[1:-2]
        if not alike or one.block != block or other.block != block or not one.is_before_in_block(other):
            return []
        for place, product in ((left, one), (right, other)):
            if product.operands[0] != arguments[place] or _only_user(arguments[place]) != product or _only_user(yielded[place]) is None:
                return []
        starts = list(a.operands)[3:]
        if not all(_only_user(starts[place]) == a or maker(starts[place], "tile.fill") is not None for place in (left, right)):
            return []
        steps.append((a, left, right))
        first, second = starts[left], starts[right]


def _only_user(value: ir.Value) -> ir.Operation | None:
    users = [use.owner.operation for use in value.uses]
    return users[0] if len(users) == 1 else None
