"""`linear_attention` of sequences that are cut over the ranks of a mesh: each rank its segment, and a scan of states over ranks."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from attn_mlir.api.linear import linear_attention as whole_attention
from attn_mlir.api.linear_inputs import check_linear, check_segment
from attn_mlir.api.options import LinearOptions
from attn_mlir.distributed.group import Ranks, agreed, digest, ranks_of
from attn_mlir.distributed.outside import outside
from attn_mlir.distributed.scan import from_last, states_before
from attn_mlir.errors import ArgumentError
from attn_mlir.runtime.row_values import score_of

_COLUMNS = 16
"""The fewest columns of a state in kernels for GPUs."""
_SHOWN = ("the batch size", "the number of heads", "the head dimension of q", "that of v")
_NAMES = (*_SHOWN, "the dtype, the form of the decay, what is erased or what needs a gradient", "the functions or the scale")
_MODS = ("q_mod", "k_mod", "v_mod", "decay_mod", "skip_mod", "erase_mod")
_ERASED = ("erase", "erase_key", "removed_key")


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
    before the first position of all, the same on all ranks, and so is the final state, that after the last one. Gradients of captured
    tensors, of a decay [H] and of initial_state are this rank's share: sum them over ranks, as for the parameters of a model.
    Every rank computes its segment twice: for the state after it, and from the state before it (see `attn-split-sequences`). The delta
    rule (erase=, erase_mod=) has K x K transitions of states, which take a scan of their own with K columns.
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
    device = v.device if isinstance(v, Tensor) else torch.device("cpu")
    with ranks.before_told(device):
        told = [*_told(inputs, initial, layout, options), v.shape[layout.index("s")]]
    every = ranks.all_gather("linear_attention", told, device)
    agreed(every, _NAMES, _SHOWN)
    offset = sum(each[-1] for each in every[: ranks.rank])
    if not local:
        options = {**options, **{name: moved(name, options.get(name), offset) for name in _MODS}}
    options = {**options, "layout": layout}
    score = score_of(v)
    shape = (v.shape[0], v.shape[layout.index("h")], q.shape[3], v.shape[3])
    start = torch.zeros(shape, dtype=score, device=device) if initial is None else initial.to(score)
    nothing = torch.zeros_like(start).requires_grad_(start.requires_grad)  # so that one program computes both
    _, state = whole_attention(q, k, v, decay, initial_state=nothing, output_final_state=True, **options)
    before = states_before(ranks, _transition(inputs, shape, score, options), state, start)
    o, last = whole_attention(q, k, v, decay, initial_state=before, output_final_state=True, **options)
    return (o, from_last(ranks, last)) if final else o


def _transition(inputs: tuple[Any, ...], shape: tuple[int, ...], score: torch.dtype, options: dict[str, Any]) -> Tensor:
    """What a state is multiplied with over the segment: the recurrence itself without values, from ones, [B, H, K, 1].

    Where the segment erases, from the unit matrix, [B, H, K, K], by the keys. Otherwise it needs the decays alone.
    """
    q, k, v, decay = inputs
    erases = options.get("erase") is not None or options.get("erase_mod") is not None
    least = 1 if v.device.type == "cpu" else _COLUMNS
    without = {**options, "v_mod": None, "q_mod": None, "skip_mod": None}
    if erases:
        start = torch.eye(shape[2], dtype=score, device=v.device).expand(*shape[:3], shape[2]).contiguous()
    else:
        start = torch.ones((*shape[:3], least), dtype=score, device=v.device)
        k, without["k_mod"] = torch.zeros_like(k), None
    nothing = v.new_zeros((*v.shape[:3], start.shape[3]))
    made = whole_attention(torch.zeros_like(q), k, nothing, decay, initial_state=start, output_final_state=True, **without)[1]
    return made if erases else made[..., :1]


def _told(inputs: tuple[Any, ...], initial: Tensor | None, layout: str, options: dict[str, Any]) -> list[int]:
    """What must be the same on all ranks. Raises the errors of a call on one of them."""
    q, k, v, decay = inputs
    erased = [options.get(name) for name in _ERASED]
    asked = LinearOptions(
        options.get("scale", 1.0), True, layout, None, check_segment(options.get("segment_size")), tuple(map(options.get, _MODS)),
        bool(options.get("read_before_update")),
    )  # fmt: skip
    call = check_linear((q, k, v), decay, initial, None, layout, asked.erasing(*erased))
    form = asked.form(call)
    entry = form.find(asked.mods, call.problem.device)[0]
    needing = [x is not None and x.requires_grad for x in (*inputs, initial, *erased)] if torch.is_grad_enabled() else []
    described = digest(str(q.dtype), layout, None if decay is None else decay.dim(), form, needing)
    return [v.shape[0], v.shape[layout.index("h")], q.shape[3], v.shape[3], described, digest(entry.traced.text, asked.scale)]


def moved(name: str, mod: Callable[..., Any] | None, offset: int) -> Callable[..., Any] | None:
    """A mod that sees positions `offset` further on."""
    if mod is None:
        return None
    count = len(inspect.signature(mod).parameters)
    if name == "skip_mod" or (name == "erase_mod" and count == 3):
        return lambda b, h, t: mod(b, h, t + offset)
    if count <= 3:
        return mod
    if count == 4:
        return lambda x, b, h, t: mod(x, b, h, t + offset)
    return lambda x, b, h, t, d: mod(x, b, h, t + offset, d)
