"""Sums over keys whose tensors lie in pages, as attentions of their own."""

from dataclasses import dataclass

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import block_of, clone_op, find_all, piece
from attn_mlir.passes.sequences import pages_of

_PRESENT = ("attn.sequences", "attn.pages", "attn.mask")


@dataclass(frozen=True)
class RowsOfPairs(Pass):
    """Makes an `attn.attention` of an `attn.pairs` on keys in pages, and of the one `attn.query_sum` that takes its weights.

    dq_i = sum_j ds_ij k_j is an attention whose row is the weight itself, of one more product: `attn.score` makes the weight of the
    products, q k^T and do v^T, and `attn.row` is the identity. So each query's sums have one writer, and one order. The result has the
    type of what is summed. Pairs whose keys lie in no pages stay, with `all` only those with other consumers; of keys in pages these are an
    error. `wider`: also those whose sum has more columns than that, 0 for none. Both leave what an attention cannot be (`may_be_rows`).
    """

    name = "attn-rows-of-pairs"
    all: bool = False
    wider: int = 0

    def run(self, module: ir.Operation) -> bool:
        return all([self._rewrite(pairs) for pairs in find_all(module, "attn.pairs") if self._is_chosen(pairs)])

    def _is_chosen(self, pairs: ir.Operation) -> bool:
        """Whether keys lie in pages, or a sum over keys is to be an attention."""
        if pages_of(pairs) is not None:
            return True
        return _is_sum_over_keys(pairs) and (self.all or self._is_wide(pairs)) and may_be_rows(pairs)

    def _is_wide(self, pairs: ir.Operation) -> bool:
        """Whether what is summed has more columns than `wider`."""
        (use,) = pairs.results[0].uses
        return 0 < self.wider < ir.RankedTensorType(use.owner.operation.results[0].type).shape[3]

    def _rewrite(self, pairs: ir.Operation) -> bool:
        users = [use.owner.operation for use in pairs.results[0].uses]
        if len(users) != 1 or users[0].name != "attn.query_sum" or len(ir.DenseI64ArrayAttr(users[0].attributes["weights"])) != 1:
            pairs.location.emit_error(f"{self.name}: of pairs with keys in pages one weight is summed over keys, and nothing else")
            return False
        (sum_,) = users
        (weight,) = ir.DenseI64ArrayAttr(sum_.attributes["weights"])
        (first, *products), keys = find_all(pairs, "attn.product"), sum_.operands[1]
        with pairs.location, ir.InsertionPoint(sum_):
            shape = ir.RankedTensorType(sum_.results[0].type).shape
            made = ir.RankedTensorType.get(shape, ir.RankedTensorType(keys.type).element_type)
            op, block = build.attention(first.operands[0], first.operands[1], keys, [made], [])
            with ir.InsertionPoint(block):
                for product in products:
                    build.product(*product.operands)
                for view in block_of(pairs).operations:
                    if view.operation.name in _PRESENT:
                        clone_op(view.operation, {})
                self._score(pairs, weight)
                self._row(pairs)
        sum_.results[0].replace_all_uses_with(op.results[0])
        for old in (sum_, pairs):
            old.erase()
        _retype(op)
        return True

    @staticmethod
    def _score(pairs: ir.Operation, weight: int) -> None:
        """`attn.score`: what the pair computes."""
        pair = piece(pairs, "attn.pair")
        assert pair is not None
        source = pair.regions[0].blocks[0]
        score = ir.Operation.create("attn.score", regions=1)
        types = [argument.type for argument in source.arguments]
        block = score.regions[0].blocks.append(*types, arg_locs=[argument.location for argument in source.arguments])
        copies = dict(zip(source.arguments, block.arguments, strict=True))
        *ops, last = [view.operation for view in source.operations]
        with ir.InsertionPoint(block):
            for op in ops:
                clone_op(op, copies)
            value = last.operands[weight]
            build.yield_([copies.get(value, value)])

    @staticmethod
    def _row(pairs: ir.Operation) -> None:
        """`attn.row`: the identity."""
        pair = piece(pairs, "attn.pair")
        assert pair is not None
        index, here = ir.IndexType.get(), ir.Location.current
        kind = pair.regions[0].blocks[0].arguments[0].type
        names = [("weight", kind), *((name, index) for name in ("b", "h", "q_idx"))]
        row = ir.Operation.create("attn.row", regions=1)
        block = row.regions[0].blocks.append(*[type_ for _, type_ in names], arg_locs=[ir.Location.name(name, here) for name, _ in names])
        with ir.InsertionPoint(block):
            build.yield_([block.arguments[0]])


def _retype(attention: ir.Operation) -> None:
    """Gives the function the types of what it returns now."""
    function = attention.parent
    assert function is not None
    results = [operand.type for operand in list(function.regions[0].blocks[0].operations)[-1].operation.operands]
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(type_.inputs, results))


def may_be_rows(pairs: ir.Operation) -> bool:
    """Whether sums over keys of pairs can be an attention of the same results.

    Lists of keys are made for kernels over keys. A sum that other ops read, as the gradient of a function of q does, is not rounded before.
    """
    if piece(pairs, "attn.key_lists") is not None:
        return False
    sums = [use.owner.operation for use in pairs.results[0].uses if use.owner.operation.name == "attn.query_sum"]
    return all(use.owner.operation.name == "func.return" for op in sums for use in op.results[0].uses)


def _is_sum_over_keys(pairs: ir.Operation) -> bool:
    """Whether one weight of pairs is summed over keys, and nothing else."""
    users = [use.owner.operation for use in pairs.results[0].uses]
    return [op.name for op in users] == ["attn.query_sum"] and len(ir.DenseI64ArrayAttr(users[0].attributes["weights"])) == 1
