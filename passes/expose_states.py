"""Makes an attention return what it carries: an accumulator before the end, and the row states."""

from dataclasses import dataclass

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.locations import location_name
from attn_mlir.passes.regions import block_of, clone_op, end_with, find_all, piece, pieces

_LEFT_OUT = ("attn.finalize", "attn.term")


@dataclass(frozen=True)
class ExposeStates(Pass):
    """Lets each function that holds an `attn.online` of one pass return a partial result, which `attn.merge` merges with others.

    Its results become accumulator number `accumulator`, in the type of scores or, with `rounded`, of v, and, with the first one, all row
    states as `attn.step` leaves them; `attn.finalize` yields these as they are. The pass takes functions that return just the attention,
    whose outputs, if there are several, sum the same v.
    """

    name = "attn-expose-states"
    accumulator: int = 0
    rounded: bool = False

    def run(self, module: ir.Operation) -> bool:
        return all([self._expose(online) for online in find_all(module, "attn.online")])

    def _expose(self, online: ir.Operation) -> bool:
        function = online.parent
        merge, finalize = piece(online, "attn.merge"), piece(online, "attn.finalize")
        if merge is None or finalize is None:
            online.location.emit_error(f"{self.name}: '{online.name}' has no 'attn.merge', so that there are no partial results")
            return False
        if function is None or function.name != "func.func" or function.regions[0].blocks[0] != online.block:
            online.location.emit_error(f"{self.name}: '{online.name}' must stand directly in a func.func")
            return False
        last = function.regions[0].blocks[0].operations[-1].operation
        further = [op for op in find_all(function, "attn.output") if op.operands[0] == online.results[0]]
        if list(last.operands) != [online.results[0], *(op.results[0] for op in further), *list(online.results)[1:]]:
            online.location.emit_error(f"{self.name}: takes a function that returns just one attention, with all its outputs")
            return False
        if any(term.operands[0] != online.operands[2] for term in pieces(online, "attn.term")):
            online.location.emit_error(f"{self.name}: all outputs must sum the same v")
            return False
        count = ir.IntegerAttr(online.attributes["accumulators"]).value
        if not 0 <= self.accumulator < count:
            online.location.emit_error(f"{self.name}: accumulator must be one of 0 to {count - 1}, got {self.accumulator}")
            return False
        self._rewrite(function, online, finalize)
        return True

    def _rewrite(self, function: ir.Operation, online: ir.Operation, finalize: ir.Operation) -> None:
        count = ir.IntegerAttr(online.attributes["accumulators"]).value
        arguments = list(block_of(finalize).arguments)
        states = [] if self.accumulator else arguments[count + 3 :]
        score = block_of(pieces(online, "attn.step")[0]).arguments[0].type
        names = [f"state{n}_{location_name(state.location) or 'row'}" for n, state in enumerate(states)]
        with online.location, ir.InsertionPoint(online):
            wide = ir.ShapedType.get_dynamic_size()
            q, k, v = online.operands
            element = ir.RankedTensorType(v.type).element_type if self.rounded else score
            o = ir.RankedTensorType.get(ir.RankedTensorType(online.results[0].type).shape, element)
            types = [o, *[ir.RankedTensorType.get([wide] * 3, score)] * len(states)]
            exposed, body = build.attention(q, k, v, types, names, accumulators=count)
            if "rows_nonempty" in online.attributes:
                exposed.attributes["rows_nonempty"] = online.attributes["rows_nonempty"]
        with ir.InsertionPoint(body):
            for kept in [view.operation for view in block_of(online).operations if view.operation.name not in _LEFT_OUT]:
                clone_op(kept, {})
            named = [(location_name(argument.location) or f"x{n}", argument.type) for n, argument in enumerate(arguments)]
            with finalize.location:
                build.piece("finalize", named, lambda *x: [x[self.accumulator], *(() if self.accumulator else x[count + 3 :])])
        end_with(block_of(function), "func.return", exposed.results)
        for output in [op for op in find_all(function, "attn.output") if op.operands[0] == online.results[0]]:
            output.erase()
        online.erase()
        inputs = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).inputs
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, types))
