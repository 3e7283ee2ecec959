"""Mask strings: the grammar of CK's example programs for windows, such as "t:128,0", read into mask functions."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from attn_mlir.api.makers import maker
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.sizes import kv_len, q_len

Mask = Callable[[Any, Any, Any, Any], Any]
GRAMMAR = """a mask string is one of
  0           no mask
  1, t        causal, query 0 meets key 0
  2, b        causal, the last query meets the last key
  t:l,r       window from l keys before to r keys after the position of a query, query 0 at key 0; negative: all on that side
  b:l,r       the same, the last query at the last key
  t:l,r,sink  (or b:) the window, and the first `sink` keys where they are not after it
  xt:w, xb:w  window of w keys about the position, w // 2 of them before it; causal where w is not positive
  g:y,x       x keys are kept in row 0, y rows in column 0; x + y is at least 2"""
_COUNTS = {"t": (2, 3), "b": (2, 3), "xt": (1,), "xb": (1,), "g": (2,)}


class MaskWindow(NamedTuple):
    """A row at position p keeps the keys p - left to p + right, and those before `sink` up to p + right; None: no limit.

    A negative size leaves out the row's own position.
    """

    left: int | None
    right: int | None
    bottom_right: bool = False
    sink: int = 0


@maker
def parse(text: str) -> Mask:
    """The mask of a string as CK's example programs take it: "0", "1", "2", "t", "b", "t:l,r", "b:l,r", "xt:w", "xb:w", "g:y,x".

    In "t:l,r" a query at position i sees the keys i - l to i + r, both included, a negative size being unlimited; with "b" the last query
    is at the last key. "t:l,r,sink" and "b:l,r,sink" add the first keys, as far as r lets a query see them. "xt:w" and "xb:w" are
    windows of w keys about the position. "g:y,x" keeps x keys in row 0 and y rows in column 0.
    Raises ArgumentError, which shows the grammar.
    """
    if not isinstance(text, str):
        raise ArgumentError(f'a mask string is one such as "t:128,0", got {type(text).__name__}')
    left, right, shift, sink = window_of(text)
    return _everything if left is None and right is None else window(left, right, shift, _below, sink or None)


def window(left: Any, right: Any, shift: bool, within: Callable[[Any, Any], Any], sink: int | None = None) -> Mask:
    """The mask of what `MaskWindow` says; `within(distance, size)` tells whether a key is near enough."""
    if left is None and isinstance(right, int) and right == 0:
        return lambda b, h, q_idx, kv_idx: position(q_idx, shift) >= kv_idx

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        at = position(q_idx, shift)
        if left is None:
            return kv_idx >= 0 if right is None else within(kv_idx - at, right)
        not_too_early = within(at - kv_idx, left)
        if sink is not None:
            not_too_early = (kv_idx < sink) | not_too_early
        return not_too_early if right is None else not_too_early & within(kv_idx - at, right)

    return mask


def position(q_idx: Any, shift: bool) -> Any:
    """The position of a query among the keys; with `shift` the last query meets the last key."""
    return q_idx + (kv_len() - q_len()) if shift else q_idx


def _below(distance: Any, size: Any) -> Any:
    return distance <= size


def _everything(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return True


def window_of(text: str) -> MaskWindow:
    """The limits that a mask string means. Raises ArgumentError, which shows the grammar."""
    if text == "0":
        return MaskWindow(None, None)
    if text in ("1", "2", "t", "b"):
        return MaskWindow(None, 0, text in ("2", "b"))
    kind, _, rest = text.partition(":")
    words = rest.split(",")
    if len(words) not in _COUNTS.get(kind, ()) or not all([_is_integer(word) for word in words]):
        raise ArgumentError(f"unknown mask {text!r}; {GRAMMAR}")
    numbers = [max(-sys.maxsize, min(int(word), sys.maxsize)) for word in words]
    if kind == "g":
        y, x = numbers
        if x + y < 2:
            raise ArgumentError(f"mask {text!r} keeps nothing, as x + y is {x + y}; {GRAMMAR}")
        return MaskWindow(y - 1, x - 1)
    if kind in ("xt", "xb"):
        width = numbers[0]
        return MaskWindow(width // 2, width - 1 - width // 2, kind == "xb") if width > 0 else MaskWindow(None, 0, kind == "xb")
    left, right, sink = *[None if number < 0 else number for number in numbers[:2]], numbers[2] if len(numbers) == 3 else 0
    if sink < 0:
        raise ArgumentError(f"the sink of mask {text!r} is a number of keys, at least 0; {GRAMMAR}")
    return MaskWindow(left, right, kind == "b", 0 if left is None else sink)


def _is_integer(word: str) -> bool:
    digits = word[1:] if word[:1] in ("-", "+") else word
    return digits.isascii() and digits.isdigit()
