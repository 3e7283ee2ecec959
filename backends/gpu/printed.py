"""Kernels that were printed to plan them, kept until they are emitted: only a printed kernel tells how much shared memory it takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from attn_mlir.backends.gpu.attributes import LAUNCH, Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.mlir import ir

_MOST = 32
"""Kernels that are kept: a program plans all of its kernels before it emits the first."""
_OTHERS = frozenset({"emitter", "arch", "slow"})
"""Fields of a schedule that no printer reads, beside those of the launch, or that are the same for all plans of a kernel."""


@dataclass
class _Planning:
    """The kernel that is planned, and what was printed of it: by whom, with which fields of a schedule."""

    kernel: ir.Operation | None = None
    tried: list[tuple[str, Fields, KernelCode]] = field(default_factory=list)


_PLANNING = _Planning()
_PRINTED: dict[str, KernelCode] = {}
"""The code of planned kernels, by the text of their functions."""


@contextmanager
def planning(kernel: ir.Operation) -> Iterator[None]:
    """A kernel is planned in here: its handle and what was printed of it are let go afterwards, also where there is no plan."""
    _PLANNING.kernel = kernel
    _PLANNING.tried.clear()
    try:
        yield
    finally:
        _PLANNING.kernel = None
        _PLANNING.tried.clear()


def tried(kernel: ir.Operation, emitter: str, fields: Fields, code: KernelCode) -> KernelCode:
    """The code itself, which the emitter of this name printed with these fields: all those that it reads but the architecture."""
    if _PLANNING.kernel is not None and kernel == _PLANNING.kernel:
        _PLANNING.tried.append((emitter, dict(fields), code))
    return code


def planned(kernel: ir.Operation, schedule: Fields) -> None:
    """The kernel has its schedule: what was printed with the same fields is kept."""
    for emitter, fields, code in _PLANNING.tried:
        others = {name for name in schedule if name not in fields and not name.startswith(LAUNCH)}
        if emitter == schedule["emitter"] and others <= _OTHERS and all(schedule.get(name) == value for name, value in fields.items()):
            if len(_PRINTED) == _MOST:
                del _PRINTED[next(iter(_PRINTED))]
            _PRINTED[_text(kernel)] = code
            break


def take(kernel: ir.Operation) -> KernelCode | None:
    """The code that was printed of a scheduled kernel, once; None where it is to be printed."""
    return _PRINTED.pop(_text(kernel), None) if _PRINTED else None


def _text(function: ir.Operation) -> str:
    return function.get_asm(print_generic_op_form=True, enable_debug_info=True)
