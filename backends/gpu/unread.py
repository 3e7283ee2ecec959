"""Takes out of printed code what is set and never read: which values later ops ask for is not known when a map or a fill is printed.

nvcc would warn of it (#550). Only arrays in registers go, with what sets them, where that does nothing else.
"""

import re
from collections import Counter
from collections.abc import Sequence

_MARK = r"(?: ?/\*@\d+\*/)*"
_DECLARED = re.compile(rf"^\s*(?:float|int|bool|uint32_t) (\w+)\[\d+\];{_MARK}$")
_SET = re.compile(rf"^\s*(\w+)\[\w+\] = (.*);{_MARK}$")
_WORD = re.compile(r"\w+")
_CALLED = re.compile(r"([\w:]+|>)\(")
"""What is called by its name; `>` for a template, which is none of those below."""
_PURE = frozenset({"min", "max", "attn::load_shared"})
"""What may be called for a value that nobody reads."""
_CHANGES = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)")
"""What a value that nobody reads may not do beside: count, or set another."""
_LOOP = re.compile(rf"^\s*for \(int (.*)\) \{{{_MARK}$")
_ALONE = re.compile(rf"(?:\)|\belse|\bdo){_MARK}$")
"""The end of a line whose statement is the next line, without braces."""


def without_unread(lines: Sequence[str]) -> list[str]:
    """The lines of a function without arrays that no line reads; names are told once in a function."""
    kept = list(lines)
    while unread := _unread(kept):
        kept = [line for line in kept if _name(line) not in unread]
        kept = _without_empty_loops(kept)
    return kept


def _name(line: str) -> str | None:
    """The array that a line declares or sets."""
    found = (_DECLARED.match(line) or _SET.match(line)) if "[" in line else None
    return found[1] if found else None


def _unread(lines: Sequence[str]) -> set[str]:
    declared = {found[1] for line in lines if line.endswith((";", "*/")) and (found := _DECLARED.match(line))}
    seen: Counter[str] = Counter(word for line in lines for word in _WORD.findall(_code(line)) if word in declared)
    once: Counter[str] = Counter()
    for number, line in enumerate(lines):
        name = _name(line)
        if name is not None and name in declared and not (number and _ALONE.search(lines[number - 1])):
            value = _SET.match(line)
            once[name] += value is None or (_calls_pure(value[2]) and not _CHANGES.search(value[2]))
    return {name for name in declared if once[name] == seen[name]}


def _code(text: str) -> str:
    """Lines without their comments; what is in quotes may be an instruction, and stays."""
    return "\n".join(line if '"' in line else line.partition("//")[0] for line in text.split("\n"))


def _calls_pure(text: str) -> bool:
    return set(_CALLED.findall(text)) <= _PURE


def _without_empty_loops(lines: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for line in lines:
        loop = _LOOP.match(kept[-1]) if kept and line.strip().startswith("}") else None
        if loop is not None and _calls_pure(loop[1]):
            kept.pop()
            if kept and kept[-1].strip().startswith("#pragma unroll"):
                kept.pop()
            continue
        kept.append(line)
    return kept
