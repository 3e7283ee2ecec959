"""`attention_varlen(q, k, v, cu_seqlens_q, ...)`: attention of the user's own design on sequences of different lengths, packed."""

import contextlib
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, Never

import torch

from attn_mlir.api.append import shares_places
from attn_mlir.api.autocast import cast
from attn_mlir.api.dropout import dropout_of
from attn_mlir.api.eight_bit import NONE, refuse_derivatives, refuse_eight_bit, refuse_scales, scales_of, with_scales
from attn_mlir.api.graph_parts import graph_part
from attn_mlir.api.options import Options, check_splits
from attn_mlir.api.rows import softmax
from attn_mlir.api.unknown_arguments import unexpected
from attn_mlir.api.varlen_inputs import check_largest, inside_of, mask_of, problem_of, sequences_of
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.frontend.cache import Entry
from attn_mlir.runtime.dispatch import dispatch, needing_gradient, refuse_transformed
from attn_mlir.runtime.varlen import largest, reads_offsets

Function = Callable[..., Any]


@graph_part
def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None = None,
    *,
    max_q: int | None = None,
    max_k: int | None = None,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    row: Function = softmax,
    score_mod: Function | None = None,
    mask_mod: Function | str | None = None,
    query_mod: Function | None = None,
    key_mod: Function | None = None,
    value_mod: Function | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    return_states: bool = False,
    out: torch.Tensor | None = None,
    num_splits: int = 0,
    batch_invariant: bool = False,
    deterministic: bool = False,
    device: str | torch.device | None = None,
    dropout_p: float = 0.0,
    dropout_seed: Any = None,
    return_partial: bool = False,
    q_offset: int = 0,
    kv_offset: int = 0,
    key_index: torch.Tensor | None = None,
    key_block: tuple[int, int] | None = None,
    q_descale: torch.Tensor | float | None = None,
    k_descale: torch.Tensor | float | None = None,
    v_descale: torch.Tensor | float | None = None,
    o_scale: torch.Tensor | float | None = None,
    out_dtype: torch.dtype | None = None,
    **unknown: Never,
) -> Any:
    """Attention on packed sequences: sequence b of q is rows cu_seqlens_q[b] to cu_seqlens_q[b + 1], and attends to sequence b of k and v.

    q is [Tq, Hq, D], k is [Tk, Hkv, D], v is [Tk, Hkv, Dv], of any strides; o is [Tq, Hq, Dv]. Each sequence has the result that
    `attention` gives for it alone: functions get the number of the sequence as b, and positions, q_len() and kv_len() of that sequence,
    so that masks.causal("bottom_right") is what FlashAttention computes. A sequence may have no queries or no keys; fully masked rows
    are 0.

    cu_seqlens_q, cu_seqlens_k: int32 [sequences + 1], rising from 0; None: the keys have the offsets of the queries. Rows after the last
    offset belong to no sequence: their o and gradients are 0, their lse is -inf. seqused_k: int32 [sequences], how many keys of each
    sequence count, the first ones.
    block_table: int32 [sequences, most pages]; k and v are then a cache in pages, [pages, size, Hkv, D], of any strides, and position p of
    sequence b is row p % size of page block_table[b, p // size]. seqused_k says how many keys each sequence has, and entries after them
    are never read. No gradients.
    max_q, max_k: the largest lengths where they are known. A CPU reads them from the offsets, and checks these.
    row, score_mod, mask_mod, query_mod, key_mod, value_mod, scale, deterministic, device, dropout_p, dropout_seed: see `attention`.
    return_lse: also return the natural logarithm of the sum of exp(score), [Hq, Tq]. return_states: also return a dictionary of the row's
    states, each [Hq, Tq]. out: where o is written, where nothing needs a gradient.
    num_splits: how many parts the keys of sequences with up to 16 queries are seen in, where nothing needs a gradient. 0: chosen by the
    number of keys of each sequence, 1: one part.
    batch_invariant: a sequence has the same bits whatever else is in the batch, in o (as always on a CPU), and in gradients of its rows
    of q, k and v, which takes memory; docs/serving.md.
    return_partial, q_offset, kv_offset: see `attention`; the offsets are added to the positions, q_len() and kv_len() of every sequence.
    key_index, key_block: with key_block = (1, bk), query t of q, in the order of its rows, sees of its sequence the blocks of bk keys whose
    numbers key_index[t, h] has, an int32 tensor [Tq, 1 or Hkv or Hq, n]; -1 is no block, and one that is there twice counts once. Numbers
    count in the sequence, as kv_idx does, in pages, too. docs/key-lists.md.
    q_descale, k_descale, v_descale, o_scale, out_dtype: see `attention`; B is the number of sequences.
    """
    if unknown:
        raise unexpected(attention_varlen, unknown)
    functions = (query_mod, key_mod, value_mod, score_mod, mask_of(mask_mod), row)
    asked = (functions, scale, "bshd", return_lse, return_states, device, bool(deterministic or batch_invariant))
    q, k, v = cast(q, k, v)
    scales = scales_of(q_descale, k_descale, v_descale, o_scale, out_dtype)
    has_lists = key_index is not None or key_block is not None
    if has_lists:
        refuse_scales(scales, "key_index")
        if return_partial or torch.compiler.is_dynamo_compiling():
            raise UnsupportedError("key_index of attention_varlen is for whole results, outside of torch.compile: call it uncompiled")
    if return_partial or torch.compiler.is_dynamo_compiling():
        what = "return_partial" if return_partial else "torch.compile"
        refuse_eight_bit((q, k, v), what)
        refuse_scales(scales, what)
    if return_partial:
        if block_table is not None:
            raise UnsupportedError("partial results are not of keys in pages: leave block_table out, and gather the pages")
        if num_splits or batch_invariant:
            raise UnsupportedError("num_splits and batch_invariant are for whole results: leave them out with return_partial")
        if dropout_p or out is not None:
            raise UnsupportedError("partial results are computed without dropout, and not into out")
        problem, sequences = problem_of(q, k, v, False), sequences_of(q, cu_seqlens_q, cu_seqlens_k, seqused_k)
        check_largest(max_q, max_k, sequences)
        made = importlib.import_module("attn_mlir.api.partial").of_varlen
        return made(problem, (q, k, v), Options(*asked), (q_offset, kv_offset), sequences)
    if q_offset or kv_offset:
        raise ArgumentError("q_offset and kv_offset are for partial results: pass return_partial=True, and finalize it")
    if torch.compiler.is_dynamo_compiling():
        if block_table is not None or num_splits or batch_invariant:
            named = "block_table" if block_table is not None else "num_splits" if num_splits else "batch_invariant"
            raise UnsupportedError(f"{named} is not part of a graph yet: call attention_varlen under torch.compiler.disable")
        if out is not None:
            raise UnsupportedError("out= is not written inside of torch.compile: leave it out there")
        from attn_mlir.api.compiled import attention_in_graph  # with the operators, which take long to register

        packed = [*sequences_of(q, cu_seqlens_q, cu_seqlens_k, seqused_k).values()]  # the operator checks what they hold
        return _squeezed(attention_in_graph(batched(q, k, v), asked, (dropout_p, dropout_seed), packed=packed))
    if block_table is not None:
        refuse_transformed((q, k, v, block_table, seqused_k), "attention to pages (block_table) has")
    problem = problem_of(q, k, v, block_table is not None)
    inside = inside_of(q, k, block_table, (max_q, max_k))
    single = max_q == 1 and not (return_states or torch.is_grad_enabled() or has_lists)
    sequences = sequences_of(q, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table, inside, single)
    check_largest(max_q, max_k, sequences)
    options = Options(*asked, check_splits(num_splits), bool(batch_invariant))
    if has_lists:

        def by_mask(mask: Function) -> Any:
            same: dict[str, Any] = {"max_q": max_q, "max_k": max_k, "seqused_k": seqused_k, "block_table": block_table, "scale": scale}
            same |= dict(zip(("query_mod", "key_mod", "value_mod", "score_mod"), functions, strict=False))
            same |= {"row": row, "return_lse": return_lse, "return_states": return_states, "out": out, "num_splits": num_splits}
            same |= {"batch_invariant": batch_invariant, "deterministic": deterministic, "device": device}
            same |= {"dropout_p": dropout_p, "dropout_seed": dropout_seed}
            return attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, mask_mod=mask, **same)

        listed = importlib.import_module("attn_mlir.api.key_varlen").attention_varlen_listed
        found = listed(
            (q, k, v), problem, options, (key_index, key_block), sequences, (max_q, max_k), drops=bool(dropout_p), by_mask=by_mask
        )
        return found[0] if len(found) == 1 else finished(found[1], found[0], options, out)
    if max_q is not None and max_q > 1 and scales is NONE and not (dropout_p or reads_offsets(max_q, max_k)):
        asked_for = (q, k, v), problem, options, sequences, (max_q, max_k)
        other = _other_forms()[0].side_by_side(*asked_for)
        few = _other_forms()[1].single_queries(*asked_for) if other is None else None
        other = other if few is None else few.call
        if other is not None:
            check_out(out, other.entry.traced.weights)
            with contextlib.nullcontext() if few is None else largest(1, max_k):
                results = dispatch(other)
            return finished(other.entry, results if few is None else few.whole(results), options, out)
    dropout = dropout_of(dropout_p, dropout_seed, q)
    problem, values = with_scales(problem, scales, len(cu_seqlens_q) - 1)
    call = options.call(problem, batched(q, k, v), dropout, {**sequences, **values})
    refuse_derivatives(call)
    check_out(out, call.entry.traced.weights)
    if block_table is not None:
        refuse_transformed(call.values, "attention to pages (block_table) has")
    if block_table is not None and needing_gradient(call.values):
        raise UnsupportedError("attention to pages (block_table) has no gradients: call it under torch.no_grad(), or gather the pages")
    with largest(max_q, max_k):
        results = dispatch(call)
    return finished(call.entry, results, options, out)


@functools.cache
def _other_forms() -> list[Any]:
    """The modules that make one attention of short sequences, and single queries of a few."""
    return [importlib.import_module(f"attn_mlir.api.{name}") for name in ("short_sequences", "few_queries")]


def finished(entry: Entry, made: Sequence[torch.Tensor], options: Options, out: torch.Tensor | None) -> Any:
    """What a call returns, of results in the order [1, positions, heads, ...]."""
    results = [result.squeeze(0) for result in made]
    if out is not None:
        results[0] = _written(results[0], out)
    return options.named(results, entry)


def check_out(out: torch.Tensor | None, weights: int) -> None:
    """Refuses an `out` for several o."""
    if out is not None and weights > 1:
        raise ArgumentError(f"out holds one o, and the row gives {weights} weights, with an o of its own for each: leave out= away")


def _squeezed(made: Any) -> Any:
    """Results without their first dimension."""
    if isinstance(made, tuple):
        return tuple([_squeezed(part) for part in made])
    return {name: x.squeeze(0) for name, x in made.items()} if isinstance(made, dict) else made.squeeze(0)


def batched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Packed tensors as a batch of one; pages as they are."""
    return tuple([x.unsqueeze(0) if x.dim() == 3 else x for x in (q, k, v)])


def _written(o: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`out` with the values of o."""
    if not isinstance(out, torch.Tensor) or out.shape != o.shape or out.dtype != o.dtype or out.device != o.device:
        given = f"{list(out.shape)} of {out.dtype} on {out.device}" if isinstance(out, torch.Tensor) else type(out).__name__
        raise ArgumentError(f"out must be {list(o.shape)} of {o.dtype} on {o.device}, got {given}")
    if o.requires_grad or out.requires_grad:
        raise ArgumentError("out is written where nothing needs a gradient: call under torch.no_grad(), or leave it out")
    if shares_places(out):
        raise ArgumentError("out has one place in memory for several elements, as expand() and unfold() make: give it memory of its own")
    return out.copy_(o)
