"""What a pass is."""

import abc
import dataclasses
from typing import Any, ClassVar

from attn_mlir.mlir import ir, passmanager


@dataclasses.dataclass(frozen=True)
class Pass(abc.ABC):
    """A module pass; its dataclass fields are its pipeline options."""

    name: ClassVar[str]
    before: ClassVar[str] = ""
    """Upstream passes that run before `run`, as a part of the pass."""
    after: ClassVar[str] = ""
    """Upstream passes that run after `run`, as a part of the pass."""

    @abc.abstractmethod
    def run(self, module: ir.Operation) -> bool:
        """Rewrites `module` in place; False, after emitting errors, fails the pipeline."""

    def __call__(self, module: ir.Operation, pass_: Any) -> None:
        """Adapts the pass to what `PassManager.add` calls."""
        if not self.run(module):
            pass_.signal_pass_failure()


def add_to(manager: passmanager.PassManager, pass_: Pass, spec: str) -> None:
    """Appends `pass_` to `manager`; `spec` is how diagnostics and IR dumps name it."""
    if pass_.before:
        manager.add(pass_.before)
    manager.add(pass_, name=type(pass_).__name__, argument=spec)
    if pass_.after:
        manager.add(pass_.after)
