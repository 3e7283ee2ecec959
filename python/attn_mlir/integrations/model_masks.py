"""The masks that transformers' models ask for, as mask functions: nothing of the size Sq x Skv where the pattern is known."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Never

import torch

from attn_mlir.api.masks import Mask, and_, or_
from attn_mlir.api.mods import ScoreMod, additive_bias
from attn_mlir.errors import ArgumentError, UnsupportedError

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
# Those that depend on the distance of positions alone.
_OF_DISTANCES = frozenset(
    {
        "bidirectional_mask_function",
        "causal_mask_function",
        "sliding_window_overlay.<locals>.inner_mask",
        "sliding_window_bidirectional_overlay.<locals>.inner_mask",
    }
)
_SEQUENCES = "packed_sequence_mask_function.<locals>.inner_mask"
_POSITIONS = "remap_positions_for_packed_sequence.<locals>.inner_mask"
_AND, _OR = "and_masks.<locals>.and_mask", "or_masks.<locals>.or_mask"


_OF_TENSORS = frozenset(
    {"dtype", "shape", "device", "size", "dim", "bool", "float", "long", "int", "masked_fill", "sum", "all", "any", "expand", "view"}
)
"""What models ask of masks that are tensors."""


class TensorMaskError(UnsupportedError, AttributeError):
    """A model takes a mask for a tensor; `hasattr` finds nothing."""


def _read_by_model(how: str) -> TensorMaskError:
    return TensorMaskError(
        f"this model {how} its attention mask, which attn_mlir makes as a function: use attn_implementation='eager'; for a model that "
        "supports 'sdpa', transformers.AttentionMaskInterface.register(name, transformers.masking_utils.sdpa_mask), after register(), "
        "gives the attention of that name masks that are tensors"
    )


@dataclasses.dataclass(frozen=True, eq=False)
class ModelMask:
    """Which keys a model's queries see; what models hand from their mask function to the attention of each layer."""

    pattern: Mask | None = None
    """Over absolute positions; None: every key."""
    present: torch.Tensor | None = None
    """False for padding keys, [B, S]; None: there is no padding."""
    q_offset: Any = 0
    """The position of the first query: a number, or a tensor of one inside of torch.compile."""
    kv_offset: Any = 0
    evaluate: Callable[[], torch.Tensor] | None = None
    """The same as a boolean tensor [B, 1, Sq, Skv]."""
    keys: Any = None
    """Skv; None: a pattern that reads the tensor for any number of keys."""

    def contiguous(self) -> torch.Tensor:
        """As a tensor: generate() of transformers before 5.24 asks for it where the cache is a static one."""
        if self.evaluate is None:
            raise UnsupportedError("this mask cannot become a tensor")
        return self.evaluate()

    @property
    def ndim(self) -> int:
        """That of a finished mask: transformers 5.24 and newer would take one of 2 dimensions for padding."""
        return 4

    def __getitem__(self, index: Any) -> Never:
        raise _read_by_model("slices")

    def __getattr__(self, name: str) -> Never:
        if name in _OF_TENSORS:
            raise _read_by_model(f"asks for .{name} of")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _combined(self, other: Any) -> Never:
        raise _read_by_model("computes with")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __and__ = __rand__ = __or__ = __ror__ = _combined

    def __invert__(self) -> Never:
        raise _read_by_model("computes with")

    def for_keys(self, queries: int, keys: int) -> "ModelMask":
        """The mask for layers whose cache has more keys: the queries are the last positions.

        Models with a cache of their own (MiniMax) make one mask by the size of their first layer's, which may hold no keys.
        """
        if self.keys is None or keys <= self.keys:
            return self
        return dataclasses.replace(self, q_offset=keys - queries, kv_offset=0, keys=keys)

    @functools.cached_property
    def mask_mod(self) -> Mask | None:
        """The mask over the positions within one call; None: every key is present."""
        return self._mask(self._positions(), None if self.present is None else _key_padding(self.present[:, self.kv_offset :]))

    def mask_in_graph(self) -> Mask | None:
        """The same, for torch.compile to follow: padding is always read."""
        present = None if self.present is None else _read(self.present[:, self.kv_offset :])
        return self._mask(self._positions(), present)

    def _positions(self) -> Mask | None:
        if self.pattern is None or (isinstance(self.q_offset, int) and not self.q_offset and not self.kv_offset):
            return self.pattern
        return _shifted(self.pattern, self.q_offset, self.kv_offset)

    @staticmethod
    def _mask(positions: Mask | None, present: Mask | None) -> Mask | None:
        return and_(positions, present) if positions is not None and present is not None else positions or present


def known_pattern(function: Callable[..., Any]) -> tuple[bool, Mask | None]:
    """Whether `function`, a mask function of transformers, can be traced, and as what; None: every key."""
    name = _name(function)
    if name == "bidirectional_mask_function":
        return True, None
    if name in _TRACEABLE:
        return True, function
    if name == _POSITIONS:
        captured = inspect.getclosurevars(function).nonlocals
        known, pattern = known_pattern(captured["mask_function"])
        return known, None if pattern is None else _at(captured["position_ids"], pattern)
    if name not in (_AND, _OR):
        return False, None
    given = _parts(function)
    if name == _AND and _SEQUENCES in map(_name, given):
        # Positions rise by one within a sequence, so that their distances are those of indices.
        given = [_without_positions(part) for part in given]
    parts = [known_pattern(part) for part in given]
    if not parts or not all(known for known, _ in parts):
        return False, None
    patterns = [pattern for _, pattern in parts if pattern is not None]
    if name == _OR:
        return True, or_(*patterns) if len(patterns) == len(parts) else None
    return True, and_(*patterns) if patterns else None


def _name(function: Any) -> str:
    """That of a mask function of transformers; nothing for others."""
    return function.__qualname__ if getattr(function, "__module__", None) == "transformers.masking_utils" else ""


def _parts(function: Callable[..., Any]) -> list[Any]:
    return list(inspect.getclosurevars(function).nonlocals.get("mask_functions", ()))


def _of_distances(function: Any) -> bool:
    name = _name(function)
    return name in _OF_DISTANCES or (name in (_AND, _OR) and all(map(_of_distances, _parts(function))))


def _without_positions(function: Any) -> Any:
    """The mask function to which another one hands positions, where their distances alone matter; else the function itself."""
    if _name(function) != _POSITIONS:
        return function
    inner = inspect.getclosurevars(function).nonlocals["mask_function"]
    return inner if _of_distances(inner) else function


def _at(positions: torch.Tensor, pattern: Mask) -> Mask:
    return lambda b, h, q_idx, kv_idx: pattern(b, h, positions[b, q_idx], positions[b, kv_idx])


def dense(mask: torch.Tensor) -> Mask:
    """A boolean tensor that broadcasts to [B, H, Sq, Skv], as a mask function."""
    repeats = tuple(size == 1 for size in mask.shape)

    def read_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return mask[tuple([0 if one else i for one, i in zip(repeats, (b, h, q_idx, kv_idx), strict=True)])]

    return read_mask


def given_mask(mask: torch.Tensor, sizes: tuple[int, int, int, int]) -> tuple[Mask, ScoreMod | None]:
    """A 4-dimensional mask that the caller of the model prepared: true where present, or added to the scores.

    `sizes` are batch, heads, queries and keys of the call; further keys of a mask are left out, as those of a static cache.
    """
    if mask.dim() != 4:
        raise ArgumentError(f"attention_mask must be [batch, keys] or [batch, heads, queries, keys], got shape {list(mask.shape)}")
    if not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ArgumentError(
            "attention_mask of 4 dimensions must be of booleans, true where a key is present, or of floats, which are added to the "
            f"scores, got {mask.dtype}: attention_mask.bool() makes booleans of numbers"
        )
    mask = mask[:, :, :, : sizes[3]]
    for given, size, name in zip(mask.shape, sizes, ("batch size", "number of heads", "number of queries", "number of keys"), strict=True):
        if given not in (1, size):
            raise ArgumentError(f"attention_mask has shape {list(mask.shape)}, but the {name} is {size}")
    if mask.dtype == torch.bool:
        return dense(mask), None
    # The dtype's most negative number, or -inf, is how such masks say "absent"; rows other than softmax need to know.
    return dense(mask > torch.finfo(mask.dtype).min / 2), additive_bias(mask)


def _shifted(pattern: Mask, q_offset: Any, kv_offset: Any) -> Mask:
    return lambda b, h, q_idx, kv_idx: pattern(b, h, q_idx + q_offset, kv_idx + kv_offset)


def _key_padding(present: torch.Tensor) -> Mask:
    """Padding at the end of each sequence becomes a length, so that whole blocks of it are skipped; other padding is read."""
    lengths = present.sum(dim=1)
    at_the_end = torch.arange(present.shape[1], device=present.device) < lengths[:, None]
    if torch.equal(at_the_end, present):
        return lambda b, h, q_idx, kv_idx: kv_idx < lengths[b]
    return _read(present)


def _read(present: torch.Tensor) -> Mask:
    return lambda b, h, q_idx, kv_idx: present[b, kv_idx]
