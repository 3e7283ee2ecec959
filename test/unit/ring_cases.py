"""Rings over the processes of `ranks`: rows, masks and placements, compared with the dense formula in float64."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel

import dense_rows
from attn_mlir import rows
from attn_mlir.api.rows import maximum
from attn_mlir.distributed import decode_attention, ring_attention, shard, traffic, unshard
from attn_mlir.distributed.placement import ranges_of
from attn_mlir.integrations import torch_context_parallel

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


def distances(s: Any) -> Any:
    d = s - s.mean()
    return d / (d.abs().mean() + 1.0)


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
    "distances": distances,  # two passes over keys
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


@functools.cache
def line() -> DeviceMesh:
    """A mesh of one dimension, of all processes."""
    return DeviceMesh("cpu", torch.arange(torch.distributed.get_world_size()), mesh_dim_names=("cp",))


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
    o, _ = dense_rows.dense({**dense, "row": dense_rows.with_torch(dense["row"])}, wide[0], wide[1], wide[2])
    o.backward(do.double())
    wanted = [o.detach(), *(x.grad for x in wide)]
    wrong = []
    for name in placements:
        placement = PLACEMENTS[name](length, mesh.size(mesh.ndim - 1))

        def cut(x: Tensor, placement: Any = placement) -> Tensor:
            return shard(x, mesh, "cp", placement=placement)

        got: list[Any] = []
        before: list[Any] = []
        for repeat in range(2):
            sink.grad = slopes.grad = None
            local = [cut(x).requires_grad_() for x in (q, k, v)]
            options = {"placement": placement, "strategy": strategy, "deterministic": True, **functions(sink, slopes)}
            mine = ring_attention(*local, mesh=mesh, dim="cp", **options)
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


def decoded(mesh: DeviceMesh, row: str, mask: str, queries: int, lengths: tuple[int, ...]) -> list[float]:
    """How far the last positions' attention to keys of these lengths on the ranks is from the dense formula."""
    ranks = mesh.size(mesh.ndim - 1)
    total, rank = sum(lengths), mesh.get_local_rank("cp")
    q, k, v = (torch.randn(B, h, n, d) for h, n, d in ((HQ, total, D), (HKV, total, D), (HKV, total, DV)))
    begin = sum(lengths[:rank])
    own = slice(begin, begin + lengths[rank])
    function = sinks(SINKS) if row == "sinks" else ROWS[row]
    mine = decode_attention(
        q[:, :, total - queries :], k[:, :, own], v[:, :, own], mesh=mesh, dim="cp", row=function, mask_mod=MASKS[mask], return_lse=True
    )
    dense = {"row": dense_rows.with_torch(function), "mask_mod": MASKS[mask]}
    o, outputs = dense_rows.dense(dense, q.double(), k.double(), v.double(), lse=True)
    assert len(lengths) == ranks
    wanted = (o[:, :, total - queries :], outputs["lse"][:, :, total - queries :])
    return [float((x - y).abs().max()) for x, y in zip(mine, wanted, strict=True)]


def on_four(mesh: DeviceMesh) -> list[str]:
    """A mesh of two dimensions: two rings side by side, and one of all four ranks that sends what its ranks need."""
    return [
        *compare(mesh, "softmax", "causal", ("zigzag",), 61),
        *compare(line(), "softmax", "causal", ("contiguous", "zigzag", "ranges"), 61),
    ]


def of_dtensors(mesh: DeviceMesh) -> float:
    """How far the ring of DTensors is from that of their local tensors; o is a DTensor, too."""
    whole = [torch.randn(1, 2, 30, 8) for _ in range(3)]
    sharded = [distribute_tensor(x, mesh, [Shard(2)]) for x in whole]
    mine = ring_attention(*sharded, mesh=mesh, mask_mod=MASKS["causal"], strategy="ring")
    local = ring_attention(*(shard(x, mesh) for x in whole), mesh=mesh, mask_mod=MASKS["causal"], strategy="ring")
    assert mine.shape == whole[0].shape and mine.placements == (Shard(2),)
    return float((mine.to_local() - local).abs().max()) + float((unshard(local, mesh) - mine.full_tensor()).abs().max())


def compiled(mesh: DeviceMesh, layout: str, placement: str) -> float:
    """How far it is as one operator of a graph of torch.compile, with gradients, also of what is captured."""
    slopes = (torch.arange(2) / 40).requires_grad_()
    parts = [shard(torch.randn(1, 2, 30, 8), mesh, placement=placement) for _ in range(3)]
    parts = [(x.transpose(1, 2).contiguous() if layout == "bshd" else x).requires_grad_() for x in parts]

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score + slopes[h] * (kv_idx - q_idx)

        options: dict[str, Any] = {"mask_mod": MASKS["causal"], "score_mod": alibi, "placement": placement, "layout": layout}
        o, lse = ring_attention(q * 2, k, v, mesh=mesh, strategy="ring", return_lse=True, **options)
        return o.sin().sum() + lse.cos().sum()

    functions = (loss, torch.compile(loss, backend="aot_eager", fullgraph=True))
    made = [torch.autograd.grad(f(*parts), [*parts, slopes]) for f in functions]
    return max(float((x - y).abs().max()) for x, y in zip(*made, strict=True))


def in_context_parallel(mesh: DeviceMesh) -> float:
    """How far scaled_dot_product_attention inside of torch's context_parallel is from that of whole tensors."""
    q, k, v = (torch.randn(1, 2, 32, 8) for _ in range(3))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    with torch_context_parallel.install(strategy="ring"), context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2] * 3):
        mine = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return float((mine - shard(wanted, mesh, placement="zigzag")).abs().max())
