"""Code objects: ELF files with the kernel descriptors and the instructions of kernels for AMD GPUs."""

import struct
from dataclasses import dataclass

from attn_mlir.errors import CompileError

_SYMBOL_TABLES = (2, 11)
_NO_BITS = 8
_DISPATCH_WORDS = (4, 2, 2, 2, 2, 2, 1)
"""Scalar registers of what a launch may pass: private segment, dispatch, queue, kernel arguments, dispatch id, flat scratch, size."""


@dataclass(frozen=True)
class Descriptor:
    """What the hardware is told of a kernel (`amdhsa_kernel_descriptor_t`).

    `entry` is an address of code. `shared` bytes of LDS a block, `private` bytes of scratch a lane. `user` tells for each thing of
    `_DISPATCH_WORDS` whether it arrives in scalar registers; then come `preloaded` words of the arguments from word `preload_offset`, then
    the numbers of the block along the `axes`, then, if `has_scratch`, an offset of the wave in scratch.
    """

    entry: int
    shared: int
    private: int
    user: tuple[bool, ...]
    preloaded: int
    preload_offset: int
    axes: tuple[bool, bool, bool]
    has_scratch: bool

    def user_words(self) -> list[tuple[int, int]]:
        """(number in `_DISPATCH_WORDS`, words) of what arrives, in order."""
        return [(number, words) for number, (words, given) in enumerate(zip(_DISPATCH_WORDS, self.user, strict=True)) if given]


class CodeObject:
    """An ELF file in memory."""

    def __init__(self, data: bytes) -> None:
        """Raises CompileError for other data."""
        if data[:5] != b"\x7fELF\x02":
            raise CompileError("this is no 64-bit ELF file")
        self._data = data
        start, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
        self._sections = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * i) for i in range(count)]
        self.symbols: dict[str, int] = {}
        for section in self._sections:
            if section[1] in _SYMBOL_TABLES:
                self._read_symbols(section)

    def _read_symbols(self, table: tuple[int, ...]) -> None:
        names = self._sections[table[6]][4]
        for offset in range(table[4], table[4] + table[5], 24):
            name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", self._data, offset)
            end = self._data.index(b"\0", names + name)
            self.symbols[self._data[names + name : end].decode()] = value

    def read(self, address: int, size: int) -> bytes:
        """Bytes as they are loaded."""
        for section in self._sections:
            if section[1] != _NO_BITS and section[3] and section[3] <= address < section[3] + section[5]:
                offset = section[4] + address - section[3]
                return self._data[offset : offset + size]
        raise CompileError(f"the code object has nothing at {address:#x}")

    def kernels(self) -> list[str]:
        """The names of its kernels."""
        return sorted(name.removesuffix(".kd") for name in self.symbols if name.endswith(".kd"))

    def descriptor(self, name: str) -> Descriptor:
        """That of a kernel. Raises CompileError where there is none."""
        if f"{name}.kd" not in self.symbols:
            raise CompileError(f"the code object has no kernel '{name}' (it has: {', '.join(self.kernels())})")
        address = self.symbols[f"{name}.kd"]
        data = self.read(address, 64)
        shared, private, _ = struct.unpack_from("<III", data, 0)
        resources = struct.unpack_from("<I", data, 52)[0]
        properties, preload = struct.unpack_from("<HH", data, 56)
        return Descriptor(
            entry=address + struct.unpack_from("<q", data, 16)[0],
            shared=shared,
            private=private,
            user=tuple(bool(properties >> bit & 1) for bit in range(len(_DISPATCH_WORDS))),
            preloaded=preload & 127,
            preload_offset=preload >> 7,
            axes=(bool(resources >> 7 & 1), bool(resources >> 8 & 1), bool(resources >> 9 & 1)),
            has_scratch=bool(resources & 1),
        )
