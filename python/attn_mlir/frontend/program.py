"""Traces a whole attention: mods, mask and row become one module, with the list of what it captures."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from attn_mlir.capture_kinds import CaptureKind, as_tensor
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend import functions
from attn_mlir.frontend.bounds import Extent, extents
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.decisions import Decision
from attn_mlir.frontend.descales import with_descales
from attn_mlir.frontend.dropout import DropoutForm, with_dropout
from attn_mlir.frontend.emit import Inputs, Piece, emit, used_captures
from attn_mlir.frontend.functions import Parameter, choose_arity, refuse_score_mod, trace_call
from attn_mlir.frontend.given import list_captures, position_captures, product_captures, sequence_captures
from attn_mlir.frontend.key_scores import with_key_scores
from attn_mlir.frontend.node import Node, Source
from attn_mlir.frontend.rebind import Rebinder
from attn_mlir.frontend.reductions import logsumexp
from attn_mlir.frontend.report import failure
from attn_mlir.frontend.row_results import refuse_row_values, row_result
from attn_mlir.frontend.scope import Captured, Trace
from attn_mlir.frontend.scores import numbered, score_pieces, scores_of
from attn_mlir.frontend.tape import Tape
from attn_mlir.frontend.values import Value, wrap

__all__ = ["Definition", "Traced", "trace"]

_NO_OPTION = re.compile(r"""[\s"'+,={}]+""")
_POSITION = tuple(Parameter(name, "int", nonnegative=True) for name in ("b", "h", "q_idx"))
_KEY = Parameter("kv_idx", "int", nonnegative=True)
_ROW_KEY = Parameter("kv_idx", "int", varying=True, nonnegative=True)


def _mod(position: str) -> tuple[tuple[Parameter, ...], ...]:
    full = (Parameter("x", "float"), *_POSITION[:2], *(Parameter(name, "int", nonnegative=True) for name in (position, "d")))
    return full[:1], full


def with_positions(role: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A query_mod, key_mod or value_mod, which may take x alone, as a function of all five arguments. Raises TraceError for others."""
    if len(choose_arity(role, function, _mod("kv_idx" if role != "query_mod" else "q_idx"))) > 1:
        return function

    def of_element(x: Any, b: Any, h: Any, at: Any, d: Any) -> Any:
        return function(x)

    return of_element


@dataclasses.dataclass(frozen=True)
class Definition:
    """The user's functions of one attention, and which results are wanted."""

    row: Callable[..., Any]
    score_mod: Callable[..., Any] | None = None
    mask_mod: Callable[..., Any] | None = None
    query_mod: Callable[..., Any] | None = None
    key_mod: Callable[..., Any] | None = None
    value_mod: Callable[..., Any] | None = None
    scale: str | float = "runtime"
    """A number to compile in, or "runtime" for an argument."""
    extra_scales: tuple[str | float, ...] = ()
    """Those of the products of further pairs of q and k, of which there are as many."""
    lse: bool = False
    states: bool = False
    dropout: DropoutForm | None = None

    @property
    def functions(self) -> tuple[Any, ...]:
        return (self.query_mod, self.key_mod, self.value_mod, self.score_mod, self.mask_mod, self.row)


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced attention."""

    text: str
    """The module, without locations."""
    located: str
    """The module, with the user's file and line on every op."""
    captures: tuple[Captured, ...]
    """The further arguments of the function, in order."""
    outputs: tuple[str, ...]
    """The names of the row outputs."""
    specialised: tuple[tuple[Source, Any], ...] = ()
    """Captured scalars and sizes that became constants, with the values for which this holds."""
    nonzero: tuple[Source, ...] = ()
    """Captured integers that are divided by."""
    extents: tuple[Extent, ...] = ()
    """Sizes that captured tensors need."""
    reusable: bool = True
    """Whether another call with the same key may use it; otherwise trace again."""
    written: tuple[str, str] = ("", "")
    """The module, without and with locations, with what the user wrote for the backward pass; see `attn-custom-vjp`."""
    linear: tuple[str, ...] | None = None
    """Of a linear attention: its inputs besides q, k and v, which are the first captures. None of an attention."""
    segment: int | None = None
    """Of a linear attention: positions of segments that are scanned at the same time; 0: whole sequences, None: chosen for each call."""
    by_head: tuple[str, ...] = ()
    """Of a linear attention: which of q and k change by the head, and so need as many heads as v."""
    packed: bool = False
    """Whether the first captures are those of packed tensors, see `given.SEQUENCES`."""
    paged: bool = False
    """Whether `given.PAGES` follows them."""
    listed: bool = False
    """Whether the first captures are lists of keys, see `given.LISTS`."""
    tape: Tape | None = None
    """What is computed of captured values at every call, and what the trace is good for; None where nothing is."""
    decisions: tuple[Decision, ...] = ()
    """Branches taken on captured numbers."""
    weights: int = 1
    """How many weights the row gives, each with an o of its own."""
    splits: int = 0
    """How many parts keys are seen in where there are few queries; 0: chosen."""
    output: str = ""
    """The element type of o where it is not q's."""
    invariant: bool = False
    """Of packed tensors: whether gradients of a sequence have the same bits whatever else is in the batch."""

    @property
    def is_plain(self) -> bool:
        """Whether the program holds whatever the values of what is captured, and takes it as it is."""
        return not self.specialised and not self.decisions and self.tape is None


def trace(definition: Definition, inputs: Inputs, device: Any = None) -> Traced:
    """Traces `definition`. Raises TraceError for what cannot be traced."""
    scan = Scan(definition.functions, detailed=True)
    state = Trace()
    state.device, state.largest, state.head_dim = device, inputs.largest, inputs.head_dim
    state.reusable = scan.reusable
    rebind = rebinder(scan, state)
    pieces = []
    for name, role, function, position in (
        ("query", "query_mod", definition.query_mod, "q_idx"),
        ("key", "key_mod", definition.key_mod, "kv_idx"),
        ("value", "value_mod", definition.value_mod, "kv_idx"),
    ):
        if function is not None:
            pieces.append(_input_piece(state, name, role, function, rebind, position))
    scales = (definition.scale, *definition.extra_scales)
    pieces += score_pieces(state, definition.score_mod, scales, rebind)
    pieces += mask_piece(state, definition.mask_mod, rebind)
    row, key, outputs = _row_piece(state, definition, rebind, scores_of(pieces, len(scales)))
    weights = len(row.results) - len(outputs)
    pieces = with_descales(state, [*pieces, row], inputs.descales, weights)
    pieces = with_dropout(state, pieces, definition.dropout, len(scales), weights)
    pieces = with_key_scores(state, pieces, key, functions.subject("row", definition.row), len(scales))
    given = [*sequence_captures(inputs), *list_captures(inputs), *position_captures(inputs), *product_captures(inputs)]
    captures = unique([*given, *used_captures(pieces, state.captures, state.specialised)])
    text, located = emit(inputs, pieces, outputs, captures, state.specialised, labels=state.labels)
    return Traced(
        text,
        located,
        tuple(captures),
        tuple(outputs),
        tuple(state.specialised.items()),
        tuple(state.nonzero - set(state.specialised)),
        () if inputs.parts or inputs.group > 1 else extents(pieces),  # which are about positions in the tensors
        state.reusable,
        packed=inputs.packed,
        listed=bool(inputs.lists),
        paged=inputs.paged,
        tape=state.tape(captures),
        decisions=tuple(state.decisions.values()),
        weights=weights,
        output=inputs.output if inputs.output != inputs.element else "",
    )


def rebinder(scan: Scan, state: Trace) -> Rebinder:
    """Rebinds captured scalars to arguments, and makes the captured tensors known to the trace."""
    arrays: dict[int, torch.Tensor] = {}
    state.generators, state.stateful = scan.generators, scan.stateful

    def scalar(leaf: int) -> Value:
        value = scan.leaves[leaf]
        known = int(value) if isinstance(value, (int, np.integer)) else float(value)
        return wrap(state.capture(Captured(("leaf", leaf), scan.names[leaf], CaptureKind.of_number(known)), known))

    def array(x: np.ndarray) -> torch.Tensor:
        return arrays[id(x)] if id(x) in arrays else torch.from_numpy(x)

    for leaf, value in enumerate(scan.leaves):
        if isinstance(value, (torch.Tensor, np.ndarray)):
            try:
                tensor = as_tensor(value)
            except (TypeError, ValueError):
                raise ArgumentError(f"the captured array `{scan.names[leaf]}` has dtype {value.dtype}: use numbers") from None
            arrays[id(value)] = tensor
            state.keep.append(tensor)
            state.tensors[id(tensor)] = (("leaf", leaf), scan.names[leaf])
            if tensor is not value:
                state.arrays.add(id(tensor))
    return Rebinder(scan, scalar, array)


def _input_piece(state: Trace, name: str, role: str, function: Any, rebind: Rebinder, position: str) -> Piece:
    parameters = choose_arity(role, function, _mod(position))
    arguments, result = trace_call(state, name, role, rebind(function), parameters)
    node = functions.as_float(state, result, function, role, "the changed element")
    piece, pair = _piece(name, arguments, [node], _mod(position)[-1], function, state), state.scope.pair if state.scope else None
    if pair is None:
        return piece
    x, *position_, _ = piece.arguments
    return dataclasses.replace(piece, arguments=(x, pair.partner, *position_, pair.channel), partner=pair.kind)


def _piece(name: str, arguments: Sequence[Node], results: Sequence[Node], full: Sequence[Parameter], function: Any, state: Trace) -> Piece:
    """The piece, with the parameters that the user left out added."""
    missing = [state.argument(p.name, p.kind, nonnegative=p.nonnegative) for p in full[len(arguments) :]]
    return Piece(name, (*arguments, *missing), tuple(results), functions.position_of(function))


def mask_piece(state: Trace, function: Callable[..., Any] | None, rebind: Rebinder) -> list[Piece]:
    """The mask's piece; none where nothing is masked."""
    if function is None:
        return []
    parameters = choose_arity("mask_mod", function, [(*_POSITION, _KEY)])
    arguments, result = trace_call(state, "mask", "mask_mod", rebind(function), parameters)
    node = functions.as_condition(state, result, function, "mask_mod")
    if node.is_constant and node.known is True:
        return []
    return [Piece("mask", arguments, (node,), functions.position_of(function))]


def _row_piece(state: Trace, definition: Definition, rebind: Rebinder, count: int) -> tuple[Piece, Node | None, list[str]]:
    """The row of `count` scores, its kv_idx where it takes one, and the names of its outputs."""
    function = definition.row
    scores = tuple(Parameter(name, "float", varying=True) for name in numbered("s", count))
    full = (*scores, *_POSITION)
    parameters = choose_arity("row", function, [scores, full, (*full, _ROW_KEY)])
    refuse_score_mod(function, parameters, count)
    arguments, result = trace_call(state, "row", "row", rebind(function), parameters)
    weights, states = row_result(function, result)
    nodes = [functions.as_float(state, weight, function, "row", "the weight of each key") for weight in weights]
    refuse_row_values(function, nodes[1:])
    outputs: dict[str, Node] = {}
    for name, value in states.items():
        if definition.states or (definition.lse and name == "lse"):
            outputs[name] = functions.as_float(state, value, function, "row", f"a number for the row output {name!r}")
            if outputs[name].varying:
                advice = "a row output is one number for each row: reduce it, for example with .sum() or .max()"
                raise failure(
                    functions.subject("row", function),
                    f"the row output {name!r} differs from key to key",
                    advice,
                    outputs[name].position or functions.definition(function),
                )
    if definition.lse and "lse" not in outputs:
        with state:
            outputs["lse"] = logsumexp(wrap(arguments[0]))._node
        state.labels[outputs["lse"]] = "lse"
    key = arguments[len(full)] if len(arguments) > len(full) else None
    return _piece("row", arguments[: len(full)], [*nodes, *outputs.values()], full, function, state), key, list(outputs)


def unique(captures: Sequence[Captured]) -> list[Captured]:
    """The captures under names that differ, and that options of passes can hold: keys of dictionaries are any text."""
    taken = {"q", "k", "v"}
    unique = []
    for captured in captures:
        name, number = (plain := _NO_OPTION.sub("_", captured.name)), 0
        while name in taken:
            number += 1
            name = f"{plain}_{number}"
        taken.add(name)
        unique.append(dataclasses.replace(captured, name=name))
    return unique
