"""Reads the locations that MLIR prints after ops: which lines of which files each line of a listing comes from."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_ALIAS = re.compile(r"^(#loc\d*) = (loc\(.*\))$")
_PLACE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_USED = re.compile(r"#loc\d*\b")
_LOC = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<location> ?\bloc\()')
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[()]')

Place = tuple[str, int, int]


@dataclass(frozen=True)
class Listing:
    """Text by lines, and for each of them the places (file, line, column) that it comes from."""

    lines: tuple[str, ...]
    places: tuple[tuple[Place, ...], ...]


def read_listing(text: str) -> Listing:
    """The listing of MLIR text that was printed with locations: these are taken out of the text.

    An op with regions has its location after the last of them: its first line gets it as well.
    """
    aliases: dict[str, str] = {}
    kept = []
    for line in text.splitlines():
        alias = _ALIAS.match(line)
        if alias is not None:
            aliases[alias[1]] = alias[2]
        else:
            kept.append(line)
    known: dict[str, tuple[Place, ...]] = {}
    lines: list[str] = []
    places: list[tuple[Place, ...]] = []
    opened: list[int] = []
    for line in kept:
        bare, found = _without(line)
        own = _expand(found[-1], aliases, known) if found and not bare.lstrip().startswith("^") else ()
        stripped = bare.strip()
        if stripped.startswith("}") and opened:
            first = opened.pop()
            places[first] = places[first] or own
        if stripped.endswith("{"):
            opened.append(len(lines))
        lines.append(bare)
        places.append(() if stripped.endswith("{") and not stripped.startswith("}") else own)
    while lines and not lines[-1]:
        lines.pop()
        places.pop()
    return Listing(tuple(lines), tuple(places))


def places_in(locations: Sequence[str]) -> tuple[Place, ...]:
    """The places of locations as MLIR writes them, each once."""
    return tuple(dict.fromkeys((file, int(line), int(column)) for text in locations for file, line, column in _PLACE.findall(text)))


def _without(line: str) -> tuple[str, list[str]]:
    """A line without its locations, and these."""
    kept, found, start = [], [], 0
    for match in _LOC.finditer(line):
        if match["location"] is None or match.start() < start:
            continue
        depth, end = 1, len(line)
        for bracket in _BRACKETS.finditer(line, match.end()):
            depth += {"(": 1, ")": -1}.get(bracket[0], 0)
            if not depth:
                end = bracket.end()
                break
        kept.append(line[start : match.start()])
        found.append(line[match.start() : end])
        start = end
    return "".join([*kept, line[start:]]).rstrip(), found


def _expand(location: str, aliases: dict[str, str], known: dict[str, tuple[Place, ...]]) -> tuple[Place, ...]:
    """The places of a location, also of those that it names."""
    if location not in known:
        known[location] = ()
        inner = [place for name in _USED.findall(location) for place in _expand(aliases.get(name, ""), aliases, known)]
        known[location] = tuple(dict.fromkeys([*places_in([location]), *inner]))
    return known[location]
