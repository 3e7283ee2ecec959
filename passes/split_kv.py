"""Cuts the keys of an attention into parts, for decoding: a function for their partial results, and one that combines these."""

from collections.abc import Sequence
from dataclasses import dataclass

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import arith, func, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.expose_states import ExposeStates
from attn_mlir.passes.regions import block_of, clone_op, find_all, piece, pieces, returned_by
from attn_mlir.passes.sequences import packing_of

PARTS, COMBINE = "attention_parts", "attention_combine"


def in_parts(online: ir.Operation) -> bool:
    """Whether the keys of an attention may be seen in parts: one pass, one sum of values, and nothing else is made of it."""
    function = online.parent
    alone = function is not None and list(returned_by(function)) == list(online.results)
    one = ir.IntegerAttr(online.attributes["accumulators"]).value == 1
    return alone and one and piece(online, "attn.merge") is not None


@dataclass(frozen=True)
class SplitKv(Pass):
    """Makes two functions of each `@f` that holds an `attn.online` of one pass with one accumulator (split-KV).

    `@f_parts` takes two more arguments, how many parts there are and how many keys each has, and returns their accumulator and row states
    (`attn.parts`); `@f_combine` takes what `@f` takes, what `@f_parts` returns and the number of parts, and returns what `@f` returned
    (`attn.combine`, whose rule is the derived `attn.merge`). Whoever runs them chooses the number of parts. On packed tensors both have an
    `attn.part_list` in place of these arguments.
    """

    name = "attn-split-kv"

    def run(self, module: ir.Operation) -> bool:
        for online in find_all(module, "attn.online"):
            function, count = online.parent, ir.IntegerAttr(online.attributes["accumulators"]).value
            if count != 1:
                online.location.emit_error(f"{self.name}: takes an attention with one accumulator, got {count}")
                return False
            if piece(online, "attn.merge") is None:
                online.location.emit_error(f"{self.name}: '{online.name}' has no 'attn.merge', so that its keys are not seen in parts")
                return False
            if function is None or function.name != "func.func" or list(returned_by(function)) != list(online.results):
                online.location.emit_error(f"{self.name}: takes a function that returns just one attention")
                return False
            self._combine(function, online)
        if not ExposeStates().run(module):
            return False
        for online in find_all(module, "attn.online"):
            self._split(online)
        return True

    def _combine(self, function: ir.Operation, online: ir.Operation) -> None:
        """Inserts `@f_combine` after the function."""
        entry = function.regions[0].blocks[0]
        init = piece(online, "attn.init")
        states = len(block_of(init).operations[-1].operation.operands) if init is not None else 0
        score = block_of(piece(online, "attn.step") or online).arguments[0].type
        wide = ir.ShapedType.get_dynamic_size()
        columns = ir.RankedTensorType(online.results[0].type).shape[3]
        with online.location:
            accumulator, row = ir.RankedTensorType.get([wide] * 3 + [columns], score), ir.RankedTensorType.get([wide] * 3, score)
            further = [("acc", accumulator), *((f"state{n}", row) for n in range(states))]
            if packing_of(online, "query") is None:
                further.append(("parts", ir.IndexType.get()))
        types = [*(argument.type for argument in entry.arguments), *(type_ for _, type_ in further)]
        results = [value.type for value in online.results]
        name = ir.StringAttr(function.attributes["sym_name"]).value
        with online.location, ir.InsertionPoint.after(function):
            made = func.FuncOp(f"{name}_combine", ir.FunctionType.get(types, results), loc=function.location)
            places = [*(a.location for a in entry.arguments), *(ir.Location.name(n, online.location) for n, _ in further)]
            block = ir.Block.create_at_start(made.regions[0], types, places)
        arguments = list(block.arguments)
        mapping = dict(zip(entry.arguments, arguments, strict=False))
        acc, *carried = arguments[len(entry.arguments) : len(entry.arguments) + 1 + states]
        with online.location, ir.InsertionPoint(block):
            for view in list(entry.operations):
                if view.operation == online:
                    break
                clone_op(view.operation, mapping)
            attributes = {"outputs": online.attributes["outputs"], "accumulators": online.attributes["accumulators"]}
            packed = pieces(online, "attn.sequences")
            count = arith.ConstantOp(ir.IndexType.get(), 0).result if packed else arguments[-1]
            op = ir.Operation.create("attn.combine", results=results, operands=[acc, count], attributes=attributes, regions=1)
            with ir.InsertionPoint(op.regions[0].blocks.append()):
                for sequences in packed:
                    clone_op(sequences, dict(mapping))
                if packed:
                    build.part_list()
                for state in carried:
                    ir.Operation.create("attn.carried", operands=[state])
                for kept in ("attn.init", "attn.merge", "attn.finalize"):
                    found = piece(online, kept)
                    if found is not None:
                        clone_op(found, dict(mapping))
            func.ReturnOp(list(op.results))

    def _split(self, online: ir.Operation) -> None:
        """Gives the function of partial results its name and its two arguments, and the attention its `attn.parts`."""
        function = online.parent
        if function is None:
            return
        name = ir.StringAttr(function.attributes["sym_name"]).value
        function.attributes["sym_name"] = ir.StringAttr.get(f"{name}_parts", function.context)
        if packing_of(online, "query") is not None:
            with online.location, ir.InsertionPoint(_last(online.regions[0].blocks[0].operations)):
                build.part_list()
            return
        block, index = function.regions[0].blocks[0], ir.IndexType.get(function.context)
        with online.location:
            count, length = (block.add_argument(index, ir.Location.name(n, online.location)) for n in ("parts", "keys"))
        type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        with function.context:
            function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([a.type for a in block.arguments], type_.results))
        with online.location, ir.InsertionPoint(_last(online.regions[0].blocks[0].operations)):
            build.parts(count, length)


def _last(operations: Sequence[ir.OpView]) -> ir.Operation:
    return operations[-1].operation
