"""Rings of packed documents over the processes of `ranks`, which cut them anywhere, compared with each document alone in float64."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

import dense_rows
from attn_mlir import dropout_mask
from attn_mlir.distributed import ring_attention, shard, traffic
from attn_mlir.frontend.sizes import kv_len
from ring_cases import DV, HKV, HQ, PLACEMENTS, SINKS, D, line, sinks

P, SEED = 0.25, (77, 3)


def functions(sink: Tensor, slopes: Tensor, number: int, length: Callable[[], Any]) -> dict[str, Any]:
    """A row with sinks, a bias of each document and from the end of it, and a causal mask, for documents from this number on."""

    def bias(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + slopes[b + number, h] * (kv_idx - q_idx) + 0.01 * (length() - kv_idx)

    return {"row": sinks(sink), "score_mod": bias, "mask_mod": lambda b, h, q_idx, kv_idx: q_idx >= kv_idx}


def compare(_: DeviceMesh, ends: tuple[int, ...], total: int, placements: tuple[str, ...], dropout: bool = False) -> list[str]:
    """What differs from each document alone by more than the bar, forward and backward: nothing, if all is well."""
    mesh = line()
    offsets = [0, *ends]
    count = len(ends)
    sink, slopes = SINKS.clone().requires_grad_(), (torch.rand(count, HQ) / 100).requires_grad_()
    q, k, v, do = (torch.randn(1, h, total, d) for h, d in ((HQ, D), (HKV, D), (HKV, DV), (HQ, DV)))
    wide = [x.detach().double().requires_grad_() for x in (q, k, v, sink, slopes)]
    o, lse = torch.zeros(1, HQ, total, DV, dtype=torch.float64), torch.full((1, HQ, total), -torch.inf, dtype=torch.float64)
    longest = max(b - a for a, b in itertools.pairwise(offsets))
    kept = dropout_mask(count, HQ, longest, longest, P, SEED).double() / (1 - P)
    for n, (begin, end) in enumerate(itertools.pairwise(offsets)):
        if begin == end:
            continue
        x, size = [y[:, :, begin:end] for y in wide[:3]], end - begin
        form = functions(wide[3], wide[4], n, lambda size=size: size)
        made, rows = dense_rows.dense(form, x[0], x[1], x[2], lse=True, kept=kept[n : n + 1, :, :size, :size] if dropout else None)
        o, lse = o.clone(), lse.clone()
        o[:, :, begin:end], lse[:, :, begin:end] = made, rows["lse"]
    (o * do).sum().backward()
    wanted = [o.detach(), lse.detach(), *(x.grad for x in wide)]
    options: dict[str, Any] = {"cu_seqlens": torch.tensor(offsets, dtype=torch.int32)}
    options |= {"dropout_p": P, "dropout_seed": SEED} if dropout else {}
    wrong = []
    for name in placements:
        placement = PLACEMENTS[name](total, mesh.size(mesh.ndim - 1))

        def cut(x: Tensor, placement: Any = placement) -> Tensor:
            return shard(x, mesh, "cp", placement=placement)

        sink.grad = slopes.grad = None
        local = [cut(x).requires_grad_() for x in (q, k, v)]
        form = functions(sink, slopes, 0, kv_len)
        mine, found = ring_attention(*local, mesh=mesh, dim="cp", placement=placement, return_lse=True, **form, **options)
        (mine * cut(do)).sum().backward()
        got = [mine.detach(), found.detach(), *(x.grad for x in (*local, sink, slopes))]
        for label, x, y in zip(("o", "lse", "dq", "dk", "dv", "dsink", "dslopes"), got, wanted, strict=True):
            assert x is not None and y is not None
            y = y if label in ("dsink", "dslopes") else cut(y)
            infinite = torch.isinf(y)
            x, y = torch.where(infinite == torch.isinf(x), torch.where(infinite, 0.0, x), torch.nan), torch.where(infinite, 0.0, y)
            error = float((x - y).abs().max()) / max(1.0, float(y.abs().max())) if y.numel() else 0.0
            if not error <= 4e-6:
                wrong.append(f"{ends} {name} {label}: {error:.1e}")
    return wrong


def sent(_: DeviceMesh) -> list[int]:
    """Bytes that this rank sends forward where documents of 16 end at its borders, and where one reaches 5 positions beyond each."""
    mesh = line()
    found = []
    for ends in ((16, 32, 48, 64), (21, 37, 53, 64)):
        q, k, v = (shard(torch.randn(1, 1, 64, 8), mesh, "cp") for _ in range(3))
        before = traffic()["bytes"]
        ring_attention(q, k, v, mesh=mesh, dim="cp", cu_seqlens=torch.tensor([0, *ends], dtype=torch.int32))
        found.append(traffic()["bytes"] - before)
    return found
