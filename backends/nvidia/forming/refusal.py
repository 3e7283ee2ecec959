"""Why a pass leaves a kernel as it is, told on the kernel."""

from attn_mlir.mlir import ir

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


def reasons(op: ir.Operation) -> dict[str, str]:
    """Why passes did not change a kernel, or made none of a function, by their names."""
    return {item.name: ir.StringAttr(item.attr).value for item in ir.DictAttr(op.attributes[REFUSED])} if REFUSED in op.attributes else {}
