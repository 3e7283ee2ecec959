"""What kernels over pairs in memory have in common: their arguments, where an element's pair is, and which keys queries see."""

from collections.abc import Iterable, Sequence

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.pair_products import NUMBERS, ROWS, STEP, KeyRange, RangeStep
from attn_mlir.backends.gpu.scalar_bounds import HEADS
from attn_mlir.dialects.regions import maker
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.dropout import expand
from attn_mlir.passes.intervals.nodes import Bound, postorder, terms_of
from attn_mlir.passes.regions import block_of, end_with, find_all, inline, piece, returned_by
from attn_mlir.passes.resolve_masks import keys_of_rows
from attn_mlir.passes.sequences import packing_of, read_index


class PairElements:
    """The change of a function to one over elements of products in memory, those of pairs of `owner`, whose pieces it keeps to read."""

    def __init__(self, function: ir.Operation, owner: ir.Operation) -> None:
        self.function, self.owner, self.block = function, owner, block_of(function)
        self.given = list(self.block.arguments)
        self.packing = {side: packing_of(owner, side) for side in ("query", "key")}
        """The sequences of both sides of packed tensors."""
        self._order: ir.Value | None = None
        self._numbers: dict[str, ir.Value] = {}

    @property
    def sequences(self) -> tuple[int, ...]:
        """Which arguments say where these are: see `PairsInMemory.sequences`."""
        both = [each for each in self.packing.values() if each is not None]
        return tuple(self.given.index(value) for each in both for value in (each.begins, each.lengths))

    def add_arguments(self, types: Iterable[ir.Type]) -> list[ir.Value]:
        """Further arguments: products of a chunk, which it returns, the numbers of sequences where these are packed, and numbers."""
        location, dynamic = self.owner.location, ir.ShapedType.get_dynamic_size()
        with self.owner.context, location:
            scores = [self.block.add_argument(ir.RankedTensorType.get([*[dynamic] * 3, STEP], type_), location) for type_ in types]
            index = ir.RankedTensorType.get([dynamic], ir.IntegerType.get_signless(32))
            self._order = None if self.packing["query"] is None else self.block.add_argument(index, location)
            self._numbers = {name: self.block.add_argument(ir.IndexType.get(), location) for name in ROWS}
        return scores

    def position(self, element: Sequence[ir.Value]) -> tuple[list[ir.Value], ir.Value]:
        """Batch entry, head, query and key of an element of the products, and whether these exist; if not, others that do."""
        b, h, *within = element
        one, most = (arith.constant(ir.IndexType.get(), number) for number in (1, HEADS))
        rows = arith.maxsi(arith.minsi(self._numbers["rows"], most), one)  # so that 32 bits are known to be enough
        head = arith.divui(h, rows)
        step = arith.constant(ir.IndexType.get(), STEP)
        j = arith.addi(arith.muli(within[0], step), within[1])
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
        packing = self.packing[side]
        return self._numbers["keys"] if packing is None else read_index(packing.lengths, entry)

    def present(self, at: list[ir.Value], exists: ir.Value) -> ir.Value:
        """Whether the mask keeps a pair that exists."""
        mask = piece(self.owner, "attn.mask")
        return exists if mask is None else arith.andi(exists, inline(block_of(mask), at)[0])

    def finish(self, products: tuple[int, int], results: list[ir.Value], erased: Iterable[ir.Operation]) -> list[int]:
        """Leaves the function with these results, without ops that are replaced; which of the given arguments it still takes."""
        if self._numbers:
            self._replace_sizes(products)
        end_with(self.block, "func.return", results)
        for op in erased:
            op.erase()
        for kept_pair in find_all(self.function, "attn.kept"):
            expand(kept_pair)
        return self._drop_unused()

    def _replace_sizes(self, tensors: tuple[int, int]) -> None:
        """Takes sizes of queries and keys from numbers: their tensors are none of the kernel's."""
        for number, names in zip(tensors, (("batches", "heads", "queries"), ("batches", "key_heads", "keys")), strict=True):
            for use in list(self.given[number].uses):
                op = use.owner.operation
                axis = maker(op.operands[1], "arith.constant") if op.name == "tensor.dim" else None
                place = ir.IntegerAttr(axis.attributes["value"]).value if axis is not None else len(names)
                if place < len(names):
                    op.results[0].replace_all_uses_with(self._numbers[names[place]])
                    op.erase()

    def _drop_unused(self) -> list[int]:
        """Erases arguments of before that nothing uses; the numbers of the others."""
        unused = [n for n, argument in enumerate(self.given) if not list(argument.uses)]
        for number in reversed(unused):
            self.block.erase_argument(number)
        return [n for n in range(len(self.given)) if n not in unused]


def describe(function: ir.Operation, more: Fields) -> None:
    """Writes a function's type, and further choices."""
    choices = attributes.read(function, attributes.CHOICES)
    with function.context:
        function.attributes[attributes.CHOICES] = attributes.write({**choices, **more})
        types = [value.type for value in block_of(function).arguments], [value.type for value in returned_by(function)]
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))


def _clamped(position: ir.Value, length: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The position, the last one for those past it, and whether it is none of these."""
    last = arith.subi(length, arith.constant(ir.IndexType.get(), 1))
    return arith.minsi(position, last), arith.cmpi(arith.CmpIPredicate.slt, position, length)


_PLAIN = frozenset({"mul", "floordiv", "mod", "min", "max", "abs", "select", "ge0", "eq0", "and", "or", "not"})


def range_of(owner: ir.Operation, first: tuple[int, int], arguments: list[ir.Value]) -> KeyRange | None:
    """The keys that queries see, as a driver computes it; None for all, and where that depends on heads or elements of tensors.

    `first`: which arguments the tensors of queries and of keys are, of whose product scores are made.
    """
    found = keys_of_rows(owner)
    if found is None:
        return None
    query, key = first
    sizes = {(query, axis): name for axis, name in enumerate(("batches", "heads", "queries"))}
    sizes |= {(key, axis): name for axis, name in enumerate(("batches", "key_heads", "keys"))}
    packed = [each for side in ("query", "key") if (each := packing_of(owner, side)) is not None]
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
    packing = packing_of(owner, "key")
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
