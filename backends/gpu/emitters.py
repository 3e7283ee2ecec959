"""The code generators of a backend: each plans what it can do, and emits what it planned."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from attn_mlir.backends.gpu import attributes, printed
from attn_mlir.backends.gpu.attributes import CHOICES, SCHEDULE, Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import walk

SLOW = "slow"
"""In a schedule: why a kernel is made by another emitter than the best one of its chip."""


@dataclass(frozen=True)
class Refusal:
    """Why an emitter does not make a kernel which it would make best; `op` is the one that it stops at."""

    reason: str
    op: ir.Operation | None = None

    @staticmethod
    def of(error: Exception) -> "Refusal":
        """What an error of an emitter says, without the emitter's name in front; its second argument is the op, if there is one."""
        name, _, reason = str(error.args[0]).partition(": ")
        return Refusal(reason if name.isalpha() else str(error.args[0]), error.args[1] if len(error.args) > 1 else None)

    def __str__(self) -> str:
        place = "somewhere" if self.op is None else source_line(self.op.location)
        return self.reason if place == "somewhere" or ":" not in place or place.startswith("-:") else f"{self.reason} ({place})"


class Target(Protocol):
    """A GPU that code is made for."""

    @property
    def arch(self) -> str: ...


TargetT = TypeVar("TargetT", bound=Target)


@dataclass(frozen=True)
class Emitters(Generic[TargetT]):
    """`names`, in the order in which they are asked, are modules of `package` with functions `plan` and `emit`. `plan` returns a schedule,
    None for a kernel that is another emitter's, or a `Refusal` where the kernel goes to one that is slower.

    `backend`: the name of `tile-schedule`'s target; `targets` by the name of their architecture, the usual one first.
    """

    backend: str
    package: str
    names: tuple[str, ...]
    targets: Mapping[str, TargetT]
    pages: tuple[str, ...] = ()
    """The emitters that read keys in pages."""
    packed_order: tuple[str, ...] = ()
    """The emitters that add sums over keys of packed sequences in a fixed order."""

    def plan(self, kernel: ir.Operation) -> Fields:
        """The schedule of a tiled kernel: "emitter", "arch", and what that emitter decides. `tile.choices` of the kernel overrides it.

        Raises UnsupportedError when no emitter can make the kernel, or not the one that is asked for.
        """
        choices = attributes.read(kernel, CHOICES)
        target = self._target(choices.get("arch", next(iter(self.targets))))
        wanted = choices.get("emitter")
        if wanted is not None and wanted not in self.names:
            raise UnsupportedError(f"there is no emitter '{wanted}' (emitters: {', '.join(self.names)})")
        refusals: dict[str, Refusal] = {}
        facts = ir.DictAttr(kernel.attributes["tile.kernel"])
        ordered = "lengths" in facts and bool(choices.get("deterministic")) and attributes.grid_kind(kernel) == "pairs"
        paged = "paged" in facts
        for name in self.names if wanted is None else (str(wanted),):
            fields = self._module(name).plan(kernel, target, choices)
            if isinstance(fields, dict) and paged and name not in self.pages:
                fields = Refusal(f"'{name}' reads no keys in pages (block_table): gather the pages, or use the CPU")
            if isinstance(fields, dict) and ordered and name not in self.packed_order:
                fields = Refusal(
                    f"'{name}' adds gradients of packed sequences in no fixed order: leave out deterministic and batch_invariant, "
                    "or compute each sequence by itself"
                )
            if isinstance(fields, Refusal):
                refusals[name] = fields
            elif fields is not None:
                launches = {key: value for key, value in choices.items() if key.startswith(attributes.LAUNCH)}
                made: Fields = {"emitter": name, "arch": target.arch, **fields, **launches}
                for best, why in list(refusals.items())[:1]:
                    made[SLOW] = f"made by '{name}', not by '{best}': {why}"
                return made
        who = "no code generator makes" if wanted is None else f"the emitter '{wanted}' does not make"
        reasons = "; ".join(map(str, refusals.values())) or _usual_reason(kernel)
        raise UnsupportedError(f"{who} this kernel for {target.arch}: {reasons}")

    def emit(self, kernel: ir.Operation) -> KernelCode:
        """The source of a scheduled kernel. Raises UnsupportedError where its emitter cannot do something."""
        fields = attributes.read(kernel, SCHEDULE)
        if "emitter" not in fields:
            raise UnsupportedError(f"the kernel has no schedule: run tile-schedule{{target={self.backend}}}")
        known = printed.take(kernel)
        return self._module(str(fields["emitter"])).emit(kernel, self._target(fields["arch"])) if known is None else known

    def _target(self, arch: int | str) -> TargetT:
        if arch not in self.targets:
            raise UnsupportedError(f"there is no description of '{arch}' (known: {', '.join(self.targets)})")
        return self.targets[str(arch)]

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"{self.package}.{name}")


def _usual_reason(kernel: ir.Operation) -> str:
    """Why most kernels are not made by anyone."""
    loads = [op.results[0].type for op in walk(kernel) if op.name == "tile.load"]
    if not any(ir.RankedTensorType(type_).element_type.width > 16 for type_ in loads if ir.RankedTensorType(type_).rank == 2):
        return "it has a form that they do not know; compute on the CPU"
    return "use 16-bit inputs (f16 or bf16) with head dimensions up to 256, or the CPU"


def schedule(kernel: ir.Operation, plan: Callable[[ir.Operation], Fields]) -> bool:
    """Attaches `tile.schedule`: which code generator makes the kernel, and what it decided. Reports what `plan` does not make."""
    with printed.planning(kernel):
        try:
            fields = plan(kernel)
        except (UnsupportedError, ValueError) as error:
            kernel.location.emit_error(f"tile-schedule: {error}")
            return False
        kernel.attributes[SCHEDULE] = attributes.write(fields)
        printed.planned(kernel, fields)
    return True
