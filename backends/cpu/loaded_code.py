"""Machine code of an object file in this process's memory, without a linker.

LLVM's engine keeps 0.8 MB for each module for as long as its code may run; what it compiled has 10 to 30 kB. So the engine writes an
object file and goes, and what a dynamic linker does for one is done here: sections get memory, addresses are written where relocations
say, and pages become executable or read-only. Source: System V ABI, AMD64 supplement, 4.4 (relocation types).
"""

import ctypes
import mmap
import platform
import struct
import sys
from dataclasses import dataclass
from functools import cache

from attn_mlir.errors import CompileError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_RELOCATABLE, _AMD64 = 1, 62
_SYMTAB, _RELA, _NOBITS = 2, 4, 8
_AT_START = frozenset({14, 15, 16})
"""Sections of functions that a linker's loader would call: initialisers, finalisers, and those in front of the former."""
_WRITE, _ALLOCATED, _EXECUTED, _OF_THREADS = 1, 2, 4, 0x400
_RESOLVED = 10
"""The type of a symbol whose function tells where the function is (STT_GNU_IFUNC)."""
_ABSOLUTE, _COMMON = 0xFFF1, 0xFFF2
_READ_ONLY, _READ_EXECUTE = 1, 5
"""Protections of mprotect; data that code writes keeps the one that its memory has."""
_RELOCATED = {1: ("<Q", False), 2: ("<i", True), 4: ("<i", True), 10: ("<I", False), 11: ("<i", False), 24: ("<q", True)}
"""R_X86_64_64, PC32, PLT32, 32, 32S and PC64: how the address is written, and whether it counts from its own place."""


def can_load() -> bool:
    """Whether this machine's object files are those that are loaded here: ELF for x86-64 on Linux."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


@dataclass(frozen=True)
class _Section:
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


class LoadedCode:
    """The code of an object file, which can be called for as long as this lives."""

    def __init__(self, code: bytes) -> None:
        """Raises CompileError where the file has what is not loaded here, or needs a function that is not in this process."""
        sections = _sections(code)
        starts, groups, size = _places(sections)
        # Private, so that a child of os.fork has its own.
        self._memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for number, start in starts.items():
            section = sections[number]
            if section.kind != _NOBITS:
                self._memory[start : start + section.size] = code[section.offset : section.offset + section.size]
        self._addresses: dict[str, int] = {}
        symbols = self._symbols(code, sections, starts, base)
        for section in sections:
            if section.kind == _RELA and section.info in starts:
                self._relocate(code, section, starts[section.info], symbols, base)
        for start, end, flags in groups:
            if not flags & _WRITE:
                _protect(base + start, end - start, _READ_EXECUTE if flags & _EXECUTED else _READ_ONLY)

    def address(self, name: str) -> int:
        """Where the function of this name is; 0 where there is none."""
        return self._addresses.get(name, 0)

    def _symbols(self, code: bytes, sections: list[_Section], starts: dict[int, int], base: int) -> list[int | str]:
        """The address of each symbol, or the name of one that is elsewhere; what has no memory is 0."""
        (table,) = (section for section in sections if section.kind == _SYMTAB)
        names = sections[table.link].offset
        made: list[int | str] = []
        for at in range(table.offset, table.offset + table.size, _SYMBOL.size):
            offset, kind, _, section, value, _ = _SYMBOL.unpack_from(code, at)
            name = code[names + offset : code.index(b"\0", names + offset)].decode()
            if section == _COMMON:
                raise CompileError(f"the object file has '{name}' without a section")
            if section and kind & 15 == _RESOLVED:
                raise CompileError(f"the object file has '{name}', which is to be chosen when it is loaded")
            if section == 0:
                made.append(name)
            elif section == _ABSOLUTE or section not in starts:
                made.append(value if section == _ABSOLUTE else 0)
            else:
                self._addresses[name] = base + starts[section] + value
                made.append(self._addresses[name])
        return made

    def _relocate(self, code: bytes, section: _Section, start: int, symbols: list[int | str], base: int) -> None:
        for at in range(section.offset, section.offset + section.size, _RELOCATION.size):
            offset, info, addend = _RELOCATION.unpack_from(code, at)
            kind, symbol = info & 0xFFFFFFFF, symbols[info >> 32]
            if kind not in _RELOCATED:
                raise CompileError(f"the object file has a relocation of type {kind}, which is not known")
            form, relative = _RELOCATED[kind]
            value = (_outside(symbol) if isinstance(symbol, str) else symbol) + addend
            if relative:
                value -= base + start + offset
            try:
                struct.pack_into(form, self._memory, start + offset, value)
            except struct.error:
                raise CompileError(f"address {value:#x} does not fit a relocation of type {kind}") from None


def _sections(code: bytes) -> list[_Section]:
    """The sections of an ELF file. Raises CompileError for any other."""
    ident, kind, machine, *_, offset, _, _, _, _, _, count, _ = _HEADER.unpack(code[: _HEADER.size].ljust(_HEADER.size, b"\0"))
    if ident[:6] != b"\x7fELF\2\1" or (kind, machine) != (_RELOCATABLE, _AMD64):
        raise CompileError("this is no object file for x86-64 in the ELF format")
    return [_Section(*_SECTION.unpack_from(code, offset + number * _SECTION.size)) for number in range(count)]


def _places(sections: list[_Section]) -> tuple[dict[int, int], list[tuple[int, int, int]], int]:
    """Where sections that need memory start; spans of pages, each with its flags; the size of all. Sections of equal flags share pages."""
    starts: dict[int, int] = {}
    groups: list[tuple[int, int, int]] = []
    at = 0
    for flags in (_EXECUTED, 0, _WRITE, _WRITE | _EXECUTED):
        first = at
        for number, section in enumerate(sections):
            if section.flags & _ALLOCATED and section.size and section.flags & (_WRITE | _EXECUTED) == flags:
                if flags == _WRITE | _EXECUTED:
                    raise CompileError("the object file has code that writes itself")
                if section.kind in _AT_START or section.flags & _OF_THREADS:
                    raise CompileError("the object file has functions to be called when it is loaded, or variables of threads")
                if section.alignment > mmap.PAGESIZE:
                    raise CompileError(f"the object file has a section that is aligned to {section.alignment} bytes")
                at = -(-at // max(section.alignment, 1)) * max(section.alignment, 1)
                starts[number] = at
                at += section.size
        at = -(-at // mmap.PAGESIZE) * mmap.PAGESIZE
        if at > first:
            groups.append((first, at, flags))
    return starts, groups, max(at, mmap.PAGESIZE)


@cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    """Where functions are that compiled code calls, such as memset and fmodf: this process, and the C library's mathematics."""
    return ctypes.CDLL(None, use_errno=True), ctypes.CDLL("libm.so.6")


@cache
def _outside(name: str) -> int:
    """The address of a function of this process. Raises CompileError where it has none."""
    for library in _libraries():
        if hasattr(library, name):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    raise CompileError(f"compiled code calls '{name}', which is not in this process")


def _protect(address: int, size: int, protection: int) -> None:
    process = _libraries()[0]
    if process.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), protection):
        code = ctypes.get_errno()
        raise OSError(code, "the system refuses memory for compiled code")
