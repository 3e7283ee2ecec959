"""`linear_attention` of sequences that are cut over the ranks of a mesh: each rank its segment, and a scan of states over ranks."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from attn_mlir.api.linear import linear_attention as whole_attention
from attn_mlir.distributed.group import Ranks, agreed, digest, ranks_of
from attn_mlir.distributed.ring import outside
from attn_mlir.distributed.scan import from_last, states_before
from attn_mlir.errors import ArgumentError

_COLUMNS = 16
"""The fewest columns of a state in kernels for GPUs."""
_SHOWN = ("the batch size", "the number of heads", "the head dimension of q", "that of v")
_NAMES = (*_SHOWN, "the dtype, the form of the decay or what needs a gradient")


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    *,
    mesh: DeviceMesh,
    dim: str | int | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    layout: str = "bhsd",
    local_positions: bool = False,
    **options: Any,
) -> Any:
    """`attn_mlir.linear_attention` of a sequence whose segments lie on the ranks along `dim` of `mesh`, one after another, of any lengths.

    Arguments are those of `attn_mlir.linear_attention`, on this rank's segment. Mods see positions in the whole sequence, or, with
    `local_positions`, in the segment, for captured tensors that every rank has of its own segment only. initial_state is the state
    before the first position of all, the same on all ranks, and so is the final state, that behind the last one. Gradients of captured
    tensors, of a decay [H] and of initial_state are this rank's share: sum them over ranks, as for the parameters of a model.
    Every rank computes its segment twice: for the state behind it, and from the state before it (see `attn-split-sequences`).
    """
    if options.get("cu_seqlens") is not None:
        raise ArgumentError("cu_seqlens is for sequences on one rank: cut packed sequences over ranks where one of them ends")
    ranks = ranks_of(mesh, dim)

    def compute() -> Any:
        return _compute(ranks, (q, k, v, decay), initial_state, output_final_state, layout, local_positions, options)

    return outside(compute) if torch.compiler.is_dynamo_compiling() else compute()


def _compute(
    ranks: Ranks, inputs: tuple[Any, ...], initial: Tensor | None, final: bool, layout: str, local: bool, options: dict[str, Any]
) -> Any:
    q, k, v, decay = inputs
    length = v.shape[layout.index("s")]
    offset = _agree(ranks, inputs, initial, layout, length)
    mods = {name: options.get(name) for name in ("q_mod", "k_mod", "v_mod", "decay_mod", "skip_mod")}
    if not local:
        mods = {name: moved(mod, offset, 2 if name == "skip_mod" else 3) for name, mod in mods.items()}
    options = {**options, **mods, "layout": layout}
    score = torch.float64 if v.dtype == torch.float64 else torch.float32
    shape = (v.shape[0], v.shape[layout.index("h")], q.shape[3], v.shape[3])
    start = torch.zeros(shape, dtype=score, device=v.device) if initial is None else initial.to(score)
    nothing = torch.zeros_like(start).requires_grad_(start.requires_grad)  # so that one program computes both
    _, state = whole_attention(q, k, v, decay, initial_state=nothing, output_final_state=True, **options)
    faded = _faded(q, k, v, decay, shape, score, options)
    before = states_before(ranks, faded, state, start)
    o, last = whole_attention(q, k, v, decay, initial_state=before, output_final_state=True, **options)
    return (o, from_last(ranks, last)) if final else o


def _faded(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, shape: tuple[int, ...], score: torch.dtype, options: dict[str, Any]
) -> Tensor:
    """What a state of ones is multiplied with over the segment, [B, H, K, 1]: the recurrence itself, without keys and values.

    It needs the decays alone.
    """
    ones = torch.ones((*shape[:3], 1 if v.device.type == "cpu" else _COLUMNS), dtype=score, device=v.device)
    nothing = {**options, "k_mod": None, "v_mod": None, "q_mod": None, "skip_mod": None}
    single = v.new_zeros((*v.shape[:3], ones.shape[3]))
    return whole_attention(torch.zeros_like(q), torch.zeros_like(k), single, decay, initial_state=ones, output_final_state=True, **nothing)[
        1
    ][..., :1]


def _agree(ranks: Ranks, inputs: tuple[Any, ...], initial: Tensor | None, layout: str, length: int) -> int:
    """Where this rank's segment begins. Raises on all ranks where they differ."""
    q, _, v, decay = inputs
    needing = [x is not None and x.requires_grad for x in (*inputs, initial)] if torch.is_grad_enabled() else []
    form = digest(str(q.dtype), layout, None if decay is None else decay.dim(), needing, initial is None)
    heads = layout.index("h")
    every = ranks.all_gather([v.shape[0], v.shape[heads], q.shape[3], v.shape[3], form, length], v.device)
    agreed(every, _NAMES, _SHOWN)
    return sum(each[-1] for each in every[: ranks.rank])


def moved(mod: Callable[..., Any] | None, offset: int, place: int) -> Callable[..., Any] | None:
    """A mod whose argument number `place` is a position, which it gets `offset` further on."""
    if mod is None or (count := len(inspect.signature(mod).parameters)) <= place:
        return mod
    if place == 2:
        return lambda b, h, t: mod(b, h, t + offset)
    if count == 4:
        return lambda x, b, h, t: mod(x, b, h, t + offset)
    return lambda x, b, h, t, d: mod(x, b, h, t + offset, d)
