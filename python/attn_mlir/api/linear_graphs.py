"""Linear attention inside torch.compile: from the graph of the user's functions to the operator; see `api.graphs`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from attn_mlir.api.graphs import (
    GraphPiece,
    call_program,
    captures_of,
    guard,
    name_on,
    numbers_of,
    runner,
    scale_in_graph,
    stand_in,
    values_of,
)
from attn_mlir.api.linear_call import arguments
from attn_mlir.api.linear_inputs import Erasing, LinearCall, check_linear
from attn_mlir.frontend.linear import INPUTS, LinearDefinition, trace_linear
from attn_mlir.frontend.program import Traced
from attn_mlir.runtime import compute, linear, ops, programs

__all__ = ["run_linear_graph", "traced_linear"]

_KEY = "attn_mlir_linear"
_PLACES = ("b", "h", "t", "d")
_PARAMETERS = {
    **dict.fromkeys(("query", "key", "value"), ("x", *_PLACES)), "decay": ("g", *_PLACES[:3]), "channel": ("g", *_PLACES),
    "erase": ("share", *_PLACES), "skip": _PLACES[:3],
}  # fmt: skip


@torch.library.custom_op("attn_mlir::traced_linear", mutates_args=())
def traced_linear(
    q: Tensor, k: Tensor, v: Tensor, inputs: list[Tensor], given: str, pieces: list[Tensor], names: str, scale: float | None, final: bool,
    layout: str, segment: int | None, device: str,
) -> list[Tensor]:  # fmt: skip
    """Stands for the linear attention whose functions, called `names`, made `pieces`; `given` names the inputs besides q, k and v,
    and "read before" is one line more.

    Several names come in lines. All tensors are [B, H, T, D]; `layout` is that of the memory of o; `segment`: see `Traced`,
    `device`: `traced`.
    """
    raise NotImplementedError("what stands for linear attention in a graph of torch.compile computes nothing itself")


@traced_linear.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, inputs: list[Tensor], given: str, pieces: list[Tensor], names: str, scale: float | None, final: bool,
    layout: str, segment: int | None, device: str,
) -> list[Tensor]:  # fmt: skip
    results = linear.results(q, v, dict(zip(given.splitlines(), inputs, strict=False)), final)
    return compute.empty_results(results, q.device, layout)


traced_linear.register_autograd(ops.no_mixed_derivative)


def run_linear_graph(graph: torch.fx.GraphModule) -> Callable[..., tuple[Any, ...]]:
    """The function that computes what `graph`, the body of `linear_in_graph`, stands for."""
    return runner(graph, (traced_linear._opoverload, torch.ops.attn_mlir.traced_linear), _linear)


def _linear(graph: torch.fx.GraphModule, call: tuple[Any, ...], inputs: dict[torch.fx.Node, Any]) -> list[Tensor]:
    """`call` are the arguments of `traced_linear` in the graph."""
    further, given, layout = call[3], call[4].splitlines(), call[9]
    named = dict(zip(given, [inputs[node] for node in further], strict=False))
    decay, initial_state, cu_seqlens, erase, erase_key, removed_key = (named.get(name) for name in INPUTS)
    erases = "erase" in call[6].splitlines()
    erasing = Erasing(erase, _everything if erases else None, erase_key, removed_key, "read before" in given)
    checked = check_linear(inputs[call[0]], inputs[call[1]], inputs[call[2]], decay, initial_state, cu_seqlens, "bhsd", erasing=erasing)
    tensors = [value for value in inputs.values() if isinstance(value, Tensor)]
    sizes = (checked.q.shape[3], checked.v.shape[3], *numbers_of(inputs))
    key = (_KEY, checked.q.dtype, *sizes, *((value.dtype, value.dim()) for value in tensors))
    if graph.meta.get(_KEY, (None,))[0] != key:
        with _disable_current_modes():  # constants in the functions are real, not part of the graph that is being made
            graph.meta[_KEY] = (key, *_trace(call, inputs, checked))
    _, traced, name, captures = graph.meta[_KEY]
    q, k, values = arguments(traced, checked, values_of(captures, inputs))
    return call_program(name, (q, k, checked.v, *values), layout)


def _trace(call: tuple[Any, ...], inputs: dict[torch.fx.Node, Any], checked: LinearCall) -> tuple[Traced, str, list[Any]]:
    """The traced program, its name, and where its captures come from: inputs of the graph, or numbers."""
    (pieces, names, scale, final), (segment, device) = call[5:9], call[10:12]
    stand_ins = {node: stand_in(value) for node, value in inputs.items()}
    functions = {
        name: GraphPiece([piece], (), stand_ins).function(*_PARAMETERS[name])
        for name, piece in zip(names.splitlines(), pieces, strict=True)
    }
    form, factor = scale_in_graph(scale, checked.problem.inputs.head_dim, inputs, stand_ins)
    program = LinearDefinition(
        functions.get("query"),
        functions.get("key"),
        functions.get("value"),
        functions.get("decay") or functions.get("channel"),
        functions.get("skip"),
        form,
        checked.decay_form,
        checked.given["initial_state"] is not None,
        bool(final),
        checked.offsets,
        int(inputs[segment]) if isinstance(segment, torch.fx.Node) else segment,  # for another length torch compiles again
        *checked.delta_form,
        functions.get("erase"),
    )
    made = trace_linear(program, checked.problem.inputs, checked.problem.device)
    guard(made, inputs, stand_ins)
    return made, name_on(programs.register(made), device), captures_of(made, stand_ins, factor)


def _everything(share: Any) -> Any:
    """Stands for an erase_mod where inputs are checked."""
    return share
