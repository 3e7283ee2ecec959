"""Wrong arguments are refused with a message that names the argument; odd ones work."""

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import attn_mlir
from api_helpers import inputs
from attn_mlir import ArgumentError, Attention, TraceError, UnsupportedError, attention, masks, mods, rows

Q, K, V = inputs(sq=9, skv=11)
COMPLEX: Any = torch.tensor(1j)


def _quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(Q, 0.1, 0, torch.qint8)


def _nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(n, 3, 4) for n in (2, 3)], layout=layout)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "type": (lambda: attention(Q.numpy(), K, V), "q must be a torch.Tensor, got ndarray"),  # type: ignore[arg-type]
    "none": (lambda: attention(Q, None, V), "k must be a torch.Tensor, got NoneType"),  # type: ignore[arg-type]
    "rank": (lambda: attention(Q, K, V[0]), r"v must have 4 dimensions, \[batch, head, position, dim\], got shape \[2, 11, 24\]"),
    "rank bshd": (lambda: attention(Q[0], K, V, layout="bshd"), r"q must have 4 dimensions, \[batch, position, head, dim\]"),
    "dtype": (lambda: attention(Q.double(), K.double(), V.double()), "q has dtype torch.float64: use float32"),
    "integer": (lambda: attention(Q.int(), K, V), "q has dtype torch.int32"),
    "mixed dtypes": (lambda: attention(Q, K.half(), V), "k has dtype torch.float16 but q has torch.float32"),
    "batch": (lambda: attention(Q, K[:1], V), "k has batch size 1 but q has 2"),
    "value batch": (lambda: attention(Q, K, V[:1]), "v has batch size 1 but q has 2"),
    "heads": (lambda: attention(Q[:, :3], K, V), "q has 3 heads, which is no multiple of the 2 heads of k and v"),
    "no heads": (lambda: attention(Q, K[:, :0], V[:, :0]), "no multiple of the 0 heads"),
    "value heads": (lambda: attention(Q, K, V[:, :1]), "v has 1 heads but k has 2"),
    "lengths": (lambda: attention(Q, K, V[:, :, :5]), "v has 5 positions but k has 11"),
    "dims": (lambda: attention(Q, K[..., :8], V), "k has head dimension 8 but q has 16"),
    "dim 0": (lambda: attention(Q[..., :0], K[..., :0], V), "q has head dimension 0; it must be 1 to 512"),
    "dim 513": (lambda: attention(Q, K, torch.zeros(2, 2, 11, 513)), "v has head dimension 513; it must be 1 to 512"),
    "huge": (lambda: attention(Q, K[:, :, :1].expand(-1, -1, 2**31, -1), V), "k has a dimension of 2147483648 elements"),
    "sparse": (lambda: attention(Q.to_sparse(), K, V), "q must be a plain strided tensor"),
    "meta": (lambda: attention(Q.to("meta"), K, V), "q is on the meta device"),
    "layout": (lambda: attention(Q, K, V, layout="sbhd"), 'layout is "bhsd"'),
    "layout of the object": (lambda: Attention(layout="sbhd"), 'layout is "bhsd"'),
    "scale type": (lambda: attention(Q, K, V, scale="x"), "scale must be a number or None, got str"),  # type: ignore[arg-type]
    "scale bool": (lambda: attention(Q, K, V, scale=True), "scale must be a number or None, got bool"),
    "scale nan": (lambda: attention(Q, K, V, scale=math.nan), "scale must be finite"),
    "scale shape": (lambda: attention(Q, K, V, scale=torch.ones(2, 2)), r"scale must be a number or None, got Tensor of shape \[2, 2\]"),  # type: ignore[arg-type]
    "scale huge": (lambda: attention(Q, K, V, scale=10**400), "scale must be finite"),
    "scale complex": (lambda: attention(Q, K, V, scale=COMPLEX), "scale must be a number or None, got Tensor of dtype torch.complex64"),
