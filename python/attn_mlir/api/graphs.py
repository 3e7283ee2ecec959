"""Attention inside torch.compile: from the graph of the user's functions to the operator that computes the attention.

The graph (see `api.graph_pieces`) is read once, traced into a program as the functions themselves would be, and its inputs become the
program's captures.
"""

import dataclasses
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from attn_mlir.api.call import linear_arguments
from attn_mlir.api.dropout import dropout_values
from attn_mlir.api.extra_qk import extra_pairs, with_dims
from attn_mlir.api.graph_checks import check_graph
from attn_mlir.api.graph_pieces import GraphPiece, is_symbol, stand_in
from attn_mlir.api.hoist import as_operand, hoisted
from attn_mlir.api.inputs import problem_of
from attn_mlir.api.linear_inputs import Erasing, LinearCall, check_linear
from attn_mlir.api.options import call_form
from attn_mlir.api.scale import forms, scale_form
from attn_mlir.frontend import program
from attn_mlir.frontend.dropout import DropoutForm
from attn_mlir.frontend.given import LIST, LISTS, POSITION, SEQUENCE, SEQUENCES
from attn_mlir.frontend.linear import INPUTS, trace_linear
from attn_mlir.frontend.program import Traced
from attn_mlir.frontend.scores import numbered
from attn_mlir.runtime import compute, linear, ops, programs
from attn_mlir.runtime.dispatch import forward_in_graph
from attn_mlir.runtime.orders import output_order
from attn_mlir.runtime.row_values import score_of

_INDICES = ("b", "h", "q_idx", "kv_idx")
_ELEMENT = {"query": "q_idx", "key": "kv_idx", "value": "kv_idx"}
"""Mods of elements, and what they call the position."""
_PLACES = ("b", "h", "t", "d")
_LINEAR_PARAMETERS = {
    **dict.fromkeys(("query", "key", "value"), ("x", *_PLACES)), "decay": ("g", *_PLACES[:3]), "channel": ("g", *_PLACES),
    "erase": ("share", *_PLACES), "skip": _PLACES[:3],
}  # fmt: skip
_KEY = "attn_mlir"
GraphInputs = dict[Node, Any]
ReadT = TypeVar("ReadT")


TracedCall = namedtuple(
    "TracedCall",
    "q k v extra packed pieces names states outputs scale layout lse return_states deterministic device dropout_seed dropout_p lists ring",
)
"""The arguments of `traced`: the attention whose functions, called `names`, made `pieces`; the row's states follow its weights.

Several names come in lines; there is one for each score that a score_mod makes. `extra` are q2, k2, q3..., `packed` tells of sequences, or
holds lists of keys whose blocks and group `lists` has. `device` is one that takes tensors of another type, or empty. `dropout_seed` is seed
and offset, or empty. `ring` tells of other processes that have parts of the sequence, or is empty.
"""
LinearTracedCall = namedtuple("LinearTracedCall", "q k v inputs given pieces names scale final layout segment device")
"""Those of `traced_linear`; `given` names the inputs besides q, k and v, and "read before" is one line more.

All tensors are [B, H, T, D]; `layout` is that of the memory of o; `segment`: see `Traced`.
"""


def _stand_in(name: str, schema: str, fake: Callable[..., list[Tensor]]) -> Any:
    """The operator that stands for an attention in a graph; it is never run: `runner` puts the program in its place."""
    operator = torch.library.custom_op(f"attn_mlir::{name}", _never_run, mutates_args=(), schema=f"({schema}) -> Tensor[]")
    operator.register_fake(fake)
    operator.register_autograd(ops.no_mixed_derivative)
    return operator


def _never_run(*_: Any) -> NoReturn:
    raise NotImplementedError("what stands for attention in a graph of torch.compile computes nothing itself")


def _results(*arguments: Any) -> list[Tensor]:
    call = TracedCall(*arguments)
    q, v = call.q, call.v
    weights = len(call.pieces) - len(call.names.splitlines()) + 1 - len(call.states.splitlines())
    rows = [(tuple(q.shape[:3]), score_of(q))] * len(call.outputs.splitlines())
    return compute.empty([*[((*q.shape[:3], v.shape[3]), q.dtype)] * weights, *rows], q.device, output_order(call.layout))


def _linear_results(*arguments: Any) -> list[Tensor]:
    call = LinearTracedCall(*arguments)
    results = linear.results(call.q, call.v, dict(zip(call.given.splitlines(), call.inputs, strict=False)), call.final)
    return compute.empty_results(results, call.q.device, call.layout)


traced = _stand_in(
    "traced",
    "Tensor q, Tensor k, Tensor v, Tensor[] extra, Tensor[] packed, Tensor[] pieces, str names, str states, str outputs, float? scale, "
    "str layout, bool lse, bool return_states, bool deterministic, str device, Tensor[] dropout_seed, float dropout_p, SymInt[] lists, "
    "str ring",
    _results,
)
traced_linear = _stand_in(
    "traced_linear",
    "Tensor q, Tensor k, Tensor v, Tensor[] inputs, str given, Tensor[] pieces, str names, float? scale, bool final, str layout, "
    "SymInt? segment, str device",
    _linear_results,
)
TRACED, _TRACED_LINEAR = ((op._opoverload, op._opoverload.overloadpacket) for op in (traced, traced_linear))
"""What they are called in graphs."""


def run_graph(graph: GraphModule) -> Callable[..., tuple[Any, ...]]:
    """The function that computes what `graph`, the body of `attention_in_graph`, stands for."""
    return runner(graph, TRACED, _attention)


def run_linear_graph(graph: GraphModule) -> Callable[..., tuple[Any, ...]]:
    """The same of the body of `linear_in_graph`."""
    return runner(graph, _TRACED_LINEAR, _linear)


def runner(graph: GraphModule, targets: Sequence[Any], compute: Callable[..., list[Tensor]]) -> Callable[..., tuple[Any, ...]]:
    """The function that computes what `graph` stands for: its call of one of `targets`, by compute(graph, arguments, inputs).

    Raises the errors of `check_graph`.
    """
    check_graph(getattr(graph, "graph", None))

    def run(*arguments: Any) -> tuple[Any, ...]:
        inputs = dict(zip([node for node in graph.graph.nodes if node.op == "placeholder"], arguments, strict=True))
        call = next(node for node in graph.graph.nodes if node.target in targets)
        inputs |= hoisted(graph.graph, inputs, lambda node: node is call or is_symbol(node))
        results = compute(graph, call.args, inputs)
        returned: Any = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        return tuple(results[node.args[1]] for node in returned)

    return run


def read_once(graph: GraphModule, dims: Sequence[int], inputs: GraphInputs, read: Callable[[], ReadT]) -> ReadT:
    """What `read` makes of a graph, made again for inputs of other dtypes, ranks or numbers; `dims` are head dimensions.

    Numbers become constants of the program: they are symbols only where a backend traces the graph once more.
    """
    numbers = [value for value in inputs.values() if isinstance(value, (int, float))]
    key = (*dims, *numbers, *((value.dtype, value.dim()) for value in inputs.values() if isinstance(value, Tensor)))
    known = graph.meta.get(_KEY)
    if known is None or known[0] != key:
        with _disable_current_modes():  # constants in the functions are real, not part of the graph that is being made
            known = graph.meta[_KEY] = (key, read())
    return known[1]


def _attention(graph: GraphModule, arguments: tuple[Any, ...], inputs: GraphInputs) -> list[Tensor]:
    """`arguments` are those of `traced` in the graph."""
    call = TracedCall(*arguments)
    q, k, v = (inputs[node] for node in call[:3])

    def read() -> tuple[str, list[Any]]:
        made, captures = trace_graph(call, inputs, (q, k, v))
        return _registered(made, call.device, call.deterministic), captures

    dims = (q.shape[3], v.shape[3], *(inputs[node].shape[3] for node in call.extra))
    name, captures = read_once(graph, dims, inputs, read)
    return _call_program(name, (q, k, v, *values_of(captures, inputs)), call.layout)


def _linear(graph: GraphModule, arguments: tuple[Any, ...], inputs: GraphInputs) -> list[Tensor]:
    """`arguments` are those of `traced_linear` in the graph."""
    call = LinearTracedCall(*arguments)
    named = dict(zip(call.given.splitlines(), [inputs[node] for node in call.inputs], strict=False))
    decay, initial_state, cu_seqlens, erase, erase_key, removed_key = (named.get(name) for name in INPUTS)
    erases = _everything if "erase" in call.names.splitlines() else None
    erasing = Erasing(erase, erases, erase_key, removed_key, "read before" in call.given.splitlines())
    checked = check_linear([inputs[node] for node in call[:3]], decay, initial_state, cu_seqlens, "bhsd", erasing)
    dims = checked.q.shape[3], checked.v.shape[3]
    made, name, captures = read_once(graph, dims, inputs, lambda: _trace_linear(call, inputs, checked))
    q, k, values = linear_arguments(made, checked, values_of(captures, inputs))
    return _call_program(name, (q, k, checked.v, *values), call.layout)


def values_of(captures: Sequence[Any], inputs: GraphInputs) -> list[Any]:
    """The values that a program captures, as the operator takes them, from what `_Reading.captures` says of them."""
    return [as_operand(inputs[captured]) if isinstance(captured, Node) else captured for captured in captures]


def _registered(made: Traced, device: str, deterministic: bool = False) -> str:
    """The name of a program as `device` computes it, where that is not empty."""
    name = programs.register(made, deterministic)
    return programs.served_by(programs.find(name), device).name if device else name


def _call_program(name: str, values: Sequence[Any], layout: str) -> list[Tensor]:
    """The operator on q, k, v and the captures of the program of this name."""
    found = programs.find(name)
    return forward_in_graph(values, [found.argument(i) for i in range(len(values))], found.kinds, name, layout)


def trace_graph(call: TracedCall, inputs: GraphInputs, qkv: tuple[Tensor, Tensor, Tensor], **shaped: Any) -> tuple[Traced, list[Any]]:
    """The program, and where its captures come from: inputs of the graph, or numbers. `shaped` are fields of its `Inputs`."""
    reading = _Reading(inputs)
    functions: dict[str, Any] = {}
    lines, states, products = call.names.splitlines(), call.states.splitlines(), len(call.extra) // 2 + 1
    for position, name in enumerate(lines):
        is_row = name == "row"
        wanted = call.pieces[position:] if is_row else [call.pieces[i] for i, other in enumerate(lines) if other == name]
        count = lines.count("score") or products if is_row else products
        functions[name] = reading.function(wanted, _parameters(name, count), states if is_row else ())
    problem = problem_of(*qkv, "bhsd")
    pairs = extra_pairs([inputs[node] for node in call.extra], qkv[0], problem, "bhsd")
    problem = with_dims(problem, pairs)
    *listed, group = [reading.number(n) for n in call.lists] or (1,)
    shapes = dataclasses.replace(problem.inputs, packed=bool(call.packed) and not call.lists, lists=tuple(listed), group=group, **shaped)
    own, others, factor = forms([reading.scale(call.scale, dim) for dim in (problem.inputs.head_dim, *pairs.dims)])
    score, mask, query, key, value = (functions.get(name) for name in ("score", "mask", "query", "key", "value"))
    dropout: DropoutForm | None = ("tensor", "tensor") if call.dropout_seed else None
    whole = program.Definition(functions["row"], score, mask, query, key, value, own, others, call.lse, call.return_states, dropout)
    made = program.trace(whole, shapes, qkv[0].device)
    given: dict[Any, Any] = {("product", name): reading.stand_ins[node] for name, node in zip(pairs.values, call.extra, strict=True)}
    kind, known = (LIST, LISTS) if call.lists else (SEQUENCE, SEQUENCES)
    given |= {(kind, name): reading.stand_ins[node] for name, node in zip(known, call.packed, strict=False)}
    given |= {captured.source: 0 for captured in made.captures if captured.source[0] == POSITION}
    if call.dropout_seed:  # for another probability torch compiles again
        dropped = dropout_values(reading.number(call.dropout_p, float), [reading.stand_ins[node] for node in call.dropout_seed])
        given |= {("dropout", name): value for name, value in dropped.items()}
    return made, reading.captures(made, factor, given)


def _trace_linear(call: LinearTracedCall, inputs: GraphInputs, checked: LinearCall) -> tuple[Traced, str, list[Any]]:
    """The traced program, its name, and where its captures come from: inputs of the graph, or numbers."""
    reading = _Reading(inputs)
    lines = zip(call.names.splitlines(), call.pieces, strict=True)
    functions = {name: reading.function([piece], _LINEAR_PARAMETERS[name]) for name, piece in lines}
    scale_as, factor = reading.scale(call.scale, checked.problem.inputs.head_dim)
    form = call_form(checked, scale_as, bool(call.final), reading.number(call.segment))
    decay = functions.get("decay") or functions.get("channel")
    mods = (*(functions.get(name) for name in _ELEMENT), decay, functions.get("skip"), functions.get("erase"))
    made = trace_linear(form.definition(mods), form.inputs, checked.problem.device)
    return made, _registered(made, call.device), reading.captures(made, factor)


def _everything(share: Any) -> Any:
    """Stands for an erase_mod where inputs are checked."""
    return share


def _parameters(name: str, scores: int) -> Sequence[str]:
    """What a function of attention is called with; `scores` come first where it takes some."""
    if name in _ELEMENT:
        return ("x", "b", "h", _ELEMENT[name], "d")
    return _INDICES if name == "mask" else (*numbered("s" if name == "row" else "score", scores), *_INDICES)


class _Reading:
    """The inputs of a graph, and what stands for them where its functions are traced."""

    def __init__(self, inputs: GraphInputs) -> None:
        self._inputs = inputs
        self.stand_ins: dict[Node, Any] = {node: stand_in(value) for node, value in inputs.items()}
        self._nodes = {id(value): node for node, value in self.stand_ins.items()}

    def function(self, wanted: Sequence[Node], parameters: Sequence[str], states: Sequence[str] = ()) -> Callable[..., Any]:
        """The function that returned these nodes."""
        return GraphPiece(wanted, states, self.stand_ins, parameters)

    def number(self, argument: Any, kind: type = int) -> Any:
        """A number that shapes the program. One that differs from call to call is a node: for another, torch compiles again."""
        return kind(self._inputs[argument]) if isinstance(argument, Node) else argument

    def scale(self, scale: Any, head_dim: int) -> tuple[str | float, Any]:
        """`scale_form` for the argument of a graph: of a number that differs from call to call, a node, the value is its stand-in.

        What was computed from such numbers is taken as it is: for another value torch compiles again.
        """
        if isinstance(scale, Node) and isinstance(self._inputs[scale], Tensor):
            return "runtime", self.stand_ins[scale]
        return scale_form(self.number(scale, float), head_dim)

    def captures(self, made: Traced, scale: Any, given: Mapping[Any, Any] = MappingProxyType({})) -> list[Any]:
        """Where the captures of a program come from: inputs of the graph, as their nodes, or numbers; `given` has some by their source.

        torch compiles again for other numbers than those that the trace was specialised on.
        """
        for source, _ in made.specialised:
            if source[0] == "graph":
                int(self._inputs[source[1]])
            elif source[0] == "size" and source[1][1] in self._nodes:
                int(self._inputs[self._nodes[source[1][1]]].shape[source[2]])
        given = {("scale",): scale, **given}
        values = [given.get(captured.source, captured.constant) for captured in made.captures]
        return [self._nodes.get(id(value), value) for value in values]
