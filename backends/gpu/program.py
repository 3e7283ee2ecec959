"""What programs for GPUs have in common: kernels with their code, how it came about, and which tensors they take."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from attn_mlir import forks
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.emitters import SLOW
from attn_mlir.backends.gpu.limits import check_sizes
from attn_mlir.backends.gpu.units import Unit, outlined
from attn_mlir.backends.host import Host
from attn_mlir.backends.program import HostProgram, Plan, stages_of


class GpuProgram(HostProgram):
    """A function for GPUs that takes tensors and numbers and returns tensors. See `driver.Program`."""

    def __init__(self, source: str, prepare: str, choices: Fields, host: Host, units: Mapping[str, Unit]) -> None:
        """`source` is the module, `prepare` the pipeline that makes `host` and its kernels of it, `choices` those of their schedules."""
        super().__init__(host, {name: unit.kernel for name, unit in units.items()})
        self.units = units
        self._source, self._prepare, self._choices = source, prepare, choices
        self._lock = forks.lock()
        self.listeners: list[Callable[[Mapping[str, str]], None]] = []
        """Are told why kernels are slow where only their compiler can know, before the first launch; see `performance.tell`."""

    def _plan(self, key: Any, inputs: Sequence[Any]) -> Plan:
        check_sizes(self.host.arguments, inputs)
        return super()._plan(key, inputs)

    def readable(self, tensor: torch.Tensor, by_columns: bool) -> torch.Tensor:
        # Strides that a kernel cannot read are copied where it is launched.
        return tensor.resolve_neg() if tensor.is_neg() else tensor

    def ir_stages(self, pipeline: str) -> dict[str, str]:
        """The program after each pass of its preparation and of `pipeline`, "traced" first."""
        return stages_of(self._source, self._prepare, lambda module: outlined(module, self.host, self._choices), pipeline)

    @property
    def slow(self) -> dict[str, str]:
        """Why some kernels are not made by the best code generator, by their names."""
        return {name: str(unit.schedule[SLOW]) for name, unit in self.units.items() if SLOW in unit.schedule}

    @abstractmethod
    def stages(self) -> dict[str, str]:
        """See `driver.Kernel.stages`; the source of the kernels is the last."""

    @abstractmethod
    def explain(self) -> str:
        """Each kernel in words: its schedule, and, once it is compiled, its registers and spills."""
