"""Leave to use the matrix tiles of AMX, which Linux gives to a process that asks for it."""

import ctypes
import platform
from functools import cache

from attn_mlir.errors import UnsupportedError

_SYS_ARCH_PRCTL = 158
_REQUEST_PERMISSION, _TILE_DATA = 0x1023, 18
"""ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA, see the kernel's Documentation/arch/x86/xstate.rst; since Linux 5.16."""


@cache
def request_permission() -> None:
    """Asks for it once, for all threads. Raises UnsupportedError where it is refused."""
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        call = ctypes.CDLL(None, use_errno=True).syscall
        call.restype = ctypes.c_long
        if call(ctypes.c_long(_SYS_ARCH_PRCTL), ctypes.c_long(_REQUEST_PERMISSION), ctypes.c_long(_TILE_DATA)) == 0:
            return
        reason = f"the system refuses it (errno {ctypes.get_errno()}): Linux 5.16 or later gives it"
    else:
        reason = f"{platform.system()} on {platform.machine()} is not known to give it"
    raise UnsupportedError(f"code with AMX tiles needs leave to use them, and {reason}; unset ATTN_MLIR_CPU")
