"""The tape of a trace: what the user's functions compute of captured tensors alone, which torch computes again at every call.

A *step* is one torch function on captured tensors and on results of earlier steps. A tensor that it gives can be captured like any
other: its source is ("computed", step, ...), its value that of this call, and its gradient goes through torch's own functions. What
leaves torch, such as the bool of `if t > 0`, is a *fact*: the trace is good for calls in which it is the same.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from attn_mlir.capture_kinds import as_tensor
from attn_mlir.frontend.decisions import can_look_up
from attn_mlir.frontend.node import Node, Source
from attn_mlir.frontend.values import Value

PLAIN = (
    bool, int, float, complex, str, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout, torch.memory_format, np.generic,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Ref:
    """Stands for a value of the call among the arguments of a step."""

    source: Source


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TapeStep:
    """One torch function, with `Ref`s for what differs from call to call."""

    number: int
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grad: bool | None = None
    """Whether gradients are recorded, where the user's function says so itself."""

    def run(self, found: "Found") -> Any:
        """What the function gives for the values of a call."""
        args = [_filled(item, found) for item in self.args]
        kwargs = {name: _filled(item, found) for name, item in self.kwargs.items()} if self.kwargs else {}
        if self.grad is None:
            return self.function(*args, **kwargs)
        with torch.set_grad_enabled(self.grad):
            return self.function(*args, **kwargs)


class Tape:
    """The steps that a trace needs, in order, and what has to be the same again."""

    def __init__(self, steps: Sequence[TapeStep], facts: Mapping[Source, Any], kinds: Mapping[Source, Any], first: dict[int, Any]) -> None:
        self.steps = steps
        self.facts = facts
        self.kinds = kinds
        """What the program takes of the steps, and of which kind it is; see `_kind`."""
        self._first = first
        self.packed: tuple[Any, ...] | None = None
        """The steps as a graph of torch.compile takes them."""

    def first(self, leaves: Sequence[Any]) -> "Found":
        """The values of the call that was traced, to be had once."""
        values, self._first = self._first, {}
        return Found(leaves, values) if values else self.replay(leaves) or Found(leaves, {})

    def replay(self, leaves: Sequence[Any]) -> "Found | None":
        """The values of a call with these leaves; None where another trace is needed."""
        found = Found(leaves, {})
        try:
            for step in self.steps:
                found.values[step.number] = step.run(found)
            alike = all([same(found.value(source), value) for source, value in self.facts.items()])
            return found if alike and all([_kind(found.value(source)) == kind for source, kind in self.kinds.items()]) else None
        except Exception:  # whoever traces the function again gets the same one, with the user's line
            return None


@dataclasses.dataclass(eq=False, slots=True)
class Found:
    """What the functions of a call capture: the leaves of a `Scan`, and what the steps of a tape give."""

    leaves: Sequence[Any]
    values: dict[int, Any]

    def value(self, source: Source) -> Any:
        """The value of a leaf, of a size, or of a step or an item of it."""
        match source[0]:
            case "leaf":
                leaf = self.leaves[source[1]]
                return leaf if isinstance(leaf, torch.Tensor) else _number_or_tensor(leaf)
            case "size":
                return self.value(source[1]).shape[source[2]]
            case "len":
                return len(self.value(source[1]))
            case "none":
                return self.value(source[1]) is None
            case "computed":
                value = self.values[source[1]]
                for item in source[2:]:
                    value = value[item]
                return value
        raise LookupError(f"no value of a call: {source}")


def _number_or_tensor(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return as_tensor(leaf)
    return int(leaf) if isinstance(leaf, (int, np.integer)) else float(leaf)


def _filled(x: Any, found: Found) -> Any:
    kind = type(x)
    if kind is Ref:
        return found.value(x.source)
    if kind is tuple or kind is list:
        return kind([_filled(item, found) for item in x])
    if kind is slice:
        return slice(*(_filled(item, found) for item in (x.start, x.stop, x.step)))
    return x


def shared(value: Any) -> Any:
    """A value that is computed; views of a numpy array's memory are marked, as `as_tensor` does with the whole."""
    if isinstance(value, torch.Tensor) and getattr(value._base, "shares_numpy", False):
        value.shares_numpy = True  # type: ignore[attr-defined]
    return value


def _kind(value: Any) -> tuple[Any, ...]:
    """What of a value a program is made for: dtype and number of dimensions; of a number its type, and whether it is finite."""
    return (value.dtype, value.dim()) if isinstance(value, torch.Tensor) else (type(value), math.isfinite(value))


def same(a: Any, b: Any) -> bool:
    """Whether two facts are the same, NaN being so, too; 0.0 and -0.0 are not."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (float, np.floating)) and a == b == 0.0:
        return math.copysign(1.0, a) == math.copysign(1.0, b)
    return bool(a == b) or (a != a and b != b)


class TapeRecorder:
    """Makes the tape of one trace. `grad`: whether gradients are recorded around the user's functions."""

    def __init__(self, grad: bool) -> None:
        self.steps: list[TapeStep] = []
        self.facts: dict[Source, Any] = {}
        self.values: dict[int, Any] = {}
        """What the steps gave while tracing."""
        self._grad = grad

    def step(self, function: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Source:
        """Records that `function` gave `result`."""
        number, inner = len(self.steps), torch.is_grad_enabled()
        self.steps.append(TapeStep(number, function, args, kwargs, None if inner == self._grad else inner))
        self.values[number] = result
        return ("computed", number)

    def finish(self, captured: Iterable[Source], specialised: Iterable[Source]) -> Tape | None:
        """The tape of a program that takes and depends on these; None where it would be empty."""
        computed = [source for source in captured if source[0] == "computed"]
        needed = _needed(self.steps, [*computed, *specialised, *self.facts])
        if not needed:
            return None
        found = Found((), self.values)
        kinds = {source: _kind(found.value(source)) for source in computed}
        return Tape([step for step in self.steps if step.number in needed], self.facts, kinds, self.values)


def written(items: Any, sources: Mapping[int, tuple[Source, str]], constants: Mapping[int, Any]) -> Any:
    """`items` with `Ref`s for what differs from call to call. Raises LookupError where that is not known."""
    if isinstance(items, torch.Tensor):
        if id(items) in sources:
            return Ref(sources[id(items)][0])
        if id(items) in constants:
            return items
        raise LookupError
    if isinstance(items, Value):
        return Ref(scalar_source(items._node))
    if type(items) in (tuple, list):
        return type(items)([written(item, sources, constants) for item in items])
    if type(items) is dict:
        return {name: written(item, sources, constants) for name, item in items.items()}
    if isinstance(items, slice):
        return slice(*(written(item, sources, constants) for item in (items.start, items.stop, items.step)))
    if isinstance(items, np.ndarray):  # of numbers that are facts of the trace
        return items.copy()
    if isinstance(items, (*PLAIN, torch.Size)):
        return items
    raise LookupError


def scalar_source(node: Node) -> Source:
    """Where the value of a captured number or size comes from. Raises LookupError for what was computed of it."""
    source = node.attribute if node.op == "capture" else node.attribute[0] if node.op == "size" else None
    if source is None or not can_look_up(source):
        raise LookupError
    return source


def leaves_of(steps: Iterable[TapeStep]) -> set[int]:
    """The leaves that steps read."""
    sources = [_step_or_leaf(ref.source) for step in steps for ref in _refs([*step.args, *step.kwargs.values()])]
    return {source[1] for source in sources if source is not None and source[0] == "leaf"}


def _step_or_leaf(source: Source) -> Source | None:
    """The step or leaf that a source reads; None where it is neither."""
    while source[0] in ("size", "len", "none"):
        source = source[1]
    return source if source[0] in ("leaf", "computed") else None


def _needed(steps: Sequence[TapeStep], sources: Iterable[Source]) -> set[int]:
    needed: set[int] = set()
    waiting = list(sources)
    while waiting:
        source = _step_or_leaf(waiting.pop())
        if source is None or source[0] == "leaf" or source[1] in needed:
            continue
        needed.add(source[1])
        step = steps[source[1]]
        waiting.extend(ref.source for ref in _refs([*step.args, *step.kwargs.values()]))
    return needed


def _refs(items: Iterable[Any]) -> Iterable[Ref]:
    for item in items:
        if isinstance(item, Ref):
            yield item
        elif isinstance(item, (tuple, list)):
            yield from _refs(item)
        elif isinstance(item, slice):
            yield from _refs((item.start, item.stop, item.step))
