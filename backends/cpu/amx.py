"""Leave to use the matrix tiles of AMX, which Linux gives to a process that asks for it."""

import ctypes
import platform
from functools import cache

from attn_mlir.errors import UnsupportedError

_SYS_ARCH_PRCTL = 158
_REQUEST_PERMISSION, _TILE_DATA = 0x1023, 18
"""ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA, see the kernel's Documentation/arch/x86/xstate.rst; since Linux 5.16."""


@cache
def refusal() -> str:
    """Asks for it once, for all threads of the process, later ones and those of forked children included; "" or why there is none."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"{platform.system()} on {platform.machine()} is not known to give it"
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    if call(ctypes.c_long(_SYS_ARCH_PRCTL), ctypes.c_long(_REQUEST_PERMISSION), ctypes.c_long(_TILE_DATA)) == 0:
        return ""
    return f"the system refuses it (errno {ctypes.get_errno()}): Linux 5.16 or later gives it"


def request_permission() -> None:
    """Raises UnsupportedError where it is refused."""
    if reason := refusal():
        raise UnsupportedError(f"code with AMX tiles needs leave to use them, and {reason}; unset ATTN_MLIR_CPU")


LACKING = """  static const char *tiles = [] {
    unsigned a, b, c, d, bf16_and_tiles = 1u << 22 | 1u << 24;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & bf16_and_tiles) != bf16_and_tiles) return "amx_bf16";
    // ARCH_REQ_XCOMP_PERM of XTILEDATA: for all threads, later ones included.
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0 ? static_cast<const char *>(nullptr) : "leave to use amx_bf16 (Linux 5.16)";
  }();
  if (tiles) return tiles;"""
"""The same for libraries, in C++: what the processor or the system lacks. Needs `HEADERS`."""
HEADERS = "#include <cpuid.h>\n#include <sys/syscall.h>\n#include <unistd.h>"
