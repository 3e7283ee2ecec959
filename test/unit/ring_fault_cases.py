"""What goes wrong on one of several processes: each has to hear of it, and to go on together afterwards, or to hear of a death in time."""

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from attn_mlir import rows
from attn_mlir.distributed import decode_attention, linear_attention, ring_attention, unshard
from attn_mlir.distributed.group import ranks_of
from attn_mlir.errors import AttnError, UnsupportedError
from ring_cases import MASKS, line


def _broken(s: Any) -> Any:
    raise ValueError("no row")


def faults(_: DeviceMesh) -> dict[str, tuple[str, float]]:
    """The error of each fault of the last rank, or "no error", and how long this rank waited for it; a right call follows each."""
    mesh = line()
    ranks = ranks_of(mesh, "cp")
    odd = ranks.rank == ranks.count - 1
    q, k, v = (torch.randn(1, 2, 8, 8) for _ in range(3))
    table = torch.rand(2)
    options: dict[str, Any] = {"mesh": mesh, "dim": "cp", "strategy": "ring"}

    def ring(*x: Any, **more: Any) -> Any:
        return ring_attention(*(x or (q, k, v)), **{**options, **more})

    def scaled(number: float, values: torch.Tensor) -> Callable[..., Any]:
        return lambda s, b, h, i, j: s * number + values[h]

    def linear(**more: Any) -> Any:
        return linear_attention(q, k, v, mesh=mesh, dim="cp", **more)

    cases: dict[str, Callable[[], Any]] = {
        "dtype": lambda: ring(*(x.bfloat16() if odd else x for x in (q, k, v))),
        "batch": lambda: ring(*(torch.cat([x, x]) if odd else x for x in (q, k, v))),
        "row": lambda: ring(row=rows.sigmoid if odd else rows.softmax),
        "number": lambda: ring(score_mod=scaled(2.0 if odd else 1.0, table)),
        "captured shape": lambda: ring(score_mod=scaled(1.0, torch.rand(3) if odd else table)),
        "gradient": lambda: ring(q.clone().requires_grad_(odd), k, v),
        "lengths": lambda: ring(*(x[:, :, :5] if odd else x for x in (q, k, v)), placement="zigzag"),
        "strategy": lambda: ring(strategy="all_gather" if odd else "ring"),
        "no strategy": lambda: ring(strategy="fastest" if odd else "ring"),
        "arguments": lambda: ring(q, k[..., :4] if odd else k, v),
        "layout": lambda: ring(layout="hdbs" if odd else "bhsd"),
        "trace": lambda: ring(row=_broken if odd else rows.softmax),
        "mask": lambda: ring(mask_mod="nonsense:" if odd else MASKS["causal"]),
        "dropout": lambda: ring(dropout_p=0.5 if odd else 0.0, dropout_seed=(1, 2)),
        "seed": lambda: ring(dropout_p=0.5, dropout_seed=(1, 2 + odd)),
        "offsets": lambda: ring(cu_seqlens=torch.tensor([0, 9 + odd, 8 * ranks.count], dtype=torch.int32)),
        "no offsets": lambda: ring(cu_seqlens=torch.tensor([0, 9, 8 * ranks.count]) if odd else None),
        "another call": lambda: decode_attention(q, k, v, mesh=mesh, dim="cp") if odd else ring(),
        "another function": lambda: unshard(q, mesh, "cp") if odd else linear(),
        "linear decay": lambda: linear(decay=torch.zeros(2) if odd else None),
        "linear mod": lambda: linear(v_mod=(lambda x: x * 2) if odd else None),
        "linear arguments": lambda: linear(decay=torch.zeros(3) if odd else torch.zeros(2)),
        "decode": lambda: decode_attention(q[:, :, : 3 + odd], k, v, mesh=mesh, dim="cp"),
    }
    found = {}
    for name, call in cases.items():
        begin = time.monotonic()
        try:
            call()
            told = "no error"
        except (AttnError, ValueError) as error:
            told = str(error)
        found[name] = (told, time.monotonic() - begin)
        ring()
    return found


def dies(_: DeviceMesh, when: str) -> str:
    """The last rank dies before a call, or between the forward and the backward pass; what the others hear."""
    mesh = line()
    ranks = ranks_of(mesh, "cp")
    odd = ranks.rank == ranks.count - 1
    q, k, v = (torch.randn(1, 2, 8, 8, requires_grad=True) for _ in range(3))
    begin = time.monotonic()
    try:
        if odd and when == "before":
            os._exit(1)
        o = ring_attention(q, k, v, mesh=mesh, strategy="ring")
        if odd:
            os._exit(1)
        begin = time.monotonic()
        o.sum().backward()
    except RuntimeError:
        return "error" if time.monotonic() - begin < 30 else "late"
    return "no error"


def shorter(_: DeviceMesh) -> float:
    """How far a ring is from all keys gathered, where the last rank has fewer positions than in the call before, and the others as many."""
    mesh = line()
    ranks = ranks_of(mesh, "cp")
    odd = ranks.rank == ranks.count - 1
    worst = 0.0
    for length in (8, 5, 8):
        q, k, v = (torch.randn(1, 2, length if odd else 8, 8) for _ in range(3))
        made = [ring_attention(q, k, v, mesh=mesh, mask_mod=MASKS["causal"], strategy=name) for name in ("ring", "all_gather")]
        worst = max(worst, float((made[0] - made[1]).abs().max()))
    return worst


def refused(_: DeviceMesh) -> list[str]:
    """What no ring computes: two weights of a row that takes two passes, of a sequence and of a cut document, and bits of moved heads."""
    mesh = line()
    count = ranks_of(mesh, "cp").count
    q, k, v = (torch.randn(1, 4, 8, 8) for _ in range(3))

    def twice(s: Any) -> Any:
        d = (s - s.mean()).abs()
        return d / (d.sum() + 1.0), s

    found = []
    cut = torch.tensor([0, 8 * count - 3], dtype=torch.int32)
    for options in ({"row": twice, "strategy": "ring"}, {"row": twice, "cu_seqlens": cut}, {"strategy": "ulysses", "dropout_p": 0.5}):
        try:
            ring_attention(q, k, v, mesh=mesh, **options)
            found.append("no error")
        except UnsupportedError as error:
            found.append(str(error))
    return found
