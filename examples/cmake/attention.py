"""An attention for the program beside it: softmax over the keys that a query may see, nearer ones with higher scores."""

from typing import Any

import torch

import attn_mlir

slope = 0.125


def nearer(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """ALiBi with one slope."""
    return score + slope * (kv_idx - q_idx)


attention = attn_mlir.Attention(score_mod=nearer, mask_mod=attn_mlir.masks.causal(), return_lse=True)
half = attn_mlir.InputSpec(torch.float16, head_dim=64)
