"""CK's generic attention mask coordinates: what `-mask` keeps, told without the compiler's masks, to validate these."""

import re
from dataclasses import dataclass

import torch

from attn_mlir.errors import ArgumentError

_ORIGIN = {"0": "n", "1": "t", "2": "b", "t": "t", "b": "b"}
_LARGEST = 2**40
_GRAMMAR = "0, 1, 2, t, b, t:l,r, b:l,r, t:l,r,sink, b:l,r,sink, xt:w, xb:w or g:y,x"


@dataclass(frozen=True)
class Coordinates:
    """Query i keeps key j where i - y < j < i + x, or where j < sink and j < i + x."""

    origin: str
    """"n": no mask; "t", "b": a window from the top left, the bottom right; "g": y and x as they were given."""
    y: int
    x: int
    left: int
    right: int
    sink: int = 0

    @classmethod
    def decode(cls, text: str, q_len: int, kv_len: int) -> "Coordinates":
        """Of a mask string. Raises ArgumentError that shows the grammar."""
        if text in _ORIGIN:
            origin, left, right, sink = _ORIGIN[text], -1, 0 if text != "0" else -1, 0
        elif found := re.fullmatch(r"x([tb]):(-?[0-9]+)", text):
            size, sink = _bounded(found[2]), 0
            origin, left = found[1], size // 2 if size > 0 else -1
            right = size - 1 - left if size > 0 else 0
        elif found := re.fullmatch(r"([tb]):(-?[0-9]+),(-?[0-9]+)(?:,([0-9]+))?", text):
            origin, left, right, sink = found[1], _bounded(found[2]), _bounded(found[3]), _bounded(found[4] or "0")
        elif found := re.fullmatch(r"g:(-?[0-9]+),(-?[0-9]+)", text):
            y, x = _bounded(found[1]), _bounded(found[2])
            if y + x < 2:
                raise ArgumentError(f"-mask={text} keeps nothing: y + x is at least 2")
            return cls("g", y, x, y, x)
        else:
            raise ArgumentError(f"-mask is {_GRAMMAR}; got '{text}'")
        down = q_len - kv_len if origin == "b" else 0
        y = q_len + kv_len if left < 0 else 1 + left + down
        x = q_len + kv_len if right < 0 else 1 + right - down
        return cls(origin, y, x, left, right, sink)

    def keeps(self, q_len: int, kv_len: int) -> torch.Tensor:
        """Which pairs are kept, [Sq, Skv]."""
        i, j = torch.arange(q_len)[:, None], torch.arange(kv_len)
        return ((j > i - self.y) | (j < self.sink)) & (j < i + self.x)

    def area(self, q_len: int, kv_len: int) -> int:
        """How many pairs are kept."""
        if self.origin == "n":
            return q_len * kv_len
        i = torch.arange(q_len)
        last, first = (i + self.x).clamp(0, kv_len), (i - self.y + 1).clamp(min=0)
        sinks = torch.minimum(torch.minimum(first, last), torch.tensor(self.sink)).clamp(min=0)
        return int(((last - first).clamp(min=0) + sinks).sum())

    def __str__(self) -> str:
        if self.origin == "n":
            return "n"
        first, second = (self.y, self.x) if self.origin == "g" else (self.left, self.right)
        return f"{self.origin}({first}:{second}{f':{self.sink}' if self.sink else ''})"


def _bounded(digits: str) -> int:
    """The number; larger ones than any length say the same."""
    return max(-_LARGEST, min(int(digits), _LARGEST))
