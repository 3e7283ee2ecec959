"""What to do about mistakes in a user's function: one fitting line for each kind."""

import difflib
import linecache
from collections.abc import Sequence
from typing import Any

from attn_mlir.frontend import unknown, where
from attn_mlir.frontend.node import Position

_TRACED = "the function is called once with traced values instead of numbers"
_BY_TYPE = {
    "UnboundLocalError": "assign it on every way through the function before it is read",
    "NameError": "define it before the call",
    "ImportError": "import it before the call",
    "ZeroDivisionError": "a number that the function computes with is 0: check what it captures",
    "RecursionError": "the function calls itself without an end: how deep it goes must not depend on a traced value",
    "KeyError": "look keys up that the dictionary has; for a table that positions index, use a tensor",
    "IndexError": "the index is beyond the end of a Python list or tuple; for a table that positions index, use a tensor",
    "AssertionError": "an assertion of the function's own failed",
    "AttributeError": "is the attribute misspelt, or None where an object was meant?",
    "TypeError": f"{_TRACED}: what takes only Python numbers, as functions of `math` do, has its counterpart in torch",
}


def for_exception(error: BaseException, at: Position | None) -> str:
    """The help for an exception that a user's function raised at `at`."""
    own = getattr(error, "advice", "")
    if own:
        return own
    if isinstance(error, IndexError) and at is not None and any(word in _line(at) for word in (".shape", ".size(")):
        return f"a traced value is one number and has no sizes; {unknown.LENGTHS}"
    if type(error) is NameError and at is not None:
        similar = _similar_name(error.name or "", at)
        return _BY_TYPE["NameError"] + (f"; or did you mean `{similar}`?" if similar else "")
    for kind in type(error).__mro__:
        if kind.__name__ in _BY_TYPE:
            return _BY_TYPE[kind.__name__]
    return f"{_TRACED}; what it raises for them it raises here"


def _similar_name(name: str, at: Position) -> str:
    """A variable of the function of nearly this name, or of the beginning of it."""
    known = [*at[0].co_varnames, *at[0].co_freevars]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return next((other for other in known if len(other) > 2 and (name.startswith(other) or other.startswith(name))), "") or "".join(close)


def _line(at: Position) -> str:
    found = where.resolve(at)
    return linecache.getline(found.file, found.line)


def for_arity(role: str, name: str, required: Sequence[str], shortest: int) -> str:
    """The help for a function that takes other parameters than its role has; empty where nothing better is known.

    `shortest` is the least number of parameters that the role has: of a row, its scores.
    """
    if role == "row" and len(required) < shortest:
        return f"the row takes {shortest} scores: make a weight of them in row, or one score of them in score_mod"
    if role == "row" and shortest == 1 and len(required) in (2, 3):
        return "a row of several scores needs additional pairs of q and k: extra_qk=[(q2, k2)]"
    if role == "mask_mod" and len(required) == 5:
        return f"this looks like a score_mod: pass score_mod={name}; a mask_mod has no score"
    if role == "score_mod" and len(required) == 4:
        return f"this looks like a mask_mod: pass mask_mod={name}; a score_mod begins with the score"
    if role == "score_mod" and len(required) == 1:
        return f"a score_mod also gets its position: def {name}(score, b, h, q_idx, kv_idx); for a function of a whole row pass row={name}"
    return ""


def for_others(role: str, value: Any) -> str:
    """What to write where a function was to be given and something else was; empty where nothing is known."""
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        if "float" in str(value.dtype) and role in ("score_mod", "mask_mod", "row"):
            return "a tensor that is added to the scores is score_mod=attn_mlir.mods.bias(tensor)"
        if role in ("mask_mod", "row", "score_mod"):
            return f"a mask that is a tensor is read by a function: mask_mod=lambda b, h, q_idx, kv_idx: mask{_index(tuple(shape))}"
    if role == "row" and isinstance(value, str):
        return f"ready-made ones are in attn_mlir.rows, as row=attn_mlir.rows.{value if value.isidentifier() else 'softmax'}"
    if isinstance(value, bool) and role in ("row", "mask_mod", "score_mod"):
        return "whether attention is causal is said by mask_mod=attn_mlir.masks.causal()"
    return ""


def _index(shape: tuple[int, ...]) -> str:
    """How a mask of a shape that broadcasts to [B, H, Sq, Skv] is read at one position."""
    if not 0 < len(shape) <= 4:
        return "[q_idx, kv_idx]"
    names = ("b", "h", "q_idx", "kv_idx")[4 - len(shape) :]
    return f"[{', '.join(['0' if size == 1 else name for name, size in zip(names, shape, strict=True)])}]"


class UnknownAttribute(AttributeError):
    """What a traced value does not have; `advice` says what there is."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.advice = advice
