"""Rings over the processes of `ranks`: rows, masks and placements, compared with the dense formula in float64."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

import dense_rows
from attn_mlir import rows
from attn_mlir.api.rows import maximum
from attn_mlir.distributed import ring_attention, shard, traffic
from attn_mlir.distributed.placement import ranges_of

B, HQ, HKV, D, DV = 2, 4, 2, 16, 8
SINKS = torch.tensor([0.3, -0.2, 0.1, 0.5])
DOCUMENTS = torch.tensor([0] * 23 + [1] * 31 + [2] * 73)


def relu_normalized(s: Any) -> Any:
    w = maximum(s, 0.0)
    return w / (w.sum() + 1e-2)


def layer_norm(s: Any) -> Any:
    d = s - s.mean()
    return d / ((d * d).mean() + 1e-1).sqrt()


def normalized(s: Any) -> Any:
    return s / ((s * s).sum() + 1e-1).sqrt()


def two_sums(s: Any) -> Any:
    e = (s - s.max()).exp()
    return e * e / (e.sum() * e.sum() + (e * e).sum())


def range_scaled(s: Any) -> Any:
    return (s - s.min()) / (s.max() - s.min() + 1.0)


def shifted(s: Any) -> Any:
    return maximum(s + 3.0, 0.0) / (1.0 + s.abs().sum())


def sinks(sink: Tensor) -> Callable[..., Any]:
    def row(s: Any, b: Any, h: Any, q_idx: Any) -> Any:
        most = s.max()
        e = (s - most).exp()
        return e / (e.sum() + (sink[h] - most).exp())

    return row


ROWS: dict[str, Callable[..., Any]] = {
    "softmax": rows.softmax,
    "sigmoid": rows.sigmoid,
    "relu_normalized": relu_normalized,
    "layer_norm": layer_norm,
    "normalized": normalized,
    "two_sums": two_sums,
    "range_scaled": range_scaled,
    "shifted": shifted,
    "relu_squared": rows.relu_squared,
    "identity": rows.identity,
    "retention": rows.retention,
    "sinks": rows.softmax,  # made with the sinks of a call
}


def _documents(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return DOCUMENTS[q_idx] == DOCUMENTS[kv_idx]


MASKS: dict[str, Any] = {
    "none": None,
    "causal": lambda b, h, q_idx, kv_idx: q_idx >= kv_idx,
    "window": lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < 20),
    "both_sides": lambda b, h, q_idx, kv_idx: (q_idx - kv_idx < 15) & (kv_idx - q_idx < 9),
    "prefix": lambda b, h, q_idx, kv_idx: (kv_idx < 40) | (q_idx >= kv_idx),
    "chunks": lambda b, h, q_idx, kv_idx: (q_idx // 32) == (kv_idx // 32),
    "documents": _documents,
    "late": lambda b, h, q_idx, kv_idx: q_idx - kv_idx > 50,  # whose first rows see nothing
}
PLACEMENTS: dict[str, Any] = {
    "contiguous": lambda length, ranks: "contiguous",
    "zigzag": lambda length, ranks: "zigzag",
    "ranges": lambda length, ranks: uneven(length, ranks),
}


def uneven(length: int, ranks: int) -> list[list[tuple[int, int]]]:
    """The last rank holds the beginning and the end, the others the rest: shards of different lengths."""
    inner = [(20 + begin, 20 + end) for ((begin, end),) in ranges_of("contiguous", length - 40, ranks - 1)]
    return [*([one] for one in inner), [(length - 20, length), (0, 20)]]


def compare(mesh: DeviceMesh, row: str, mask: str, placements: tuple[str, ...], length: int = 127, strategy: str = "ring") -> list[str]:
    """What differs from the dense formula by more than the bar: nothing, if all is well."""
    sink, slopes = SINKS.clone().requires_grad_(), (torch.arange(4) / 400).requires_grad_()
    q, k, v, do = (torch.randn(B, h, length, d) for h, d in ((HQ, D), (HKV, D), (HKV, DV), (HQ, DV)))
    wide = [x.detach().double().requires_grad_() for x in (q, k, v, sink, slopes)]

    def functions(sink: Tensor, slopes: Tensor) -> dict[str, Any]:
        def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score + slopes[h] * (kv_idx - q_idx)

        return {"row": sinks(sink) if row == "sinks" else ROWS[row], "score_mod": alibi, "mask_mod": MASKS[mask]}

    dense = functions(*wide[3:])
    o, _ = dense_rows.dense({**dense, "row": dense_rows.with_torch(dense["row"])}, *wide[:3])
    o.backward(do.double())
    wanted = [o.detach(), *(x.grad for x in wide)]
    wrong = []
    for name in placements:
        placement = PLACEMENTS[name](length, mesh.size(mesh.ndim - 1))

        def cut(x: Tensor, placement: Any = placement) -> Tensor:
            return shard(x, mesh, "cp", placement=placement)

        for repeat in range(2):
            sink.grad = slopes.grad = None
            local = [cut(x).requires_grad_() for x in (q, k, v)]
            mine = ring_attention(*local, mesh=mesh, dim="cp", placement=placement, **functions(sink, slopes), strategy=strategy)
            mine.backward(cut(do))
            got = [mine.detach(), *(x.grad for x in (*local, sink, slopes))]
            if repeat == 0:
                before = got
            elif not all(x is y is None or torch.equal(x, y) for x, y in zip(got, before, strict=True)):
                wrong.append(f"{row} {mask} {name}: other bits in a second run")
        for label, x, y in zip(("o", "dq", "dk", "dv", "dsink", "dslopes"), got, wanted, strict=True):
            if y is None:
                continue
            y = cut(y) if y.dim() == 4 else y
            error = float((x - y).abs().max()) / max(1.0, float(y.abs().max())) if y.numel() else 0.0
            if not error <= 2e-6 * (4 if label.startswith("ds") else 1) or bool(torch.isnan(x).any()):
                wrong.append(f"{row} {mask} {name} {label}: {error:.1e}")
    return wrong


def sent(mesh: DeviceMesh, mask: str, length: int, placement: str) -> tuple[int, int]:
    """Bytes and messages of a forward pass that this rank sends."""
    before = traffic()
    q, k, v = (shard(torch.randn(1, 1, length, 8), mesh, "cp", placement=placement) for _ in range(3))
    ring_attention(q, k, v, mesh=mesh, dim="cp", placement=placement, mask_mod=MASKS[mask], strategy="ring")
    after = traffic()
    return after["bytes"] - before["bytes"], after["messages"] - before["messages"]
