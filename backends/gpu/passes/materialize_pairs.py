"""Makes kernels of derivatives whose heads are too wide for one: scores and weights of pairs go through memory, libraries multiply."""

from dataclasses import dataclass

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.pair_products import NUMBERS, PAIRS, ROWS, KeyRange, PairsInMemory, PairSum, RangeStep, write
from attn_mlir.backends.gpu.scalar_bounds import MAX_COLUMNS
from attn_mlir.dialects.attn import build
from attn_mlir.dialects.regions import maker
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.dropout import expand
from attn_mlir.passes.intervals.nodes import Bound, postorder, terms_of
from attn_mlir.passes.regions import block_of, end_with, find_all, inline, piece, pieces, returned_by
from attn_mlir.passes.resolve_masks import keys_of_rows
from attn_mlir.passes.sequences import packing_of, read_index

_SUMS = {"attn.query_sum": "query", "attn.key_sum": "key"}
_KEY_LISTS = "lists of keys: compute on the CPU, or give a mask that reads a table"


@dataclass(frozen=True)
class MaterializePairs(Pass):
    """Replaces an `attn.pairs` with products or sums of more than `columns` columns by an `attn.elements` over its pairs.

    No kernel has registers or shared memory for blocks of such rows. So a driver multiplies: it makes the products of a chunk of queries,
    tensors [B, Hq n, m] of n queries of each head and m keys, the kernel makes the weights of all pairs of these, of the terms' type, and
    the driver sums. Row h n + i of a tensor is query i of head h of the chunk, whose first query, key, head and batch entry are arguments
    of the kernel. Absent pairs, and keys past the last one, have weight 0. What the driver needs stands in the choice "launch_pairs"
    (`backends.gpu.pair_products`), also which keys a chunk's queries see where that follows from positions and numbers. Scatters stay with
    the kernel.

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


class _Rewrite:
    """The change of one function."""

    def __init__(self, function: ir.Operation, pairs: ir.Operation, users: list[ir.Operation]) -> None:
        self._function, self._pairs, self._users = function, pairs, users
        self._block = block_of(function)
        self._packing = {side: packing_of(pairs, side) for side in ("query", "key")}
        """The sequences of both sides of packed tensors."""
        self._given = list(self._block.arguments)
        returned = returned_by(function)
        self._results = {op: returned.index(op.results[0]) for op in users}
        """Which result of the function each consumer makes."""

    def run(self) -> None:
        pairs = self._pairs
        ranged = range_of(pairs, self._given)
        both = [each for each in self._packing.values() if each is not None]
        sequences = tuple(self._given.index(value) for each in both for value in (each.begins, each.lengths))
        products = [[self._given.index(operand) for operand in product.operands] for product in pieces(pairs, "attn.product")]
        scores, self._order, self._numbers = self._arguments(len(products))
        with pairs.location, ir.InsertionPoint(pairs):
            elements = build.elements(scores[0], lambda b, h, j: self._weights(scores, b, h, j))
            collected, sums = self._sums(elements)
            scattered = {op: self._scatter(elements, op) for op in self._users if op.name == "attn.scatter"}
        results = tuple(self._results[op] for op in scattered)
        self._replace_sizes(products[0])
        end_with(self._block, "func.return", [*collected, *scattered.values()])
        for op in (*self._users, pairs):
            op.erase()
        for kept_pair in find_all(self._function, "attn.kept"):
            expand(kept_pair)
        kept = self._drop_unused()
        described = PairsInMemory(
            tuple((query, key) for query, key in products),
            tuple(kept),
            tuple(sums),
            results,
            ranged,
            sequences,
        )
        choices = attributes.read(self._function, attributes.CHOICES)
        with self._function.context:
            self._function.attributes[attributes.CHOICES] = attributes.write({**choices, PAIRS: write(described)})
            types = [value.type for value in self._block.arguments], [value.type for value in returned_by(self._function)]
            self._function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))

    def _arguments(self, products: int) -> tuple[list[ir.Value], ir.Value | None, dict[str, ir.Value]]:
        """Further arguments of the function: the products of a chunk, the numbers of its sequences where these are packed, and numbers."""
        (pair,) = pieces(self._pairs, "attn.pair")
        location = self._pairs.location
        with self._pairs.context, location:
            types = [argument.type for argument in list(block_of(pair).arguments)[:products]]
            dynamic = ir.ShapedType.get_dynamic_size()
            scores = [self._block.add_argument(ir.RankedTensorType.get([dynamic] * 3, type_), location) for type_ in types]
            index = ir.RankedTensorType.get([dynamic], ir.IntegerType.get_signless(32))
            order = None if self._packing["query"] is None else self._block.add_argument(index, location)
            return scores, order, {name: self._block.add_argument(ir.IndexType.get(), location) for name in ROWS}

    def _positions(self, b: ir.Value, h: ir.Value, j: ir.Value) -> tuple[list[ir.Value], ir.Value]:
        """Batch entry, head, query and key of an element of the products, and whether these exist; if not, others that do."""
        rows = self._numbers["rows"]
        head = arith.divui(h, rows)
        row, key = arith.subi(h, arith.muli(head, rows)), arith.addi(self._numbers["j"], j)
        entry = arith.addi(self._numbers["b"], b)
        entry = entry if self._order is None else read_index(self._order, entry)
        key, exists = _clamped(key, self._length("key", entry))
        query = arith.addi(self._numbers["i"], row)
        if self._order is not None:
            query, there = _clamped(query, self._length("query", entry))
            exists = arith.andi(exists, there)
        return [entry, arith.addi(self._numbers["h"], head), query, key], exists

    def _length(self, side: str, entry: ir.Value) -> ir.Value:
        """How many keys or queries a batch entry has."""
        packing = self._packing[side]
        return self._numbers["keys"] if packing is None else read_index(packing.lengths, entry)

    def _present(self, at: list[ir.Value], exists: ir.Value) -> ir.Value:
        """Whether the mask keeps a pair that exists."""
        mask = piece(self._pairs, "attn.mask")
        return exists if mask is None else arith.andi(exists, inline(block_of(mask), at)[0])

    def _weights(self, scores: list[ir.Value], b: ir.Value, h: ir.Value, j: ir.Value) -> list[ir.Value]:
        (pair,) = pieces(self._pairs, "attn.pair")
        at, exists = self._positions(b, h, j)
        read = [
            ir.Operation.create(
                "tensor.extract", results=[ir.RankedTensorType(tensor.type).element_type], operands=[tensor, b, h, j]
            ).result
            for tensor in scores
        ]
        weights, present = inline(block_of(pair), [*read, *at]), self._present(at, exists)
        zeros = [arith.constant(weight.type, ir.FloatAttr.get(weight.type, 0.0)) for weight in weights]
        return [arith.select(present, weight, zero) for weight, zero in zip(weights, zeros, strict=True)]

    def _sums(self, elements: ir.Value) -> tuple[list[ir.Value], list[PairSum]]:
        """The weights that sums take, as tensors of the terms' types, each once; and these sums."""
        made: dict[tuple[int, str], int] = {}
        collected: list[ir.Value] = []
        like = self._block.arguments[len(self._given)]
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
            sums.append(PairSum(_SUMS[op.name], tuple(self._given.index(term) for term in terms), tuple(taken), self._results[op]))
        return collected, sums

    def _scatter(self, elements: ir.Value, op: ir.Operation) -> ir.Value:
        def index(b: ir.Value, h: ir.Value, j: ir.Value) -> list[ir.Value]:
            at, exists = self._positions(b, h, j)
            places, present = inline(block_of(op), at), self._present(at, exists)
            # An absent pair adds 0, to an element that exists: its own may not.
            return [arith.select(present, place, arith.constant(ir.IndexType.get(), 0)) for place in places]

        weight = ir.IntegerAttr(op.attributes["weight"]).value
        return build.scatter(elements, op.operands[1], weight, op.results[0].type, ("b", "h", "j"), index)

    def _replace_sizes(self, tensors: list[int]) -> None:
        """Takes sizes of queries and keys from numbers: their tensors are none of the kernel's."""
        for number, names in zip(tensors, (("batches", "heads", "queries"), ("batches", "key_heads", "keys")), strict=True):
            for use in list(self._given[number].uses):
                op = use.owner.operation
                axis = maker(op.operands[1], "arith.constant") if op.name == "tensor.dim" else None
                place = ir.IntegerAttr(axis.attributes["value"]).value if axis is not None else len(names)
                if place < len(names):
                    op.results[0].replace_all_uses_with(self._numbers[names[place]])
                    op.erase()

    def _drop_unused(self) -> list[int]:
        """Erases arguments of before that nothing uses; the numbers of the others."""
        unused = [n for n, argument in enumerate(self._given) if not list(argument.uses)]
        for number in reversed(unused):
            self._block.erase_argument(number)
        return [n for n in range(len(self._given)) if n not in unused]


def _clamped(position: ir.Value, length: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The position, the last one for those past it, and whether it is none of these."""
    last = arith.subi(length, arith.constant(ir.IndexType.get(), 1))
    return arith.minsi(position, last), arith.cmpi(arith.CmpIPredicate.slt, position, length)


_PLAIN = frozenset({"mul", "floordiv", "mod", "min", "max", "abs", "select", "ge0", "eq0", "and", "or", "not"})


def range_of(pairs: ir.Operation, arguments: list[ir.Value]) -> KeyRange | None:
    """The keys that queries see, as a driver computes it; None for all, and where that depends on heads or elements of tensors."""
    found = keys_of_rows(pairs)
    if found is None:
        return None
    query, key = (arguments.index(operand) for operand in pieces(pairs, "attn.product")[0].operands)
    sizes = {(query, axis): name for axis, name in enumerate(("batches", "heads", "queries"))}
    sizes |= {(key, axis): name for axis, name in enumerate(("batches", "key_heads", "keys"))}
    packed = [each for side in ("query", "key") if (each := packing_of(pairs, side)) is not None]
    known = [arguments.index(value) for each in packed for value in (each.begins, each.lengths)]
    places: dict[Bound, int] = {}
    steps: list[RangeStep] = []
    for node in postorder(found):
        step = _step(node, places, sizes, arguments, known)
        if step is None:
            return None
        places[node] = len(steps)
        steps.append(step)
    begin, end = (places[each] for each in found)
    packing = packing_of(pairs, "key")
    last = "number", NUMBERS.index("keys")
    if packing is not None and steps[end].op == "element":
        last = "element", arguments.index(packing.lengths)
    whole = steps[begin] == RangeStep("const", (0,)) and (steps[end].op, steps[end].args[0]) == last
    return None if whole else KeyRange(tuple(steps), begin, end)


def _step(
    node: Bound, places: dict[Bound, int], sizes: dict[tuple[int, int], str], arguments: list[ir.Value], known: list[int]
) -> RangeStep | None:
    """The step that computes a node, of those before it; `known` numbers tensors whose elements a driver knows. None for others."""
    match node.op:
        case "const" | "bool":
            return RangeStep("const", (int(node.data),))
        case "var":
            if node.data not in NUMBERS or (node.data == "b" and not known):
                return None
            return RangeStep("number", (NUMBERS.index(node.data),))
        case "dim":
            tensor, axis = node.data
            if tensor not in arguments:
                return None
            number = arguments.index(tensor)
            name = sizes.get((number, axis))
            return RangeStep("dim", (number, axis)) if name is None else RangeStep("number", (NUMBERS.index(name),))
        case "gather":
            number = arguments.index(node.data) if node.data in arguments else -1
            return RangeStep("element", (number, places[node.args[0]])) if number in known and len(node.args) == 1 else None
        case "value":
            return RangeStep("operand", (arguments.index(node.data),)) if node.data in arguments else None
        case "sum":
            constant, terms = terms_of(node)
            return RangeStep("sum", (constant, *(number for atom, factor in terms for number in (factor, places[atom]))))
    return RangeStep(node.op, tuple(places[each] for each in node.args)) if node.op in _PLAIN else None
