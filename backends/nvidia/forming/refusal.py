"""Why a pass leaves a kernel as it is, told on the kernel."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

_Part = TypeVar("_Part")
REFUSED = "warp.refused"
"""Attribute: by the name of a pass, the reason."""


class Refused(Exception):
    """A pass does not apply: the kernel stays what it was, and the pipeline goes on."""


def refuse(kernel: ir.Operation, pass_: str, reason: Refused) -> None:
    """Notes on a kernel why a pass did not change it."""
    known = {item.name: item.attr for item in ir.DictAttr(kernel.attributes[REFUSED])} if REFUSED in kernel.attributes else {}
    kernel.attributes[REFUSED] = ir.DictAttr.get({**known, pass_: ir.StringAttr.get(str(reason), kernel.context)}, kernel.context)


def applied(kernel: ir.Operation, pass_: str) -> None:
    """Takes back what an earlier run of a pass noted."""
    if REFUSED not in kernel.attributes:
        return
    left = {item.name: item.attr for item in ir.DictAttr(kernel.attributes[REFUSED]) if item.name != pass_}
    if left:
        kernel.attributes[REFUSED] = ir.DictAttr.get(left, kernel.context)
    else:
        del kernel.attributes[REFUSED]


def change_kernels(module: ir.Operation, pass_: str, change: Callable[[ir.Operation], None]) -> None:
    """Changes each `warp.kernel` by a pass; one that `change` refuses stays as it is, and tells why."""
    for kernel in find_all(module, "warp.kernel"):
        try:
            change(kernel)
        except Refused as reason:
            refuse(kernel, pass_, reason)
        else:
            applied(kernel, pass_)


def change_parts(parts: Iterable[_Part], change: Callable[[_Part], None], none: str) -> None:
    """Changes those parts of a kernel that `change` does not refuse. Raises Refused where it takes none: the last reason, or `none`."""
    changed, reason = False, Refused(none)
    for part in parts:
        try:
            change(part)
            changed = True
        except Refused as why:
            reason = why
    if not changed:
        raise reason


def reasons(op: ir.Operation) -> dict[str, str]:
    """Why passes did not change a kernel, or made none of a function, by their names."""
    return {item.name: ir.StringAttr(item.attr).value for item in ir.DictAttr(op.attributes[REFUSED])} if REFUSED in op.attributes else {}
