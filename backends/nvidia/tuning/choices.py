"""Choices for the kernels of a program, kept in its module: `nvidia.tuned = {kernel = {block_q = 128, ...}, ...}`.

So a tuned program is its text: whoever compiles it, in this or in another process, gets the tuned kernels.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia.target import TARGETS
from attn_mlir.backends.nvidia.tuning import space
from attn_mlir.backends.nvidia.tuning.facts import facts_of
from attn_mlir.backends.nvidia.tuning.table import next_length
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

TUNED = "nvidia.tuned"
EVERY = "every kernel"
"""The name under which choices for all kernels stand; those for one come first (see `tuned_name`)."""
_MODULE = re.compile(r"^module( attributes \{nvidia\.tuned = .*\})? \{$", re.MULTILINE)


def with_choices(text: str, choices: Mapping[str, Fields]) -> str:
    """The text of a module with choices for its kernels, by their names, in place of those that it has.

    Raises ValueError where the text has other attributes of its own.
    """
    told = ", ".join(f'"{name}" = {{{_fields(fields)}}}' for name, fields in sorted(choices.items()) if fields)
    head = f"module attributes {{{TUNED} = {{{told}}}}} {{" if told else "module {"
    changed, count = _MODULE.subn(lambda _: head, text, count=1)
    if not count:
        raise ValueError("the text holds no module without attributes")
    return changed


def choices_in(module: ir.Operation) -> dict[str, Fields]:
    """The choices that a module keeps, by the names of kernels. Raises ValueError for other things than numbers and words."""
    if TUNED not in module.attributes:
        return {}
    found = {}
    for item in ir.DictAttr(module.attributes[TUNED]):
        holder = {attributes.CHOICES: ir.DictAttr(item.attr)}
        found[item.name] = _read(holder[attributes.CHOICES])
    return found


def tuned_name(function: ir.Operation) -> str:
    """The name under which choices for a function stand: its own, for sweeps of segments with their length, as in "attention@1024".

    A program with segments has other kernels, which may have the same names.
    """
    name = ir.StringAttr(function.attributes["sym_name"]).value
    segments = [ir.IntegerAttr(op.attributes["segment"]).value for op in find_all(function, "attn.chunk") if "segment" in op.attributes]
    return f"{name}@{segments[0]}" if segments else name


def choices_for(function: ir.Operation, tuned: Mapping[str, Fields]) -> Fields:
    """What is chosen for a function before tiling: its own `tile.choices` first, then tuned ones, then the best untuned schedule.

    `length` among them asks for what is best for so many keys; `longer` tells from how many keys on other choices would be better.
    """
    own = attributes.read(function, attributes.CHOICES)
    known = {**tuned.get(EVERY, {}), **tuned.get(tuned_name(function), {}), **own}
    if "block_q" in known and "block_kv" in known:
        return known
    facts = facts_of(function)
    target = TARGETS.get(str(known.get("arch", "sm_90a")))
    if facts is None or target is None:
        return known
    if facts.sweep is not None and known.get("emitter") == "tilelang":
        facts = replace(facts, sweep=replace(facts.sweep, prepared=0))
    length = int(known.get("length", 0))
    longer = 0 if "block_q" in known or "block_kv" in known else next_length(facts, target.arch, length)
    return {**space.best(facts, target, length=length), **known, **({"longer": longer} if longer else {})}


def _fields(fields: Fields) -> str:
    return ", ".join(f"{name} = {value if isinstance(value, int) else chr(34) + value + chr(34)}" for name, value in sorted(fields.items()))


def _read(held: ir.DictAttr) -> Fields:
    fields: Fields = {}
    for item in held:
        if isinstance(item.attr, ir.IntegerAttr):
            fields[item.name] = item.attr.value
        elif isinstance(item.attr, ir.StringAttr):
            fields[item.name] = item.attr.value
        else:
            raise ValueError(f"'{TUNED}' holds numbers and words, got {item.name} = {item.attr}")
    return fields
