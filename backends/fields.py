"""Attributes that hold numbers and words: choices of a tuner, for a kernel or, by the names of kernels, for a module."""

import re
from collections.abc import Mapping

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

Fields = dict[str, int | str]

CHOICES = "tile.choices"
_FORMER = {"residents": "occupancy", "optimistic": "lazy_rescale", "turns": "ping_pong", "adders": "reduction_warps"}
"""What choices were called in tune files, and in programs that were saved before."""
_MODULE = r"^module( attributes \{%s = .*\})? \{$"


def write(fields: Mapping[str, int | str]) -> ir.DictAttr:
    """The attribute that holds them; needs an active context."""
    i64 = ir.IntegerType.get_signless(64)
    return ir.DictAttr.get({n: ir.IntegerAttr.get(i64, int(v)) if isinstance(v, int) else ir.StringAttr.get(v) for n, v in fields.items()})


def read(op: ir.Operation, name: str) -> Fields:
    """What attribute `name` of an op holds; empty without it. Raises ValueError for other things than numbers and words."""
    if name not in op.attributes:
        return {}
    return _read(ir.DictAttr(op.attributes[name]), name)


def with_tuned(text: str, choices: Mapping[str, Fields], name: str) -> str:
    """The text of a module whose attribute `name` holds choices for its kernels, by their names, in place of those that it has.

    So a tuned program is its text: whoever compiles it, in this or in another process, gets the tuned kernels. Raises ValueError where the
    text has other attributes of its own.
    """
    told = ", ".join(f'"{kernel}" = {{{_told(fields)}}}' for kernel, fields in sorted(choices.items()) if fields)
    head = f"module attributes {{{name} = {{{told}}}}} {{" if told else "module {"
    changed, count = re.subn(_MODULE % re.escape(name), lambda _: head, text, count=1, flags=re.MULTILINE)
    if not count:
        raise ValueError("the text holds no module without attributes")
    return changed


def tuned_in(module: ir.Operation, name: str) -> dict[str, Fields]:
    """The choices in attribute `name` of a module, by the names of kernels. Raises ValueError for other things than numbers and words."""
    if name not in module.attributes:
        return {}
    held = module.attributes[name]
    if not isinstance(held, ir.DictAttr) or not all(isinstance(item.attr, ir.DictAttr) for item in held):
        raise ValueError(f"'{name}' holds choices by the names of kernels, got {held}")
    return {item.name: _read(ir.DictAttr(item.attr), name) for item in held}


def tuned_name(function: ir.Operation) -> str:
    """The name under which choices for a function stand: its own, for scans of segments with their length, as in "attention@1024".

    A program with segments has other kernels, which may have the same names.
    """
    name = ir.StringAttr(function.attributes["sym_name"]).value
    segments = [ir.IntegerAttr(op.attributes["segment"]).value for op in find_all(function, "attn.chunk") if "segment" in op.attributes]
    return f"{name}@{segments[0]}" if segments else name


def as_called_now(choices: Mapping[str, int | str]) -> Fields:
    """Choices by the names that they have now."""
    return {_FORMER.get(name, name): choice for name, choice in choices.items()}


def _told(fields: Fields) -> str:
    return ", ".join(f"{name} = {value if isinstance(value, int) else chr(34) + value + chr(34)}" for name, value in sorted(fields.items()))


def _read(held: ir.DictAttr, name: str) -> Fields:
    fields: Fields = {}
    for item in held:
        value = item.attr
        if isinstance(value, ir.IntegerAttr):
            fields[item.name] = value.value
        elif isinstance(value, ir.StringAttr):
            fields[item.name] = value.value
        else:
            raise ValueError(f"'{name}' holds numbers and words, got {item.name} = {value}")
    return as_called_now(fields)
