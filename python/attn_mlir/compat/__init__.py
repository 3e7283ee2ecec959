"""AttentionEngine's own module names: after `import attn_mlir.compat`, `attn_engine`, `core`, `core.core` and `core.utils` exist.

Programs written for AttentionEngine then import what they need from attn_mlir. The same without that line: put this
folder on PYTHONPATH.
"""

import importlib
import sys

from attn_mlir.errors import ArgumentError

_NAMES = ("attn_engine", "core", "core.core", "core.utils")


def install() -> None:
    """Registers the modules. Raises ArgumentError where the program has another module of one of these names."""
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in _NAMES}
    for name, module in modules.items():
        known = sys.modules.get(name, module)
        if known is not module and getattr(known, "__file__", None) != module.__file__:
            raise ArgumentError(f"a module called '{name}' is imported already ({known}); attn_mlir.compat cannot take its name")
    sys.modules.update(modules)


install()
