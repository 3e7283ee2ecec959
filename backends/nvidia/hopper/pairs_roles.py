"""Which products, weights and sums of a kernel of pairs each of two consumers has, where each has a weight (`pairs_weights`)."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import body as body_of
from attn_mlir.backends.gpu.structure import element_name, maker, yielded
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_values import slice_of
from attn_mlir.backends.nvidia.hopper.tiles import ROWS
from attn_mlir.mlir import ir

CONSUMERS = 2


@dataclass(frozen=True)
class Roles:
    """By the number of the consumer: its product and its weight, in their order in a step, and the fill of its sum over queries.

    The second consumer's weight may need both products, the first one's needs its own alone.
    """

    products: tuple[int, int]
    weights: tuple[int, int]
    fills: tuple[ir.Operation, ir.Operation]

    def of_sum(self, value: ir.Value) -> int:
        """The consumer whose sum a value is, carried or not."""
        return self.fills.index(_filled(value))


def roles_of(kernel: PairsKernel) -> Roles | None:
    """The roles of two consumers, or None for kernels that do anything but sums over queries of two weights of two products."""
    others = ("tile.accumulate", "tile.scatter_add", "tile.load_window", "tile.band")
    if kernel.keys != ROWS or kernel.states or kernel.scatters or len(kernel.fills) != CONSUMERS or not kernel.steps:
        return None
    found = [_roles_of_step(step) for step in kernel.steps if not ops_of(step, *others)]
    if len(found) != len(kernel.steps) or None in found or any(roles != found[0] for roles in found):
        return None
    return found[0]


def _roles_of_step(step: ir.Block) -> Roles | None:
    maps, dots, sums = ops_of(step, "tile.map"), ops_of(step, "tile.dot"), ops_of(step, "tile.dot_add")
    if len(maps) != 1 or len(dots) != CONSUMERS or len(sums) != CONSUMERS or maps[0].opview.kinds():
        return None
    block, results = body_of(maps[0]), list(maps[0].results)
    if len(results) != CONSUMERS or any(element_name(result.type) not in ("f16", "bf16") for result in results):
        return None
    needed = [_products(slice_of([value], block), dots) for value in yielded(block)]
    alone = [number for number, products in enumerate(needed) if len(products) == 1]
    taken = [results.index(op.operands[1]) if op.operands[1] in results else -1 for op in sums]
    if not alone or sorted(taken) != [0, 1]:
        return None
    first = alone[0]
    (product,) = needed[first]
    of_weight = [sums[taken.index(weight)] for weight in (first, 1 - first)]
    if not _give_back_all(step, [dots[product], dots[1 - product]], of_weight):
        return None
    return Roles((product, 1 - product), (first, 1 - first), (_filled(of_weight[0].operands[0]), _filled(of_weight[1].operands[0])))


def _give_back_all(step: ir.Block, products: list[ir.Operation], sums: list[ir.Operation]) -> bool:
    """Whether each consumer multiplies both tiles of queries, one in its product and one in its sum: it gives each back once in a step."""
    memory = {load.results[0]: load.operands[0] for load in ops_of(step, "tile.load")}
    pairs = [{memory.get(dot.operands[1]), memory.get(sum_.operands[2])} for dot, sum_ in zip(products, sums, strict=True)]
    return all(pair == set(memory.values()) and len(pair) == CONSUMERS for pair in pairs)


def _products(values: set[ir.Value], dots: list[ir.Operation]) -> set[int]:
    """The products that some of these values are elements of."""
    read = [op.operands[0] for value in values if (op := maker(value)) is not None and op.name == "tensor.extract"]
    return {number for number, dot in enumerate(dots) if dot.results[0] in read}


def _filled(value: ir.Value) -> ir.Operation:
    """The `tile.fill` of a sum that loops and branches carry."""
    while True:
        if isinstance(value.owner, ir.Block):
            number = ir.BlockArgument(value).arg_number
            value = list(value.owner.owner.operation.operands)[2 + number]
            continue
        op = value.owner.operation
        if op.name == "tile.fill":
            return op
        if op.name == "scf.for":
            value = list(op.operands)[3 + list(op.results).index(value)]
        elif op.name == "scf.if":
            value = list(op.regions[0].blocks[0].operations[-1].operation.operands)[list(op.results).index(value)]
        else:
            value = op.operands[0]
