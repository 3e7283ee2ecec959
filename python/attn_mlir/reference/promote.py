"""Rewrites a program from f32 to f64, so that constants folded by passes lose nothing in a comparison."""

import re
import struct

_SINGLE = re.compile(r"(?<![\w%@#^.$])f32\b|(?<=x)f32(?=[,>\s])")
_BITS = re.compile(r"\b0x([0-9A-Fa-f]{8})(?=\s*:\s*f32\b)")


def promoted(text: str) -> str:
    """The same program with f64 for every f32."""

    def widen(match: re.Match[str]) -> str:
        (value,) = struct.unpack(">f", bytes.fromhex(match[1]))
        return f"0x{struct.pack('>d', value).hex().upper()}"

    return _SINGLE.sub("f64", _BITS.sub(widen, text))
