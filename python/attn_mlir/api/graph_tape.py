"""What the functions of an engine compute of captured tensors, inside torch.compile: steps of the trace's tape become part of the graph."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.node import Source
from attn_mlir.frontend.tape import Found, Ref, leaves_of
from attn_mlir.runtime.programs import Program, served_by

GraphStep = tuple[int, Any, tuple[Any, ...], tuple[str, ...], tuple[Any, ...], bool | None]
"""Number, function, arguments, the names of further ones, these, and whether gradients are recorded."""
Reads = Sequence[Callable[[], Any] | None]


def steps_of(entry: Entry, reads: Reads, custom: str) -> tuple[GraphStep, ...]:
    """The steps that a program needs. Raises UnsupportedError for what has to leave torch, and for what `reads` cannot read.

    `custom` is the argument for further inputs.
    """
    traced = entry.traced
    numbers = [c.name for c in traced.captures if c.source[0] == "computed" and c.kind != "tensor"]
    if not traced.reusable or numbers or (traced.tape is not None and traced.tape.facts):
        what = ", ".join(f"`{name}`" for name in numbers) or "a value that a function reads out of a captured tensor"
        raise UnsupportedError(f"inside torch.compile, {what} must be computed before the call: pass it as a tensor of {custom}")
    steps = () if traced.tape is None else tuple(traced.tape.steps)
    for leaf in leaves_of(steps):
        if not 0 <= leaf < len(reads) or reads[leaf] is None:
            computed = next((c.name for c in traced.captures if c.source[0] == "computed"), "a value")
            raise UnsupportedError(
                f"inside torch.compile, `{computed}` must be computed of variables of the function itself, or before the call: "
                f"pass it as a tensor of {custom}"
            )
    if traced.tape is not None and traced.tape.packed is not None:
        return traced.tape.packed
    packed = tuple(
        (s.number, s.function, tuple(map(_packed, s.args)), tuple(s.kwargs), tuple(map(_packed, s.kwargs.values())), s.grad) for s in steps
    )
    if traced.tape is not None:
        traced.tape.packed = packed
    return packed


def named_in_graph(program: Program, emulation: str) -> str:
    """The name of a program, as an emulation computes it where there is one; what dynamo asks of it is looked up, which it can't trace."""
    found = served_by(program, emulation) if emulation else program
    found.takes_derivative(len(found.kinds) + 2)
    return found.name


GraphSource = tuple[Source, str, str]
"""Where a captured value comes from, its kind, and the argument that it is."""


def sources_of(entry: Entry, program: Program, reads: Reads, further: str, places: Mapping[str, Sequence[str]]) -> tuple[GraphSource, ...]:
    """Where captures come from; of those in `places` ("custom", "dropout"), the numbers of their names. Raises UnsupportedError."""
    sources = []
    for number, captured in enumerate(entry.traced.captures):
        kind, at = captured.source[0], captured.source[1]
        known = kind in ("computed", "input", *places) or (kind == "leaf" and int(at) < len(reads) and reads[int(at)] is not None)
        if not known:
            raise UnsupportedError(
                f"inside torch.compile, `{captured.name}` must be a variable of a function itself, or a tensor of {further}"
            )
        source = (kind, places[kind].index(at)) if kind in places else captured.source
        sources.append((source, captured.kind.value, program.argument(3 + number)))
    return tuple(sources)


def kept_at(all_steps: list[tuple[GraphStep, ...]], steps: tuple[GraphStep, ...]) -> int:
    """Where `steps` are kept: dynamo has to find its way to them, which it does not to what a function gave that it did not trace."""
    if not any(known is steps for known in all_steps) and steps:
        all_steps.append(steps)
    return next(place for place, known in enumerate(all_steps) if known is steps or not (known or steps))


def found_in_graph(steps: Sequence[GraphStep], reads: Reads) -> Found:
    """What the functions capture, the values of steps among it. dynamo traces this."""
    found = Found([None if read is None else read() for read in reads], {})
    for number, function, args, names, values, grad in steps:
        args, kwargs = [_filled(arg, found) for arg in args], {}
        for name, value in zip(names, values, strict=True):
            kwargs[name] = _filled(value, found)
        if grad is None:
            found.values[number] = function(*args, **kwargs)
        else:
            with torch.set_grad_enabled(grad):
                found.values[number] = function(*args, **kwargs)
    return found


def _packed(item: Any) -> tuple[str, Any]:
    """An argument of a step, in tuples alone: of what it has made itself, dynamo takes no other containers."""
    if isinstance(item, Ref):
        return "ref", item.source
    if isinstance(item, slice):
        return "slice", tuple(map(_packed, (item.start, item.stop, item.step)))
    if type(item) in (tuple, list):
        return type(item).__name__, tuple(map(_packed, item))
    return "plain", item


def _filled(packed: tuple[str, Any], found: Found) -> Any:
    kind, item = packed
    if kind == "ref":
        return found.value(item)
    if kind == "plain":
        return item
    items = [_filled(part, found) for part in item]
    return slice(*items) if kind == "slice" else tuple(items) if kind == "tuple" else items
