"""The metadata of code objects for AMD GPUs: which arguments kernels take, and where in the argument segment these lie."""

import struct
from typing import Any

from attn_mlir.backends.amd.isa.code_object import CodeObject

_NOTES, _METADATA = 7, 32


def kernels_of(code: bytes) -> dict[str, dict[str, Any]]:
    """The kernels of a code object by their names, as `amdhsa.kernels` describes them."""
    for section in CodeObject(code)._sections:
        if section[1] != _NOTES:
            continue
        name_size, size, kind = struct.unpack_from("<III", code, section[4])
        if kind == _METADATA:
            begin = section[4] + 12 + -(-name_size // 4) * 4
            content, _ = _read(code[begin : begin + size], 0)
            return {kernel[".name"]: kernel for kernel in content["amdhsa.kernels"]}
    raise AssertionError("no metadata")


def _read(data: bytes, at: int) -> tuple[Any, int]:
    """A value of MessagePack, and where the next one begins."""
    first = data[at]
    at += 1
    if first < 0x80:
        return first, at
    if first < 0xC0:
        return _many(data, at, first & 15 if first < 0xA0 else first & 31, "map list text text".split()[(first - 0x80) // 16])
    if first in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[first], at
    sizes = {0xCC: "B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: "b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
    if first in sizes:
        return struct.unpack_from(sizes[first], data, at)[0], at + struct.calcsize(sizes[first])
    if first >= 0xE0:
        return first - 256, at
    form, kind = {
        0xD9: ("B", "text"), 0xDA: (">H", "text"), 0xDC: (">H", "list"), 0xDD: (">I", "list"), 0xDE: (">H", "map"), 0xDF: (">I", "map"),
    }[first]  # fmt: skip
    return _many(data, at + struct.calcsize(form), struct.unpack_from(form, data, at)[0], kind)


def _many(data: bytes, at: int, count: int, kind: str) -> tuple[Any, int]:
    if kind == "text":
        return data[at : at + count].decode(), at + count
    values = []
    for _ in range(count * (2 if kind == "map" else 1)):
        value, at = _read(data, at)
        values.append(value)
    return (dict(zip(values[::2], values[1::2], strict=True)) if kind == "map" else values), at
