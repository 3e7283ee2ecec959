"""A program for GPUs that is a whole attention."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch

from attn_mlir.backends.gpu.program import GpuLaunchPlan

ProgramT = TypeVar("ProgramT", bound=GpuLaunchPlan)


class AttentionKernel(Generic[ProgramT]):
    """A program that takes q, k, v and captures. See `driver.Kernel`."""

    def __init__(self, program: ProgramT) -> None:
        self.program = program

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, captures: Sequence[Any], layout: str = "bhsd") -> list[torch.Tensor]:
        """See `driver.Kernel.run`; the results are on the device of q, on a GPU computed on its current stream."""
        return self.program.run((q, k, v, *captures), layout)

    @property
    def slow(self) -> dict[str, str]:
        """Why some kernels are not made by the best code generator, by their names."""
        return self.program.slow

    @property
    def listeners(self) -> list[Callable[[Mapping[str, str]], None]]:
        """See `GpuLaunchPlan`."""
        return self.program.listeners

    def stages(self) -> dict[str, str]:
        """See `driver.Kernel.stages`."""
        return self.program.stages()

    def explain(self) -> str:
        """The kernels in words: schedules, registers, spills."""
        return self.program.explain()
