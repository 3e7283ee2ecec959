"""Traces an attention whose row function is given in online form: a step for a block of keys, and an epilogue."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch

from attn_mlir.frontend import functions, ops
from attn_mlir.frontend.bounds import extents
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.dropout import DropoutForm, with_dropout
from attn_mlir.frontend.emit import Inputs, Piece, emit, used_captures
from attn_mlir.frontend.functions import Parameter, choose_arity, trace_call
from attn_mlir.frontend.named_tensors import NamedTrace
from attn_mlir.frontend.node import Node
from attn_mlir.frontend.program import Traced, mask_piece, rebinder, unique
from attn_mlir.frontend.rebind import Rebinder
from attn_mlir.frontend.report import failure
from attn_mlir.frontend.scope import Scope
from attn_mlir.frontend.values import Value

Function = Callable[..., Any]

_POSITION = tuple(Parameter(name, "int", nonnegative=True) for name in ("b", "h", "q_idx"))
_SCORE = (Parameter("score", "float"), *_POSITION, Parameter("kv_idx", "int", nonnegative=True))
_STEP = (Parameter("scores", "float", varying=True), *_POSITION)
_EPILOGUE = (Parameter("o", "float", varying=True), *_POSITION)
_CUSTOM = Parameter("custom_fwd_inputs", "int")
_STATES, _ROWS = Parameter("online_rowscales", "int"), Parameter("final_rowscales", "int")
_PAIR = (*_POSITION, Parameter("kv_idx", "int", nonnegative=True))
_FORWARD = (Parameter("scores", "float"), *_PAIR)
_DOOSUM = Parameter("doosum_rowscales", "float")
_BACKWARD = (Parameter("dp", "float"), Parameter("scores", "float"), *_PAIR, _DOOSUM)
_ONE_PER_ROW = 'it must be one number for each row: reduce it, as in scores.get_reduce("sum")'


@dataclasses.dataclass(frozen=True)
class OnlineDefinition:
    """The functions of one attention in online form."""

    online_fwd: Function
    epilogue: Function
    states: Mapping[str, float]
    """The row states and their initial values."""
    outputs: Sequence[str]
    """The row outputs that the epilogue makes."""
    subject: str = "online_func"
    """How messages call what `online_fwd` and `epilogue` belong to."""
    score_mod: Function | None = None
    mask_mod: Function | None = None
    query_mod: Function | None = None
    key_mod: Function | None = None
    value_mod: Function | None = None
    custom: Any = None
    """What the functions get as custom_fwd_inputs."""
    dtypes: Mapping[str, torch.dtype] = dataclasses.field(default_factory=dict)
    """The dtypes of the named tensors."""
    forward: Function | None = None
    """The weights of a key once more, from its score and the row outputs; given together with `backward`."""
    backward: Function | None = None
    """The gradient of a score."""
    dropout: DropoutForm | None = None

    @property
    def functions(self) -> tuple[Any, ...]:
        mods = (self.query_mod, self.key_mod, self.value_mod, self.score_mod, self.mask_mod)
        return (*mods, self.online_fwd, self.epilogue, *(f for f in (self.forward, self.backward) if f is not None))


def trace_online(definition: OnlineDefinition, inputs: Inputs, device: Any = None) -> Traced:
    """Traces `definition` into `attn.online`, and, where they are given, `forward` and `backward` into functions beside it.

    Raises TraceError for what cannot be traced.
    """
    scan = Scan(definition.functions, detailed=True)
    state = NamedTrace(definition.dtypes)
    state.device, state.largest = device, inputs.largest
    state.reusable = scan.reusable
    rebind = rebinder(scan, state)
    pieces = []
    for name, function, position in (
        ("query", definition.query_mod, "q_idx"),
        ("key", definition.key_mod, "kv_idx"),
        ("value", definition.value_mod, "kv_idx"),
    ):
        if function is not None:
            pieces.append(_input_piece(state, definition, name, function, rebind, position))
    if definition.score_mod is not None:
        pieces.append(_score_piece(state, definition, definition.score_mod, rebind))
    pieces += mask_piece(state, definition.mask_mod, rebind)
    pieces += [_init_piece(state, definition), _step_piece(state, definition, rebind), _finalize_piece(state, definition, rebind)]
    pieces = with_dropout(state, pieces, definition.dropout)
    written = _written_pieces(state, definition, rebind)
    captures = unique(used_captures([*pieces, *written], state.captures, state.specialised))
    form = (inputs, pieces, definition.outputs, captures, state.specialised)
    text, located = emit(*form, accumulators=1)
    backward = emit(*form, accumulators=1, functions=written) if written else ("", "")
    nonzero = tuple(state.nonzero - set(state.specialised))
    specialised = tuple(state.specialised.items())
    return Traced(
        text, located, tuple(captures), tuple(definition.outputs), specialised, nonzero, extents([*pieces, *written]), state.reusable,
        backward, tape=state.tape(captures), decisions=tuple(state.decisions.values()),
    )  # fmt: skip


def _call(
    state: NamedTrace,
    kind: str,
    role: str,
    function: Function,
    rebind: Rebinder,
    choices: Sequence[Sequence[Parameter]],
    full: Sequence[Parameter],
    *,
    custom: Any = None,
    states: Sequence[str] = (),
) -> tuple[tuple[Node, ...], Any]:
    """Calls `function`, which takes the parameters of one of `choices`, for a piece with the arguments `full` and `states`."""
    chosen = choose_arity(role, function, choices)
    asked = next(choice for choice in choices if len(choice) == len(chosen))
    written = {parameter.name: user.name for parameter, user in zip(asked, chosen, strict=True)}
    parameters = [dataclasses.replace(p, name=written.get(p.name, p.name)) for p in full]
    parameters += [Parameter(name, "float") for name in states]
    rebound = rebind(function)

    def adapter(*values: Value) -> Any:
        given: dict[str, Any] = {p.name: value for p, value in zip(full, values, strict=False)}
        given[_CUSTOM.name] = custom
        given[_STATES.name] = given[_ROWS.name] = dict(zip(states, values[len(full) :], strict=True))
        return rebound(*(given[p.name] for p in asked))

    adapter.__name__ = getattr(function, "__name__", type(function).__name__)
    return trace_call(state, kind, role, adapter, parameters)


def _input_piece(state: NamedTrace, definition: OnlineDefinition, name: str, function: Function, rebind: Rebinder, position: str) -> Piece:
    x, *indices = (Parameter("x", "float"), *_POSITION[:2], *(Parameter(n, "int", nonnegative=True) for n in (position, "d")))
    choices = ((x,), (x, _CUSTOM), (x, *indices), (x, _CUSTOM, *indices))
    role = f"{name}_mod"
    arguments, result = _call(state, name, role, function, rebind, choices, (x, *indices), custom=definition.custom)
    node = functions.as_float(state, result, function, role, "the changed element")
    return Piece(name, arguments, (node,), functions.position_of(function))


def _score_piece(state: NamedTrace, definition: OnlineDefinition, function: Function, rebind: Rebinder) -> Piece:
    choices = ((_SCORE[0], _CUSTOM, *_SCORE[1:]), _SCORE)
    arguments, result = _call(state, "score", "score_mod", function, rebind, choices, _SCORE, custom=definition.custom)
    node = functions.as_float(state, result, function, "score_mod", "the changed score")
    return Piece("score", arguments, (node,), functions.position_of(function))


def _init_piece(state: NamedTrace, definition: OnlineDefinition) -> Piece:
    state.scope = Scope("init", definition.subject)
    arguments = tuple(state.argument(p.name, p.kind, nonnegative=True) for p in _POSITION)
    return Piece("init", arguments, tuple(ops.constant(float(value)) for value in definition.states.values()))


def _step_piece(state: NamedTrace, definition: OnlineDefinition, rebind: Rebinder) -> Piece:
    function = definition.online_fwd
    choices = ((_STEP[0], _STATES, *_POSITION),)
    arguments, result = _call(state, "step", definition.subject, function, rebind, choices, _STEP, states=tuple(definition.states))
    if not isinstance(result, tuple) or len(result) != 3:
        _fail(definition, function, f"returned {_described(result)}", "return scores, new_online_rowscales, o_scale")
    weight, states, scale = result
    names = _check_names(definition, function, states, tuple(definition.states), "row states", "online_rowscales")
    nodes = [_row_number(state, definition, function, states[name], f"the row state {name!r}") for name in names]
    weight = functions.as_float(state, weight, function, definition.subject, "the weight of each key")
    scale = _row_number(state, definition, function, scale, "o_scale")
    return Piece("step", arguments, (*nodes, weight, scale), functions.position_of(function))


def _finalize_piece(state: NamedTrace, definition: OnlineDefinition, rebind: Rebinder) -> Piece:
    function = definition.epilogue
    choices = ((_EPILOGUE[0], _STATES, *_POSITION),)
    arguments, result = _call(state, "finalize", definition.subject, function, rebind, choices, _EPILOGUE, states=tuple(definition.states))
    if not isinstance(result, tuple) or len(result) != 2:
        _fail(definition, function, f"returned {_described(result)}", "return o_new, final_rowscales")
    o, rows = result
    names = _check_names(definition, function, rows, definition.outputs, "row outputs", "final_rowscales")
    o = functions.as_float(state, o, function, definition.subject, "the output")
    nodes = [_row_number(state, definition, function, rows[name], f"the row output {name!r}") for name in names]
    return Piece("finalize", arguments, (o, *nodes), functions.position_of(function))


def _written_pieces(state: NamedTrace, definition: OnlineDefinition, rebind: Rebinder) -> list[Piece]:
    """`forward` and `backward`: what a key weighs, and the gradient of its score."""
    if definition.forward is None or definition.backward is None:
        return []
    return [
        _pair_piece(state, definition, rebind, "weight", definition.forward, ((_FORWARD[0], _ROWS, *_PAIR),), _FORWARD),
        _pair_piece(state, definition, rebind, "dscore", definition.backward, _backward_choices(), _BACKWARD),
    ]


def _backward_choices() -> tuple[Sequence[Parameter], ...]:
    dp, scores = _BACKWARD[:2]
    return ((dp, scores, _ROWS, _DOOSUM, *_PAIR), (dp, scores, _ROWS, *_PAIR))


def _pair_piece(
    state: NamedTrace,
    definition: OnlineDefinition,
    rebind: Rebinder,
    name: str,
    function: Function,
    choices: Sequence[Sequence[Parameter]],
    full: Sequence[Parameter],
) -> Piece:
    arguments, result = _call(state, name, definition.subject, function, rebind, choices, full, states=tuple(definition.outputs))
    what = "the weight of a key" if name == "weight" else "the gradient of a score"
    node = functions.as_float(state, result, function, definition.subject, what)
    return Piece(name, arguments, (node,), functions.position_of(function))


def _row_number(state: NamedTrace, definition: OnlineDefinition, function: Function, value: Any, what: str) -> Node:
    """A result that must not differ within a row."""
    node = functions.as_float(state, value, function, definition.subject, what)
    if node.varying:
        along = "key to key" if state.scope is not None and state.scope.kind == "step" else "column to column of o"
        advice = _ONE_PER_ROW if along == "key to key" else "compute it from online_rowscales"
        raise failure(
            functions.subject(definition.subject, function),
            f"{what} differs from {along}",
            advice,
            node.position or functions.position_of(function),
        )
    return node


def _check_names(
    definition: OnlineDefinition, function: Function, given: Any, wanted: Sequence[str], what: str, where: str
) -> Sequence[str]:
    if not isinstance(given, Mapping):
        _fail(
            definition,
            function,
            f"returned {_described(given)} for its {what}",
            f"return a dictionary with the names of {where}: {_list(wanted)}",
        )
    missing, unknown = [name for name in wanted if name not in given], [name for name in given if name not in wanted]
    if missing:
        _fail(
            definition,
            function,
            f"does not return the {what} {_list(missing)}",
            f"{where} in __init__ declares {_list(wanted)}; return them all",
        )
    if unknown:
        _fail(
            definition,
            function,
            f"returns {_list(unknown)}, which {where} in __init__ does not declare",
            "declare it there, or leave it out",
        )
    return wanted


def _fail(definition: OnlineDefinition, function: Function, problem: str, advice: str) -> NoReturn:
    raise failure(functions.subject(definition.subject, function), problem, advice, functions.position_of(function))


def _described(result: Any) -> str:
    return f"a tuple of {len(result)}" if isinstance(result, tuple) else "None" if result is None else f"a {type(result).__name__}"


def _list(names: Sequence[Any]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
