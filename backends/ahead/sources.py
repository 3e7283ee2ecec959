"""Kernels of a library as source files, for a project that builds many of them: what a target makes of a request instead of a library."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class KernelSource:
    """The source file of a kernel, or on the CPU of the kernels of one program.

    `name` is that of the file without its suffix, `code` what the machine code is called: on the CPU the prefix of its functions, on a GPU
    the constant that holds it. `flags` are the compiler's beside those of the project. `facts` say how it is launched, for the manifest.
    """

    name: str
    suffix: str
    text: str
    code: str
    flags: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The name of the file."""
        return f"{self.name}.{self.suffix}"

    @property
    def sha256(self) -> str:
        """The hash of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class Sources:
    """The kernels of a request, and the tables in C++ that end with its `attn::Library`, which is called `library`.

    `rank` is the most dimensions of a tensor.
    """

    kernels: tuple[KernelSource, ...]
    tables: str
    rank: int


@dataclass(frozen=True)
class Project:
    """What a project of a target has whatever its kernels are.

    `language` says how kernels are compiled: "mlir", "cuda" or "hip", with `flags`. `before` is what the runtime's files, `runtime`, take
    in front of them. `headers` are those of kernels. `kernels` belong to every library.
    """

    target: str
    language: str
    flags: tuple[str, ...]
    before: tuple[str, ...]
    runtime: tuple[Path, ...]
    headers: tuple[Path, ...] = ()
    kernels: tuple[KernelSource, ...] = ()
