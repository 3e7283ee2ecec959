"""Plants faults in what the AMD backend prints, and looks whether its emulation catches them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attn_mlir.backends import amd
from attn_mlir.backends.amd import launch
from attn_mlir.backends.amd.emulation import EmulatedHipKernel, EmulationError
from attn_mlir.backends.gpu.kernel import KernelCode

_FOLDER = Path(amd.__file__).parent
HEADERS = ("attn_amd.h", "attn_amd_weights.h", "attn_amd_chunks.h", "attn_amd_fp8.h")


@dataclass(frozen=True)
class Planted:
    """Replaces what `pattern` matches, everywhere or at its first place."""

    name: str
    pattern: str
    replacement: str | Callable[[re.Match[str]], str]
    first: bool = False

    def plant(self, source: str) -> str:
        """The source with its helpers, and the fault, where it has a place there; else the source itself."""
        whole = source
        for name in HEADERS:
            whole = whole.replace(f'#include "{name}"\n', (_FOLDER / name).read_text().replace("#pragma once", ""))
        changed, count = re.subn(self.pattern, self.replacement, whole, count=int(self.first))
        return changed if count else source


def wrong_with(fault: Planted, monkeypatch: pytest.MonkeyPatch, wrong_results: Callable[[], Any]) -> Any:
    """What `wrong_results` returns where kernels have the fault, or the error of the emulation's checks."""
    planted = []

    def faulty(code: KernelCode) -> EmulatedHipKernel:
        source = fault.plant(code.source)
        planted.append(source != code.source)
        return EmulatedHipKernel(KernelCode(**{**code.__dict__, "source": source}))

    monkeypatch.setattr(launch, "EmulatedHipKernel", faulty)
    try:
        wrong = wrong_results()
    except EmulationError as error:
        wrong = str(error)
    assert any(planted), "the fault has no place in these kernels"
    return wrong
