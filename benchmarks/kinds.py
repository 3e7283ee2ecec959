"""What both benchmarks mean by a kind of attention."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from attn_mlir import rows


@dataclasses.dataclass(frozen=True)
class Kind:
    """What makes an attention: its mask, its change of scores (FlexAttention's signatures, used by all systems) and its row."""

    mask: Callable[..., Any] | None = None
    score: Callable[..., Any] | None = None
    row: Callable[..., Any] = rows.softmax
    eager_row: Callable[[torch.Tensor], torch.Tensor] | None = None
    """The row on a dense tensor of scores where those of masked keys are 0, after which their weights become 0; None: softmax."""
    bias: Callable[..., torch.Tensor] | None = None
    """The change of scores as something to add: bias(h, q_idx, kv_idx)."""
    is_causal: bool = False

    def weights(self, scores: torch.Tensor, present: torch.Tensor | None) -> torch.Tensor:
        """The weights of dense scores; `present` tells the keys that a mask keeps, None: all."""
        if present is None:
            return torch.softmax(scores, -1) if self.eager_row is None else self.eager_row(scores)
        if self.eager_row is None:
            return torch.softmax(scores.masked_fill(~present, -torch.inf), -1)
        return self.eager_row(scores.masked_fill(~present, 0)).masked_fill(~present, 0)
