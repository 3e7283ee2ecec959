"""Code for several chips in one file, as `fatbinary` of the CUDA toolkit makes it: what NVRTC, which has no such tool, leaves to do.

The layout is that of nvcc's files without compression: a header, then machine code and PTX, each behind a header of its own.
"""

import struct

_MAGIC, _PTX, _ELF, _LINUX_64 = 0xBA55ED50, 1, 2, 0x11
_ABI = 8
"""Where an ELF file has the version of its ABI."""
_FILE = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")


def pack(cubin: bytes, ptx: bytes, arch: int) -> bytes:
    """Machine code for compute capability `arch` / 10, and PTX that drivers compile for newer chips."""
    major, _, minor = _ptx_version(ptx).partition(".")
    body = _entry(_ELF, cubin, arch, (1, cubin[_ABI])) + _entry(_PTX, ptx + b"\0", arch, (int(major), int(minor)))
    return _FILE.pack(_MAGIC, 1, _FILE.size, len(body)) + body


def _ptx_version(ptx: bytes) -> str:
    """What the directive `.version` says."""
    return ptx.partition(b".version")[2].split()[0].decode()


def _entry(kind: int, code: bytes, arch: int, version: tuple[int, int]) -> bytes:
    padded, (major, minor) = code + b"\0" * (-len(code) % 8), version
    # Options for ptxas, of which there are none: where their text begins, and its length.
    place, options = (_ENTRY.size, struct.pack("<II8x", _ENTRY.size + 8, 0)) if kind == _PTX else (0, b"")
    size = _ENTRY.size + len(options)
    return _ENTRY.pack(kind, 0x0101, size, len(padded), 0, place, minor, major, arch, 0, 0, _LINUX_64, 0, 0) + options + padded
