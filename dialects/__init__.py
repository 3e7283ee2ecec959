"""The project's MLIR dialects: `attn` says what to compute, `tile` how, `warp` who does it, where and when."""

import contextlib
import io
import sys
import types
from collections.abc import Iterator

from attn_mlir.dialects.attn import Attn
from attn_mlir.dialects.form import harden
from attn_mlir.dialects.tile import Tile
from attn_mlir.dialects.warp import Warp
from attn_mlir.mlir import ext, ir

DIALECTS: tuple[type[ext.Dialect], ...] = (Attn, Tile, Warp)


_USES = 50
_FREE: list[tuple[ir.Context, int]] = []
"""Contexts that nobody uses, and how often they have been used."""


@contextlib.contextmanager
def loaded() -> Iterator[ir.Context]:
    """An active context with every project dialect, for those who hold `mlir.LOCK`.

    To make one takes 17 ms, a tenth of a compilation, so that they serve again, one user at a time: all but those in which something
    failed, and those that keep types, attributes and locations of many programs.
    """
    context, uses = _FREE.pop() if _FREE else (ir.Context(), 0)
    load_all(context)
    with context:
        yield context
    if uses + 1 < _USES:
        _FREE.append((context, uses + 1))


def load_all(context: ir.Context) -> None:
    """Loads every project dialect into `context`; loading twice is a no-op.

    Verification becomes single-threaded: the dialects' verifiers are Python.
    """
    context.enable_multithreading(False)
    with context, ir.Location.unknown():
        for dialect in DIALECTS:
            if not context.is_dialect_loaded(dialect.DIALECT_NAMESPACE):
                for op in dialect.operations:
                    harden(op)
                dialect.load()
                _keep_declaration(dialect)
                _announce(dialect.DIALECT_NAMESPACE)


def _keep_declaration(dialect: type[ext.Dialect]) -> None:
    """Later contexts read the dialect's IRDL as bytecode: the bindings make it op by op for each context, which takes ten times as long."""
    if "_emit_module" not in vars(dialect):
        stream = io.BytesIO()
        dialect._mlir_module.operation.write_bytecode(stream)
        setattr(dialect, "_emit_module", lambda: ir.Module.parse(stream.getvalue()))


def _announce(namespace: str) -> None:
    """Gives the bindings a module of the dialect: they import it for every handle of an op, which takes long when there is none."""
    name = f"{ext.__name__.rpartition('.')[0]}.{namespace}"
    sys.modules.setdefault(name, types.ModuleType(name))
