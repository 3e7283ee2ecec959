"""The names that a function's code looks up."""

import dataclasses
import dis
from types import CodeType


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CodeNames:
    """The global and attribute names used by a code object and the functions nested in it. Equal when their code is."""

    code: CodeType
    hash: int
    globals: tuple[str, ...]
    attributes: frozenset[str]

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, CodeNames) and self.code == other.code)


# By identity: hashing code objects is slow. Each record keeps its code object, and so its identity, alive.
_KNOWN: dict[int, CodeNames] = {}
_LIMIT = 10_000


def names_of(code: CodeType) -> CodeNames:
    """The names used by `code`."""
    found = _KNOWN.get(id(code))
    if found is None:
        if len(_KNOWN) >= _LIMIT:
            _KNOWN.clear()
        found = _KNOWN[id(code)] = _look_up(code)
    return found


def _look_up(code: CodeType) -> CodeNames:
    used: set[str] = set()
    attributes: set[str] = set()
    stack = [code]
    while stack:
        inner = stack.pop()
        stack.extend(item for item in inner.co_consts if isinstance(item, CodeType))
        for instruction in dis.get_instructions(inner):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                used.add(instruction.argval)
            elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
                attributes.add(instruction.argval)
    return CodeNames(code, hash(code), tuple(sorted(used)), frozenset(attributes))
