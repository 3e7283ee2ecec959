"""Recurrences whose segments lie on the processes of `ranks`, compared with one process."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from attn_mlir.distributed import linear_attention, shard
from attn_mlir.distributed.group import ranks_of
from delta_reference import delta_reference, unit
from ring_cases import line

B, H, T, K, V = 2, 2, 75, 8, 4


def compare(mesh: DeviceMesh, form: str, initial: bool) -> list[str]:
    """What differs from one process: nothing, if all is well."""
    q, k, v, do = (torch.randn(B, H, T, d) for d in (K, K, V, V))
    sizes = {"none": None, "head": (H,), "step": (B, H, T), "channel": (B, H, T, K)}[form]
    decay = None if sizes is None else -torch.rand(sizes) / 4
    state, dstate, slopes = torch.randn(B, H, K, V), torch.randn(B, H, K, V), torch.rand(H) / 8

    def run(attend: Callable[..., Any], cut: Callable[[Tensor], Tensor], part: float, dtype: torch.dtype) -> list[Tensor | None]:
        sloped = slopes.to(dtype).requires_grad_()
        inputs = [cut(x).to(dtype).requires_grad_() for x in (q, k, v)]
        g = None if decay is None else (decay if form == "head" else cut(decay)).to(dtype).requires_grad_()
        start = state.to(dtype).requires_grad_() if initial else None

        def v_mod(x: Any, b: Any, h: Any, t: Any) -> Any:
            return x * (1 + sloped[h] * (t % 5))

        o, last = attend(*inputs, g, initial_state=start, output_final_state=True, v_mod=v_mod)
        ((o * cut(do)).sum() + part * (last * dstate).sum()).backward()
        return [o.detach(), last.detach(), *(None if x is None else x.grad for x in (*inputs, g, start, sloped))]

    ranks = ranks_of(mesh, "cp")

    def cut(x: Tensor) -> Tensor:
        return shard(x, mesh, "cp").clone()

    wanted = run(dense, torch.clone, 1.0, torch.float64)
    got = run(lambda *x, **options: linear_attention(*x, mesh=mesh, dim="cp", **options), cut, 1.0 / ranks.count, torch.float32)
    labels = ("o", "final", "dq", "dk", "dv", "ddecay", "dinitial", "dslopes")
    wrong = []
    for label, x, y in zip(labels, got, wanted, strict=True):
        if x is None or y is None:
            continue
        if label in ("dinitial", "dslopes") or (label == "ddecay" and form == "head"):
            x = ranks.all_summed(x)
        elif label != "final":
            y = cut(y)
        error = float((x - y).abs().max()) / max(1.0, float(y.abs().max()))
        if not error <= 2e-6:
            wrong.append(f"{form} {label}: {error:.1e}")
    return wrong


def dense(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, initial_state: Tensor | None, v_mod: Any, **_: Any) -> tuple[Tensor, Tensor]:
    """The recurrence step by step."""
    state = q.new_zeros(B, H, K, V) if initial_state is None else initial_state
    outputs = []
    for t in range(q.shape[2]):
        x = v_mod(v[:, :, t], None, torch.arange(H).view(1, H, 1), t)
        at = None if g is None else g if g.dim() == 1 else g[:, :, t]
        if at is not None:
            state = state * at.exp().reshape(*([1, H, 1, 1] if at.dim() == 1 else [B, H, -1, 1]))
        state = state + k[:, :, t].unsqueeze(-1) * x.unsqueeze(-2)
        outputs.append((q[:, :, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outputs, 2), state


def compare_delta(_: DeviceMesh, length: int, channels: bool, own_keys: bool) -> list[str]:
    """What the delta rule differs from one process in: shares from a tensor and a mod with positions, keys of its own that it erases by."""
    q, k, v, do = (torch.randn(1, H, length, K) for _ in range(4))  # V = K, so that one program makes states and their transitions
    k, other = unit(k), unit(torch.randn(1, H, length, K))
    g, beta = -torch.rand((1, H, length, K) if channels else (1, H, length)) / 4, torch.rand(1, H, length)
    state, dstate, slopes = torch.randn(1, H, K, K), torch.randn(1, H, K, K), torch.rand(H) / 8
    mesh = line()
    ranks = ranks_of(mesh, "cp")

    def cut(x: Tensor) -> Tensor:
        return shard(x, mesh, "cp").clone()

    wide = [x.double().requires_grad_() for x in (q, k, v, g, beta, other, state, slopes)]
    share = wide[4] * (1 + wide[7].view(1, H, 1) * (torch.arange(length) % 3))
    erased = share.unsqueeze(3) * (wide[5] if own_keys else wide[1])
    o, last = delta_reference(wide[0], wide[1], wide[2], wide[3], erased, None, wide[6])
    ((o * do).sum() + (last * dstate).sum()).backward()
    mine = [*(cut(x).requires_grad_() for x in (q, k, v, g, beta, other)), state.clone().requires_grad_(), slopes.clone().requires_grad_()]
    options = {"erase": mine[4], "erase_key": mine[5] if own_keys else None}
    got, final = linear_attention(
        *mine[:4], mesh=mesh, dim="cp", initial_state=mine[6], output_final_state=True,
        erase_mod=lambda x, b, h, t: x * (1 + mine[7][h] * (t % 3)), **options,
    )  # fmt: skip
    ((got * cut(do)).sum() + (final * dstate).sum() / ranks.count).backward()
    found = [got.detach(), final.detach(), *(x.grad for x in mine)]
    wanted = [o.detach(), last.detach(), *(x.grad for x in wide)]
    wrong = []
    for label, x, y in zip(("o", "final", "dq", "dk", "dv", "dg", "dbeta", "dkey", "dinitial", "dslopes"), found, wanted, strict=True):
        if y is None or x is None:
            assert x is y
            continue
        whole = label in ("final", "dinitial", "dslopes")
        x, y = (ranks.all_summed(x) if label != "final" else x, y) if whole else (x, cut(y))
        error = float((x - y).abs().max()) / max(1.0, float(y.abs().max())) if y.numel() else 0.0
        if not error <= 2e-6:
            wrong.append(f"delta rule, {length}, {label}: {error:.1e}")
    return wrong
