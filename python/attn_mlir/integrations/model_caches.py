"""Attention of transformers' continuous batching: packed requests, whose keys its paged cache gathers."""

from collections.abc import Callable
from typing import Any

import torch

from attn_mlir.api.masks import Mask, and_, causal, sliding_window
from attn_mlir.api.varlen import attention_varlen
from attn_mlir.errors import UnsupportedError

NAME = "paged|eager"
"""Continuous batching takes its own attentions only: this one is replaced, as nothing is imported or asked for by its name."""
_before: list[Any] = []


def replace(attentions: Any, function: Callable[..., Any]) -> None:
    """Registers `function` in the place of transformers' own."""
    if not _before:
        _before.append(attentions()[NAME])
    attentions.register(NAME, function)


def restore(attentions: Any) -> None:
    """Undoes `replace`."""
    if _before:
        attentions.register(NAME, _before.pop())


def is_continuous(options: dict[str, Any]) -> bool:
    """Whether a call is of continuous batching: it says where in the cache keys are, and up to transformers 5.23 gives the cache itself."""
    return options.get("cache") is not None or "read_index" in options


def attend(
    module: torch.nn.Module,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    options: dict[str, Any],
    functions: tuple[Callable[..., Any], Callable[..., Any] | None, Mask | None],
    scale: float | None,
) -> torch.Tensor:
    """[1, Tq, Hq, Dv] for query, key and value [1, H, T, D] of all requests in a step.

    `options` hold what belongs to the cache, and up to transformers 5.23 the cache, which takes the new keys here and gives all;
    `functions` are the row, score_mod and mask_mod of the model and of the user. Each request sees its own keys, up to its own position
    and, where the layer has one, within a window: no dense mask is read.
    """
    query, key, value = tensors
    if options.get("cache") is not None:
        key, value = options["cache"].update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=options)
    if options.get("block_table") is not None:
        raise UnsupportedError("continuous batching by block tables is for FlashAttention on GPUs: set max_blocks_per_request=0")
    row, score_mod, mask_mod = functions
    window = options.get("sliding_window")
    seen = causal("bottom_right") if window is None else sliding_window(window - 1, 0, align="bottom_right")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    offsets = options["cu_seq_lens_q"].to(torch.int32), options["cu_seq_lens_k"].to(torch.int32)
    mask = seen if mask_mod is None else and_(seen, mask_mod)
    return attention_varlen(q, k, v, *offsets, row=row, score_mod=score_mod, mask_mod=mask, scale=scale)[None]
