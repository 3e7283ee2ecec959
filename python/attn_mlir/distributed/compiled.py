"""Rings inside torch.compile: the part that dynamo traces; see `api.compiled`."""

import json
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from attn_mlir.api.compiled import attention_in_graph, in_transform
from attn_mlir.distributed.graphs import run_ring_graph
from attn_mlir.distributed.group import ranks_of
from attn_mlir.errors import UnsupportedError


def ring_in_graph(qkv: tuple[Tensor, Tensor, Tensor], asked: tuple[Any, ...], mesh: DeviceMesh, dim: Any, placement: Any) -> Any:
    """What `ring_attention` returns with strategy="ring"; `asked` are the first fields of `api.options.Options`."""
    if in_transform():
        raise UnsupportedError("ring_attention inside a transform of torch.func is no part of a graph, and has no such derivatives outside")
    return attention_in_graph(qkv, asked, ring=_words(mesh, dim, placement), run=run_ring_graph)


@torch._dynamo.assume_constant_result
def _words(mesh: DeviceMesh, dim: Any, placement: Any) -> str:
    """What the operator takes of the mesh: the name of its group, and what positions its ranks hold."""
    return json.dumps({"group": ranks_of(mesh, dim).group.group_name, "placement": placement})
