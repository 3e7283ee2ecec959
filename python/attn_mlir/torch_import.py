"""Registration of the torch operators at the first moment when torch and attn_mlir are both imported; none of them imports the other."""

import importlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_SCHEMAS = "attn_mlir.runtime.schemas"


def register_with_torch() -> None:
    """Registers the operators now where torch is imported, else right after it is."""
    torch = sys.modules.get("torch")
    if torch is None:
        sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
    elif hasattr(torch, "library"):  # else torch itself is importing this, and the first use of an operator registers them
        _register()


def _register() -> None:
    try:
        importlib.import_module(_SCHEMAS)
    except Exception:  # of a torch that lacks something: importing torch must not fail for it; using an operator does
        sys.modules.pop(_SCHEMAS, None)


class _Finder:
    """Finds torch as it would be found without it, and registers the operators when it has been imported."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """See `importlib.abc.MetaPathFinder`."""
        if name != "torch":
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next((found for finder in others if (found := finder.find_spec(name, path, target)) is not None), None)
        execute = getattr(spec.loader, "exec_module", None) if spec is not None else None
        if spec is not None and execute is not None:
            vars(spec.loader)["exec_module"] = self._and_register(spec.loader, execute)
        return spec

    def _and_register(self, loader: Any, execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)  # type: ignore[arg-type]
            _register()

        return exec_module
