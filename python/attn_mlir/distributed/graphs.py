"""Rings inside torch.compile: from the graph of the user's functions to the operator of `operators`; see `api.graphs`."""

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from attn_mlir.api.graphs import TRACED, TracedCall, read_once, runner, trace_graph, values_of
from attn_mlir.api.inputs import problem_of
from attn_mlir.capture_kinds import pack
from attn_mlir.distributed.calls import element_of
from attn_mlir.distributed.operators import program_in, ring_forward
from attn_mlir.errors import UnsupportedError
from attn_mlir.runtime import programs
from attn_mlir.runtime.dispatch import wanted_in_graph
from attn_mlir.runtime.orders import heads_first, in_order, output_order


def run_ring_graph(graph: torch.fx.GraphModule) -> Callable[..., tuple[Any, ...]]:
    """The function that computes what `graph`, the body of `attention_in_graph`, stands for, over the ranks that it tells of."""
    return runner(graph, TRACED, _ring)


def _ring(graph: torch.fx.GraphModule, arguments: tuple[Any, ...], inputs: dict[torch.fx.Node, Any]) -> list[Tensor]:
    """`arguments` are those of `traced` in the graph."""
    call = TracedCall(*arguments)
    q, k, v = (inputs[node] for node in call[:3])
    device = call.device or q.device.type

    def read() -> tuple[str, list[Any]]:
        element = element_of(problem_of(q, k, v, "bhsd"), device, q)
        made, captures = trace_graph(call, inputs, (q, k, v), parts=True, element=element)
        return programs.register(made, bool(call.deterministic)), captures

    name, captures = read_once(graph, (q.shape[3], v.shape[3]), inputs, read)
    found = programs.find(name)
    values = [q, k, v, *values_of(captures, inputs)]
    wrt = [found.argument(i) for i in wanted_in_graph(name, values)]
    told = json.dumps({**json.loads(call.ring), "device": device, "wrt": wrt})
    with _disable_current_modes():
        if not program_in(name, told).merges:
            raise UnsupportedError(
                "ring_attention is one operator of a graph where its row takes one pass over keys and has a merge, which this one has not: "
                'pass strategy="all_gather", at which the graph breaks, or call it under torch.compiler.disable'
            )
    tensors, numbers = pack(found.kinds, values[3:])
    results = ring_forward(q, k, v, tensors or [q], *numbers, name, told)
    order = output_order(call.layout)  # that of the memory of each o, which dynamo has told what comes after
    weights = [heads_first(in_order(x.to(q.dtype), order).contiguous(), order) for x in results[: found.weights]]
    return [*weights, *results[found.weights : found.made]]
