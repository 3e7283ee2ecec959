"""Checks the inputs of a linear attention before anything else looks at them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from attn_mlir.api.inputs import ELEMENTS, MAX_STATE_DIM, Problem, check_device, check_dtype, check_head_dim, check_tensor, remembered
from attn_mlir.api.linear_erase import NOTHING_ERASED, Delta, Erasing, check_delta
from attn_mlir.backends.segments import UNIT
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.emit import Inputs

ORDERS = ("bhsd", "bshd")
"""What `layout` may be."""
_OFFSETS = {torch.int32: "i32", torch.int64: "i64"}
_DECAYS = {1: ("head", "[H]"), 2: ("head channel", "[H, K]"), 3: ("step", "[B, H, T]"), 4: ("step channel", "[B, H, T, K]")}
_checked: dict[Any, Problem] = {}


class LinearCall(NamedTuple):
    """The inputs of one call, in [B, H, T, D] whatever the layout, with the dtypes that programs take."""

    problem: Problem
    """B, Hq, Hkv, H, Sq = Skv = T, D and Dv."""
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor | None
    initial_state: torch.Tensor | None
    cu_seqlens: torch.Tensor | None
    decay_form: str
    """As `LinearProgram.decay` says it."""
    offsets: str
    """The element type of cu_seqlens; empty where there are none."""
    delta: Delta = Delta()
    """What is erased."""


def check_linear(
    q: Any,
    k: Any,
    v: Any,
    decay: Any,
    initial_state: Any,
    cu_seqlens: Any,
    layout: Any,
    *,
    erasing: Erasing = NOTHING_ERASED,
) -> LinearCall:
    """The inputs of a call. Raises ArgumentError naming the argument that is wrong."""
    problem = remembered(q, k, v, layout, _problem_of, _checked)
    sizes = problem.sizes
    if layout == "bshd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    score = torch.float64 if q.dtype == torch.float64 else torch.float32
    offsets = _check_offsets(cu_seqlens, q)
    sequences = sizes["B"] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    decay, form = _check_decay(decay, q, sizes, layout, score)
    initial_state = _check_state("initial_state", initial_state, q, (sequences, sizes["H"], sizes["D"], sizes["Dv"]), score)
    delta = check_delta(erasing, q, sizes, layout, score)
    return LinearCall(problem, q, k, v, decay, initial_state, cu_seqlens, form, offsets, delta)


def check_segment(size: Any) -> int | None:
    """`segment_size` as it was given. Raises ArgumentError for what is no length of segments."""
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0 or size % UNIT):
        raise ArgumentError(f"segment_size is a multiple of {UNIT} positions, 0 for whole sequences or None, got {size!r}")
    return size


def check_flags(**flags: Any) -> None:
    """Checks what is True or False (or None, which is False), by name: a string that says no is true, too."""
    for name, value in flags.items():
        if value is not None and not isinstance(value, bool):
            raise ArgumentError(f"{name} must be True or False, got {value!r}")


def _problem_of(q: Any, k: Any, v: Any, layout: Any) -> Problem:
    """B, Hq, Hkv, H, Sq = Skv = T, D and Dv. Raises ArgumentError naming the argument that is wrong."""
    if not isinstance(layout, str) or layout not in ORDERS:
        raise ArgumentError(f'layout is "bhsd" ([batch, head, position, dim]) or "bshd" ([batch, position, head, dim]), got {layout!r}')
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if isinstance(tensor, torch.Tensor) and tensor.is_nested:
            raise ArgumentError(f"{name} is a nested tensor: put all sequences into one, [1, H, T, D], and pass cu_seqlens")
        check_tensor(name, tensor, layout)
        check_dtype(name, tensor, q)
        check_device(name, tensor, q)
    places = (0, 1, 2, 3) if layout == "bhsd" else (0, 2, 1, 3)
    sizes = _sizes(*[[x.shape[place] for place in places] for x in (q, k, v)])
    return Problem(Inputs(ELEMENTS[q.dtype], int(sizes["D"]), int(sizes["Dv"])), q.device, sizes, q.device.type, False)


def _sizes(q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> dict[str, int]:
    (b, q_heads, length, dim), (_, k_heads, _, _), (_, heads, _, value_dim) = q, k, v
    for name, shape in (("k", k), ("v", v)):
        if shape[0] != b:
            raise ArgumentError(f"{name} has batch size {shape[0]} but q has {b}")
        if shape[2] != length:
            raise ArgumentError(f"{name} has {shape[2]} positions but q has {length}: q, k and v of linear attention have the same")
    if k[3] != dim:
        raise ArgumentError(f"k has head dimension {k[3]} but q has {dim}")
    for name, count in (("q", q_heads), ("k", k_heads)):
        if (heads % count if count else heads) != 0:
            raise ArgumentError(f"v has {heads} heads, which is no multiple of the {count} heads of {name}")
    for name, size in (("q", dim), ("v", value_dim)):
        check_head_dim(f"{name} has head dimension", size, MAX_STATE_DIM)
    return {"B": b, "Hq": q_heads, "Hkv": k_heads, "H": heads, "Sq": length, "Skv": length, "D": dim, "Dv": value_dim}


def _check_further(name: str, tensor: Any, q: torch.Tensor) -> None:
    """Checks an input besides q, k and v."""
    if not isinstance(tensor, torch.Tensor):
        advice = ": for the same log decay everywhere pass torch.full((H,), g)" if name == "decay" else ""
        raise ArgumentError(f"{name} must be a torch.Tensor or None, got {type(tensor).__name__}{advice}")
    if tensor.is_nested or tensor.is_quantized or tensor.layout != torch.strided:
        raise ArgumentError(f"{name} must be a plain strided tensor, got layout {tensor.layout}")
    check_device(name, tensor, q)
    if name != "cu_seqlens" and not tensor.is_floating_point():
        raise ArgumentError(f"{name} has dtype {tensor.dtype}: use float32")


def _check_decay(decay: Any, q: torch.Tensor, sizes: dict[str, int], layout: str, score: torch.dtype) -> tuple[torch.Tensor | None, str]:
    """The log decay in [B, H, T] or [B, H, T, K], and what it is like."""
    if decay is None:
        return None, "none"
    _check_further("decay", decay, q)
    if decay.dim() not in _DECAYS:
        raise ArgumentError(f"decay must be [H], [H, K], [B, H, T] or [B, H, T, K], got shape {list(decay.shape)}")
    form, meant = _DECAYS[decay.dim()]
    per_step = (sizes["B"], sizes["H"], sizes["Sq"], sizes["D"])
    wanted = (per_step[1], per_step[3])[: decay.dim()] if decay.dim() < 3 else per_step[: decay.dim()]
    if layout == "bshd" and decay.dim() >= 3:
        meant = meant.replace("H, T", "T, H")
        wanted = (wanted[0], wanted[2], wanted[1], *wanted[3:])
    if tuple(decay.shape) != wanted:
        raise ArgumentError(
            f"decay has shape {list(decay.shape)}, but {meant} is {list(wanted)} in this call (H: heads of v, K: columns of k); "
            "repeat it with .expand where it is the same"
        )
    if layout == "bshd" and decay.dim() >= 3:
        decay = decay.transpose(1, 2)
    return decay.to(score), form


def _check_state(name: str, state: Any, q: torch.Tensor, wanted: tuple[int, ...], score: torch.dtype) -> torch.Tensor | None:
    if state is None:
        return None
    _check_further(name, state, q)
    if tuple(state.shape) != wanted:
        raise ArgumentError(
            f"{name} has shape {list(state.shape)}, but [B, H, K, V] is {list(wanted)} in this call; "
            "with cu_seqlens, B is the number of sequences"
        )
    return state.to(score)


def _check_offsets(offsets: Any, q: torch.Tensor) -> str:
    """The element type of cu_seqlens. Their elements are checked when a program runs."""
    if offsets is None:
        return ""
    _check_further("cu_seqlens", offsets, q)
    if offsets.dtype not in _OFFSETS:
        raise ArgumentError(f"cu_seqlens has dtype {offsets.dtype}: use int32 or int64")
    if offsets.dim() != 1 or offsets.shape[0] < 2:
        raise ArgumentError(
            f"cu_seqlens must be [sequences + 1], where each sequence begins and the last one ends, got shape {list(offsets.shape)}"
        )
    if q.shape[0] != 1:
        raise ArgumentError(f"with cu_seqlens all sequences are in one, of batch size 1, but the batch size is {q.shape[0]}")
    return _OFFSETS[offsets.dtype]
