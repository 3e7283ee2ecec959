"""Makes kernels of attentions with further terms whose heads are too wide for one, as tangents have them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from attn_mlir.backends.gpu.pair_products import PAIRS, PairsInMemory, PairStage, PairSum, write
from attn_mlir.backends.gpu.passes.pair_elements import PairElements, describe, range_of
from attn_mlir.backends.gpu.scalar_bounds import MAX_COLUMNS
from attn_mlir.dialects.attn import build
from attn_mlir.dialects.regions import maker, walk, yielded
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.derivation.program import LOWEST
from attn_mlir.passes.regions import block_of, clone_op, find_all, inline, piece, pieces, returned_by, scores_in
from attn_mlir.passes.sequences import read_index

_IDENTITIES = {"sum": 0.0, "max": LOWEST, "min": -LOWEST}
_REFUSED = {
    "attn.key_lists": "not with lists of keys: compute on the CPU",
    "attn.pages": "not of keys in pages: gather the pages, or compute on the CPU",
    "attn.query": "not with query_mod: change q before the call",
    "attn.key": "not with key_mod: change k before the call",
    "attn.value": "not with value_mod: change v before the call",
}


@dataclass(frozen=True)
class MaterializeRows(Pass):
    """Replaces an `attn.attention` with further terms, or for row outputs alone, of more than `columns` columns by kernels over pairs.

    As `gpu-materialize-pairs` does it for sums: a driver makes the products of a chunk of queries and all keys that they see. Kernels of
    elements see these one after another. Those of level n make the terms of the reductions of `attn.row` that need n others before them,
    in f32, which the driver reduces, so that later kernels read their values; the last one makes the weights of v and of further terms.
    They are functions of their own, named after the one that is replaced, which itself makes the row outputs, from the reductions'
    values, or weights where there are no row outputs. Where rows may be fully masked one more reduction counts keys.
    """

    name = "gpu-materialize-rows"
    columns: int = MAX_COLUMNS

    def run(self, module: ir.Operation) -> bool:
        for function in find_all(module, "func.func"):
            found = [op for op in find_all(function, "attn.attention") if op.parent == function]
            if any(self.takes(function, attention) for attention in found) and not self._replace(function, found):
                return False
        return True

    def takes(self, function: ir.Operation, attention: ir.Operation) -> bool:
        """Whether an attention is replaced."""
        return has_wide_pieces(attention, self.columns)

    def _replace(self, function: ir.Operation, found: list[ir.Operation]) -> bool:
        attention, *more = found
        refused = next((told for name, told in _REFUSED.items() if pieces(attention, name)), "")
        q, _, v = (ir.RankedTensorType(value.type).element_type for value in attention.operands)
        if q != v:
            refused = "of one type of elements: convert k and v to that of q"
        outside = all(isinstance(value.owner, ir.Block) for value in _tensors(attention))
        returned = returned_by(function)
        used = [use.owner.operation for result in attention.results for use in result.uses]
        left = all(op.name == "func.return" or (op.name == "attn.output" and op.results[0] in returned) for op in used)
        if more or refused or not outside or not left:
            told = refused or "from arguments to results of a function"
            attention.location.emit_error(
                f"{self.name}: kernels over pairs in memory, for heads of more than {self.columns} columns, are made {told}"
            )
            return False
        _Stages(function, attention).run()
        return True


def has_wide_pieces(attention: ir.Operation, columns: int = MAX_COLUMNS) -> bool:
    """Whether an attention has further terms, or k for v as one for row outputs alone, and tensors of more columns than that.

    Further products alone are known to kernels of slices.
    """
    q, k, v = attention.operands
    further = bool(pieces(attention, "attn.term")) or v in (q, k)
    return further and is_wide_attention(attention, columns)


def is_wide_attention(attention: ir.Operation, columns: int = MAX_COLUMNS) -> bool:
    """Whether a tensor of an attention has more columns than that."""
    return any(ir.RankedTensorType(value.type).shape[-1] > columns for value in _tensors(attention))


def _tensors(attention: ir.Operation) -> list[ir.Value]:
    further = [op for name in ("attn.product", "attn.term") for op in pieces(attention, name)]
    return [*attention.operands, *(value for op in further for value in op.operands)]


@dataclass(frozen=True)
class _Weight:
    """A weight of `attn.row`, by its number, the tensor that it is for, and the result that this is a term of, as numbers."""

    number: int
    term: int
    result: int


class _Stages:
    """The functions that one becomes."""

    def __init__(self, function: ir.Operation, attention: ir.Operation) -> None:
        self._function, self._attention = function, attention
        self._given = list(block_of(function).arguments)
        self._elements = [
            str(ir.RankedTensorType(x.type).element_type) if isinstance(x.type, ir.RankedTensorType) else "" for x in self._given
        ]
        (row,) = pieces(attention, "attn.row")
        self._weights, self._zeros = self._wanted(yielded(block_of(row)))
        returned = returned_by(function)
        self._rows = tuple(returned.index(result) for result in list(attention.results)[1:])
        found = _reductions(block_of(row))
        may_be_masked = any(pieces(attention, name) for name in ("attn.mask", "attn.sequences"))
        counts = bool(self._rows) and (may_be_masked or not found)
        levels = max([level + 1 for _, level in found], default=int(counts))
        self._kinds = [tuple(kind for kind, at in found if at == level) for level in range(levels)]
        if counts:
            self._kinds[0] = (*self._kinds[0], "sum")
        places = [(level, number) for level, kinds in enumerate(self._kinds) for number in range(len(kinds))]
        at_level = [[n for n, (_, at) in enumerate(found) if at == level] for level in range(levels)]
        self._values = _RowValues(
            len(places),
            {n: places.index((level, number)) for level, own in enumerate(at_level) for number, n in enumerate(own)},
            at_level,
            places.index((0, len(self._kinds[0]) - 1)) if counts else -1,
        )

    def _wanted(self, yields: list[ir.Value]) -> tuple[list[_Weight], list[int]]:
        """The weights that are not 0, and the results that are sums of none."""
        attention, returned = self._attention, returned_by(self._function)
        results = {0: returned.index(attention.results[0])}
        for use in attention.results[0].uses:
            if use.owner.name == "attn.output":
                results[ir.IntegerAttr(use.owner.attributes["index"]).value] = returned.index(use.owner.operation.results[0])
        terms = [(attention.operands[2], 0)]
        terms += [(op.operands[0], ir.IntegerAttr(op.attributes["output"]).value) for op in pieces(attention, "attn.term")]
        wanted = [
            _Weight(yields.index(yields[number]), self._given.index(term), results[output])
            for number, (term, output) in enumerate(terms)
            if output in results and not _is_zero(yields[number])
        ]
        return wanted, sorted({*results.values()} - {each.result for each in wanted})

    def run(self) -> None:
        attention, function = self._attention, self._function
        name = ir.StringAttr(function.attributes["sym_name"]).value
        found = [list(attention.operands)[:2], *(list(op.operands) for op in pieces(attention, "attn.product"))]
        products = tuple((self._given.index(query), self._given.index(key)) for query, key in found)
        ranged, sequences = range_of(attention, products[0], self._given), PairElements(function, attention).sequences
        stages = []
        for level, kinds in enumerate(self._kinds):
            own = f"{name}_level{level}"
            stages.append(PairStage(own, _Stage(self._copy(own), self._values).reductions(level), kinds, 0))
        types = list(dict.fromkeys((each.number, self._elements[each.term]) for each in self._weights))
        if self._weights:
            own = f"{name}_weights" if self._rows else ""
            stages.append(PairStage(own, _Stage(self._copy(own) if own else function, self._values).weights(types), (), len(types)))
        last = _Stage(function, self._values) if self._rows else None
        kept = () if last is None else last.rows()
        sums = tuple(self._sums(types))
        described = PairsInMemory(products, kept, sums, (), ranged, sequences, stages=tuple(stages), rows=self._rows)
        describe(function, {PAIRS: write(described)})

    def _sums(self, types: list[tuple[int, str]]) -> Iterator[PairSum]:
        for result in dict.fromkeys([*(each.result for each in self._weights), *self._zeros]):
            own = [each for each in self._weights if each.result == result]
            places = tuple(types.index((each.number, self._elements[each.term])) for each in own)
            yield PairSum("query", tuple(each.term for each in own), places, result)

    def _copy(self, name: str) -> ir.Operation:
        """A copy of the function as it was, in front of it."""
        with ir.InsertionPoint(self._function):
            made = self._function.clone()
        with self._function.context:
            made.attributes["sym_name"] = ir.StringAttr.get(name)
        return made


@dataclass(frozen=True)
class _RowValues:
    """Values of rows that kernels read: how many, where each reduction of `attn.row` is, those of every level, and where keys are counted.

    `keys` is -1 where they are not.
    """

    count: int
    places: dict[int, int]
    levels: list[list[int]]
    keys: int


class _Stage(PairElements):
    """One of the kernels."""

    def __init__(self, function: ir.Operation, values: _RowValues) -> None:
        (attention,) = find_all(function, "attn.attention")
        super().__init__(function, attention)
        self._values = values
        (self._row,) = pieces(attention, "attn.row")
        self._reduced = [op for op in _ops(block_of(self._row)) if op.name == "attn.reduce"]
        found = [list(attention.operands)[:2], *(list(op.operands) for op in pieces(attention, "attn.product"))]
        self._first = self.given.index(found[0][0]), self.given.index(found[0][1])
        self._products = len(found)
        dynamic = ir.ShapedType.get_dynamic_size()
        with attention.context, attention.location:
            self._type = ir.F32Type.get()
            rows = ir.RankedTensorType.get([dynamic] * 3, self._type)
            self.given += [self.block.add_argument(rows, attention.location) for _ in range(values.count)]
        self._unknown: frozenset[int] = frozenset()
        """The reductions whose values are not known yet."""
        self._of_rows = self.given[len(self.given) - values.count :]

    def reductions(self, level: int) -> tuple[int, ...]:
        """Lets the function make the terms of a level's reductions; which arguments it still takes."""
        wanted = [self._reduced[number] for number in self._values.levels[level]]
        self._unknown = frozenset(number for own in self._values.levels[level:] for number in own)
        kinds = [ir.StringAttr(op.attributes["kind"]).value for op in wanted]

        def made(known: dict[ir.Value, ir.Value]) -> list[tuple[ir.Value, float]]:
            terms = [(known.get(op.operands[0], op.operands[0]), _IDENTITIES[kind]) for op, kind in zip(wanted, kinds, strict=True)]
            one = [(arith.constant(self._type, 1.0), 0.0)] if self._values.keys >= 0 and not level else []
            return [*terms, *one]

        return self._over_pairs(made, [(n, "f32") for n in range(len(wanted) + (self._values.keys >= 0 and not level))])

    def weights(self, types: list[tuple[int, str]]) -> tuple[int, ...]:
        """Lets it make weights, which are numbered, of these types; which arguments it still takes."""
        numbers = list(dict.fromkeys(number for number, _ in types))
        yields = yielded(block_of(self._row))

        def made(known: dict[ir.Value, ir.Value]) -> list[tuple[ir.Value, float]]:
            return [(known.get(yields[number], yields[number]), 0.0) for number in numbers]

        return self._over_pairs(made, [(numbers.index(number), element) for number, element in types])

    def _over_pairs(
        self, made: Callable[[dict[ir.Value, ir.Value]], list[tuple[ir.Value, float]]], collected: list[tuple[int, str]]
    ) -> tuple[int, ...]:
        """Lets it make values of pairs, from those of the row's ops; absent ones are the number beside them."""
        attention = self.owner
        score = piece(attention, "attn.score")
        types = [argument.type for argument in list(block_of(score or self._row).arguments)[: self._products]]
        products = self.add_arguments(types)

        def body(*element: ir.Value) -> list[ir.Value]:
            at, exists = self.position(element)
            read = [_extract(tensor, list(element)) for tensor in products]
            scores = read if score is None else inline(block_of(score), [*read, *at])
            present = self.present(at, exists)
            values = made(self._row_values([*scores, *at[:3]]))
            return [arith.select(present, value, arith.constant(value.type, none)) for value, none in values]

        with attention.location, ir.InsertionPoint(attention):
            elements = build.elements(products[0], body)
            shape = ir.RankedTensorType(products[0].type).shape
            results = [
                build.collect(elements, number, ir.RankedTensorType.get(shape, ir.Type.parse(element))) for number, element in collected
            ]
        return self._end(results)

    def rows(self) -> tuple[int, ...]:
        """Lets it make the row outputs; which arguments it still takes."""
        attention = self.owner
        results = list(attention.results)[1:]
        names = [ir.StringAttr(name).value for name in ir.ArrayAttr(attention.attributes["outputs"])]
        yields = yielded(block_of(self._row))
        yields = yields[len(yields) - len(results) :]
        scores = scores_in(block_of(self._row))

        def body(b: ir.Value, h: ir.Value, i: ir.Value) -> list[ir.Value]:
            known = self._row_values([None] * scores + [b, h, i])
            made = [known.get(value, value) for value in yields]
            if self._values.keys < 0:
                return made
            count = _extract(self._of_rows[self._values.keys], self._place([b, h, i]))
            some = arith.cmpf(arith.CmpFPredicate.OGT, count, arith.constant(count.type, 0.0))
            empty = [arith.constant(value.type, -math.inf if name == "lse" else 0.0) for name, value in zip(names, made, strict=True)]
            return [arith.select(some, value, none) for value, none in zip(made, empty, strict=True)]

        with attention.location, ir.InsertionPoint(attention):
            packing = self.packing["query"]
            packed = None if packing is None else lambda: build.sequences(packing.begins, packing.lengths, "query")
            elements = build.elements(self._of_rows[0], body, packed)
            made = [build.collect(elements, number, result.type) for number, result in enumerate(results)]
        return self._end(made)

    def _row_values(self, arguments: Sequence[ir.Value | None]) -> dict[ir.Value, ir.Value]:
        """The values of the row's ops as far as its arguments, None for those that are not known, and reductions allow."""
        block = block_of(self._row)
        known = {old: new for old, new in zip(block.arguments, arguments, strict=True) if new is not None}
        inside = {*block.arguments, *(result for op in _ops(block) for result in op.results)}
        position = [value for value in arguments[-3:] if value is not None]
        for op in _ops(block)[:-1]:
            if op.name == "attn.reduce":
                number = self._reduced.index(op)
                if number not in self._unknown:
                    known[op.results[0]] = _extract(self._of_rows[self._values.places[number]], self._place(position))
            elif all(value not in inside or value in known for value in _read(op)):
                clone_op(op, known)
        return known

    def _place(self, position: list[ir.Value]) -> list[ir.Value]:
        """Where values of the row at a position, of packed tensors in a sequence, are."""
        packing = self.packing["query"]
        if packing is None:
            return position
        b, h, i = position
        return [arith.constant(ir.IndexType.get(), 0), h, arith.addi(read_index(packing.begins, b), i)]

    def _end(self, results: list[ir.Value]) -> tuple[int, ...]:
        outputs = [op for op in find_all(self.function, "attn.output") if op.operands[0] == self.owner.results[0]]
        kept = self.finish(self._first, results, (*outputs, self.owner))
        describe(self.function, {})
        return tuple(kept)


def _reductions(row: ir.Block) -> list[tuple[str, int]]:
    """The kind of each reduction of a row, and how many come before it, one needing the other."""
    levels: dict[ir.Value, int] = {}
    found = []
    for op in _ops(row):
        level = max([levels.get(value, 0) for value in _read(op)], default=0)
        if op.name == "attn.reduce":
            found.append((ir.StringAttr(op.attributes["kind"]).value, level))
            level += 1
        levels |= dict.fromkeys(op.results, level)
    return found


def _ops(block: ir.Block) -> list[ir.Operation]:
    return [view.operation for view in block.operations]


def _read(op: ir.Operation) -> list[ir.Value]:
    """What an op reads, inside of it too."""
    return [value for each in (op, *walk(op)) for value in each.operands]


def _extract(tensor: ir.Value, at: list[ir.Value]) -> ir.Value:
    element = ir.RankedTensorType(tensor.type).element_type
    return ir.Operation.create("tensor.extract", results=[element], operands=[tensor, *at]).result


def _is_zero(value: ir.Value) -> bool:
    constant = maker(value, "arith.constant")
    return constant is not None and ir.FloatAttr(constant.attributes["value"]).value == 0.0
