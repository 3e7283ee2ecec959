"""Which code generator makes a kernel: each plans what it can do, and emits what it planned.

`hopper` prints CUDA C++ with a hand-made schedule for matrix products, `simt` plain CUDA for kernels without any, `tilelang` TileLang
programs for every kernel.
"""

import importlib
from typing import Any

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import CHOICES, SCHEDULE, Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.target import HOPPER, TARGETS, NvidiaTarget
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

EMITTERS = ("hopper", "simt", "tilelang")
"""In the order in which they are asked."""


def plan(kernel: ir.Operation) -> Fields:
    """The schedule of a tiled kernel: "emitter", "arch", and what that emitter decides. `tile.choices` of the kernel overrides it.

    Raises UnsupportedError when no emitter can make the kernel.
    """
    choices = attributes.read(kernel, CHOICES)
    target = _target(choices.get("arch", HOPPER.arch))
    wanted = choices.get("emitter")
    if wanted is not None and wanted not in EMITTERS:
        raise UnsupportedError(f"there is no emitter '{wanted}' (emitters: {', '.join(EMITTERS)})")
    for name in EMITTERS if wanted is None else (str(wanted),):
        fields = _module(name).plan(kernel, target, choices)
        if fields is not None:
            return {"emitter": name, "arch": target.arch, **fields}
    who = "no code generator makes" if wanted is None else f"the emitter '{wanted}' does not make"
    raise UnsupportedError(
        f"{who} this kernel for {target.arch}: use 16-bit inputs (f16 or bf16) with head dimensions up to 256, or the CPU"
    )


def emit(kernel: ir.Operation) -> KernelCode:
    """The source of a scheduled kernel. Raises UnsupportedError where its emitter cannot do something."""
    fields = attributes.read(kernel, SCHEDULE)
    if "emitter" not in fields:
        raise UnsupportedError("the kernel has no schedule: run tile-schedule{target=nvidia}")
    return _module(str(fields["emitter"])).emit(kernel, _target(fields["arch"]))


def _target(arch: int | str) -> NvidiaTarget:
    if arch not in TARGETS:
        raise UnsupportedError(f"there is no description of '{arch}' (known: {', '.join(TARGETS)})")
    return TARGETS[str(arch)]


def _module(name: str) -> Any:
    return importlib.import_module(f"{__package__}.{name}")
