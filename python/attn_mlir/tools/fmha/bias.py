"""`-bias` of attn-fmha."""

import re
from dataclasses import dataclass

from attn_mlir.errors import ArgumentError

_NAMES = {"0": "n", "n": "n", "1": "e", "e": "e", "elementwise": "e", "2": "a", "a": "a", "alibi": "a"}
_RANKS = {"e": 2, "a": 1}


@dataclass(frozen=True)
class Bias:
    """What is added to scores: nothing ("n"), a tensor ("e") or ALiBi ("a"), and which of its dimensions do not repeat."""

    kind: str
    rank: int = 0
    """Of a tensor: 0 for 1*1*s*s, 1 for 1*h*s*s, 2 for b*h*s*s. Of the slopes of ALiBi: 0 for 1*h, 1 for b*h."""

    @classmethod
    def decode(cls, text: str) -> "Bias":
        """Of "n", "e:1", "alibi", .... Raises ArgumentError."""
        found = re.fullmatch(r"(\w+)(?::([0-9]+))?", text)
        kind = _NAMES.get(found[1]) if found else None
        if found is None or kind is None or (found[2] and (kind == "n" or found[1] in "012" or int(found[2]) > _RANKS[kind])):
            raise ArgumentError(f"-bias is n, e, e:0, e:1, e:2, a, a:0 or a:1, got '{text}'")
        return cls(kind, int(found[2] or 0))

    def __str__(self) -> str:
        return {"n": "n", "e": "e", "a": "alibi"}[self.kind] + (f"[{self.rank}]" if self.rank else "")
