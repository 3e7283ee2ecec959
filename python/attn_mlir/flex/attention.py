"""`flex_attention`: FlexAttention's call, its checks and what it returns, around `attn_mlir.attention`."""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attn_mlir.api.autocast import _is_any_enabled, cast
from attn_mlir.api.call import attend
from attn_mlir.api.graph_parts import graph_part
from attn_mlir.api.inputs import known_problem
from attn_mlir.api.options import Options
from attn_mlir.api.rows import softmax
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.flex.aux import AuxOutput, AuxRequest, FlexKernelOptions
from attn_mlir.flex.resolve import mask_for, mask_function
from attn_mlir.frontend.elementary import detach, exp, maximum
from attn_mlir.runtime.orders import all_in_order, heads_first

__all__ = ["AuxOutput", "AuxRequest", "FlexKernelOptions", "flex_attention"]

_BACKENDS = ("AUTO", "TRITON", "FLASH", "TRITON_DECODE")
_WARNINGS_SHOWN: set[str] = set()


class OptionError(ArgumentError, RuntimeError):
    """Two kernel options that exclude each other; torch raises a RuntimeError."""


class InternalOptionError(ArgumentError, AssertionError):
    """A kernel option that torch sets itself; torch raises an AssertionError."""


class BroadcastError(ArgumentError, RuntimeError):
    """Batches of query, key and value that do not broadcast; torch raises a RuntimeError."""


def guarded_softmax(s: Any) -> Any:
    """exp(s) / sum exp(s), and its lse. Scores may all be -inf: a score_mod makes them so. That gives 0 and lse -inf, as no key does.

    Otherwise the sum is at least 1. The maximum takes no part in derivatives, in which it would cancel.
    """
    weights, states = softmax_with_max(s)
    return weights, {"lse": states["lse"]}


def softmax_with_max(s: Any) -> Any:
    """The same, with the greatest score."""
    greatest = detach(s.max())
    e = exp(s - greatest)
    total = e.sum()
    lse = torch.where(total == 0.0, -torch.inf, torch.log(total) + greatest)
    return e / maximum(total, 1e-30), {"lse": lse, "max_scores": greatest}


@graph_part
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any:
    """Softmax attention with FlexAttention's arguments: `torch.nn.attention.flex_attention.flex_attention`, computed by attn_mlir.

    query is [B, Hq, L, E], key [B, Hkv, S, E], value [B, Hkv, S, Ev]; key and value may have a batch size of 1 where block_mask has that of
    query. Hq may be a multiple of Hkv with enable_gqa. All float32, float16, bfloat16 or float64; key and value of another dtype are
    cast to query's. score_mod(score, b, h, q_idx, kv_idx) changes a score; block_mask is a BlockMask, made here or by torch.
    scale: None means 1/sqrt(E).

    Returns o, [B, Hq, L, Ev], in query's dtype and in its order of memory, with columns side by side. torch.autocast casts query, key
    and value.
    return_aux: also an AuxOutput with lse, the natural logarithm of the sum of exp(score), and max_scores, each [B, Hq, L], float32
    (float64 for float64); max_scores has no gradient. return_lse: deprecated by torch, also lse.
    kernel_options: checked as torch does, and otherwise without effect: these are of torch's kernels.

    Raises what torch raises, with its texts: ValueError, RuntimeError (a sliced mask, another device), NotImplementedError.
    """
    if torch.compiler.is_dynamo_compiling():
        _check_sizes(query, key, value, enable_gqa)
        return _attend((query, key, value), score_mod, block_mask, scale, enable_gqa, (return_lse, kernel_options, return_aux), True)
    try:
        return _attend((query, key, value), score_mod, block_mask, scale, enable_gqa, (return_lse, kernel_options, return_aux), False)
    except Exception:
        told = _told(query, key, value, enable_gqa)
        if told is None:
            raise
    raise told


def _attend(
    qkv: tuple[Tensor, Tensor, Tensor],
    score_mod: Callable[..., Any] | None,
    block_mask: Any,
    scale: float | None,
    enable_gqa: bool,
    returned: tuple[bool, Any, AuxRequest | None],
    in_graph: bool,
) -> Any:
    """What `flex_attention` returns; refuses all that its checks refuse, but with other texts.

    `returned` are return_lse, kernel_options and return_aux.
    """
    (query, key, value), (return_lse, kernel_options, return_aux) = qkv, returned
    plain = query.is_contiguous()
    known = None if in_graph or not plain or _is_any_enabled() else known_problem(query, key, value, "bhsd")
    if known is not None:
        sizes = known.sizes
        if not enable_gqa and sizes["Hq"] != sizes["Hkv"]:
            _check_groups(sizes["Hq"], sizes["Hkv"], enable_gqa)
        mask = None if block_mask is None else mask_for(block_mask, query, known)
        lse, greatest = _wanted(return_lse, kernel_options, return_aux)
        functions = (None, None, None, score_mod, mask, _row(score_mod, greatest))
        result = attend((query, key, value), Options(functions, scale, "bhsd", lse, greatest), problem=known)[0]
        return result if return_aux is None and not lse else _results(result, lse, greatest, return_aux, sizes["Skv"])
    q_sizes, kv_sizes = query.shape, key.shape
    if q_sizes[1] != kv_sizes[1]:
        _check_groups(q_sizes[1], kv_sizes[1], enable_gqa)
    if not kv_sizes[0] == value.size(0) == q_sizes[0]:
        key, value = _broadcast(query, key, value, block_mask)
    mask = None if block_mask is None else mask_function(block_mask, query, q_sizes, kv_sizes)
    if in_graph or _is_any_enabled():
        query, key, value = cast(query, key, value)
    dtype = query.dtype
    if key.dtype != dtype or value.dtype != dtype:
        key, value = key.to(dtype), value.to(dtype)
    lse, greatest = _wanted(return_lse, kernel_options, return_aux)
    functions = (None, None, None, score_mod, mask, _row(score_mod, greatest))
    layout = "bhsd" if plain else _layout(query)
    q, k, v = (query, key, value) if layout == "bhsd" else all_in_order((query, key, value), layout, 3)
    asked = (functions, scale, layout, lse, greatest, None, False)
    if in_graph:
        from attn_mlir.api.compiled import attention_in_graph

        result = attention_in_graph((q, k, v), asked)
    else:
        result = attend((q, k, v), Options(*asked))[0]
    if not plain:
        o, *rest = result if lse or greatest else (result,)
        o = _ordered_as(query, heads_first(o, layout))
        result = (o, *rest) if lse or greatest else o
    return result if return_aux is None and not lse else _results(result, lse, greatest, return_aux, kv_sizes[2])


def _wanted(return_lse: bool, kernel_options: Any, return_aux: AuxRequest | None) -> tuple[bool, bool]:
    """Whether lse and the greatest scores are asked for. Refuses what torch refuses."""
    if return_lse:
        _deprecated(return_aux)
    if kernel_options:
        _check_options(kernel_options, return_aux)
    return (return_lse, False) if return_aux is None else (return_aux.lse, return_aux.max_scores)


def _row(score_mod: Any, greatest: bool) -> Callable[..., Any]:
    return softmax_with_max if greatest else softmax if score_mod is None else guarded_softmax


def _results(result: Any, lse: bool, greatest: bool, return_aux: AuxRequest | None, keys: int) -> Any:
    """What torch returns where more than the output is asked for."""
    o, *rest = result if lse or greatest else (result,)
    if return_aux is None:
        return o, rest[0]
    scores = _greatest(rest[-1]["max_scores"], keys) if greatest else None
    return o, AuxOutput(lse=rest[0] if lse else None, max_scores=scores)


def _greatest(scores: Tensor, keys: int) -> Tensor:
    """The greatest scores without a gradient, -inf where there are none: the kernel begins with the lowest finite number."""
    scores = scores.detach()
    if keys == 0:
        return torch.full_like(scores, -torch.inf)
    return scores.masked_fill(scores <= torch.finfo(scores.dtype).min, -torch.inf)


def _layout(query: Tensor) -> str:
    """The order of memory that the output gets: that of query, where it is one of ours."""
    batch, head, position, _ = query.stride()
    if position <= head or query.shape[1] == 1:
        return "bhsd"
    return "bshd" if batch >= position or query.shape[0] == 1 else "sbhd"


def _ordered_as(query: Tensor, o: Tensor) -> Tensor:
    """o [B, H, L, Ev] in query's order of memory, but that columns lie side by side."""
    strides, order = query.stride(), [0, 1, 2]
    for i, j in ((0, 1), (1, 2), (0, 1)):
        if strides[order[i]] < strides[order[j]]:
            order[i], order[j] = order[j], order[i]
    kept = [i for i in order if o.shape[i] > 1]
    if all([o.stride(a) >= o.stride(b) for a, b in itertools.pairwise(kept)]):
        return o
    return o.permute(*order, 3).contiguous().permute(order.index(0), order.index(1), order.index(2), 3)


def _told(query: Any, key: Any, value: Any, enable_gqa: bool) -> Exception | None:
    """The error that torch's checks of query, key and value tell, of a call that failed; None: they have nothing to say."""
    if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        return None
    try:
        _check_sizes(query, key, value, enable_gqa)
    except (ArgumentError, UnsupportedError) as error:
        return error
    return None


def _check_sizes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """torch's checks of query, key and value."""
    if query.is_nested or key.is_nested or value.is_nested:
        raise UnsupportedError(
            "flex_attention does not support NestedTensor inputs, including torch.compile(flex_attention) with jagged NestedTensor "
            "inputs. Convert inputs to dense tensors before calling flex_attention."
        )
    device = query.device
    if key.device != device or value.device != device:
        raise ArgumentError(
            f"Expected query, key, and value to have the same device type, but got query.device: {query.device}, key.device: {key.device}, "
            f"and value.device: {value.device} instead."
        )
    q_sizes, kv_sizes, dims = query.shape, key.shape, value.dim()
    if not len(q_sizes) == len(kv_sizes) == dims == 4:
        if min(len(q_sizes), len(kv_sizes), dims) < 2:
            raise ArgumentError(
                f"Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: {len(q_sizes)}, "
                f"key.dim: {len(kv_sizes)} and value.dim: {dims} instead."
            )
        if q_sizes[-1] == kv_sizes[-1]:
            raise UnsupportedError("NYI: query, key, and value must be 4D tensors")
    if q_sizes[-1] != kv_sizes[-1]:
        raise ArgumentError(
            f"Expect query and key/value to have the same embedding dimension but got E={q_sizes[-1]} and E={kv_sizes[-1]}."
        )
    if q_sizes[1] != kv_sizes[1]:
        _check_groups(q_sizes[1], kv_sizes[1], enable_gqa)


def _check_groups(heads: int, kv_heads: int, enable_gqa: bool) -> None:
    if not enable_gqa:
        raise ArgumentError(
            f"Expect query and key/value to have the same number of heads but got Hq={heads} and Hkv={kv_heads}. "
            "Try setting enable_gqa=True for GQA."
        )
    if kv_heads == 0 or heads % kv_heads:
        raise ArgumentError(f"Expect number of query heads to be a multiple of kv heads for GQA but got Hq={heads} and Hkv={kv_heads}.")


def _broadcast(query: Tensor, key: Tensor, value: Tensor, block_mask: Any) -> tuple[Tensor, Tensor]:
    """key and value of one batch for all batches of query, which the block mask must have."""
    batch, given = query.shape[0], key.shape[0]
    if given != batch:
        if block_mask is None:
            raise ArgumentError(
                "Expect query and key/value to have the same batch size, or non-none block_mask, "
                f"but got block_mask=None, Bq={batch}, and Bkv={given}."
            )
        masked = block_mask.batch_heads[0] if getattr(block_mask, "symbolic", False) else block_mask.kv_num_blocks.size(0)
        if masked != batch:
            raise ArgumentError(
                "Expect query and key/value to have the same batch size, or block_mask and query to have the same batch size, "
                f"but got Bq={batch}, Bkv={given}, B_block_mask={masked}."
            )
    if given not in (1, batch) or value.shape[0] not in (1, batch):
        raise BroadcastError(f"Bq and Bkv must broadcast. Got Bq={batch} and Bkv={given if given not in (1, batch) else value.shape[0]}")
    return key.expand(batch, -1, -1, -1), value.expand(batch, -1, -1, -1)


def _deprecated(return_aux: AuxRequest | None) -> None:
    if return_aux is not None:
        raise ArgumentError(
            "Cannot specify both return_lse and return_aux. return_lse is deprecated, please use return_aux=AuxRequest(lse=True) instead."
        )
    if "deprecated_return_lse" not in _WARNINGS_SHOWN and not torch.compiler.is_compiling():
        _WARNINGS_SHOWN.add("deprecated_return_lse")
        warnings.warn(
            "return_lse is deprecated and will be removed in v2.10. Please use return_aux=AuxRequest(lse=True) instead.",
            FutureWarning,
            stacklevel=3,
        )


def _check_options(options: Any, return_aux: AuxRequest | None) -> None:
    """Refuses what torch refuses of kernel options; they have no other effect."""
    if "BACKEND" in options:
        if options.get("FORCE_USE_FLEX_ATTENTION", False):
            raise OptionError(
                "BACKEND cannot be combined with legacy FORCE_USE_FLEX_ATTENTION. BACKEND supersedes the legacy knob; please drop "
                "FORCE_USE_FLEX_ATTENTION and only specify the desired BACKEND."
            )
        if options["BACKEND"] not in _BACKENDS:
            raise ArgumentError(f"Invalid BACKEND value '{options['BACKEND']}'. Must be one of {_BACKENDS}")
    for name in ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX"):
        if name in options:
            raise InternalOptionError(f"{name} must not be in kernel_options")
    if return_aux is not None and return_aux.max_scores and "BACKEND" in options and options["BACKEND"] == "FLASH":
        raise UnsupportedError(
            "Returning max scores is not supported with BACKEND='FLASH'. Use return_aux=AuxRequest(lse=True) or omit max_scores."
        )
