"""Results of steps as `attn::Result`s: their shapes by their roles, as `backends.roles` reads them."""

import re

from attn_mlir.backends.ahead.library import element
from attn_mlir.backends.host import Result
from attn_mlir.backends.roles import SEGMENTS, STATES
from attn_mlir.errors import UnsupportedError

_ROLES = {"query": "QUERY", "key": "KEY", "row": "ROW"}


def result_text(result: Result, of: str) -> str:
    """A result with elements `of`. Raises UnsupportedError for roles that libraries do not know."""
    role, operand, like, terms = result.role, 0, 0, ""
    if role.startswith("like:"):
        kind, operand = "LIKE", int(role[5:])
    elif role.startswith("heads:"):
        kind, (operand, like) = "HEADS", map(int, role[6:].split(","))
    elif role.startswith("shape:"):
        kind, terms = "SHAPE", ", ".join(_term(term, role) for term in role[6:].split(","))
    elif role in _ROLES:
        kind = _ROLES[role]
    else:
        raise UnsupportedError(f"results of the kind '{role}' are not compiled ahead of time yet: use the Python API")
    shape = result.type.shape or ()
    sizes = ", ".join(map(str, shape)) or "0"
    return f"{{attn::{kind}, {operand}, {element(of)}, {len(shape)}, {{{sizes}}}, {like}, {{{terms}}}}}"


def _term(term: str, role: str) -> str:
    segments, states = SEGMENTS.fullmatch(term), STATES.fullmatch(term)
    if term.isdigit():
        kind, numbers = "SIZE_IS", [int(term)]
    elif found := re.fullmatch(r"sequences\((\d+)\)", term):
        kind, numbers = "SEQUENCES_OF", [int(found.group(1))]
    elif segments:
        kind, numbers = "SEGMENTS_OF", [-1 if group is None else int(group) for group in segments.groups()]
    elif states:
        kind, numbers = "STATES_OF", [-1 if group is None else int(group) for group in states.groups()]
    elif found := re.fullmatch(r"(\d+)\.(\d+)", term):
        kind, numbers = "SIZE_OF", [int(found.group(1)), int(found.group(2))]
    else:
        raise UnsupportedError(f"results of the kind '{role}' are not compiled ahead of time yet: use the Python API")
    return f"{{attn::{kind}, {{{', '.join(map(str, numbers))}}}}}"
