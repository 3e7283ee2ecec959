"""Names of values: those of the author where the IR has them, else what the op says of its arguments and results."""

import re
from collections.abc import Sequence

from attn_mlir.mlir import ext, ir

_WORD = re.compile(r"[A-Za-z_]\w*")
_SIGNATURE = re.compile(r"\(([a-z][\w, ]*)\) ->")
_MADE = re.compile(r"((?:%[\w$.-]+(?::\d+)?, )*%[\w$.-]+(?::\d+)?) = $")
_USED = re.compile(r"%([A-Za-z_]\w*)")
_NUMBER = re.compile(r"_\d+$")
_USUAL = re.compile(r"arg\d+|c\d+\w*|c-\d+\w*|cst|true|false|dim|extracted|alloc|alloca|view|subview|poison")
"""Names that MLIR prints where values have none."""
_GRID = ("block", "head", "batch")
_ELEMENT = ("i", "j")


class Scopes:
    """Names of the values that are visible; a name is used again once its values are out of sight."""

    def __init__(self, source: str = "") -> None:
        self._names: dict[ir.Value, str] = {}
        self._taken: list[set[str]] = [set()]
        self._lines = source.splitlines()

    def given(self, value: ir.Value) -> str | None:
        """The name that a location gives a value, or the text that it was read from; None where the author gave none."""
        op = None if isinstance(value.owner, ir.Block) else value.owner.operation
        location = value.location if op is None else op.location
        if isinstance(location, ir.NameLoc):
            return location.name_str if _WORD.fullmatch(location.name_str) else None
        if not self._lines or not isinstance(location, ir.FileLineColLoc):
            return None
        line = self._lines[location.start_line - 1] if location.start_line <= len(self._lines) else ""
        before, behind = line[: location.start_col - 1], line[location.start_col - 1 :]
        if op is None:
            found = _USED.match(behind)
            return None if found is None else _own(found[1])
        made = _MADE.search(before)
        if made is None or not behind.lstrip('"').startswith(op.name.removeprefix("func.")):
            return None  # an op that came in place of the one that was read
        names = [name.partition(":")[0] for name in made[1].split(", ")]
        return _own(names[list(op.results).index(value) % len(names)].removeprefix("%"))

    def enter(self) -> None:
        """Begins a region."""
        self._taken.append(set())

    def leave(self) -> None:
        """Ends a region."""
        self._taken.pop()

    def known(self, value: ir.Value) -> str | None:
        """The name that a value has, or what it is called, None where it has none yet."""
        return self._names.get(value)

    def call(self, value: ir.Value, text: str) -> None:
        """Lets a value be called by a text, which need be no name of its own."""
        self._names[value] = text

    def name(self, value: ir.Value, hint: str) -> str:
        """Gives a value a name like `hint` that no visible value has."""
        if value in self._names:
            return self._names[value]
        number, name = 0, hint
        while any(name in taken for taken in self._taken):
            number += 1
            name = f"{hint}_{number}"
        self._taken[-1].add(name)
        self._names[value] = name
        return name


def _own(name: str) -> str | None:
    """A name as its author wrote it, without the number that MLIR puts after it where it is not the only one."""
    name = _NUMBER.sub("", name)
    return name if _WORD.fullmatch(name) and not _USUAL.fullmatch(name) else None


def arguments_of(op: ir.Operation, block: ir.Block) -> list[str]:
    """How the arguments of a block of an op are called where nobody named them."""
    count = len(block.arguments)
    if op.name.endswith(".func") and block == op.regions[0].blocks[0]:
        return _of_function(block)
    if op.name in ("tile.map", "warp.map", "warp.drop", "tile.band", "tile.add_band"):
        return list(_ELEMENT[:count])
    signature = _SIGNATURE.search(type(op.opview).__doc__ or "")
    names = [name.replace(" ", "_") for name in signature[1].split(", ")] if signature else []
    return names if len(names) == count else [f"x{number}" if number else "x" for number in range(count)]


def _of_function(block: ir.Block) -> list[str]:
    """An argument of a function is called as the first op of ours that takes it calls it."""
    names = {argument: f"arg{number}" for number, argument in enumerate(block.arguments)}
    fresh = set(names)
    for view in block.operations:
        for value, field in zip(view.operation.operands, fields_of(view.operation, ext.OperandDef), strict=True):
            if field is not None and view.operation.name.startswith("attn.") and value in fresh:
                names[value] = field
                fresh.discard(value)
    return list(names.values())


def fields_of(op: ir.Operation, kind: type) -> list[str | None]:
    """The names that the declaration of an op of ours gives its operands or results; None for others, and for all but the first of many."""
    values = op.operands if kind is ext.OperandDef else op.results
    fields = [field for field in getattr(type(op.opview), "_fields", ()) if isinstance(field, kind)]
    if not fields:
        return [None] * len(values)
    sizes = segments(op, "operand" if kind is ext.OperandDef else "result") or _single(fields, len(values))
    found: list[str | None] = []
    for field, size in zip(fields, sizes, strict=True):
        found += [field.name if size == 1 else None] * size
    return found


def optional_of(op: ir.Operation) -> set[str | None]:
    """The operands that an op of ours need not have."""
    fields = getattr(type(op.opview), "_fields", ())
    return {field.name for field in fields if isinstance(field, ext.OperandDef) and field.variadicity == ext.Variadicity.optional}


def segments(op: ir.Operation, kind: str) -> list[int]:
    """The numbers of operands or results of each field, where the op says them."""
    name = f"{kind}SegmentSizes"
    return list(ir.DenseI32ArrayAttr(op.attributes[name])) if name in op.attributes else []


def _single(fields: Sequence[ext.OperandDef], count: int) -> list[int]:
    """How many values each field has, where one of them may have any number."""
    spare = count - len(fields) + 1
    return [1 if field.variadicity == ext.Variadicity.single else spare for field in fields]


def results_of(op: ir.Operation) -> list[str]:
    """How the results of an op are called where nobody named them."""
    if op.name == "tile.program_id":
        return [_GRID[ir.IntegerAttr(op.attributes["axis"]).value]]
    if op.name == "attn.reduce":
        return [ir.StringAttr(op.attributes["kind"]).value]
    if op.name == "tile.fill" and "accumulator" in op.attributes:
        return ["acc"]
    if op.name in ("attn.attention", "attn.online"):
        outputs = [ir.StringAttr(output).value for output in ir.ArrayAttr(op.attributes["outputs"])]
        return ["o", *[output if _WORD.fullmatch(output) else "row" for output in outputs]]
    fields = fields_of(op, ext.ResultDef)
    short = op.name.rpartition(".")[2]
    if op.name.startswith(("arith.", "math.", "tensor.", "memref.", "scf.")):
        short = "x"
    return [field if field not in (None, "result") else short for field in fields]


def is_end(op: ir.Operation) -> bool:
    """Whether an op ends a region with values, which it prints after `yield` or `return`."""
    return op.name.endswith((".yield", ".return"))
