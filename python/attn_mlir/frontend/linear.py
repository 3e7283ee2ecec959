"""Traces a linear attention: its mods become one `attn.linear_attention`."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

import torch

from attn_mlir.capture_kinds import CaptureKind
from attn_mlir.dialects import loaded
from attn_mlir.dialects.attn import build
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend import functions, where
from attn_mlir.frontend.bounds import LINEAR_SIZES, extents
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.emit import Emitter, Inputs, Piece, location_of, texts_of, used_captures
from attn_mlir.frontend.functions import Parameter, choose_arity, trace_call
from attn_mlir.frontend.named_tensors import LINEAR_DIMS, NamedTrace
from attn_mlir.frontend.node import Node
from attn_mlir.frontend.program import Traced, rebinder, unique
from attn_mlir.frontend.reach import reachable
from attn_mlir.frontend.rebind import Rebinder
from attn_mlir.frontend.scope import Captured, Scope
from attn_mlir.frontend.scores import SCALE
from attn_mlir.frontend.tensors import CapturedTensor
from attn_mlir.frontend.values import Value, wrap
from attn_mlir.mlir import LOCK, ir

Function = Callable[..., Any]

_POSITION = tuple(Parameter(name, "int", nonnegative=True) for name in ("b", "h", "t"))
_CHANNEL = Parameter("d", "int", nonnegative=True)
_ELEMENT, _DECAY = Parameter("x", "float"), Parameter("g", "float")
_CUSTOM = Parameter("custom_io", "int")
_DECAY_PARAMETERS = (_DECAY, *_POSITION, _CHANNEL)
_MODS = (("query", "q_mod"), ("key", "k_mod"), ("value", "v_mod"))
_OWN_HEADS: dict[int, CodeType] = {}
"""The code of functions that `of_own_heads` marks, by identity: an attribute of a function would be looked at in every call."""
INPUTS = ("decay", "initial_state", "cu_seqlens", "erase", "erase_key", "removed_key")
"""What a linear attention may have besides q, k and v, in the order of its arguments."""


@dataclasses.dataclass(frozen=True)
class LinearDefinition:
    """The user's functions of one linear attention, and what else shapes its program."""

    q_mod: Function | None = None
    k_mod: Function | None = None
    v_mod: Function | None = None
    decay_mod: Function | None = None
    skip_mod: Function | None = None
    scale: str | float = 1.0
    """A number to compile in, or "runtime" for an argument."""
    decay: str = "none"
    """What the decay is like: "none", "head" [H], "head channel" [H, K], "step" [B, H, T] or "step channel" [B, H, T, K]."""
    initial_state: bool = False
    final_state: bool = False
    offsets: str = ""
    """The element type of cu_seqlens, "i32" or "i64"; empty where there are none."""
    segment: int | None = None
    """See `Traced.segment`."""
    erase: str = "none"
    """What the shares that are erased are like, as `decay` says it."""
    erase_key: bool = False
    removed_key: bool = False
    output: str = "after"
    """Where q reads the state, see `attn.linear_attention`."""
    erase_mod: Function | None = None
    custom: Any = None
    """What the functions may get as custom_io."""
    dtypes: Mapping[str, torch.dtype] = dataclasses.field(default_factory=dict)
    """The dtypes of the named tensors."""

    @property
    def functions(self) -> tuple[Any, ...]:
        return (self.q_mod, self.k_mod, self.v_mod, self.decay_mod, self.skip_mod, self.erase_mod)

    @property
    def erases(self) -> bool:
        """Whether it is a delta rule."""
        return self.erase != "none" or self.erase_mod is not None


def decay_has_channels(definition: LinearDefinition) -> bool:
    """Whether every key channel has its own decay: it comes so, or decay_mod asks for the channel."""
    if definition.decay.endswith("channel"):
        return True
    return definition.decay_mod is not None and _CHANNEL in _asked(definition, "decay_mod", definition.decay_mod, _DECAY_PARAMETERS)[0]


def trace_linear(definition: LinearDefinition, inputs: Inputs, device: Any = None) -> Traced:
    """Traces `definition`. Raises TraceError for what cannot be traced, UnsupportedError for a skip where there is none."""
    scan = Scan(definition.functions, detailed=True)
    dims = dict(LINEAR_DIMS)
    channels = decay_has_channels(definition)
    if definition.skip_mod is not None and (channels or definition.erases):
        beside = "decays of channels, [H, K], [B, H, T, K] or a decay_mod that takes d" if channels else "erase and erase_mod"
        raise UnsupportedError(f"skip_mod does not go with {beside}: leave it out, and add skip * v to o in PyTorch")
    if channels:
        dims["decay"] = dims["key"]
    state = NamedTrace(definition.dtypes, dims)
    state.device, state.heads_of, state.reusable, state.largest = device, "v", scan.reusable, inputs.largest
    rebind = rebinder(scan, state)
    given = _inputs(definition, "f64" if inputs.element == "f64" else "f32", channels, inputs.element)
    pieces = [_input_piece(state, definition, name, role, rebind) for name, role in _MODS if _is_changed(definition, name, role)]
    if definition.decay_mod is not None or "head" in definition.decay:
        pieces.append(_decay_piece(state, definition, given.get("decay"), rebind))
    if definition.skip_mod is not None:
        pieces.append(_skip_piece(state, definition.skip_mod, rebind))
    if definition.erases:
        pieces.append(_erase_piece(state, definition, given, rebind))
    read = used_captures(pieces, state.captures, state.specialised)
    captures = unique([*given.values(), *(captured for captured in read if captured.source[0] != "input")])
    own = ("q",) if id(getattr(definition.q_mod, "__code__", None)) in _OWN_HEADS else ()
    text, located = _emit(definition, inputs, pieces, captures, state, channels)
    return Traced(
        text,
        located,
        tuple(captures),
        ("final_state",) if definition.final_state else (),
        tuple(state.specialised.items()),
        tuple(state.nonzero - set(state.specialised)),
        extents([piece for piece in pieces if piece.name[0] not in own], LINEAR_SIZES),
        state.reusable,
        tape=state.tape(captures),
        decisions=tuple(state.decisions.values()),
        linear=tuple(given),
        segment=definition.segment,
        by_head=tuple(
            piece.name[0] for piece in pieces if piece.name in ("query", "key") and _reads_head(piece) and piece.name[0] not in own
        ),
    )


def _inputs(definition: LinearDefinition, score: str, channels: bool, element: str) -> dict[str, Captured]:
    """The inputs besides q, k and v, by name; a decay for each step is given channels where decay_mod asks for them."""
    ranks = {"none": 0, "head": 1, "head channel": 2, "step": 4 if channels else 3, "step channel": 4}
    found = {
        "decay": (score, ranks[definition.decay]),
        "initial_state": (score, 4 if definition.initial_state else 0),
        "cu_seqlens": (definition.offsets, 1 if definition.offsets else 0),
        "erase": (score, {**ranks, "step": 3}[definition.erase]),
        "erase_key": (element, 4 if definition.erase_key else 0),
        "removed_key": (element, 4 if definition.removed_key else 0),
    }
    return {name: Captured(("input", name), name, CaptureKind.TENSOR, element, rank) for name, (element, rank) in found.items() if rank}


def of_own_heads(q_mod: Function) -> Function:
    """Marks a `q_mod`, and all functions of its code: h is the head of q, not that of o, and where heads share a q, nothing is repeated."""
    code = q_mod.__code__
    _OWN_HEADS[id(code)] = code
    return q_mod


def _is_changed(definition: LinearDefinition, name: str, role: str) -> bool:
    return getattr(definition, role) is not None or (name == "query" and definition.scale != 1.0)


def _reads_head(piece: Piece) -> bool:
    return piece.arguments[2] in reachable(piece.results)


def _input_piece(state: NamedTrace, definition: LinearDefinition, name: str, role: str, rebind: Rebinder) -> Piece:
    function = getattr(definition, role)
    full = (_ELEMENT, *_POSITION, _CHANNEL)
    if function is None:
        arguments = tuple(state.argument(p.name, p.kind, nonnegative=p.nonnegative) for p in full)
        state.scope = Scope(name, "scale")
        arguments = tuple(dataclasses.replace(argument, scope=state.scope) for argument in arguments)
        node = arguments[0]
    else:
        arguments, result = _call(state, definition, name, role, function, rebind, full)
        node = functions.as_float(state, result, function, role, "the changed element")
    if name == "query" and definition.scale != 1.0:
        node = _scaled(state, definition, node)
    return Piece(name, arguments, (node,), functions.position_of(function) if function is not None else None)


def _scaled(state: NamedTrace, definition: LinearDefinition, node: Node) -> Node:
    with state:
        scale: Any = definition.scale
        factor = wrap(state.capture(Captured(SCALE, "scale", CaptureKind.FLOAT))) if scale == "runtime" else scale
        scaled = (wrap(node) * factor)._node
    state.labels[scaled] = "scaled"
    return scaled


def _decay_piece(state: NamedTrace, definition: LinearDefinition, decay: Captured | None, rebind: Rebinder) -> Piece:
    function = definition.decay_mod

    def start(values: Sequence[Value]) -> Value:
        """The log decay that decay_mod gets."""
        if decay is None:
            return wrap(functions.ops.constant(0.0))
        if decay.rank > 2:
            return values[0]
        index = (values[2]._node, values[4]._node)[: decay.rank]
        return wrap(CapturedTensor(decay, "float").at(*index))

    if function is None:
        arguments, result = trace_call(state, "decay", "decay", lambda *values: start(values), _DECAY_PARAMETERS)
    else:
        arguments, result = _call(state, definition, "decay", "decay_mod", function, rebind, _DECAY_PARAMETERS, first=start)
    node = functions.as_float(state, result, function, "decay_mod", "the changed log decay")
    if function is None:
        state.labels[node] = "decay"
    return Piece("decay", arguments, (node,), functions.position_of(function) if function is not None else None)


def _skip_piece(state: NamedTrace, function: Function, rebind: Rebinder) -> Piece:
    parameters = choose_arity("skip_mod", function, [_POSITION])
    arguments, result = trace_call(state, "skip", "skip_mod", rebind(function), parameters)
    node = functions.as_float(state, result, function, "skip_mod", "the factor of v")
    return Piece("skip", arguments, (node,), functions.position_of(function))


def _erase_piece(state: NamedTrace, definition: LinearDefinition, given: Mapping[str, Captured], rebind: Rebinder) -> Piece:
    """What makes the erase key: the share that is erased times erase_key, or times k after k_mod."""
    full, key, mod = (_ELEMENT, *_POSITION, _CHANNEL), given.get("erase_key"), definition.erase_mod
    share_of = None if mod is None else _bound(definition, "erase_mod", mod, rebind, (Parameter("share", "float"), *_POSITION, _CHANNEL))
    key_of = None if definition.k_mod is None or key is not None else _bound(definition, "k_mod", definition.k_mod, rebind, full)
    tensor = given.get("erase")

    def made(*values: Value) -> Any:
        x, *places = values
        share: Any = wrap(functions.ops.constant(1.0))
        if tensor is not None:
            b, h, t, d = (place._node for place in places)
            index = {1: (h,), 2: (h, d), 3: (b, h, t), 4: (b, h, t, d)}[tensor.rank]
            share = wrap(CapturedTensor(tensor, "float").at(*index))
        if share_of is not None:
            share = share_of(share, *places)
        if key_of is not None:
            x = key_of(*values)
        return x * share

    arguments, result = trace_call(state, "erase", "erase_mod", made, full)
    node = functions.as_float(state, result, mod, "erase_mod", "the erase key")
    state.labels[node] = "erased"
    operands = ("k" if key is None else key.source, *([given["removed_key"].source] if "removed_key" in given else []))
    position = None if mod is None else functions.position_of(mod)
    return Piece("erase", arguments, (node,), position, operands=operands)  # type: ignore[arg-type]


def _bound(definition: LinearDefinition, role: str, function: Function, rebind: Rebinder, full: Sequence[Parameter]) -> Callable[..., Any]:
    """A user's function on all of `full`, of which it gets what it asks for."""
    more = (full[1:4],) if role == "erase_mod" else ()
    asked, _ = _asked(definition, role, function, full, more)
    rebound = rebind(function)

    def call(*values: Any) -> Any:
        given = {p.name: value for p, value in zip(full, values, strict=True)} | {_CUSTOM.name: definition.custom}
        return rebound(*(given[p.name] for p in asked))

    return call


def _asked(
    definition: LinearDefinition, role: str, function: Function, full: Sequence[Parameter], more: Sequence[Sequence[Parameter]] = ()
) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...]]:
    """The parameters, of `full` and the custom inputs, or one of `more` lists, that a mod takes; and the same with the user's names.

    Of as many parameters, the second one is the custom inputs where there are any, unless it is called b.
    """
    x, *rest = full
    choices: list[tuple[Parameter, ...]] = [(x,), (x, *rest[:3]), (x, *rest), *(tuple(each) for each in more)]
    if definition.custom is not None:
        custom: list[tuple[Parameter, ...]] = [(x, _CUSTOM), (x, _CUSTOM, *rest[:3]), (x, _CUSTOM, *rest)]
        choices = [*choices, *custom] if _second_name(function) == rest[0].name else [choices[0], *custom, *choices[1:]]
    chosen = choose_arity(role, function, choices)
    return next(choice for choice in choices if len(choice) == len(chosen)), chosen


def _second_name(function: Function) -> str:
    """The name of a function's second parameter; empty where it has none, or does not tell."""
    try:
        return next(iter([*inspect.signature(function).parameters][1:]), "")
    except (TypeError, ValueError):
        return ""


def _call(
    state: NamedTrace,
    definition: LinearDefinition,
    name: str,
    role: str,
    function: Function,
    rebind: Rebinder,
    full: Sequence[Parameter],
    *,
    first: Callable[[Sequence[Value]], Value] | None = None,
) -> tuple[tuple[Node, ...], Any]:
    """Calls `function` on what it asks for of `full`, the parameters of the piece; `first` makes its first argument of all of them."""
    asked, chosen = _asked(definition, role, function, full)
    written = {parameter.name: user.name for parameter, user in zip(asked, chosen, strict=True)}
    parameters = [dataclasses.replace(p, name=written.get(p.name, p.name)) for p in full]
    rebound = rebind(function)

    def adapter(*values: Value) -> Any:
        given: dict[str, Any] = {p.name: value for p, value in zip(full, values, strict=True)}
        given[_CUSTOM.name] = definition.custom
        if first is not None:
            given[full[0].name] = first(values)
        return rebound(*(given[p.name] for p in asked))

    adapter.__name__ = getattr(function, "__name__", type(function).__name__)
    return trace_call(state, name, role, adapter, parameters)


def _emit(
    definition: LinearDefinition,
    inputs: Inputs,
    pieces: Sequence[Piece],
    captures: Sequence[Captured],
    state: NamedTrace,
    channels: bool,
) -> tuple[str, str]:
    """The text of the module, without and with locations."""
    with LOCK, loaded():
        with location_of(where.call_site()):
            emitter = Emitter(inputs, state.specialised, state.labels)
            module = ir.Module.create()
            arguments = [(name, _shaped(name, type_, inputs)) for name, type_ in emitter.arguments(captures)]
            wide, results = ir.ShapedType.get_dynamic_size(), [arguments[2][1]]
            if definition.final_state:
                results.append(ir.RankedTensorType.get([wide] * 3 + [inputs.value_dim], emitter.types["float"]))

            def make(values: Sequence[ir.Value]) -> tuple[ir.Operation, ir.Block]:
                named = dict(zip([captured.source[1] for captured in captures if captured.source[0] == "input"], values[3:], strict=False))
                decay = named.get("decay") if "step" in definition.decay else None
                operands = [*values[:3], decay, named.get("initial_state"), None, named.get("cu_seqlens")]
                outputs = ("final_state",) if definition.final_state else ()
                op, block = build.linear_attention(operands, results, outputs, channels="key" if channels else "none")
                if definition.output != "after":
                    op.attributes["output"] = ir.StringAttr.get(definition.output)
                return op, block

            emitter.function(module, pieces, arguments, results, captures, make)
            return texts_of(module)


def _shaped(name: str, type_: ir.Type, inputs: Inputs) -> ir.Type:
    """The type of an argument; decays with channels and states have a fixed number of columns."""
    columns = {"initial_state": inputs.value_dim, **dict.fromkeys(("decay", "erase_key", "removed_key"), inputs.head_dim)}.get(name)
    if columns is None or not isinstance(type_, ir.RankedTensorType) or type_.rank != 4:
        return type_
    return ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()] * 3 + [columns], type_.element_type)
