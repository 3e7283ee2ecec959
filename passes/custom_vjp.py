"""Makes the backward pass of an online attention from what its user wrote for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.differentiation import DifferentiationError
from attn_mlir.passes.differentiation.arguments import is_plain, positions
from attn_mlir.passes.differentiation.custom_vjp import CustomDerivatives, OnlinePrimal
from attn_mlir.passes.regions import find_all, piece, pieces, walk

_ROW_PIECES = ("attn.init", "attn.step", "attn.finalize")


@dataclass(frozen=True)
class CustomVjp(Pass):
    """Replaces the functions of an online attention by the one that computes its gradients, as the user wrote them.

    Beside `@attention`, which holds an `attn.online`, stand two functions of scalars: `@attention_weight`, the weight of a key
    from its score and the row outputs, and `@attention_dscore`, the gradient of a score from that of the weight, the weight,
    <do, o> and the row outputs. They become `@attention_bwd`, with the arguments and results that `attn-differentiate` gives
    it; there are no saved rows, and the gradients of row outputs are not used. `wrt`: names of arguments, joined by "+"; by
    default all floating tensors that only the scores and the mods read.
    """

    name = "attn-custom-vjp"
    wrt: str = ""

    def run(self, module: ir.Operation) -> bool:
        functions = {ir.StringAttr(op.attributes["sym_name"]).value: op for op in find_all(module, "func.func")}
        return all([self._write(online, functions) for online in find_all(module, "attn.online")])

    def _write(self, online: ir.Operation, functions: Mapping[str, ir.Operation]) -> bool:
        function = online.parent
        if function is None or function.name != "func.func" or function.regions[0].blocks[0] != online.block:
            online.location.emit_error(f"{self.name}: 'attn.online' must stand directly in a func.func")
            return False
        name = ir.StringAttr(function.attributes["sym_name"]).value
        weight, dscore = functions.get(f"{name}_weight"), functions.get(f"{name}_dscore")
        if weight is None or dscore is None:
            online.location.emit_error(f"{self.name}: @{name}_weight and @{name}_dscore are not in the module")
            return False
        primal = OnlinePrimal(function, online)
        products = pieces(online, "attn.product")
        if products:
            products[0].location.emit_error(f"{self.name}: what is written is the gradient of one score, not of several products")
            return False
        if not is_plain(primal) or len(find_all(function, "attn.online")) > 1:
            online.location.emit_error(f"{self.name}: takes a function that returns just one attention of its first three arguments")
            return False
        if not _fits(weight, 1, 0, primal) or not _fits(dscore, 2, 1, primal):
            return False
        try:
            with online.location:
                chosen = self._positions(primal, (weight, dscore))
                CustomDerivatives(primal, chosen, weight=weight, dscore=dscore).backward()
        except DifferentiationError as error:
            (error.location or online.location).emit_error(f"no derivative: {error}")
            return False
        for old in (function, weight, dscore):
            old.erase()
        return True

    def _positions(self, primal: OnlinePrimal, functions: Sequence[ir.Operation]) -> list[int]:
        """The arguments to differentiate by; none that more than the scores and the mods read."""
        chosen, row = positions(primal, self.wrt), _read_by_row(primal, functions)
        if not self.wrt:
            return [position for position in chosen if position not in row]
        for position in chosen:
            if position in row:
                raise DifferentiationError(
                    f"the row reads '{primal.names[position]}', and a backward pass that is written gives the gradients of scores only: "
                    "leave it out, and it is derived",
                    row[position],
                )
        return chosen


def _read_by_row(primal: OnlinePrimal, functions: Sequence[ir.Operation]) -> dict[int, ir.Location]:
    """The arguments that the online program and the functions of scalars read, and where."""
    owners = [piece(primal.attention, name) for name in _ROW_PIECES]
    inputs = len(primal.entry.arguments)
    found: dict[int, ir.Location] = {}
    for owner in [*owners, *functions]:
        for op in walk(owner) if owner is not None else ():
            if op.name == "tensor.extract" and isinstance(op.operands[0], ir.BlockArgument):
                tensor = ir.BlockArgument(op.operands[0])
                found.setdefault(tensor.arg_number - (len(tensor.owner.arguments) - inputs), op.location)
    return found


def _fits(function: ir.Operation, pairs: int, sums: int, primal: OnlinePrimal) -> bool:
    """Checks the types of a function of scalars."""
    score, index = primal.score, ir.IndexType.get(function.context)
    wanted = [score] * pairs + [index] * 4 + [score] * (sums + len(primal.outputs)) + [a.type for a in primal.entry.arguments]
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    single = len(function.regions[0].blocks) == 1
    if single and (list(type_.inputs), list(type_.results)) == (wanted, [score]):
        return True
    signature = f"({', '.join(map(str, wanted))}) -> {score}"
    function.location.emit_error(f"a function of scalars beside an online attention has one block and the type {signature}, got {type_}")
    return False
