"""Attention inside torch.compile: from the graph of the user's functions to the operator that computes the attention.

dynamo traced the functions into a graph on tensors of one element (see `api.compiled`). The graph is never run: it is read
once, traced into a program as the functions themselves would be, and its inputs become the program's captures.
"""

import dataclasses
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from attn_mlir.api.dropout import dropout_values
from attn_mlir.api.extra_qk import extra_pairs, with_dims
from attn_mlir.api.graph_checks import check_graph, function_of
from attn_mlir.api.hoist import attribute, hoisted
from attn_mlir.api.inputs import problem_of
from attn_mlir.api.scale import scale_form
from attn_mlir.capture_kinds import CaptureKind
from attn_mlir.frontend import partners, program, scope, sizes
from attn_mlir.frontend.dropout import DropoutForm
from attn_mlir.frontend.given import LIST, LISTS, POSITION, SEQUENCE, SEQUENCES
from attn_mlir.frontend.scope import Captured
from attn_mlir.frontend.scores import numbered
from attn_mlir.frontend.values import wrap
from attn_mlir.runtime import compute, ops, programs
from attn_mlir.runtime.dispatch import forward_in_graph
from attn_mlir.runtime.orders import output_order

__all__ = [
    "TRACED",
    "GraphPiece",
    "call_program",
    "captures_of",
    "element",
    "guard",
    "name_on",
    "numbers_of",
    "run_graph",
    "runner",
    "scale_in_graph",
    "stand_in",
    "symbol",
    "trace_graph",
    "traced",
    "values_of",
]

_SIZES = ("kv_len", "q_len", "num_heads")
_INDICES = ("b", "h", "q_idx", "kv_idx")
_ELEMENT = {"query": "q_idx", "key": "kv_idx", "value": "kv_idx"}
"""Mods of elements, and what they call the position."""
_KEY = "attn_mlir"
_LATEST = threading.local()


@torch.library.custom_op("attn_mlir::symbol", mutates_args=())
def symbol(name: str, dtype: torch.dtype, device: torch.device | None = None, size: int = 1) -> Tensor:
    """Stands for an argument of one of the user's functions: "piece.argument"; on `device`, as what the functions capture.

    It has one element in one dimension, as an index without dimensions would be read; the scores of a row, one for each key.
    Without a device, as for the sizes that functions ask for themselves, that of the latest symbol is meant.
    """
    return torch.zeros(size, dtype=dtype, device=_device(device))


@symbol.register_fake
def _(name: str, dtype: torch.dtype, device: torch.device | None = None, size: int = 1) -> Tensor:
    return torch.zeros(size, dtype=dtype, device=_device(device))


@torch.library.custom_op("attn_mlir::element", mutates_args=())
def element(name: str, dtype: torch.dtype, like: list[Tensor], size: int = 1) -> Tensor:
    """Stands for a score, or an element of q, k or v, as `symbol` does. It has a gradient where those of `like` have one.

    Otherwise dynamo would take a torch.autograd.Function of it for its forward alone.
    """
    return torch.zeros(size, dtype=dtype, device=_device(like[0].device))


@element.register_fake
def _(name: str, dtype: torch.dtype, like: list[Tensor], size: int = 1) -> Tensor:
    return torch.zeros(size, dtype=dtype, device=_device(like[0].device))


@torch.library.custom_op("attn_mlir::partner", mutates_args=())
def _partner(x: Tensor, interleaved: bool, channels: int, turned: bool) -> Tensor:
    """Stands for `partners.partner`, or if `turned` `partners.rotate_half`, of an element; `channels` 0: all are paired."""
    return torch.zeros_like(x)


@_partner.register_fake
def _(x: Tensor, interleaved: bool, channels: int, turned: bool) -> Tensor:
    return torch.zeros_like(x)


def _device(given: torch.device | None) -> torch.device:
    """The given device, which is kept for what comes without one."""
    if given is not None:
        _LATEST.device = given
    return getattr(_LATEST, "device", torch.device("cpu"))


@torch.library.custom_op("attn_mlir::traced", mutates_args=())
def traced(
    q: Tensor, k: Tensor, v: Tensor, extra: list[Tensor], packed: list[Tensor], pieces: list[Tensor], names: str, states: str, outputs: str,
    scale: float | None, layout: str, lse: bool, return_states: bool, deterministic: bool, device: str, dropout_seed: list[Tensor],
    dropout_p: float, lists: list[int], ring: str,
) -> list[Tensor]:  # fmt: skip
    """Stands for the attention whose functions, called `names`, made `pieces`; the row's states follow its weights.

    Several names come in lines; there is one for each score that a score_mod makes. `extra` are q2, k2, q3..., `packed` tells of sequences,
    or holds lists of keys whose blocks and group `lists` has.
    `device` is one that takes tensors of another type, or empty. `dropout_seed` is seed and offset, or empty. `ring` tells of other
    processes that have parts of the sequence, or is empty.
    It is never run: `run_graph` puts the program in its place.
    """
    raise NotImplementedError("what stands for attention in a graph of torch.compile computes nothing itself")


@traced.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, extra: list[Tensor], packed: list[Tensor], pieces: list[Tensor], names: str, states: str, outputs: str,
    scale: float | None, layout: str, lse: bool, return_states: bool, deterministic: bool, device: str, dropout_seed: list[Tensor],
    dropout_p: float, lists: list[int], ring: str,
) -> list[Tensor]:  # fmt: skip
    score = torch.float64 if q.dtype == torch.float64 else torch.float32
    weights = len(pieces) - len(names.splitlines()) + 1 - len(states.splitlines())
    results = [*[((*q.shape[:3], v.shape[3]), q.dtype)] * weights, *[(tuple(q.shape[:3]), score)] * len(outputs.splitlines())]
    return compute.empty(results, q.device, output_order(layout))


TRACED = (traced._opoverload, torch.ops.attn_mlir.traced)
"""What `traced` is called in graphs."""

traced.register_autograd(ops.no_mixed_derivative)
element.register_autograd(ops.no_mixed_derivative)


def run_graph(graph: torch.fx.GraphModule) -> Callable[..., tuple[Any, ...]]:
    """The function that computes what `graph`, the body of `attention_in_graph`, stands for."""
    return runner(graph, TRACED, _attention)


def runner(graph: torch.fx.GraphModule, targets: Sequence[Any], compute: Callable[..., list[Tensor]]) -> Callable[..., tuple[Any, ...]]:
    """The function that computes what `graph` stands for: its call of one of `targets`, by compute(graph, arguments, inputs).

    Raises the errors of `check_graph`.
    """
    check_graph(getattr(graph, "graph", None))

    def run(*arguments: Any) -> tuple[Any, ...]:
        inputs = dict(zip([node for node in graph.graph.nodes if node.op == "placeholder"], arguments, strict=True))
        call = next(node for node in graph.graph.nodes if node.target in targets)
        inputs |= hoisted(graph.graph, inputs, lambda node: node is call or _is_symbol(node))
        results = compute(graph, call.args, inputs)
        returned: Any = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        return tuple(results[node.args[1]] for node in returned)

    return run


def _attention(graph: torch.fx.GraphModule, call: tuple[Any, ...], inputs: dict[torch.fx.Node, Any]) -> list[Tensor]:
    """`call` are the arguments of `traced` in the graph."""
    q, k, v = (inputs[node] for node in call[:3])
    layout, tensors = call[10], {node: value for node, value in inputs.items() if isinstance(value, Tensor)}
    dims = (q.shape[3], v.shape[3], *(inputs[node].shape[3] for node in call[3]))
    key = (_KEY, q.dtype, dims, *numbers_of(inputs), *((value.dtype, value.dim()) for value in tensors.values()))
    if graph.meta.get(_KEY, (None,))[0] != key:
        with _disable_current_modes():  # constants in the functions are real, not part of the graph that is being made
            made, captures = trace_graph(call, inputs, (q, k, v))
            graph.meta[_KEY] = (key, name_on(programs.register(made, call[13]), call[14]), captures)
    _, name, captures = graph.meta[_KEY]
    return call_program(name, (q, k, v, *values_of(captures, inputs)), layout)


def numbers_of(inputs: dict[torch.fx.Node, Any]) -> list[Any]:
    """Numbers among the inputs that become constants of the program: they are symbols only where a backend traces the graph once more."""
    return [value for value in inputs.values() if isinstance(value, (int, float))]


def values_of(captures: Sequence[Any], inputs: dict[torch.fx.Node, Any]) -> list[Any]:
    """The values that a program captures, as the operator takes them, from what `captures_of` says of them."""
    return [_given_to_operator(inputs[captured]) if isinstance(captured, torch.fx.Node) else captured for captured in captures]


def call_program(name: str, values: Sequence[Any], layout: str) -> list[Tensor]:
    """The operator on q, k, v and the captures of the program of this name."""
    found = programs.find(name)
    return forward_in_graph(values, [found.argument(i) for i in range(len(values))], found.kinds, name, layout)


def trace_graph(
    call: tuple[Any, ...], inputs: dict[torch.fx.Node, Any], qkv: tuple[Tensor, Tensor, Tensor], **shaped: Any
) -> tuple[program.Traced, list[Any]]:
    """The program, and where its captures come from: inputs of the graph, or numbers. `shaped` are fields of its `Inputs`."""
    _, _, _, extra, packed, pieces, names, states, _, scale, _, lse, return_states, _, _, seed, p, lists, _ = call
    stand_ins = {node: stand_in(value) for node, value in inputs.items()}
    functions: dict[str, Any] = {}
    lines = names.splitlines()
    for position, name in enumerate(lines):
        wanted = pieces[position:] if name == "row" else [piece for piece, other in zip(pieces, lines, strict=False) if other == name]
        products = len(extra) // 2 + 1
        count = lines.count("score") or products if name == "row" else products
        functions[name] = GraphPiece(wanted, states.splitlines() if name == "row" else (), stand_ins).function(*_parameters(name, count))
    problem = problem_of(*qkv, "bhsd")
    pairs = extra_pairs([inputs[node] for node in extra], qkv[0], problem, "bhsd")
    problem = with_dims(problem, pairs)
    # Blocks that differ from call to call are nodes: for others, torch compiles again.
    *listed, group = [int(inputs[n]) if isinstance(n, torch.fx.Node) else n for n in lists] or (1,)
    shapes = dataclasses.replace(problem.inputs, packed=bool(packed) and not lists, lists=tuple(listed), group=group, **shaped)
    found = [scale_in_graph(scale, dim, inputs, stand_ins) for dim in (problem.inputs.head_dim, *pairs.dims)]
    forms, factor = [form for form, _ in found], next((value for form, value in found if form == "runtime"), 0.0)
    score, mask, query, key, value = (functions.get(name) for name in ("score", "mask", "query", "key", "value"))
    dropout: DropoutForm | None = ("tensor", "tensor") if seed else None
    whole = program.Definition(functions["row"], score, mask, query, key, value, forms[0], tuple(forms[1:]), lse, return_states, dropout)
    made = program.trace(whole, shapes, qkv[0].device)
    guard(made, inputs, stand_ins)
    products = {("product", name): stand_ins[node] for name, node in zip(pairs.values, extra, strict=True)}
    kind, known = (LIST, LISTS) if lists else (SEQUENCE, SEQUENCES)
    products |= {(kind, name): stand_ins[node] for name, node in zip(known, packed, strict=False)}
    products |= {captured.source: 0 for captured in made.captures if captured.source[0] == POSITION}
    return made, captures_of(made, stand_ins, factor, _dropout(seed, p, inputs, stand_ins), products)


def _parameters(name: str, scores: int) -> Sequence[str]:
    """What a function is called with; `scores` come first where it takes some."""
    if name in _ELEMENT:
        return ("x", "b", "h", _ELEMENT[name], "d")
    return _INDICES if name == "mask" else (*numbered("s" if name == "row" else "score", scores), *_INDICES)


def _dropout(
    seed: Sequence[torch.fx.Node], p: Any, inputs: dict[torch.fx.Node, Any], stand_ins: dict[torch.fx.Node, Any]
) -> dict[str, Any]:
    """What a program captures for dropout. For another probability torch compiles again."""
    if not seed:
        return {}
    p = float(inputs[p]) if isinstance(p, torch.fx.Node) else p
    return dropout_values(p, [stand_ins[node] for node in seed])


def name_on(program: str, device: str) -> str:
    """The name of the program as `device` computes it, where that is not empty."""
    return programs.served_by(programs.find(program), device).name if device else program


def scale_in_graph(
    scale: Any, head_dim: int, inputs: dict[torch.fx.Node, Any], stand_ins: dict[torch.fx.Node, Any]
) -> tuple[str | float, Any]:
    """`scale_form` for the argument of a graph: of a number that differs from call to call, a node, the value is its stand-in.

    What was computed from such numbers is taken as it is: for another value torch compiles again.
    """
    if isinstance(scale, torch.fx.Node) and isinstance(inputs[scale], Tensor):
        return "runtime", stand_ins[scale]
    return scale_form(float(inputs[scale]) if isinstance(scale, torch.fx.Node) else scale, head_dim)


def guard(made: program.Traced, inputs: dict[torch.fx.Node, Any], stand_ins: dict[torch.fx.Node, Any]) -> None:
    """Makes torch compile again for other numbers than those that the trace was specialised on."""
    by_stand_in = {id(value): node for node, value in stand_ins.items()}
    for source, _ in made.specialised:
        if source[0] == "graph":
            int(inputs[source[1]])
        elif source[0] == "size" and source[1][1] in by_stand_in:
            int(inputs[by_stand_in[source[1][1]]].shape[source[2]])


def captures_of(
    made: program.Traced,
    stand_ins: dict[torch.fx.Node, Any],
    scale: Any,
    dropout: Mapping[str, Any] = MappingProxyType({}),
    products: Mapping[Any, Any] = MappingProxyType({}),
) -> list[Any]:
    """Where the captures of a program come from: inputs of the graph, as their nodes, or numbers."""
    by_stand_in = {id(value): node for node, value in stand_ins.items()}
    given = {("scale",): scale, **{("dropout", name): value for name, value in dropout.items()}, **products}
    values = [given.get(captured.source, captured.constant) for captured in made.captures]
    return [by_stand_in.get(id(value), value) for value in values]


def _given_to_operator(value: Any) -> Any:
    """An input of the graph as the operator takes it: symbolic floats, which it does not, become tensors."""
    return torch.scalar_tensor(value, dtype=torch.float64) if isinstance(value, torch.SymFloat) else value  # type: ignore[arg-type]


def stand_in(value: Any) -> Any:
    """A tensor without data for a tensor or a symbolic float of the graph; integers stay."""
    if isinstance(value, torch.SymFloat):
        return torch.empty((), dtype=torch.float64, device="meta")
    if not isinstance(value, Tensor):
        return value
    return torch.empty([s.node.hint if isinstance(s, torch.SymInt) else s for s in value.shape], dtype=value.dtype, device="meta")


class GraphPiece:
    """One of the user's functions: the nodes of the graph that it returned."""

    def __init__(self, wanted: Sequence[torch.fx.Node], states: Sequence[str], stand_ins: dict[torch.fx.Node, Any]) -> None:
        self._wanted = wanted
        self._states = states
        self._stand_ins = stand_ins

    def scan_key(self) -> int:
        """Tells `Scan` not to look inside."""
        return id(self)

    def function(self, *parameters: str) -> Callable[..., Any]:
        """The function, with the parameters that it has in its piece."""
        return _Positional(self, parameters)

    def run(self, **arguments: Any) -> Any:
        """Computes the nodes on traced values."""
        values: dict[torch.fx.Node, Any] = dict(self._stand_ins)
        results = [self._value(node, values, arguments) for node in self._wanted]
        if self._states:
            weights = len(results) - len(self._states)
            return *results[:weights], dict(zip(self._states, results[weights:], strict=True))
        return results[0] if len(results) == 1 else tuple(results)

    def _value(self, node: torch.fx.Node, values: dict[torch.fx.Node, Any], arguments: dict[str, Any]) -> Any:
        if node in values:
            known = values[node]
            if isinstance(known, torch.SymInt):  # an argument of the program, so that another number needs no other program
                captured = Captured(("graph", node), str(node), CaptureKind.INT, constant=node)
                known = values[node] = wrap(scope.current().capture(captured, known.node.hint))
            return known
        for operand in node.all_input_nodes:
            self._value(operand, values, arguments)
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
        target: Any = function_of(node)
        if node.op == "call_method":
            made = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        elif node.op == "get_attr":
            made = attribute(node)
        elif _is_symbol(node):
            name = args[0].rpartition(".")[2]
            made = getattr(sizes, name)() if name in _SIZES else arguments[name]
        elif node.target in (_partner._opoverload, torch.ops.attn_mlir.partner):
            x, interleaved, channels, turned = args
            made = partners.of_value(x, interleaved, channels or None, turned)
        else:
            made = target(*args, **kwargs)
        values[node] = made
        return made


class _Positional:
    """A piece as a function of parameters with these names."""

    def __init__(self, piece: GraphPiece, names: Sequence[str]) -> None:
        self._piece, self._names = piece, tuple(names)
        self.__signature__ = inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names])

    def scan_key(self) -> int:
        """Tells `Scan` not to look inside."""
        return id(self)

    def __call__(self, *arguments: Any) -> Any:
        return self._piece.run(**dict(zip(self._names, arguments, strict=True)))


def _is_symbol(node: torch.fx.Node) -> bool:
    return node.target in (
        symbol._opoverload, torch.ops.attn_mlir.symbol, element._opoverload, torch.ops.attn_mlir.element,
    )  # fmt: skip
