"""The masks that transformers' models ask for, as mask functions: nothing of the size Sq x Skv where the pattern is known."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from attn_mlir.api.masks import Mask, and_, or_
from attn_mlir.errors import UnsupportedError

# Functions of transformers.masking_utils whose bodies can be traced as they are. Others are evaluated for all positions.
_TRACEABLE = frozenset(
    {
        "causal_mask_function",
        "sliding_window_overlay.<locals>.inner_mask",
        "sliding_window_bidirectional_overlay.<locals>.inner_mask",
        "chunked_overlay.<locals>.inner_mask",
        "blockwise_overlay.<locals>.inner_mask",
        "packed_sequence_mask_function.<locals>.inner_mask",
    }
)


@dataclasses.dataclass(frozen=True, eq=False)
class ModelMask:
    """Which keys a model's queries see; what models hand from their mask function to the attention of each layer."""

    pattern: Mask | None = None
    """Over absolute positions; None: every key."""
    present: torch.Tensor | None = None
    """False for padding keys, [B, S]; None: there is no padding."""
    q_offset: int = 0
    kv_offset: int = 0
    evaluate: Callable[[], torch.Tensor] | None = None
    """The same as a boolean tensor [B, 1, Sq, Skv]."""

    def contiguous(self) -> torch.Tensor:
        """As a tensor: generate() asks for it where the cache is a static one, since only tensors pass as finished masks."""
        if self.evaluate is None:
            raise UnsupportedError("this mask cannot become a tensor")
        return self.evaluate()

    @functools.cached_property
    def mask_mod(self) -> Mask | None:
        """The mask over the positions within one call; None: every key is present."""
        masks = []
        if self.pattern is not None:
            masks.append(_shifted(self.pattern, self.q_offset, self.kv_offset) if self.q_offset or self.kv_offset else self.pattern)
        if self.present is not None:
            masks.append(_key_padding(self.present[:, self.kv_offset :]))
        return and_(*masks) if len(masks) > 1 else next(iter(masks), None)


def known_pattern(function: Callable[..., Any]) -> tuple[bool, Mask | None]:
    """Whether `function`, a mask function of transformers, can be traced, and as what; None: every key."""
    if getattr(function, "__module__", None) != "transformers.masking_utils":
        return False, None
    name = function.__qualname__
    if name == "bidirectional_mask_function":
        return True, None
    if name in _TRACEABLE:
        return True, function
    if name not in ("and_masks.<locals>.and_mask", "or_masks.<locals>.or_mask"):
        return False, None
    parts = [known_pattern(part) for part in inspect.getclosurevars(function).nonlocals.get("mask_functions", ())]
    if not parts or not all(known for known, _ in parts):
        return False, None
    patterns = [pattern for _, pattern in parts if pattern is not None]
    if name.startswith("or_"):
        return True, or_(*patterns) if len(patterns) == len(parts) else None
    return True, and_(*patterns) if patterns else None


def dense(mask: torch.Tensor) -> Mask:
    """A boolean tensor that broadcasts to [B, H, Sq, Skv], as a mask function."""
    one_batch, one_head = mask.shape[0] == 1, mask.shape[1] == 1

    def read_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return mask[0 if one_batch else b, 0 if one_head else h, q_idx, kv_idx]

    return read_mask


def _shifted(pattern: Mask, q_offset: int, kv_offset: int) -> Mask:
    return lambda b, h, q_idx, kv_idx: pattern(b, h, q_idx + q_offset, kv_idx + kv_offset)


def _key_padding(present: torch.Tensor) -> Mask:
    """Padding at the end of each sequence becomes a length, so that whole blocks of it are skipped; other padding is read."""
    lengths = present.sum(dim=1)
    at_the_end = torch.arange(present.shape[1], device=present.device) < lengths[:, None]
    if torch.equal(at_the_end, present):
        return lambda b, h, q_idx, kv_idx: kv_idx < lengths[b]
    return lambda b, h, q_idx, kv_idx: present[b, kv_idx]
