"""Turns traced pieces into a module of the `attn` dialect."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.capture_kinds import CaptureKind
from attn_mlir.dialects import loaded
from attn_mlir.dialects.attn import build
from attn_mlir.dialects.attn.partners import Partner
from attn_mlir.dialects.fastmath import attributes_of
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend import given, where
from attn_mlir.frontend.folded import unfolded
from attn_mlir.frontend.given import Inputs, places_of, product_pairs
from attn_mlir.frontend.node import Kind, Node, Position, Source
from attn_mlir.frontend.reach import is_specialised, reachable
from attn_mlir.frontend.scope import Captured
from attn_mlir.mlir import LOCK, arith, ir


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """A traced function: the name of its op without `attn.`, its arguments and what it yields."""

    name: str
    arguments: tuple[Node, ...]
    results: tuple[Node, ...]
    position: Position | None = None
    """Where the user's function is defined."""
    partner: Partner | None = None
    """Of a mod that takes two elements, which the second is."""
    operands: tuple[Source, ...] = ()
    """The tensors that the op takes."""


def used_captures(pieces: Sequence[Piece], captures: Mapping[Source, Captured], specialised: Mapping[Source, Any]) -> list[Captured]:
    """The captures that the pieces read, in order of first use; those specialised to a constant are not."""
    used: dict[Source, None] = {}
    for piece in pieces:
        for node in reachable(piece.results, specialised):
            if node.op == "tensor.extract":
                used[node.attribute.source] = None
            leaves = [operand for operand in node.operands if not is_specialised(operand, specialised)]
            for leaf in (*leaves, *([node] if node in piece.results and not is_specialised(node, specialised) else [])):
                if leaf.op == "capture":
                    used[leaf.attribute] = None
                elif leaf.op == "size":
                    used[leaf.attribute[0][1]] = None
    return [captures[source] for source in used if source in captures]


def weights_of(pieces: Sequence[Piece], outputs: Sequence[str]) -> int:
    """How many weights the row yields, each with an output of its own, before its row outputs; 1 of what is no row."""
    return next((len(piece.results) - len(outputs) for piece in pieces if piece.name == "row"), 1)


def emit(
    inputs: Inputs,
    pieces: Sequence[Piece],
    outputs: Sequence[str],
    captures: Sequence[Captured],
    specialised: Mapping[Source, Any],
    *,
    labels: Mapping[Node, str] = MappingProxyType({}),
    accumulators: int | None = None,
    functions: Sequence[Piece] = (),
) -> tuple[str, str]:
    """The text of the module, without and with locations. `labels` names nodes that no variable of the user names.

    Captures of `product_captures` are multiplied by products, one for each pair of them.

    Each of `functions` becomes a function of scalars beside @attention, called @attention_<name>; after the piece's arguments
    come those of @attention.
    """
    with LOCK, loaded():
        with location_of(where.call_site()):
            return Emitter(inputs, specialised, labels).module(pieces, outputs, captures, accumulators, functions)


class Emitter:
    """Emits one module; needs an active context and location."""

    def __init__(self, inputs: Inputs, specialised: Mapping[Source, Any], labels: Mapping[Node, str]) -> None:
        self.labels = labels
        self.inputs = inputs
        self.specialised = specialised
        self.index = ir.IndexType.get()
        score = ir.F64Type.get() if inputs.element == "f64" else ir.F32Type.get()
        self.types: dict[Kind, ir.Type] = {"float": score, "int": self.index, "bool": ir.IntegerType.get_signless(1)}
        self.outer: dict[Source, ir.Value] = {}
        """The values of captures and sizes."""
        self._sequence: ir.Value | None = None
        """The number of the sequence, in the piece that is emitted."""

    def module(
        self,
        pieces: Sequence[Piece],
        outputs: Sequence[str],
        captures: Sequence[Captured],
        accumulators: int | None,
        functions: Sequence[Piece],
    ) -> tuple[str, str]:
        module = ir.Module.create()
        inputs = self.arguments(captures)
        row = ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()] * 3, self.types["float"])
        weights = weights_of(pieces, outputs)
        values = ir.RankedTensorType(inputs[2][1])
        o = ir.RankedTensorType.get(values.shape, ir.Type.parse(self.inputs.output)) if self.inputs.output else values
        results = [o, *[row] * len(outputs)]

        def make(arguments: Sequence[ir.Value]) -> tuple[ir.Operation, ir.Block]:
            op, block = build.attention(arguments[0], arguments[1], arguments[2], results, outputs, accumulators)
            with ir.InsertionPoint(block):
                for number in range(1, weights):
                    build.term(arguments[2], number)
            return op, block

        self.function(module, pieces, inputs, [*[results[0]] * (weights - 1), *results], captures, make)
        for piece in functions:
            with ir.InsertionPoint(module.body), location_of(piece.position):
                self._scalar_function(piece, inputs, captures)
        return texts_of(module)

    def arguments(self, captures: Sequence[Captured]) -> list[tuple[str, ir.Type]]:
        """Names and types of the arguments of @attention: q, k, v, and what is captured."""
        of, wide = self.inputs, ir.ShapedType.get_dynamic_size()
        of_q, of_keys = ir.Type.parse(of.element), ir.Type.parse(of.kv_element or of.element)
        dims = {"q": (of.head_dim, of_q), "k": (of.head_dim, of_keys), "v": (of.value_dim, of_keys)}
        shaped = [(name, ir.RankedTensorType.get([wide] * 3 + [dim], element)) for name, (dim, element) in dims.items()]
        return [*shaped, *((captured.name, self._argument_type(captured)) for captured in captures)]

    def function(
        self,
        module: ir.Module,
        pieces: Sequence[Piece],
        inputs: Sequence[tuple[str, ir.Type]],
        results: Sequence[ir.Type],
        captures: Sequence[Captured],
        make: Callable[[Sequence[ir.Value]], tuple[ir.Operation, ir.Block]],
    ) -> None:
        """Adds @attention, which returns what the op that `make` makes of its arguments gives; the op holds `pieces`.

        Where there are more `results` than the op has, these are its further outputs, after o.
        """
        with ir.InsertionPoint(module.body):
            block = new_function("attention", inputs, results)
        arguments = list(block.arguments)
        self._enter(arguments, captures)
        with ir.InsertionPoint(block):
            self._sizes(pieces)
            op, body = make(arguments)
            with ir.InsertionPoint(body):
                if self.inputs.packed:
                    of = [self.outer[given.SEQUENCE, name] for name in given.SEQUENCES]
                    build.sequences(of[0], of[1], "query")
                    build.sequences(of[2], of[3], "key")
                if self.inputs.lists:
                    build.key_lists([self.outer[given.LIST, name] for name in given.LISTS], self.inputs.lists)
                if self.inputs.paged:
                    build.pages(self.outer[given.SEQUENCE, given.PAGES])
                for query, key in product_pairs(captures):
                    build.product(self.outer[query], self.outer[key])
                for piece in pieces:
                    self._piece(piece)
            o, *rows = op.results
            more = [build.output(o, number, o.type) for number in range(1, len(results) - len(rows))]
            ir.Operation.create("func.return", operands=[o, *more, *rows])

    def _enter(self, arguments: Sequence[ir.Value], captures: Sequence[Captured]) -> None:
        """Starts a function with these arguments of @attention."""
        self.outer = {captured.source: argument for captured, argument in zip(captures, arguments[3:], strict=True)}
        self.outer["q"], self.outer["k"], self.outer["v"] = arguments[:3]  # type: ignore[index]

    def _argument_type(self, captured: Captured) -> ir.Type:
        if captured.kind is CaptureKind.TENSOR:
            sizes = [ir.ShapedType.get_dynamic_size()] * captured.rank
            if captured.columns is not None:
                sizes[-1] = captured.columns
            return ir.RankedTensorType.get(sizes, _element_type(captured))
        return self.types[captured.kind.node]

    def _sizes(self, pieces: Sequence[Piece]) -> None:
        """Emits the sizes that the pieces use, in the function."""
        for node in reachable([result for piece in pieces for result in piece.results], self.specialised):
            if node.op != "size" or node.attribute[0] in self.outer or self._is_length(node) or self._is_total(node):
                continue
            source, name = node.attribute
            location = ir.Location.name(name, location_of(node.position))
            dim = self._constant(node, "int", source[2])
            operands = [self.outer[source[1]], dim]
            self.outer[source] = ir.Operation.create("tensor.dim", results=[self.index], operands=operands, loc=location).result
            if self.inputs.group > 1 and source in given.FOLDED:
                group = self._constant(node, "int", self.inputs.group)
                op = "arith.divsi" if source[2] == 2 else "arith.muli"
                self.outer[source] = _one(op, self.index, self.outer[source], group)

    def _piece(self, piece: Piece) -> None:
        with location_of(piece.position):
            if piece.name == "erase":
                key, *removed = (self.outer[source] for source in piece.operands)
                build.erase(key, lambda *arguments: self._body(piece, arguments), self.types["float"], *removed)
                return
            build.piece(piece.name, self._parameters(piece), lambda *arguments: self._body(piece, arguments), piece.partner)

    def _parameters(self, piece: Piece) -> list[tuple[str, ir.Type]]:
        return [(str(node.attribute), self.types[node.kind]) for node in piece.arguments]

    def _body(self, piece: Piece, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """Emits what a piece computes of its arguments."""
        values: dict[Node, ir.Value] = dict(zip(piece.arguments, arguments, strict=True))
        moved = self.inputs.parts or self.inputs.packed or self.inputs.group > 1
        places = places_of(piece.name, piece.arguments) if moved else {}
        if self.inputs.group > 1 and "q_idx" in places.values():
            h, q_idx = (next(node for node, place in places.items() if place == wanted) for wanted in ("h", "q_idx"))
            values[h], values[q_idx] = unfolded(values[h], values[q_idx], self.inputs.group)
        offsets = given.moved_places(self.inputs)
        values |= {node: self._moved(values[node], offsets[place]) for node, place in places.items() if place in offsets}
        order = reachable(piece.results, self.specialised)
        named = {node.position: node for node in order if node.position is not None}
        constants: dict[tuple[str, str], ir.Value] = {}
        self._sequence = next((values[node] for node, place in places.items() if place == "b"), None)
        for node in order:
            if node in values:
                continue
            with location_of(node.position, self._name(node, named)):
                values[node] = self._value(node, values, constants)
        return [values[node] for node in piece.results]

    def _scalar_function(self, piece: Piece, inputs: Sequence[tuple[str, ir.Type]], captures: Sequence[Captured]) -> None:
        """A function of scalars; `inputs` are the arguments of @attention."""
        count = len(piece.arguments)
        results = [self.types[node.kind] for node in piece.results]
        block = new_function(f"attention_{piece.name}", [*self._parameters(piece), *inputs], results)
        values = list(block.arguments)
        self._enter(values[count:], captures)
        with ir.InsertionPoint(block):
            self._sizes([piece])
            ir.Operation.create("func.return", operands=self._body(piece, values[:count]))

    def _name(self, node: Node, last: Mapping[Position, Node]) -> str | None:
        """The variable that holds the value: of the nodes made at one place, the last is what is assigned."""
        if node in self.labels or node.position is None or last[node.position] is not node:
            return self.labels.get(node)
        return where.resolve(node.position).variable

    def _value(self, node: Node, values: Mapping[Node, ir.Value], constants: dict[tuple[str, str], ir.Value]) -> ir.Value:
        if node.op == "constant" or self._is_specialised(node):
            number = node.known if node.op != "constant" else node.attribute
            key = (node.kind, repr(number))
            if key not in constants:
                constants[key] = self._constant(node, node.kind, number)
            return constants[key]
        if self._is_total(node):
            return self._total(node)
        if self._is_length(node):
            return self._length(node)
        if node.op in ("capture", "size"):
            return self.outer[node.attribute if node.op == "capture" else node.attribute[0]]
        operands = [values[operand] for operand in node.operands]
        rule = _RULES.get(node.op)
        if rule is not None:
            return rule(self, node, operands)
        return ir.Operation.create(node.op, results=[self.types[node.kind]], operands=operands).result

    def _moved(self, position: ir.Value, offset: str) -> ir.Value:
        """A position in the whole sequence."""
        return _one("arith.addi", self.index, position, self.outer[given.POSITION, offset])

    def _is_total(self, node: Node) -> bool:
        """Whether a size is the number of positions of a sequence that the tensors have a part of."""
        return self.inputs.parts and node.op == "size" and node.attribute[0] in given.TOTALS

    def _total(self, node: Node) -> ir.Value:
        offset, total = (self.outer[given.POSITION, name] for name in given.TOTALS[node.attribute[0]])
        return _one("arith.addi", self.index, self._length(node), offset) if self.inputs.packed else total

    def _is_length(self, node: Node) -> bool:
        """Whether a size is the number of positions of a sequence."""
        return self.inputs.packed and node.op == "size" and node.attribute[0] in given.LENGTHS

    def _length(self, node: Node) -> ir.Value:
        if self._sequence is None:
            raise UnsupportedError(f"{node.attribute[1]}() is asked for where no sequence is at hand")
        lengths = self.outer[given.SEQUENCE, given.LENGTHS[node.attribute[0]]]
        read = _one("tensor.extract", ir.RankedTensorType(lengths.type).element_type, lengths, self._sequence)
        return _one("arith.index_cast", self.index, read)

    def _is_specialised(self, node: Node) -> bool:
        return is_specialised(node, self.specialised)

    def _constant(self, node: Node, kind: Kind, number: Any) -> ir.Value:
        type_ = self.types[kind]
        attribute = ir.FloatAttr.get(type_, float(number)) if kind == "float" else ir.IntegerAttr.get(type_, int(number))
        return ir.Operation.create("arith.constant", results=[type_], attributes={"value": attribute}).result


def texts_of(module: ir.Module) -> tuple[str, str]:
    """The text of a module, without and with locations; it is verified first."""
    module.operation.verify()
    plain = module.operation.get_asm(use_name_loc_as_prefix=True)
    return plain, module.operation.get_asm(use_name_loc_as_prefix=True, enable_debug_info=True)


def new_function(name: str, arguments: Sequence[tuple[str, ir.Type]], results: Sequence[ir.Type]) -> ir.Block:
    """An empty function at the insertion point."""
    types = [type_ for _, type_ in arguments]
    function_type = ir.TypeAttr.get(ir.FunctionType.get(types, results))
    attributes = {"sym_name": ir.StringAttr.get(name), "function_type": function_type}
    here = ir.Location.current
    function = ir.Operation.create("func.func", attributes=attributes, regions=1)
    return function.regions[0].blocks.append(*types, arg_locs=[ir.Location.name(name, here) for name, _ in arguments])


def location_of(position: Position | None, name: str | None = None) -> ir.Location:
    location = ir.Location.unknown()
    if position is not None:
        at = where.resolve(position)
        location = ir.Location.file(at.file, at.line, at.column)
    return ir.Location.name(name, location) if name else location


def _element_type(captured: Captured) -> ir.Type:
    return ir.Type.parse({"u8": "i8"}.get(captured.element, captured.element))


def _one(op: str, type_: ir.Type, *operands: ir.Value, **attributes: ir.Attribute) -> ir.Value:
    return ir.Operation.create(op, results=[type_], operands=list(operands), attributes=attributes).result


def _emit_cast(emitter: Emitter, node: Node, operands: list[ir.Value]) -> ir.Value:
    i64 = ir.IntegerType.get_signless(64)
    if node.kind == "float":
        return _one("arith.sitofp", emitter.types["float"], _one("arith.index_cast", i64, operands[0]))
    return _one("arith.index_cast", emitter.index, _one("arith.fptosi", i64, operands[0]))


def _emit_extract(emitter: Emitter, node: Node, operands: list[ir.Value]) -> ir.Value:
    captured: Captured = node.attribute
    read = _one("tensor.extract", _element_type(captured), emitter.outer[captured.source], *operands)
    if read.type == emitter.types[node.kind]:
        return read
    match captured.element:
        case "f16" | "bf16" | "f32":
            return _one("arith.extf", emitter.types["float"], read)
        case "f64":
            return _one("arith.truncf", emitter.types["float"], read)
        case "u8":
            mask = _one("arith.constant", emitter.index, value=ir.IntegerAttr.get(emitter.index, 255))
            return _one("arith.andi", emitter.index, _one("arith.index_cast", emitter.index, read), mask)
    return _one("arith.index_cast", emitter.index, read)


def _emit_compare(emitter: Emitter, node: Node, operands: list[ir.Value]) -> ir.Value:
    table = arith.CmpFPredicate if node.op == "arith.cmpf" else arith.CmpIPredicate
    names = {member.name.lower(): member.value for member in table}
    predicate = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), names[node.attribute])
    return _one(node.op, emitter.types["bool"], *operands, predicate=predicate)


def _emit_extremum(emitter: Emitter, node: Node, operands: list[ir.Value]) -> ir.Value:
    # A captured or computed bound alone can be equal to a value in a way that matters; see `passes.differentiation.partials`.
    constant = node.operands[1].op == "constant"
    tie = {} if node.attribute is None or (constant and node.attribute == "first") else {"attn.tie": ir.StringAttr.get(node.attribute)}
    return _one(node.op, emitter.types[node.kind], *operands, **tie)


def _emit_tanh(emitter: Emitter, node: Node, operands: list[ir.Value]) -> ir.Value:
    return _one(node.op, emitter.types[node.kind], *operands, **attributes_of(node.attribute))


def _emit_reduce(emitter: Emitter, node: Node, operands: list[ir.Value]) -> ir.Value:
    return build.reduce(operands[0], node.attribute)


def _emit_detach(emitter: Emitter, node: Node, operands: list[ir.Value]) -> ir.Value:
    return build.detach(operands[0])


def _emit_slope(emitter: Emitter, node: Node, operands: list[ir.Value]) -> ir.Value:
    return build.slope(*operands)


_Rule = Callable[[Emitter, Node, list[ir.Value]], ir.Value]
_RULES: dict[str, _Rule] = {
    "cast": _emit_cast,
    "tensor.extract": _emit_extract,
    "arith.cmpf": _emit_compare,
    "arith.cmpi": _emit_compare,
    "arith.maximumf": _emit_extremum,
    "arith.minimumf": _emit_extremum,
    "attn.reduce": _emit_reduce,
    "math.tanh": _emit_tanh,
    "attn.detach": _emit_detach,
    "attn.slope": _emit_slope,
}
