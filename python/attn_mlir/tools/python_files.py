"""What a user's Python file or module has under a name, for tools that take FILE.py:NAME."""

import functools
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attn_mlir.errors import ArgumentError, AttnError


@functools.cache
def found(place: str) -> Any:
    """What is at FILE.py:NAME or MODULE:NAME. Raises ArgumentError."""
    where, _, name = place.rpartition(":")
    if not where or not name:
        raise ArgumentError(f"'{place}' names no attention: write FILE.py:NAME or MODULE:NAME")
    if where.endswith(".py"):
        path = Path(where)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.exists():
            raise ArgumentError(f"there is no file {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)
        sys.path.insert(0, str(path.resolve().parent))  # as `python FILE.py` has it
        _run(where, functools.partial(spec.loader.exec_module, module))
    elif where.startswith("."):
        raise ArgumentError(f"'{where}' is no module: write its whole dotted name, or FILE.py:{name}")
    else:
        module = _run(where, functools.partial(importlib.import_module, where))
    if not hasattr(module, name):
        raise ArgumentError(f"{where} has no '{name}'")
    return getattr(module, name)


def _run(where: str, load: Callable[[], Any]) -> Any:
    """What `load` returns. Raises ArgumentError with the user's lines for what a file or module raises."""
    try:
        return load()
    except AttnError:
        raise
    except ModuleNotFoundError as error:
        if error.name == where.partition(".")[0] or error.name == where:
            raise ArgumentError(f"there is no module '{where}': {error}") from None
        raise ArgumentError(_told(where, error)) from None
    except Exception as error:
        raise ArgumentError(_told(where, error)) from None


def _told(where: str, error: Exception) -> str:
    """What went wrong in a user's file: the message, and the lines that led to it."""
    trace = traceback.TracebackException.from_exception(error)
    own = [frame for frame in trace.stack if frame.filename != __file__ and not frame.filename.startswith("<frozen importlib")]
    lines = [*traceback.StackSummary.from_list(own).format(), *trace.format_exception_only()]
    return f"{where} cannot be loaded:\n{''.join(lines).rstrip()}"
