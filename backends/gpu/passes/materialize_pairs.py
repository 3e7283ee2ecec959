"""Makes kernels of derivatives whose heads are too wide for one: scores and weights of pairs go through memory, libraries multiply."""

from collections.abc import Sequence
from dataclasses import dataclass

from attn_mlir.backends.gpu.pair_products import PAIRS, PairsInMemory, PairSum, write
from attn_mlir.backends.gpu.passes.pair_elements import PairElements, describe, range_of
from attn_mlir.backends.gpu.scalar_bounds import MAX_COLUMNS
from attn_mlir.dialects.attn import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import block_of, find_all, inline, pieces, returned_by

_SUMS = {"attn.query_sum": "query", "attn.key_sum": "key"}
_KEY_LISTS = "lists of keys: compute on the CPU, or give a mask that reads a table"


@dataclass(frozen=True)
class MaterializePairs(Pass):
    """Replaces an `attn.pairs` with products or sums of more than `columns` columns by an `attn.elements` over its pairs.

    No kernel has registers or shared memory for blocks of such rows. So a driver multiplies: it makes the products of a chunk of queries,
    tensors [B, Hq n, m / 8, 8] of n queries of each head and m keys, the kernel makes the weights of all these pairs, of the terms' type,
    and the driver sums. Row h n + i of a tensor is query i of head h of the chunk, whose first query, key, head and batch entry are
    arguments of the kernel. Absent pairs, and keys past the last one, have weight 0. What the driver needs stands in the choice
    "launch_pairs" (`backends.gpu.pair_products`), also which keys a chunk's queries see where that follows from positions and numbers.
    Scatters stay with the kernel.

    Of packed tensors, batch entries of a chunk are sequences: an argument before the numbers, a tensor of i32, names them. A chunk has as
    many rows and keys of each as the longest; those past the end of a sequence are absent.
    """

    name = "gpu-materialize-pairs"
    columns: int = MAX_COLUMNS

    def run(self, module: ir.Operation) -> bool:
        for function in find_all(module, "func.func"):
            found = [op for op in find_all(function, "attn.pairs") if op.parent == function]
            if any(is_wide(pairs, self.columns) for pairs in found) and not self._replace(function, found):
                return False
        return True

    def _replace(self, function: ir.Operation, found: list[ir.Operation]) -> bool:
        pairs, *more = found
        users = [use.owner.operation for use in pairs.results[0].uses]
        returned = returned_by(function)
        tensors = [*_products(pairs), *(term for op in users if op.name in _SUMS for term in list(op.operands)[1:])]
        if pieces(pairs, "attn.key_lists"):
            pairs.location.emit_error(f"{self.name}: gradients of heads of more than {self.columns} columns are not made for {_KEY_LISTS}")
            return False
        if more or any(not isinstance(value.owner, ir.Block) for value in tensors) or any(op.results[0] not in returned for op in users):
            pairs.location.emit_error(
                f"{self.name}: a function has one 'attn.pairs' of wide heads, whose operands come from outside and whose sums leave it"
            )
            return False
        _Rewrite(function, pairs, users).run()
        return True


def is_wide(pairs: ir.Operation, columns: int = MAX_COLUMNS) -> bool:
    """Whether a product, or a sum of weights, of an `attn.pairs` has more columns than that."""
    tensors = [*_products(pairs), *(use.owner.operation.results[0] for use in pairs.results[0].uses if use.owner.name in _SUMS)]
    return any(ir.RankedTensorType(value.type).shape[-1] > columns for value in tensors)


def _products(pairs: ir.Operation) -> list[ir.Value]:
    return [operand for product in pieces(pairs, "attn.product") for operand in product.operands]


class _Rewrite(PairElements):
    """The change of one function."""

    def __init__(self, function: ir.Operation, pairs: ir.Operation, users: list[ir.Operation]) -> None:
        super().__init__(function, pairs)
        self._users = users
        returned = returned_by(function)
        self._results = {op: returned.index(op.results[0]) for op in users}
        """Which result of the function each consumer makes."""

    def run(self) -> None:
        pairs = self.owner
        found = [[self.given.index(operand) for operand in product.operands] for product in pieces(pairs, "attn.product")]
        products = tuple((query, key) for query, key in found)
        ranged, sequences = range_of(pairs, products[0], self.given), self.sequences
        (pair,) = pieces(pairs, "attn.pair")
        scores = self.add_arguments([argument.type for argument in list(block_of(pair).arguments)[: len(products)]])
        with pairs.location, ir.InsertionPoint(pairs):
            elements = build.elements(scores[0], lambda *element: self._weights(scores, element))
            collected, sums = self._sums(elements)
            scattered = {op: self._scatter(elements, op) for op in self._users if op.name == "attn.scatter"}
        results = tuple(self._results[op] for op in scattered)
        kept = self.finish(products[0], [*collected, *scattered.values()], (*self._users, pairs))
        describe(self.function, {PAIRS: write(PairsInMemory(products, tuple(kept), tuple(sums), results, ranged, sequences))})

    def _weights(self, scores: list[ir.Value], element: Sequence[ir.Value]) -> list[ir.Value]:
        (pair,) = pieces(self.owner, "attn.pair")
        at, exists = self.position(element)
        read = [
            ir.Operation.create(
                "tensor.extract", results=[ir.RankedTensorType(tensor.type).element_type], operands=[tensor, *element]
            ).result
            for tensor in scores
        ]
        weights, present = inline(block_of(pair), [*read, *at]), self.present(at, exists)
        zeros = [arith.constant(weight.type, ir.FloatAttr.get(weight.type, 0.0)) for weight in weights]
        return [arith.select(present, weight, zero) for weight, zero in zip(weights, zeros, strict=True)]

    def _sums(self, elements: ir.Value) -> tuple[list[ir.Value], list[PairSum]]:
        """The weights that sums take, as tensors of the terms' types, each once; and these sums."""
        made: dict[tuple[int, str], int] = {}
        collected: list[ir.Value] = []
        like = self.block.arguments[len(self.given)]
        sums = []
        for op in self._users:
            if op.name not in _SUMS:
                continue
            terms, taken = list(op.operands)[1:], []
            for term, weight in zip(terms, ir.DenseI64ArrayAttr(op.attributes["weights"]), strict=True):
                element = ir.RankedTensorType(term.type).element_type
                if (weight, str(element)) not in made:
                    made[weight, str(element)] = len(collected)
                    type_ = ir.RankedTensorType.get(ir.RankedTensorType(like.type).shape, element)
                    collected.append(build.collect(elements, weight, type_))
                taken.append(made[weight, str(element)])
            sums.append(PairSum(_SUMS[op.name], tuple(self.given.index(term) for term in terms), tuple(taken), self._results[op]))
        return collected, sums

    def _scatter(self, elements: ir.Value, op: ir.Operation) -> ir.Value:
        def index(*element: ir.Value) -> list[ir.Value]:
            at, exists = self.position(element)
            places, present = inline(block_of(op), at), self.present(at, exists)
            # An absent pair adds 0, to an element that exists: its own may not.
            return [arith.select(present, place, arith.constant(ir.IndexType.get(), 0)) for place in places]

        weight = ir.IntegerAttr(op.attributes["weight"]).value
        return build.scatter(elements, op.operands[1], weight, op.results[0].type, ("b", "h", "j", "e"), index)
