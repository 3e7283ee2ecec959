"""The state of a kernel under print: text, names of values, and the next free byte of shared memory."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.backends.gpu import scalar_ops
from attn_mlir.backends.gpu.arguments import Arguments
from attn_mlir.backends.gpu.origins import printing
from attn_mlir.backends.gpu.rules import Rule, rule_of
from attn_mlir.backends.gpu.scalar_integers import IntegerContext
from attn_mlir.backends.gpu.scalars import Names
from attn_mlir.backends.gpu.writer import CodeWriter
from attn_mlir.backends.nvidia.forming.facts import target_of
from attn_mlir.backends.nvidia.warp.elements import element
from attn_mlir.backends.nvidia.warp.numbers import Numbers
from attn_mlir.dialects.warp.kinds import settled
from attn_mlir.dialects.warp.layouts import fragment
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_ROW = 128
"""Bytes of a row of a swizzle atom, usually."""
_WORDS = re.compile(r"\w+")
_OWN = "lane warp group shared memory r h c at low high".split()


@dataclass(frozen=True)
class Address:
    """A tile in shared memory: a C++ expression of its address, the bytes from one swizzle atom to the next, and in a row of one."""

    address: str
    atom: int
    row: int

    @property
    def tile(self) -> str:
        """An expression of the tile, of which single warps read matrices (attn_mma.cuh)."""
        return f"attn::Atoms{{{self.address}, {self.atom}{f', {self.row}' * (self.row != _ROW)}}}"


@dataclass(frozen=True)
class HalfAtom(Address):
    """Half of the columns of a swizzle atom, from byte `within` of its rows on: matrices are written there, and nothing else is."""

    within: str


@dataclass(frozen=True)
class SideBySide:
    """Two tiles in shared memory, the first of so many columns."""

    first: "Address | SideBySide"
    second: "Address | SideBySide"
    columns: int

    @property
    def type(self) -> str:
        """The type of the expression."""
        kinds = ("attn::Atoms" if isinstance(each, Address) else each.type for each in (self.first, self.second))
        return f"attn::Beside<{self.columns}, {', '.join(kinds)}>"

    @property
    def tile(self) -> str:
        """See `Address.tile`."""
        return f"{self.type}{{{self.first.tile}, {self.second.tile}}}"


class WarpPrinter:
    """Prints ops by their rules, which get the operands as they were printed.

    `printed` holds what stands for a value: a C++ expression or the name of an array, a `Address`, or, of an argument, the value.
    """

    def __init__(self, kernel: ir.Operation, rules: dict[str, Rule]) -> None:
        self.kernel, self.rules, self.target = kernel, rules, target_of(kernel)
        self.writer = CodeWriter()
        self.arguments = Arguments(kernel)
        self.names = Names([*_OWN, *self.arguments.names])
        self.context = IntegerContext(Numbers())
        self.printed: dict[ir.Value, Any] = {}
        self.instructions: dict[str, str] = {}
        self.headers: dict[str, None] = {}
        """Files of helpers that instructions need beside those of every kernel."""
        self.used, self.elected, self.rolled = 0, False, False
        self.reserved: dict[ir.Value, str] = {}
        """The addresses of buffers that are not printed yet."""
        self.windows: dict[ir.Operation, tuple[str, str]] = {}
        """Of reads of windows by the map under print: the address of this thread's elements, and the variable that holds some of them."""
        self.row_index = ""
        """Inside of a map: which of a thread's row values the element in register r belongs to."""
        for value in self.arguments.values:
            self.printed[value] = value if isinstance(value.type, ir.MemRefType) else self.arguments.scalar(value, self.type_of(value))

    # ---- text

    def line(self, *texts: str) -> None:
        """Adds statements."""
        self.writer.line(*texts)

    def block(self, block: ir.Block, targets: Sequence[str] = ()) -> None:
        """Prints the ops of a block; what it yields is assigned to `targets`."""
        for view in block.operations:
            op = view.operation
            if op.name in ("scf.yield", "warp.yield"):
                self.assign_all(targets, list(op.operands)[: len(targets)])
            else:
                self.op(op)

    def op(self, op: ir.Operation) -> None:
        """Prints one op. Raises UnsupportedError for one without a rule."""
        rule = rule_of(self.rules, op, f"warp: the printer for {self.target.arch}")
        with printing(op):
            rule(self, op, *(self.printed[value] for value in op.operands))

    # ---- names

    def name(self, value: ir.Value, hint: str) -> str:
        """A new C++ name for a value."""
        self.printed[value] = self.names.fresh(_own_name(value) or hint)
        return self.printed[value]

    def type_of(self, value: ir.Value) -> str:
        """The C++ type of a scalar, or of an element of the array that a fragment is."""
        tile = fragment(settled(value.type))
        return element(tile.element).register if tile is not None else self.context.type_of(value)

    def declare(self, value: ir.Value, hint: str) -> str:
        """A variable, or an array of registers, for a value that is assigned later."""
        self.printed[value] = self.variable(value, _own_name(value) or hint)
        return self.printed[value]

    def assign_all(self, targets: Sequence[str], values: Sequence[ir.Value]) -> None:
        """Gives variables their next values at once, as a yield does: each is read by all others before it changes."""
        left = [(target, value, self.source(value)) for target, value in zip(targets, values, strict=True)]
        left = [each for each in left if each[2] != each[0]]
        while left:
            taken = [{word for _, _, other in left[:n] + left[n + 1 :] for word in _WORDS.findall(other)} for n in range(len(left))]
            free = next((n for n, (target, _, _) in enumerate(left) if target not in taken[n]), None)
            if free is not None:
                target, value, source = left.pop(free)
                self.copy(target, source, value.type)
                continue
            target, value, _ = left[0]  # all wait for each other
            before = self.variable(value, f"old_{target}")
            self.copy(before, target, value.type)
            left = [(name, each, re.sub(rf"\b{target}\b", before, text)) for name, each, text in left]

    def source(self, value: ir.Value) -> str:
        """What a printed value is read as."""
        found = self.printed[value]
        return found.address if isinstance(found, Address) else found

    def variable(self, like: ir.Value, hint: str) -> str:
        """A variable, or an array of registers, for values like this one."""
        name, tile = self.names.fresh(hint), fragment(settled(like.type))
        size = f"[{count_of(like.type)}]" if tile is not None else ""
        self.line(f"{self.type_of(like)} {name}{size};")
        return name

    def define(self, value: ir.Value, text: str, hint: str) -> None:
        """A constant of this value."""
        self.line(f"const {self.type_of(value)} {self.name(value, hint)} = {text};")

    def assign(self, target: str, value: ir.Value) -> None:
        """Gives a variable or array another value."""
        self.copy(target, self.source(value), value.type)

    def copy(self, target: str, source: str, type_: ir.Type) -> None:
        """Copies a number or the registers of a fragment."""
        if source == target:
            return
        is_array = fragment(settled(type_)) is not None
        text = f"for (int r = 0; r < {count_of(type_)}; ++r) {target}[r] = {source}[r];" if is_array else f"{target} = {source};"
        self.line(*(["#pragma unroll"] if is_array else []), text)

    def helper(self, name: str) -> str:
        """The C++ name of a function of `scalar_ops.HELPERS`, whose definition is asked for."""
        self.context.helpers.add(name)
        return name

    def helper_source(self) -> str:
        """The definitions of the functions that were asked for."""
        return scalar_ops.helper_source(self.context.helpers)

    def shared(self, size: int, alignment: int) -> str:
        """Shared memory of so many bytes: its address."""
        begin = -(-self.used // alignment) * alignment
        self.used = begin + size
        return f"shared + {begin}" if begin else "shared"


def count_of(type_: ir.Type) -> int:
    """The size of the array that a fragment is in each thread."""
    tile = fragment(settled(type_))
    if tile is None:
        raise UnsupportedError(f"warp: {type_} is no fragment")
    return -(-tile.elements // element(tile.element).packed)


def plain(op: ir.Operation, name: str) -> Any:
    """A number, flag, string or list of these that is an attribute of an op."""
    attribute = op.attributes[name]
    return [each.value for each in attribute] if isinstance(attribute, ir.ArrayAttr) else attribute.value


def _own_name(value: ir.Value) -> str | None:
    """The name that a value has in the program, if any."""
    if isinstance(value.owner, ir.Block):
        location = ir.BlockArgument(value).location
    else:
        op = value.owner.operation
        location = op.location if len(op.results) == 1 else None
    return location.name_str if isinstance(location, ir.NameLoc) else None
