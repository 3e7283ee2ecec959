"""The code generators of a backend: each plans what it can do, and emits what it planned."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import CHOICES, SCHEDULE, Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


class Target(Protocol):
    """A GPU that code is made for."""

    @property
    def arch(self) -> str: ...


TargetT = TypeVar("TargetT", bound=Target)


@dataclass(frozen=True)
class Emitters(Generic[TargetT]):
    """`names`, in the order in which they are asked, are modules of `package` with functions `plan` and `emit`.

    `backend`: the name of `tile-schedule`'s target; `targets` by the name of their architecture, the usual one first.
    """

    backend: str
    package: str
    names: tuple[str, ...]
    targets: Mapping[str, TargetT]

    def plan(self, kernel: ir.Operation) -> Fields:
        """The schedule of a tiled kernel: "emitter", "arch", and what that emitter decides. `tile.choices` of the kernel overrides it.

        Raises UnsupportedError when no emitter can make the kernel, or not the one that is asked for.
        """
        choices = attributes.read(kernel, CHOICES)
        target = self._target(choices.get("arch", next(iter(self.targets))))
        wanted = choices.get("emitter")
        if wanted is not None and wanted not in self.names:
            raise UnsupportedError(f"there is no emitter '{wanted}' (emitters: {', '.join(self.names)})")
        for name in self.names if wanted is None else (str(wanted),):
            fields = self._module(name).plan(kernel, target, choices)
            if fields is not None:
                return {"emitter": name, "arch": target.arch, **fields}
        who = "no code generator makes" if wanted is None else f"the emitter '{wanted}' does not make"
        raise UnsupportedError(
            f"{who} this kernel for {target.arch}: use 16-bit inputs (f16 or bf16) with head dimensions up to 256, or the CPU"
        )

    def emit(self, kernel: ir.Operation) -> KernelCode:
        """The source of a scheduled kernel. Raises UnsupportedError where its emitter cannot do something."""
        fields = attributes.read(kernel, SCHEDULE)
        if "emitter" not in fields:
            raise UnsupportedError(f"the kernel has no schedule: run tile-schedule{{target={self.backend}}}")
        return self._module(str(fields["emitter"])).emit(kernel, self._target(fields["arch"]))

    def _target(self, arch: int | str) -> TargetT:
        if arch not in self.targets:
            raise UnsupportedError(f"there is no description of '{arch}' (known: {', '.join(self.targets)})")
        return self.targets[str(arch)]

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"{self.package}.{name}")


def schedule(kernel: ir.Operation, plan: Callable[[ir.Operation], Fields]) -> bool:
    """Attaches `tile.schedule`: which code generator makes the kernel, and what it decided. Reports what `plan` does not make."""
    try:
        fields = plan(kernel)
    except (UnsupportedError, ValueError) as error:
        kernel.location.emit_error(f"tile-schedule: {error}")
        return False
    kernel.attributes[SCHEDULE] = attributes.write(fields)
    return True
