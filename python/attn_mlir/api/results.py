"""What a call of an attention returns: one o or several, lse and row states."""

from collections.abc import Sequence
from typing import Any

__all__ = ["named_results"]


def named_results(results: Sequence[Any], weights: int, names: Sequence[str], lse: bool, states: bool) -> Any:
    """o, or a tuple of one for each of `weights`; behind it lse, and the row outputs called `names`, as far as they are wanted."""
    o = results[0] if weights == 1 else tuple(results[:weights])
    if not (lse or states):
        return o
    if not states and weights == 1 and len(results) == 2:
        return o, results[1]
    rows = dict(zip(names, results[weights:], strict=True))
    wanted = (o, rows["lse"]) if lse else (o,)
    return (*wanted, rows) if states else wanted
