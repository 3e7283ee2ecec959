"""Rings with dropout, and of rows that give several weights, over the processes of `ranks`, compared with the dense formula in float64."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

import dense_rows
from attn_mlir import dropout_mask
from attn_mlir.distributed import ring_attention, shard
from attn_mlir.distributed.group import ranks_of
from ring_cases import DV, HKV, HQ, MASKS, PLACEMENTS, SINKS, B, D

P, SEED = 0.3, (1234, 5)


def with_sink_and_squares(sink: Tensor) -> Any:
    """Two weights: those of softmax with a sink, and their squares times a captured number."""

    def row(s: Any, b: Any, h: Any, q_idx: Any) -> Any:
        most = s.max()
        e = (s - most).exp()
        p = e / (e.sum() + (sink[h] - most).exp())
        return p, p * p * sink[h]

    return row


def compare(mesh: DeviceMesh, several: bool, dropout: bool, placements: tuple[str, ...], length: int, strategy: str = "ring") -> list[str]:
    """What differs from the dense formula by more than the bar: nothing, if all is well."""
    sink, slopes = SINKS.clone().requires_grad_(), (torch.arange(4) / 400).requires_grad_()
    q, k, v = (torch.randn(B, h, length, d) for h, d in ((HQ, D), (HKV, D), (HKV, DV)))
    dos = [torch.randn(B, HQ, length, DV) for _ in range(1 + several)]
    wide = [x.detach().double().requires_grad_() for x in (q, k, v, sink, slopes)]

    def functions(sink: Tensor, slopes: Tensor) -> dict[str, Any]:
        whole = with_sink_and_squares(sink)

        def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score + slopes[h] * (kv_idx - q_idx)

        def first(s: Any, b: Any, h: Any, q_idx: Any) -> Any:
            return whole(s, b, h, q_idx)[0]

        return {"row": whole if several else first, "score_mod": alibi, "mask_mod": MASKS["window"]}

    kept = dropout_mask(B, HQ, length, length, P, SEED).double() / (1 - P) if dropout else None
    o, rows = dense_rows.dense(functions(*wide[3:]), wide[0], wide[1], wide[2], lse=True, kept=kept)
    every = o if several else [o]
    sum((x * y).sum() for x, y in zip(every, dos, strict=True)).backward()  # type: ignore[union-attr]
    wanted = [*(x.detach() for x in every), rows["lse"].detach(), *(x.grad for x in wide)]
    wrong = []
    options: dict[str, Any] = {"dropout_p": P, "dropout_seed": SEED} if dropout else {}
    for name in placements:
        placement = PLACEMENTS[name](length, mesh.size(mesh.ndim - 1))

        def cut(x: Tensor, placement: Any = placement) -> Tensor:
            return shard(x, mesh, "cp", placement=placement)

        sink.grad = slopes.grad = None
        local = [cut(x).requires_grad_() for x in (q, k, v)]
        made, lse = ring_attention(
            *local, mesh=mesh, dim="cp", placement=placement, strategy=strategy, return_lse=True, **functions(sink, slopes), **options
        )
        mine = made if several else [made]
        sum((x * cut(y)).sum() for x, y in zip(mine, dos, strict=True)).backward()  # type: ignore[union-attr]
        got = [*(x.detach() for x in mine), lse.detach(), *(x.grad for x in (*local, sink, slopes))]
        labels = ("o", *["o1"] * several, "lse", "dq", "dk", "dv", "dsink", "dslopes")
        for label, x, y in zip(labels, got, wanted, strict=True):
            assert x is not None and y is not None
            whole = label in ("dsink", "dslopes")
            y = y if whole else shard(y, mesh, "cp", placement=placement)
            error = float((x - y).abs().max()) / max(1.0, float(y.abs().max())) if y.numel() else 0.0
            if not error <= 2e-6 * (4 if whole else 1):
                wrong.append(f"{name} {label}, {length}: {error:.1e}")
    return wrong


def drawn(mesh: DeviceMesh) -> tuple[bool, bool]:
    """Whether every rank drops what the seed of the first one says, where all draw others, and another call drops something else."""
    ranks, length = ranks_of(mesh, "cp"), 40
    torch.manual_seed(ranks.rank)
    ones = torch.zeros(B, HQ, length // ranks.count, D)
    eye = torch.eye(length).expand(B, HQ, -1, -1)[:, :, ranks.rank * ones.shape[2] :][:, :, : ones.shape[2]].contiguous()
    first, second = (ring_attention(ones, ones, eye, mesh=mesh, dim="cp", dropout_p=P, strategy="ring") > 0 for _ in range(2))
    torch.manual_seed(0)
    seed = torch.randint(0, 2**62, (2,), dtype=torch.int64)
    kept = shard(dropout_mask(B, HQ, length, length, P, seed), mesh, "cp")
    return torch.equal(first, kept), torch.equal(first, second)
