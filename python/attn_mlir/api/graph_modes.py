"""Where a graph of the user's functions records no gradients, as within `torch.no_grad()`: there dynamo writes calls between its nodes."""

from typing import Any

import torch
from torch.fx import Graph, Node

_INFERENCE = {"_enter_inference_mode": True, "_exit_inference_mode": False}


def without_gradients(graph: Graph) -> frozenset[Node]:
    """The nodes that are computed while no gradients are recorded. The graph itself counts as recording them."""
    found = set()
    off = inference = False
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            off = not node.args[0]
        elif node.op == "call_function" and getattr(node.target, "__name__", "") in _INFERENCE:
            inference = _INFERENCE[node.target.__name__] and bool(node.args[0])
        elif off or inference:
            found.add(node)
    return frozenset(found)


def detached(made: Any) -> Any:
    """What a node gave, without its gradient: a traced value, a tensor of them, a tensor, or several."""
    if isinstance(made, (tuple, list)) and type(made) in (tuple, list):
        return type(made)(map(detached, made))
    return made.detach() if hasattr(made, "detach") else made
