"""Checks the inputs of a linear attention before anything else looks at them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from attn_mlir.api.inputs import ELEMENTS, MAX_STATE_DIM, Problem, check_device, check_dtype, check_head_dim, check_tensor, remembered
from attn_mlir.backends.segments import UNIT
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.runtime.row_values import score_of

ORDERS = ("bhsd", "bshd")
"""What `layout` may be."""
OFFSETS = {torch.int32: "i32", torch.int64: "i64"}
STEPS = {1: ("head", "[H]"), 2: ("head channel", "[H, K]"), 3: ("step", "[B, H, T]"), 4: ("step channel", "[B, H, T, K]")}
"""What a decay, or a share that is erased, is like, by its dimensions."""
DeltaForm = tuple[str, bool, bool, str]
"""What erase is like, whether there are an erase_key and a removed_key, and where q reads."""
NO_DELTA: DeltaForm = ("none", False, False, "after")
_NO_TENSORS: dict[str, torch.Tensor | None] = {}
_checked: dict[Any, Problem] = {}


class Erasing(NamedTuple):
    """What a caller says about erasing, as it was given."""

    erase: Any = None
    mod: Callable[..., Any] | None = None
    erase_key: Any = None
    removed_key: Any = None
    read_before: bool = False


NOTHING_ERASED = Erasing()


class LinearCall(NamedTuple):
    """The inputs of one call, in [B, H, T, D] whatever the layout, with the dtypes that programs take."""

    problem: Problem
    """B, Hq, Hkv, H, Sq = Skv = T, D and Dv."""
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    given: dict[str, torch.Tensor | None]
    """Those of `frontend.linear.INPUTS`."""
    decay_form: str
    """As `LinearDefinition.decay` says it."""
    offsets: str
    """The element type of cu_seqlens; empty where there are none."""
    delta_form: DeltaForm = NO_DELTA


def check_linear(
    qkv: Sequence[Any], decay: Any, initial_state: Any, cu_seqlens: Any, layout: Any, erasing: Erasing = NOTHING_ERASED
) -> LinearCall:
    """The inputs of a call. Raises ArgumentError naming the argument that is wrong."""
    q, k, v = qkv
    problem = remembered(q, k, v, layout, _problem_of, _checked)
    sizes = problem.sizes
    if layout == "bshd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    score = score_of(q)
    offsets = _check_offsets(cu_seqlens, q)
    sequences = sizes["B"] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    decay, form = _check_steps("decay", decay, q, sizes, layout, score)
    initial_state = _check_state(initial_state, q, (sequences, sizes["H"], sizes["D"], sizes["Dv"]), score)
    erased, delta_form = _check_delta(erasing, q, sizes, layout, score)
    given = {"decay": decay, "initial_state": initial_state, "cu_seqlens": cu_seqlens, **erased}
    return LinearCall(problem, q, k, v, given, form, offsets, delta_form)


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
        check_device(name, tensor, q.device)
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


_ADVICE = {
    "decay": ": for the same log decay everywhere pass torch.full((H,), g)",
    "erase": ": for the same share everywhere pass torch.full((H,), x)",
}


def _check_further(name: str, tensor: Any, q: torch.Tensor) -> None:
    """Checks an input besides q, k and v."""
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{name} must be a torch.Tensor or None, got {type(tensor).__name__}{_ADVICE.get(name, '')}")
    if tensor.is_nested or tensor.is_quantized or tensor.layout != torch.strided:
        raise ArgumentError(f"{name} must be a plain strided tensor, got layout {tensor.layout}")
    check_device(name, tensor, q.device)
    if name != "cu_seqlens" and not tensor.is_floating_point():
        raise ArgumentError(f"{name} has dtype {tensor.dtype}: use float32")


def _check_steps(
    name: str, given: Any, q: torch.Tensor, sizes: dict[str, int], layout: str, score: torch.dtype
) -> tuple[torch.Tensor | None, str]:
    """A log decay, or a share that is erased, in [B, H, T] or [B, H, T, K] where it has positions, and what it is like."""
    if given is None:
        return None, "none"
    _check_further(name, given, q)
    if given.dim() not in STEPS:
        raise ArgumentError(f"{name} must be [H], [H, K], [B, H, T] or [B, H, T, K], got shape {list(given.shape)}")
    form, meant = STEPS[given.dim()]
    per_step = (sizes["B"], sizes["H"], sizes["Sq"], sizes["D"])
    wanted = (per_step[1], per_step[3])[: given.dim()] if given.dim() < 3 else per_step[: given.dim()]
    turned = layout == "bshd" and given.dim() >= 3
    if turned:
        meant = meant.replace("H, T", "T, H")
        wanted = (wanted[0], wanted[2], wanted[1], *wanted[3:])
    if tuple(given.shape) != wanted:
        raise ArgumentError(
            f"{name} has shape {list(given.shape)}, but {meant} is {list(wanted)} in this call (H: heads of v, K: columns of k); "
            "repeat it with .expand where it is the same"
        )
    return (given.transpose(1, 2) if turned else given).to(score), form


def _check_state(state: Any, q: torch.Tensor, wanted: tuple[int, ...], score: torch.dtype) -> torch.Tensor | None:
    if state is None:
        return None
    _check_further("initial_state", state, q)
    if tuple(state.shape) != wanted:
        raise ArgumentError(
            f"initial_state has shape {list(state.shape)}, but [B, H, K, V] is {list(wanted)} in this call; "
            "with cu_seqlens, B is the number of sequences"
        )
    return state.to(score)


def _check_offsets(offsets: Any, q: torch.Tensor) -> str:
    """The element type of cu_seqlens. Their elements are checked when a program runs."""
    if offsets is None:
        return ""
    _check_further("cu_seqlens", offsets, q)
    if offsets.dtype not in OFFSETS:
        raise ArgumentError(f"cu_seqlens has dtype {offsets.dtype}: use int32 or int64")
    if offsets.dim() != 1 or offsets.shape[0] < 2:
        raise ArgumentError(
            f"cu_seqlens must be [sequences + 1], where each sequence begins and the last one ends, got shape {list(offsets.shape)}"
        )
    if q.shape[0] != 1:
        raise ArgumentError(f"with cu_seqlens all sequences are in one, of batch size 1, but the batch size is {q.shape[0]}")
    return OFFSETS[offsets.dtype]


def _check_delta(
    erasing: Erasing, q: torch.Tensor, sizes: dict[str, int], layout: str, score: torch.dtype
) -> tuple[dict[str, torch.Tensor | None], DeltaForm]:
    """The inputs of a delta rule, by name, and its form."""
    if erasing.erase is None and erasing.mod is None:
        for name, there in (("erase_key", erasing.erase_key is not None), ("removed_key", erasing.removed_key is not None)):
            if there:
                raise ArgumentError(f"{name} says what is erased, but nothing is: pass erase=, the share of it that goes, or erase_mod=")
        if erasing.read_before:
            raise ArgumentError("read_before_update goes with erase= or erase_mod=: without them pass q one position later")
        return _NO_TENSORS, NO_DELTA
    keys = {name: _check_key(name, getattr(erasing, name), q, sizes, layout) for name in ("erase_key", "removed_key")}
    erase, kind = _check_steps("erase", erasing.erase, q, sizes, layout, score)
    output = "decayed" if erasing.read_before else "after"
    there = [key is not None for key in keys.values()]
    return {"erase": erase, **keys}, (kind, there[0], there[1], output)


def _check_key(name: str, key: Any, q: torch.Tensor, sizes: dict[str, int], layout: str) -> torch.Tensor | None:
    if key is None:
        return None
    if not isinstance(key, torch.Tensor) or key.dim() != 4 or key.is_nested:
        raise ArgumentError(f"{name} must be a tensor like k, of 4 dimensions, got {described(key)}")
    check_dtype(name, key, q)
    check_device(name, key, q.device)
    key = key.transpose(1, 2) if layout == "bshd" else key
    b, heads, length, dim = key.shape
    if (b, length, dim) != (sizes["B"], sizes["Sq"], sizes["D"]) or heads == 0 or sizes["H"] % heads:
        raise ArgumentError(
            f"{name} is [B, Hk, T, K] = {list(key.shape)}, but here B, T and K are {sizes['B']}, {sizes['Sq']} and {sizes['D']}, "
            f"and its heads must divide the {sizes['H']} of v"
        )
    return key


def described(value: Any) -> str:
    """What an argument is, for an error."""
    if isinstance(value, torch.Tensor):
        return f"shape {list(value.shape)}"
    return f"{type(value).__name__} {value}" if isinstance(value, (int, float)) else type(value).__name__
