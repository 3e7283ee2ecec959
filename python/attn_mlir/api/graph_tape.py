"""Programs of engines inside torch.compile, which dynamo does not look into: what their functions capture becomes part of the graph.

Steps of the trace's tape, what functions compute of captured tensors, do so, too.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from attn_mlir.api.engine_arguments import EngineDevice
from attn_mlir.api.graph_parts import constant_in_graphs
from attn_mlir.api.tuning import Tuning
from attn_mlir.api.watched import Watched
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.node import Source
from attn_mlir.frontend.tape import Found, Ref, leaves_of
from attn_mlir.runtime.dispatch import forward_in_graph, ops
from attn_mlir.runtime.programs import Program, program_of, served_by

GraphSource = tuple[Source, str, str]
"""Where a captured value comes from, its kind, and the argument that it is."""
GraphStep = tuple[int, Any, tuple[Any, ...], tuple[str, ...], tuple[Any, ...], bool | None]
"""Number, function, arguments, the names of further ones, these, and whether gradients are recorded."""
Reads = Sequence[Callable[[], Any] | None]


class GraphEngine:
    """What engines have in common, mostly inside torch.compile. Their `_find` gives the trace for dtypes of custom inputs and a device."""

    _custom_argument: ClassVar[str]
    """The argument of the constructor that declares further inputs."""
    _device: EngineDevice
    _tuning: Tuning | None
    _deterministic = False
    _find: Callable[..., Any]
    _traced: Callable[[], Entry]

    def _compiled(self) -> tuple[Entry, str]:
        return self._traced(), self._device.name or "cpu"

    def _watch(self, form: Hashable, places: Mapping[str, Sequence[str]], *functions: Sequence[Any]) -> None:
        """Begins to watch functions, those of a forward pass and, where they are others, with those of a backward pass.

        `form` is what else shapes programs; `places` has the names of further inputs, "custom", and of those of "dropout".
        """
        self._watched = [Watched(each, form) for each in functions]
        self._accessors = [watched.reads for watched in self._watched]
        self._places = places
        self._steps: list[tuple[GraphStep, ...]] = [()]

    @constant_in_graphs
    def _look_again(self) -> None:
        """Finds again what reads the variables of the functions, where these are others by now."""
        self._accessors = [watched.refresh() for watched in self._watched]

    @constant_in_graphs
    def _graph_program(
        self, which: int, device: str, asked: tuple[Any, ...], *dtypes: torch.dtype
    ) -> tuple[Entry, str, tuple[GraphSource, ...], tuple[tuple[int, int, Any], ...], int]:
        """The trace, the program's name, where its captures come from, what it was specialised on, and which of `_steps` compute captures.

        `which` functions are meant, of those that are watched; `asked` are further arguments of `_find`. What it was specialised on is a
        leaf, a dimension (-1: the number itself) and a value. Raises UnsupportedError for what has to leave torch, and for what none of
        the `_accessors` reads.
        """
        ops()  # registers the operator
        with _disable_current_modes():  # constants in the functions are real, not part of the graph that is being made
            entry, scan = self._find(dtypes, torch.device(device), *asked)
        program = program_of(entry if self._tuning is None else self._tuning.latest(entry, device), self._deterministic)
        reads, custom = self._accessors[which], self._custom_argument
        steps, needed = _steps(entry, reads, custom), _specialised_on(entry, scan, reads, custom)
        sources = _sources(entry, program, reads, custom, self._places)
        return entry, _named_in_graph(program, self._device.emulation), sources, needed, _kept_at(self._steps, steps)


def graph_values(
    sources: Sequence[GraphSource], needed: Sequence[tuple[int, int, Any]], steps: Sequence[GraphStep], reads: Reads,
    given: Mapping[str, Sequence[Any]],
) -> list[Any]:  # fmt: skip
    """The values of a program's captures, of which callers give some by their kind. dynamo traces this.

    torch compiles again where a value is not what the program was specialised on.
    """
    for position, dim, value in needed:
        content: Any = reads[position]()  # type: ignore[misc]
        if (content if dim < 0 else content.shape[dim]) != value:
            raise UnsupportedError("a captured number changed while torch.compile traced the call")
    found = _found_in_graph(steps, reads)
    return [given[source[0]][source[1]] if source[0] in given else found.value(source) for source, _, _ in sources]


def call_in_graph(qkv: Sequence[torch.Tensor], values: Sequence[Any], sources: Sequence[GraphSource], name: str, layout: str) -> list[Any]:
    """The operator on q, k, v and the values of captures."""
    arguments = ["q", "k", "v", *[argument for _, _, argument in sources]]
    return forward_in_graph([*qkv, *values], arguments, [kind for _, kind, _ in sources], name, layout)


def _steps(entry: Entry, reads: Reads, custom: str) -> tuple[GraphStep, ...]:
    """The steps that a program needs."""
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
    if traced.tape is None:
        return ()
    if traced.tape.packed is None:
        traced.tape.packed = tuple(map(_packed_step, steps))
    return traced.tape.packed


def _specialised_on(entry: Entry, scan: Any, reads: Reads, custom: str) -> tuple[tuple[int, int, Any], ...]:
    """What a program that torch.compile takes for a constant depends on."""
    traced = entry.traced
    sources = {source for source, _ in traced.specialised} | {s for decision in traced.decisions for s in decision.condition.sources}
    needed = []
    for source in sorted(sources, key=str):
        leaf = source[1] if source[0] == "size" else source
        position = int(leaf[1]) if leaf[0] == "leaf" else -1
        if not 0 <= position < len(reads) or reads[position] is None:
            what = "a number or size that a function decides something by"
            raise UnsupportedError(f"inside torch.compile, {what} must be that of a variable of the function itself, or of {custom}")
        needed.append((position, source[2] if source[0] == "size" else -1, Found(scan.leaves, {}).value(source)))
    return tuple(needed)


def _named_in_graph(program: Program, emulation: str) -> str:
    """The name of a program, as an emulation computes it where there is one; what dynamo asks of it is looked up, which it can't trace."""
    found = served_by(program, emulation) if emulation else program
    found.takes_derivative(len(found.kinds) + 2)
    return found.name


def _sources(entry: Entry, program: Program, reads: Reads, custom: str, places: Mapping[str, Sequence[str]]) -> tuple[GraphSource, ...]:
    """Where captures come from; of those in `places` ("custom", "dropout"), the numbers of their names."""
    sources = []
    for number, captured in enumerate(entry.traced.captures):
        kind, at = captured.source[0], captured.source[1]
        known = kind in ("computed", "input", *places) or (kind == "leaf" and int(at) < len(reads) and reads[int(at)] is not None)
        if not known:
            raise UnsupportedError(
                f"inside torch.compile, `{captured.name}` must be a variable of a function itself, or a tensor of {custom}"
            )
        source = (kind, places[kind].index(at)) if kind in places else captured.source
        sources.append((source, captured.kind.value, program.argument(3 + number)))
    return tuple(sources)


def _kept_at(all_steps: list[tuple[GraphStep, ...]], steps: tuple[GraphStep, ...]) -> int:
    """Where `steps` are kept: dynamo has to find its way to them, which it does not to what a function gave that it did not trace."""
    if not any(known is steps for known in all_steps) and steps:
        all_steps.append(steps)
    return next(place for place, known in enumerate(all_steps) if known is steps or not (known or steps))


def _found_in_graph(steps: Sequence[GraphStep], reads: Reads) -> Found:
    """What the functions capture, the values of steps among it."""
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


def _packed_step(step: Any) -> GraphStep:
    kwargs = step.kwargs
    return step.number, step.function, tuple(map(_packed, step.args)), tuple(kwargs), tuple(map(_packed, kwargs.values())), step.grad


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
