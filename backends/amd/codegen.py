"""Which code generator makes a kernel: each plans what it can do, and emits what it planned.

`mfma` prints kernels with matrix products, `simt` kernels without any.
"""

import importlib
from typing import Any

from attn_mlir.backends.amd.target import MI250, TARGETS, AmdTarget
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import CHOICES, SCHEDULE, Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

EMITTERS = ("mfma", "simt")
"""In the order in which they are asked."""


def plan(kernel: ir.Operation) -> Fields:
    """The schedule of a tiled kernel: "emitter", "arch", and what that emitter decides. `tile.choices` of the kernel overrides it.

    Raises UnsupportedError when no emitter can make the kernel.
    """
    choices = attributes.read(kernel, CHOICES)
    target = _target(choices.get("arch", MI250.arch))
    for name in EMITTERS:
        fields = _module(name).plan(kernel, target, choices)
        if fields is not None:
            return {"emitter": name, "arch": target.arch, **fields}
    raise UnsupportedError(
        f"no code generator makes this kernel for {target.arch}: use 16-bit inputs (f16 or bf16) with head dimensions up to 256, or the CPU"
    )


def emit(kernel: ir.Operation) -> KernelCode:
    """The source of a scheduled kernel. Raises UnsupportedError where its emitter cannot do something."""
    fields = attributes.read(kernel, SCHEDULE)
    if "emitter" not in fields:
        raise UnsupportedError("the kernel has no schedule: run tile-schedule{target=amd}")
    return _module(str(fields["emitter"])).emit(kernel, _target(fields["arch"]))


def _target(arch: int | str) -> AmdTarget:
    if arch not in TARGETS:
        raise UnsupportedError(f"there is no description of '{arch}' (known: {', '.join(TARGETS)})")
    return TARGETS[str(arch)]


def _module(name: str) -> Any:
    return importlib.import_module(f"{__package__}.{name}")
