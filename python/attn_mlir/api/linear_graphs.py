"""Linear attention inside torch.compile: from the graph of the user's functions to the operator; see `api.graphs`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from attn_mlir.api.graphs import GraphPiece, captures_of, given_to_operator, guard, stand_in
from attn_mlir.api.inputs import scale_form
from attn_mlir.api.linear import arguments
from attn_mlir.api.linear_inputs import LinearCall, check_linear
from attn_mlir.frontend.linear import LinearProgram, trace_linear
from attn_mlir.frontend.program import Traced
from attn_mlir.runtime import compute, ops, programs

__all__ = ["run_linear_graph", "traced_linear"]

_KEY = "attn_mlir_linear"
_INPUTS = ("decay", "initial_state", "cu_seqlens")


@torch.library.custom_op("attn_mlir::traced_linear", mutates_args=())
def traced_linear(
    q: Tensor, k: Tensor, v: Tensor, inputs: list[Tensor], given: str, pieces: list[Tensor], names: str, scale: float | None, final: bool,
    layout: str,
) -> list[Tensor]:  # fmt: skip
    """Stands for the linear attention whose functions, called `names`, made `pieces`; `given` names the inputs besides q, k and v.

    Several names come in lines. All tensors are [B, H, T, D]; `layout` is that of the memory of o.
    """
    shape = (*v.shape[:3], v.shape[3])
    if not final:
        return compute.empty([(shape, q.dtype)], q.device, layout)
    known = dict(zip(given.splitlines(), inputs, strict=True))
    sequences = known["cu_seqlens"].shape[0] - 1 if "cu_seqlens" in known else v.shape[0]
    score = torch.float64 if q.dtype == torch.float64 else torch.float32
    state = torch.empty((sequences, v.shape[1], q.shape[3], v.shape[3]), dtype=score, device=q.device)
    return [*compute.empty([(shape, q.dtype)], q.device, layout), state]


traced_linear.register_fake(traced_linear._init_fn)
traced_linear.register_autograd(ops.no_mixed_derivative)


def run_linear_graph(graph: torch.fx.GraphModule) -> Callable[..., tuple[Any, ...]]:
    """The function that computes what `graph`, the body of `linear_in_graph`, stands for."""

    def run(*values: Any) -> tuple[Any, ...]:
        inputs = dict(zip([node for node in graph.graph.nodes if node.op == "placeholder"], values, strict=True))
        call = next(node for node in graph.graph.nodes if node.target in (traced_linear._opoverload, torch.ops.attn_mlir.traced_linear))
        results = _linear(graph, call.args, inputs)
        returned: Any = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        return tuple(results[node.args[1]] for node in returned)

    return run


def _linear(graph: torch.fx.GraphModule, call: tuple[Any, ...], inputs: dict[torch.fx.Node, Any]) -> list[Tensor]:
    """`call` are the arguments of `traced_linear` in the graph."""
    further, given, layout = call[3], call[4].splitlines(), call[9]
    named = dict(zip(given, [inputs[node] for node in further], strict=True))
    decay, initial_state, cu_seqlens = (named.get(name) for name in _INPUTS)
    checked = check_linear(inputs[call[0]], inputs[call[1]], inputs[call[2]], decay, initial_state, cu_seqlens, "bhsd")
    tensors = [value for value in inputs.values() if isinstance(value, Tensor)]
    key = (_KEY, checked.q.dtype, checked.q.shape[3], checked.v.shape[3], *((value.dtype, value.dim()) for value in tensors))
    if graph.meta.get(_KEY, (None,))[0] != key:
        with _disable_current_modes():  # constants in the functions are real, not part of the graph that is being made
            graph.meta[_KEY] = (key, *_trace(call, inputs, checked))
    _, traced, name, captures = graph.meta[_KEY]
    values = [given_to_operator(inputs[captured]) if isinstance(captured, torch.fx.Node) else captured for captured in captures]
    q, k, values = arguments(traced, checked, values)
    found = programs.find(name)
    wrt = ""
    if torch.is_grad_enabled():
        every = enumerate((q, k, checked.v, *values))
        wrt = "+".join(found.argument(i) for i, x in every if isinstance(x, Tensor) and x.is_floating_point() and x.requires_grad)
    captured, floats, ints = found.split(values)
    return ops.forward(q, k, checked.v, captured, floats, ints, name, wrt, layout)


def _trace(call: tuple[Any, ...], inputs: dict[torch.fx.Node, Any], checked: LinearCall) -> tuple[Traced, str, list[Any]]:
    """The traced program, its name, and where its captures come from: inputs of the graph, or numbers."""
    pieces, names, scale, final = call[5:9]
    stand_ins = {node: stand_in(value) for node, value in inputs.items()}
    functions = {name: _function(name, GraphPiece([piece], (), stand_ins)) for name, piece in zip(names.splitlines(), pieces, strict=True)}
    form, factor = scale_form(scale, checked.problem.inputs.head_dim)
    program = LinearProgram(
        functions.get("query"),
        functions.get("key"),
        functions.get("value"),
        functions.get("decay") or functions.get("channel"),
        form,
        checked.decay_form,
        checked.initial_state is not None,
        bool(final),
        checked.offsets,
    )
    made = trace_linear(program, checked.problem.inputs, checked.problem.device)
    guard(made, inputs, stand_ins)
    return made, programs.register(made), captures_of(made, stand_ins, factor)


def _function(name: str, piece: GraphPiece) -> Callable[..., Any]:
    """The function, with the parameters that it has in its piece."""
    match name:
        case "decay":
            return lambda g, b, h, t: piece.run(g=g, b=b, h=h, t=t)
        case "channel":
            return lambda g, b, h, t, d: piece.run(g=g, b=b, h=h, t=t, d=d)
    return lambda x, b, h, t, d: piece.run(x=x, b=b, h=h, t=t, d=d)
