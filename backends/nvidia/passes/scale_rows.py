"""Computes what maps make of numbers of rows alone once, on the way to shared memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from attn_mlir.backends.nvidia.forming.facts import wanted
from attn_mlir.backends.nvidia.forming.maps import constant_beside
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.dialects.warp.copies import SLOPE
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all


class BoundedProduct(Protocol):
    """What a map makes of a number of a row: at least a product with a constant, and maybe a bound."""

    @property
    def factor(self) -> ir.Attribute: ...
    @property
    def most(self) -> ir.Attribute | None: ...


Made = TypeVar("Made", bound=BoundedProduct)


@dataclass(frozen=True)
class _Scaled:
    """What a map makes of a number that it reads: it is multiplied by `factor`, and, where there is a `most`, no more than that is left."""

    factor: ir.Attribute
    most: ir.Attribute | None
    result: ir.Value


@dataclass(frozen=True)
class ScaleRows(Pass):
    """Where all maps multiply the numbers of rows that a copy brings (`warp.copy_rows_async`) by the same constant, and maybe bound them by
    the same one from above, the copy does both (`warp.copy_rows_scaled`), and maps read what they need: of a log-sum-exp, the exponent's
    summand. As lanes load and store the numbers then, the copy moves behind all that its block copies otherwise; so do those of
    `warp-slope-rows`.

    A kernel stays as it is, with the reason in `warp.refused`, where `warp.schedule` has `scale` = 0, no copy brings such numbers, or maps
    make different things of them.
    """

    name = "warp-scale-rows"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _scale)
        return True


def _scale(kernel: ir.Operation) -> None:
    if not wanted(kernel, "scale"):
        raise Refused("the schedule says that maps scale numbers of rows")
    for copy in find_all(kernel, "warp.copy_rows_scaled"):
        _move_behind(copy)
    change_copies(kernel, _change)


def change_copies(kernel: ir.Operation, change: Callable[[ir.Value, list[ir.Operation]], None]) -> None:
    """Calls `change` with each buffer of numbers of rows and the copies that bring them, as `change_parts` does."""
    copies: dict[ir.Value, list[ir.Operation]] = {}
    for copy in find_all(kernel, "warp.copy_rows_async"):
        copies.setdefault(copy.operands[4], []).append(copy)
    change_parts(copies.items(), lambda item: change(*item), "no copy brings numbers of rows")


def read_all(buffer: ir.Value, copies: list[ir.Operation], read: Callable[[ir.Operation], Made]) -> list[tuple[ir.Operation, Made]]:
    """The loads of a buffer's numbers, and what maps make of each. Raises Refused where these are different things."""
    loads = [use.owner.operation for use in buffer.uses if use.owner.operation not in copies]
    found = [(load, read(load)) for load in loads]
    if not found or len({(str(each.factor), str(each.most)) for _, each in found}) > 1:
        raise Refused("maps make different things of the numbers of rows that a copy brings")
    return found


def scale_copy(copy: ir.Operation, slope: ir.Value, factor: ir.Attribute, most: ir.Attribute) -> ir.Operation:
    """A `warp.copy_rows_scaled` where a copy stands, which goes."""
    operands = list(copy.operands)
    operands.insert(SLOPE, slope)
    made = ir.Operation.create("warp.copy_rows_scaled", operands=operands, attributes={"factor": factor, "most": most})
    copy.erase()
    return made


def _change(buffer: ir.Value, copies: list[ir.Operation]) -> None:
    """Lets the copies of a buffer's numbers scale them. Raises Refused, with nothing changed."""
    found = read_all(buffer, copies, _read)
    for load, each in found:
        each.result.replace_all_uses_with(load.results[0])
    with buffer.owner.location:  # type: ignore[union-attr]
        _, first = found[0]
        most = first.most or ir.FloatAttr.get(ir.F32Type.get(), float("inf"))
    for copy in copies:
        with copy.location, ir.InsertionPoint(copy):
            made = scale_copy(copy, arith.ConstantOp(ir.F32Type.get(), 0.0).result, first.factor, most)
        _move_behind(made)


def _move_behind(copy: ir.Operation) -> None:
    """Moves a copy to the end of what an iteration copies."""
    ops = [view.operation for view in copy.block.operations]
    if ops[-1].name in ("scf.yield", "warp.yield"):
        copy.move_before(ops[-1])


def _read(load: ir.Operation) -> _Scaled:
    """What becomes of a number. Raises Refused where that is something else."""
    uses = [use.owner.operation for use in load.results[0].uses] if load.name == "memref.load" else []
    factor = constant_beside(uses[0], load.results[0], "arith.mulf") if len(uses) == 1 else None
    if factor is None:
        raise Refused("a map makes something else of a number of its rows than to multiply it by a constant")
    product = uses[0].results[0]
    after = [use.owner.operation for use in product.uses]
    most = constant_beside(after[0], product, "arith.minimumf") if len(after) == 1 else None
    return _Scaled(factor, most, after[0].results[0] if most is not None else product)
