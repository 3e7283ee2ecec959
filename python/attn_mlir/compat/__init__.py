"""The module names of AttentionEngine and attention_autotuner, and the latter's functions and GPUs.

After `import attn_mlir.compat` the modules `attn_engine`, `core`, `core.core`, `core.utils` and `core.transform.core` exist, and `ops`,
`arch` and `autotuner.arch`, unless the program has its own of these last three names. Programs written for these projects then import
what they need from attn_mlir. The same without that line: put this folder on PYTHONPATH.
"""

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from attn_mlir.api.arch import A100, H100, H200, MI250, MI300X, RTX4090, Arch
from attn_mlir.errors import ArgumentError
from attn_mlir.integrations.autotuner import RetNetAttnFunc, flash_attn_func

__all__ = ["A100", "H100", "H200", "MI250", "MI300X", "RTX4090", "Arch", "RetNetAttnFunc", "flash_attn_func"]

_NAMES = ("attn_engine", "core", "core.core", "core.utils", "core.transform", "core.transform.core")
_LAST = ("ops", "arch", "autotuner")


class _Last:
    """Finds packages of common names in this folder, after all others were asked."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, __path__) if name in _LAST and path is None else None


def install() -> None:
    """Registers the modules. Raises ArgumentError where the program has another module of one of the names of AttentionEngine."""
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in _NAMES}
    for name, module in modules.items():
        known = sys.modules.get(name, module)
        if known is not module and getattr(known, "__file__", None) != module.__file__:
            raise ArgumentError(f"a module called '{name}' is imported already ({known}); attn_mlir.compat cannot take its name")
    sys.modules.update(modules)
    if not any(getattr(finder, "__module__", "") == __name__ for finder in sys.meta_path):
        sys.meta_path.append(_Last)


install()
