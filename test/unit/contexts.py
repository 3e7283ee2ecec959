"""A context with the project's dialects that many tests share: to make one takes 20 ms, more than most of them do in it."""

from attn_mlir.dialects import load_all
from attn_mlir.mlir import ir

_USES = 50
"""A context keeps the types, attributes and locations of all that was ever in it, so that another one follows."""
_MADE: list[ir.Context] = []
_COUNT = [0]


def loaded_context() -> ir.Context:
    """A context for one who does not change it, and in which no pass fails: an exception keeps handles of ops."""
    if _COUNT[0] % _USES == 0:
        _MADE[:] = [ir.Context()]
        load_all(_MADE[0])
    _COUNT[0] += 1
    return _MADE[0]
