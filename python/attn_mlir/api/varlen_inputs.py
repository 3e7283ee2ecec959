"""Checks of what `attention_varlen` takes, and the arguments that its programs take of offsets, lengths and tables of pages."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir import driver
from attn_mlir.api.given_masks import is_block_mask
from attn_mlir.api.inputs import Problem, check_device, check_dtypes, check_inputs, refuse_jit_trace, remembered
from attn_mlir.api.mask_strings import parse
from attn_mlir.errors import ArgumentError
from attn_mlir.runtime.varlen import reads_offsets

_PACKED, _PAGED = "packed", "paged"
_KNOWN: dict[Any, Problem] = {}
_RANKS = {
    "cu_seqlens_q": "[sequences + 1]",
    "cu_seqlens_k": "[sequences + 1]",
    "seqused_k": "[sequences]",
    "block_table": "[sequences, pages]",
}


def mask_of(mask_mod: Any) -> Any:
    """The mask function of what callers give; a string is parsed. Raises ArgumentError for a block mask."""
    if isinstance(mask_mod, str):
        return parse(mask_mod)
    if is_block_mask(mask_mod):
        raise ArgumentError("mask_mod is a block mask, which has one size for all sequences: pass its mask function")
    return mask_mod


def problem_of(q: Any, k: Any, v: Any, paged: bool) -> Problem:
    """What the shapes of q, k and v say; k and v in pages are [pages, size, Hkv, D]."""
    refuse_jit_trace()
    return remembered(q, k, v, _PAGED if paged else _PACKED, _found_problem, _KNOWN)


def _found_problem(q: Any, k: Any, v: Any, form: str) -> Problem:
    """The same, without remembering it."""
    paged = form == _PAGED
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.is_nested:
            raise ArgumentError(f"{name} is a nested tensor: pass {name}.values(), and {name}.offsets() as int32 offsets")
        in_pages = paged and name != "q"
        if tensor.dim() != 3 + in_pages:
            shape = "[pages, positions of a page, head, dim], with block_table" if in_pages else "[positions of all sequences, head, dim]"
            raise ArgumentError(f"{name} must have {3 + in_pages} dimensions, {shape}, got shape {list(tensor.shape)}")
    sizes = {"pages": len(k)}
    if paged:
        if v.shape[:2] != k.shape[:2]:
            raise ArgumentError(f"v has {v.shape[0]} pages of {v.shape[1]} positions but k has {k.shape[0]} of {k.shape[1]}")
        check_dtypes(q, k, v)
        k, v = (x[0] if len(x) else x.new_zeros(0, *x.shape[2:]) for x in (k, v))
    problem = check_inputs(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), "bshd")
    inputs = dataclasses.replace(problem.inputs, packed=True, paged=paged)
    return dataclasses.replace(problem, inputs=inputs, sizes={**problem.sizes, **sizes})


def sequences_of(
    q: torch.Tensor, of_q: Any, of_k: Any, used: Any, table: Any = None, inside: tuple[int, int] | None = None, single: bool = False
) -> dict[str, torch.Tensor]:
    """What the program takes of the offsets, by name. What they hold is checked where the kernel is run.

    Where nobody waits for a GPU to do so, they are cut off at the ends of what is `inside` (`inside_of`). `single`: sequences have a query
    each at most, and no gradient is taken.
    """
    named = {"cu_seqlens_q": of_q, "cu_seqlens_k": of_k, "seqused_k": used, "block_table": table}
    for name, tensor in named.items():
        if tensor is None and name != "cu_seqlens_q":
            continue
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.int32:
            given = f"a tensor of {tensor.dtype}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise ArgumentError(f"{name} must be an int32 tensor, got {given}")
        wanted = _RANKS[name]
        if tensor.dim() != 1 + (name == "block_table") or (wanted.endswith("+ 1]") and not tensor.shape[0]):
            raise ArgumentError(f"{name} must be {wanted}, got shape {list(tensor.shape)}")
        if tensor.layout != torch.strided:
            raise ArgumentError(f"{name} must be dense, got layout {tensor.layout}: use {name}.to_dense()")
        check_device(name, tensor, q.device)
    if used is not None and used.shape[0] != of_q.shape[0] - 1:
        raise ArgumentError(f"seqused_k is for {len(used)} sequences but cu_seqlens_q has {len(of_q) - 1}")
    _check_sides(of_q, of_k, used, table)
    made = None if inside is None else _made_ready(of_q, None if of_k is of_q else of_k, used, inside, (table is not None, single))
    if made is not None:
        names = "q_begins", "q_lengths", "k_begins", "k_lengths"
        return {**dict(zip(names, made, strict=True)), **({} if table is None else {"block_table": table})}
    if table is None and torch.is_grad_enabled():
        # A backward pass trusts what was checked here, and callers reuse these tensors, also behind torch's back.
        of_k = None if of_k is None or of_k is of_q else of_k.clone()
        of_q, used = of_q.clone(), None if used is None else used.clone()
    of_k = of_q if of_k is None and table is None else of_k
    if inside is not None:
        same = of_k is of_q and inside[0] == inside[1]
        of_q = of_q.clamp(0, inside[0])
        of_k = of_q if same else None if of_k is None else of_k.clamp(0, inside[1])
        if used is not None:
            used = used.clamp(0, inside[1]) if of_k is None else torch.minimum(used, inside[1] - of_k[:-1]).clamp_(min=0)
    cut = inside is not None
    if table is None and used is None and of_k is not None and of_k is not of_q:
        lengths, of_keys = _differences(torch.stack((of_q, of_k)), cut)  # with as few operations as may be, see single queries
        return {"q_begins": of_q[:-1], "q_lengths": lengths, "k_begins": of_k[:-1], "k_lengths": of_keys}
    lengths = _differences(of_q, cut)
    if table is not None and used is not None:
        return {"q_begins": of_q[:-1], "q_lengths": lengths, "k_begins": torch.zeros_like(used), "k_lengths": used, "block_table": table}
    at_k = of_q if of_k is None else of_k
    of_keys = lengths if used is None else used
    return {"q_begins": of_q[:-1], "q_lengths": lengths, "k_begins": at_k[:-1], "k_lengths": of_keys}


def _check_sides(of_q: torch.Tensor, of_k: Any, used: Any, table: Any) -> None:
    """Checks that queries and keys are of as many sequences, and that keys are said to lie in one way."""
    if table is not None:
        if of_k is not None:
            raise ArgumentError("cu_seqlens_k is for packed keys: with block_table, seqused_k says how many keys each sequence has")
        if used is None:
            raise ArgumentError("block_table needs seqused_k, how many keys each sequence has")
        if len(table) != len(used):
            raise ArgumentError(f"block_table is for {len(table)} sequences but cu_seqlens_q has {len(used)}")
    elif of_k is not None and of_k.shape[0] != of_q.shape[0]:
        raise ArgumentError(f"cu_seqlens_k has {len(of_k) - 1} sequences but cu_seqlens_q has {len(of_q) - 1}")


def _made_ready(
    of_q: torch.Tensor, of_k: Any, used: Any, inside: tuple[int, int], form: tuple[bool, bool]
) -> Sequence[torch.Tensor] | None:
    """Where sequences lie, of a kernel of the device, which `sequences_of` asks where nobody waits for it; None where there is none."""
    if not all([x is None or type(x) in (torch.Tensor, torch.nn.Parameter) for x in (of_q, of_k, used)]):
        return None
    make = driver.offset_maker(of_q.device.type)
    return None if make is None else make(of_q, of_k, used, inside, *form)


def _differences(offsets: torch.Tensor, cut: bool) -> torch.Tensor:
    made = offsets[..., 1:] - offsets[..., :-1]
    return made.clamp_(min=0) if cut else made


def inside_of(q: torch.Tensor, k: torch.Tensor, table: torch.Tensor | None, most: tuple[int | None, int | None]) -> tuple[int, int] | None:
    """How many rows of queries, and keys of packed tensors or of one sequence in pages, there are, for `sequences_of`.

    None where offsets are checked, which on a GPU depends on the largest lengths, `most`.
    """
    if not q.is_cuda or reads_offsets(*most):
        return None
    return q.shape[0], k.shape[0] if table is None else table.shape[1] * k.shape[1]


def check_largest(max_q: Any, max_k: Any, sequences: dict[str, torch.Tensor]) -> None:
    """Checks the largest lengths that were given, where lengths are at hand."""
    for name, given, key in (("max_q", max_q, "q_lengths"), ("max_k", max_k, "k_lengths")):
        if given is None:
            continue
        if isinstance(given, bool) or not isinstance(given, int):
            raise ArgumentError(f"{name} must be an integer or None, got {type(given).__name__}")
        lengths = sequences[key]
        if lengths.device.type == "cpu" and len(lengths) and int(lengths.max()) > given:
            raise ArgumentError(f"{name} is {given}, but a sequence has {int(lengths.max())} positions")
