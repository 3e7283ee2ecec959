"""`linear_attention_step`: one step of decoding, the recurrence of the same program for a single position."""

from collections.abc import Callable
from typing import Any, Never

import torch

from attn_mlir.api.linear import linear_attention
from attn_mlir.api.linear_inputs import described
from attn_mlir.api.unknown_arguments import unexpected
from attn_mlir.errors import ArgumentError

Function = Callable[..., Any]


def linear_attention_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
    scale: float | None = 1.0,
    q_mod: Function | None = None,
    k_mod: Function | None = None,
    v_mod: Function | None = None,
    decay_mod: Function | None = None,
    layout: str = "bhsd",
    device: str | torch.device | None = None,
    skip_mod: Function | None = None,
    erase: torch.Tensor | None = None,
    erase_mod: Function | None = None,
    erase_key: torch.Tensor | None = None,
    removed_key: torch.Tensor | None = None,
    read_before_update: bool = False,
    **unknown: Never,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, state): the next position of `linear_attention` from the state before it, and the state after it.

    q is [B, Hq, K] or [B, Hq, 1, K], k and v alike (with layout="bshd": [B, 1, H, D]); o has the form of v. decay is [H], one for each
    step, [B, H], or [B, H, K]; with positions in q also in it, [B, H, 1] or [B, H, 1, K]. A decay [H, K] must be given with positions in
    q; erase alike. erase_key and removed_key have the form of k. state is [B, H, K, V]; None: 0. The other arguments are those of
    `linear_attention`; in mods, t is 0.
    """
    if unknown:
        raise unexpected(linear_attention_step, unknown)
    flat = isinstance(q, torch.Tensor) and q.dim() == 3
    axis = 1 if layout == "bshd" else 2
    if flat:
        for name, tensor in (("k", k), ("v", v)):
            if not isinstance(tensor, torch.Tensor) or tensor.dim() != 3:
                raise ArgumentError(f"q is [B, H, K], so that {name} must have 3 dimensions, too, got {described(tensor)}")
        q, k, v = q.unsqueeze(axis), k.unsqueeze(axis), v.unsqueeze(axis)
        if isinstance(decay, torch.Tensor) and decay.dim() > 1:
            if decay.dim() > 3 or decay.shape[:2] != (v.shape[0], v.shape[3 - axis]):
                raise ArgumentError(
                    f"q is [B, H, K], so that decay must be [H], [B, H] or [B, H, K], got {described(decay)}; [H, K] needs q with positions"
                )
            decay = decay.unsqueeze(axis)
        erase, erase_key, removed_key = (
            x.unsqueeze(axis) if isinstance(x, torch.Tensor) and x.dim() in dims else x
            for x, dims in ((erase, (2, 3)), (erase_key, (3,)), (removed_key, (3,)))
        )
    elif isinstance(q, torch.Tensor) and q.dim() != 4:
        whole = "[B, 1, H, K]" if layout == "bshd" else "[B, H, 1, K]"
        raise ArgumentError(f"q must be [B, H, K], or {whole} with a position, got {described(q)}")
    elif isinstance(q, torch.Tensor) and q.shape[axis] != 1:
        raise ArgumentError(f"a step takes one position, but q has {q.shape[axis]}: linear_attention takes many")
    if isinstance(state, torch.Tensor) and isinstance(v, torch.Tensor) and v.dim() == 4:
        wanted = [q.shape[0], v.shape[3 - axis], q.shape[3], v.shape[3]]
        if list(state.shape) != wanted:
            raise ArgumentError(f"state has shape {list(state.shape)}, but [B, H, K, V] is {wanted} in this call")
    o, state = linear_attention(
        q, k, v, decay, scale, q_mod, k_mod, v_mod, decay_mod, initial_state=state, output_final_state=True, layout=layout, device=device,
        skip_mod=skip_mod, erase=erase, erase_mod=erase_mod, erase_key=erase_key, removed_key=removed_key,
        read_before_update=read_before_update,
    )  # fmt: skip
    return (o.squeeze(axis) if flat else o), state  # type: ignore[return-value]
