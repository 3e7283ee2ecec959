"""Dropout in scheduled kernels: maps that make the first factor of a product 0 where it drops them, and `warp.drop` behind maps."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.scalars import dependence
from attn_mlir.backends.gpu.structure import constant, yielded
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.hopper.dropout import keys_along_columns, keys_follow
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, maker, makers_in

_COLUMNS = 128
"""Those whose bits the lanes of a warp make at a time."""
_OF_HEAD = 6
"""Operands of `attn.kept` that are the same for all bits a warp makes: all but the query and the key."""


@dataclass(frozen=True)
class Dropped:
    """A map that asks once whether an element is `kept`, and chooses (`choice`) 0 for its `result` where not.

    `needed`: what tells whether it is. `products`: what reads the result.
    """

    map: ir.Operation
    kept: ir.Operation
    choice: ir.Operation
    result: ir.Value
    needed: tuple[ir.Operation, ...]
    products: tuple[ir.Operation, ...]

    @property
    def block(self) -> ir.Block:
        """The map's region."""
        return self.map.regions[0].blocks[0]

    @property
    def type(self) -> ir.RankedTensorType:
        """That of the result."""
        return ir.RankedTensorType(self.result.type)


def dropped_in(role: ir.Operation) -> list[Dropped]:
    """The maps of a role that drop. Raises Refused where one of them does more with what is kept."""
    return [_dropped(kept) for kept in find_all(role, "attn.kept")]


def before_dropout(value: ir.Value) -> ir.Value:
    """The tile that a `warp.drop` makes a value of, or the value."""
    drop = maker(value, "warp.drop")
    return drop.operands[0] if drop is not None else value


def _dropped(kept: ir.Operation) -> Dropped:
    map_ = kept.parent.operation if kept.parent is not None else kept
    if map_.name != "warp.map" or len(find_all(map_, "attn.kept")) != 1:
        raise Refused("a map asks several times what is kept")
    if not (keys_along_columns(kept) and keys_follow(kept)):
        raise Refused("keys of the columns of a map do not follow each other")
    if any(dependence(kept.block).get(value) for value in list(kept.operands)[:_OF_HEAD]):
        raise Refused("rows of a map are not those of one head")
    uses = [use.owner.operation for use in kept.results[0].uses]
    if len(uses) != 1 or not _chooses(uses[0], kept.results[0]):
        raise Refused("what is kept decides about more than zeros")
    value = _rounded(uses[0])
    places = [n for n, each in enumerate(yielded(map_.regions[0].blocks[0])) if each == value]
    result = map_.results[places[0]] if len(places) == 1 else None
    products = [] if result is None else [use.owner.operation for use in result.uses]
    if result is None or not products or any(op.name != "warp.mma_async" or op.operands[1] != result for op in products):
        raise Refused("more than the first factor of products is dropped")
    shape = ir.RankedTensorType(result.type).shape
    if len(shape) != 2 or shape[1] % _COLUMNS:
        raise Refused(f"lanes make bits of {_COLUMNS} columns at a time, and a tile is {'x'.join(map(str, shape))}")
    return Dropped(map_, kept, uses[0], result, tuple(makers_in(kept.block, [kept.results[0]])), tuple(products))


def _chooses(op: ir.Operation, condition: ir.Value) -> bool:
    return op.name == "arith.select" and op.operands[0] == condition and constant(op.operands[2]) == 0.0


def _rounded(choice: ir.Operation) -> ir.Value:
    """What becomes of a choice: other zeros are chosen, and it is rounded to 16 bits, once. Raises Refused."""
    value = choice.results[0]
    while str(value.type) == "f32":
        uses = list(value.uses)
        op = uses[0].owner.operation if len(uses) == 1 else choice
        chosen = op.name == "arith.select" and uses[0].operand_number == 1 and constant(op.operands[2]) == 0.0
        if op == choice or not (chosen or op.name == "arith.truncf"):
            raise Refused("more is made of what is dropped than a factor that is rounded")
        value = op.results[0]
    return value
