"""The printer: regions as indented blocks, one statement a line, expressions that are used once within those that use them."""

import re
from collections.abc import Mapping, Sequence

from attn_mlir.mlir import ext, ir
from attn_mlir.pretty import names
from attn_mlir.pretty.expressions import ATOM, SELECT, expression, flags, is_constant, is_expression, is_size
from attn_mlir.pretty.literals import attributes_of, constant_text, in_words, shown_type, type_text

_WIDTH = 120
_PARTS = re.compile(r"(?:<[^<>]*>|[^,<]|<|,(?! ))*(?:, |$)")
_INLINED = 56
"""Characters of an expression that may still become a part of another one."""
_LABELLED = 5
"""Operands from which on each one stands after its name."""
_PURE = ("attn.", "tile.map", "tile.scatter_add")
_REDUCTIONS = {"sum": "+=", "max": "max=", "min": "min="}


def pretty(operation: ir.Operation | ir.OpView, source: str = "") -> str:
    """The text of an operation for people. It is no MLIR; the same IR gives the same text.

    `source` is the MLIR that the operation was parsed from: MLIR forgets the names in it, which are found again by their place.
    """
    lines = _Printer(source).operation(operation.operation)
    wrapped = [part for line in lines for part in _wrapped(line)]
    return "".join(f"{line.rstrip()}\n" for line in wrapped)


def _wrapped(line: str) -> list[str]:
    """A line in as many as it needs, broken after commas."""
    indent = " " * (len(line) - len(line.lstrip()))
    lines = [""]
    for part in filter(None, _PARTS.findall(line)):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > _WIDTH:
            lines.append(f"{indent}    ")
        lines[-1] += part
    return lines


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _braced(head: str, body: Sequence[str]) -> list[str]:
    """A head with its body in braces, on one line where that is one line."""
    if len(body) == 1 and len(head) + len(body[0]) + 6 <= _WIDTH and not body[0].endswith("}"):
        return [f"{head} {{ {body[0]} }}"]
    return [f"{head} {{", *_indented(body), "}"]


def _attribute(op: ir.Operation, name: str) -> str:
    """The text of an attribute, empty where the op has none of the name."""
    return str(op.attributes[name]) if name in op.attributes else ""


def _last(block: ir.Block) -> ir.Operation:
    return block.operations[-1].operation


class _Printer:
    """Statements of the ops that it is given, in order; knows the values before."""

    def __init__(self, source: str) -> None:
        self._scopes = names.Scopes(source)
        self._texts: dict[ir.Value, tuple[str, int]] = {}

    def operation(self, op: ir.Operation) -> list[str]:
        """The lines of one op; none where it is a part of those that use it, or where nothing does."""
        if is_expression(op):
            return self._expression(op)
        match op.name:
            case "builtin.module":
                return self._module(op)
            case "func.func":
                return self._function(op)
            case "tile.map" | "warp.map":
                return self._map(op)
            case "scf.for":
                return self._loop(op)
            case "scf.if":
                return self._branch(op)
        simple = self._tile(op)
        if simple is not None:
            return [f"{self._results(op)}{op.name} {simple}"]
        if names.is_end(op):
            return [f"{op.name.rpartition('.')[2]} {self._list(op.operands)}".rstrip()]
        return self._any(op)

    # Values.

    def _read(self, value: ir.Value, precedence: int = SELECT) -> str:
        if value in self._texts:
            text, own = self._texts[value]
            return text if own >= precedence else f"({text})"
        return self._scopes.known(value) or self._scopes.name(value, "unknown")

    def _list(self, values: Sequence[ir.Value]) -> str:
        return ", ".join(self._read(value) for value in values)

    def _results(self, op: ir.Operation, hints: Sequence[str] | None = None) -> str:
        """`name: type, name = ` for the results of an op, which get their names."""
        found = [
            self._scopes.name(value, self._scopes.given(value) or hint) + shown_type(value.type)
            for value, hint in zip(op.results, hints or self._hints(op), strict=True)
        ]
        return f"{', '.join(found)} = " if found else ""

    def _hints(self, op: ir.Operation) -> list[str]:
        if op.name in ("tile.load", "tile.load_pages"):
            return [f"{self._base(op.operands[0])}_tile"]
        if op.name in ("tile.dot_add", "tile.dot_rescale"):
            return [self._base(op.operands[0])]
        return names.results_of(op)

    def _base(self, value: ir.Value) -> str:
        """The name of a value without its number."""
        name = self._scopes.known(value)
        word, _, number = (name or "x").rpartition("_")
        return word if word and number.isdigit() else name or "x"

    # Expressions.

    def _expression(self, op: ir.Operation) -> list[str]:
        value = op.results[0]
        uses = list(value.uses)
        if not uses:
            return []
        text, precedence = expression(op, self._read)
        told = flags(op)
        if self._is_inlined(op, text, told, uses):
            self._texts[value] = (text, precedence)
            return []
        hint = self._scopes.given(value) or names.results_of(op)[0]
        return [f"{self._scopes.name(value, hint)}{shown_type(value.type)} = {text}{told}"]

    def _is_inlined(self, op: ir.Operation, text: str, told: str, uses: Sequence[ir.OpOperand]) -> bool:
        if is_constant(op) or is_size(op):
            return True
        single = len(uses) == 1 and uses[0].owner.operation.block == op.block
        if single and names.is_end(uses[0].owner.operation) and len(uses[0].owner.operation.operands) == 1 and not told:
            return True
        if told or len(text) > _INLINED or self._scopes.given(op.results[0]) is not None:
            return False
        if op.name == "memref.load" and not op.parent.name.startswith(_PURE):
            return False  # what is stored between the two would be read
        return single or op.name == "tensor.extract"

    # Regions.

    def _block(self, block: ir.Block, assigned: Mapping[ir.Value, str] | None = None, end: bool = True) -> list[str]:
        """The statements of a block, the last op's where `end` asks for it; `assigned` are values that have a place of their own."""
        lines = []
        for op in [view.operation for view in block.operations]:
            value = op.results[0] if len(op.results) == 1 else None
            if assigned and value in assigned and is_expression(op):
                lines.append(f"{assigned[value]} = {expression(op, self._read)[0]}{flags(op)}")
                self._scopes.call(value, assigned[value])
            elif end or op != _last(block):
                lines += self.operation(op)
        return lines

    def _arguments(self, op: ir.Operation, block: ir.Block) -> list[str]:
        hints = names.arguments_of(op, block)
        typed = op.name.endswith(".func")
        return [
            self._scopes.name(argument, self._scopes.given(argument) or hint)
            + (f": {type_text(argument.type)}" if typed else shown_type(argument.type))
            for argument, hint in zip(block.arguments, hints, strict=True)
        ]

    def _region(self, op: ir.Operation, region: ir.Region) -> tuple[list[str], list[str]]:
        """The arguments of a region's first block, and its lines; blocks after the first one have labels."""
        self._scopes.enter()
        blocks = list(region.blocks)
        heads = [self._arguments(op, block) for block in blocks]
        lines = []
        for number, (block, head) in enumerate(zip(blocks, heads, strict=True)):
            body = self._block(block)
            lines += [f"^block{number}({', '.join(head)}):", *_indented(body)] if number else body
        self._scopes.leave()
        return heads[0] if heads else [], lines

    def _module(self, op: ir.Operation) -> list[str]:
        told = attributes_of(op)
        lines = [f"module {in_words(told)}", ""] if told else []
        for number, view in enumerate(op.regions[0].blocks[0].operations):
            lines += [""] * bool(number) + self.operation(view.operation)
        return lines

    def _function(self, op: ir.Operation) -> list[str]:
        type_ = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
        results = ", ".join(map(type_text, type_.results))
        results = f" -> ({results})" if results else ""
        name = ir.StringAttr(op.attributes["sym_name"]).value
        head = "private func " if _attribute(op, "sym_visibility") == '"private"' else "func "
        if not len(op.regions[0].blocks):
            return [f"{head}@{name}({', '.join(map(type_text, type_.inputs))}){results}"]
        arguments, lines = self._region(op, op.regions[0])
        told = [f"# {key}{' = ' if text else ''}{text}" for key, text in attributes_of(op, "function_type", "sym_visibility")]
        return [f"{head}@{name}({', '.join(arguments)}){results} {{", *_indented([*told, *lines]), "}"]

    # Structured control.

    def _loop(self, op: ir.Operation) -> list[str]:
        block = op.regions[0].blocks[0]
        begin, end, step = (self._read(value, ATOM) for value in list(op.operands)[:3])
        started = list(op.operands)[3:]
        carried = list(block.arguments)[1:]
        hints = [self._scopes.given(argument) or self._base(value) for argument, value in zip(carried, started, strict=True)]
        results = self._results(op, hints)
        self._scopes.enter()
        index = self._scopes.name(block.arguments[0], self._scopes.given(block.arguments[0]) or ("n" if step == "1" else "start"))
        parts = [f"{self._scopes.name(a, hint)} = {self._read(v)}" for a, hint, v in zip(carried, hints, started, strict=True)]
        told = in_words(attributes_of(op))
        lines = self._block(block, end=bool(carried))
        self._scopes.leave()
        head = f"{results}scf.for {index} = {begin} to {end} step {step}{' with ' if parts else ''}{', '.join(parts)}"
        return [f"{head}{f' [{told}]' if told else ''} {{", *_indented(lines), "}"]

    def _branch(self, op: ir.Operation) -> list[str]:
        head = f"{self._results(op)}scf.if {self._read(op.operands[0])} {{"
        bodies = []
        for region in op.regions:
            self._scopes.enter()
            bodies.append([line for block in region.blocks for line in self._block(block, end=bool(len(op.results)))])
            self._scopes.leave()
        yes, no = bodies
        return [head, *_indented(yes), *(["} else {", *_indented(no)] if no else []), "}"]

    # The tile dialect.

    def _map(self, op: ir.Operation) -> list[str]:
        """A loop nest over the elements: each result is assigned where its value is computed, reductions at the end."""
        block = op.regions[0].blocks[0]
        yielded = list(_last(block).operands)
        kinds = [ir.StringAttr(kind).value for kind in ir.ArrayAttr(op.attributes["reductions"])]
        if op.name == "tile.map":
            extents = [self._read(value, ATOM) for value in op.operands]
            kinds = [""] * (len(yielded) - len(kinds)) + kinds
        else:
            extents = [str(extent) for extent in ir.DenseI64ArrayAttr(op.attributes["shape"])]
        tiles = [value for value, kind in zip(yielded, kinds, strict=True) if not kind]
        results = self._results(op, [self._hint(value, tiles, kind) for value, kind in zip(yielded, kinds, strict=True)])
        called = [self._scopes.known(result) for result in op.results]
        self._scopes.enter()
        indices = self._arguments(op, block)
        element = f"[{', '.join(indices)}]"
        assigned: dict[ir.Value, str] = {}
        for value, kind, name in zip(yielded, kinds, called, strict=True):
            made = None if kind or isinstance(value.owner, ir.Block) else value.owner.operation
            if made is not None and made.block == block and not is_constant(made):
                assigned.setdefault(value, f"{name}{element}")
        lines = self._block(block, assigned, end=False)
        for value, kind, name in zip(yielded, kinds, called, strict=True):
            if kind:
                lines.append(f"{name}[{indices[0]}] {_REDUCTIONS[kind]} {self._read(value)}")
            elif assigned.get(value) != f"{name}{element}":
                lines.append(f"{name}{element} = {self._read(value)}")
        self._scopes.leave()
        loops = ", ".join(f"{index} < {extent}" for index, extent in zip(indices, extents, strict=True))
        others = in_words(attributes_of(op, "reductions", "shape"))
        return _braced(f"{op.name} {loops} -> {results.removesuffix(' = ')}{f' [{others}]' if others else ''}", lines)

    def _hint(self, value: ir.Value, tiles: Sequence[ir.Value], kind: str) -> str:
        """How a result of a map is called: as the value that is yielded for it, or as the reduction of a tile."""
        if kind and value in tiles:
            return f"row_{kind}"
        return self._scopes.given(value) or (f"row_{kind}" if kind else "tile")

    def _tile(self, op: ir.Operation) -> str | None:
        """What stands after the name of an op of the tile dialect that has a form of its own."""
        read = [self._read(value, ATOM) for value in op.operands]
        attributes = op.attributes
        match op.name:
            case "tile.load" | "tile.store":
                memory, b, h, row, count = read[-5:]
                place = f"{memory}[{b}, {h}, {row} :+ {count}]"
                return place if op.name == "tile.load" else f"{place} = {read[0]}"
            case "tile.load_pages":
                memory, table, b, h, row, count = read
                return f"{memory}[{table}[{b}], {h}, {row} :+ {count}]"
            case "tile.dot" | "tile.dot_add" | "tile.dot_rescale":
                a, b = (
                    text + "^T" * (name in attributes and ir.BoolAttr(attributes[name]).value)
                    for text, name in zip(read[-2:], ("transpose_a", "transpose_b"), strict=True)
                )
                before = "".join(f"{text} {sign} " for text, sign in zip(read[:-2], ("+",) if len(read) == 3 else ("*", "+"), strict=False))
                told = in_words(attributes_of(op, "transpose_a", "transpose_b"))
                return f"{before}{a} @ {b}{f' [{told}]' if told else ''}"
        return None

    # Everything else.

    def _any(self, op: ir.Operation) -> list[str]:
        """An op by its declaration: `results = name(operands, attribute = text) |arguments| { ... }`."""
        symbol = _attribute(op, "callee") or f"@{_attribute(op, 'sym_name')}".replace('"', "")
        symbol = f" {symbol}" if symbol != "@" else ""
        operands = self._operands(op)
        if op.name == "arith.constant":
            return [f"{self._results(op)}{constant_text(op.attributes['value']).partition(' : ')[0]}"]
        told = attributes_of(op, "callee", *(("function_type",) if len(op.regions) and len(op.regions[0].blocks) else ()))
        results = self._results(op)
        regions = [self._region(op, region) for region in op.regions]
        successors = self._successors(op)
        alone = len(regions) == 1 and not operands
        words = [f"{key} = {text}" if text else key for key, text in told]
        if alone and regions[0][0]:
            bracketed = f"[{', '.join(words)}]" if words else ""
            head = f"{op.name}{symbol}{bracketed}({', '.join(regions[0][0])})"
        else:
            head = f"{op.name}{symbol}({', '.join([*operands, *words])}){successors}"
        head = results + head
        if not regions:
            return [head]
        lines: list[str] = []
        for number, (arguments, body) in enumerate(regions):
            taken = f" |{', '.join(arguments)}|" if arguments and not alone else ""
            opened = f"{head}{taken}" if not number else f"{lines.pop()},{taken}"
            lines += _braced(opened, body) if len(regions) == 1 else [f"{opened} {{", *_indented(body), "}"]
        return lines

    def _operands(self, op: ir.Operation) -> list[str]:
        """The operands that are no successor's: optional ones by name, all of them where there are many."""
        values = list(op.operands)[: len(op.operands) - sum(self._passed(op))]
        fields = names.fields_of(op, ext.OperandDef)[: len(values)]
        optional = names.optional_of(op)
        labelled = set(fields) if len(values) >= _LABELLED and not optional else optional
        return [
            f"{field} = {self._read(value)}" if field in labelled and field else self._read(value)
            for value, field in zip(values, fields, strict=True)
        ]

    def _passed(self, op: ir.Operation) -> list[int]:
        """How many operands each successor of an op gets."""
        count = len(op.successors)
        return names.segments(op, "operand")[-count:] if count > 1 else [len(op.operands)] * count

    def _successors(self, op: ir.Operation) -> str:
        if not len(op.successors):
            return ""
        sizes, blocks = self._passed(op), list(op.block.region.blocks)
        values = list(op.operands)[len(op.operands) - sum(sizes) :]
        told = []
        for successor, size in zip(op.successors, sizes, strict=True):
            told.append(f"^block{blocks.index(successor)}({self._list(values[:size])})")
            values = values[size:]
        return f" -> {', '.join(told)}"
