"""attn-ahead: makes a shared library with C functions of an attention: `attn-ahead model.py:attention --dtype f32 --dim 64 -o libx.so`.

The attention is an `attn_mlir.Attention` that a Python file, or a module by its dotted name, has under a name at its top level. See
docs/ahead-of-time.md.
"""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attn_mlir.api.ahead import InputSpec, compile_ahead
from attn_mlir.backends.program import DTYPES
from attn_mlir.errors import ArgumentError, AttnError
from attn_mlir.tools.arguments import Parser

_FLOATS = ("f32", "f16", "bf16", "f64")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    args = _parser().parse_args(argv)
    try:
        spec = InputSpec(DTYPES[args.dtype], args.dim, args.value_dim)
        wrt = None if args.wrt is None else args.wrt.split("+")
        made = compile_ahead(
            _found(args.attention),
            spec,
            args.target,
            args.output,
            name=args.name,
            backward=not args.no_backward,
            wrt=wrt,
            compiler=args.compiler,
        )
    except (AttnError, OSError) as error:
        print(f"attn-ahead: error: {error}", file=sys.stderr)
        return 1
    print(f"{made.library}\n{made.header}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="attn-ahead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("attention", metavar="FILE.py:NAME|MODULE:NAME", help="where the attention is")
    add("-o", "--output", type=Path, required=True, help="the library, such as libx.so; the header lies beside it")
    add("--target", default="cpu", help="what it is for; default cpu")
    add("--dtype", default="f32", choices=_FLOATS, help="that of q, k and v; default f32")
    add("--dim", type=int, default=64, help="columns of q and k; default 64")
    add("--value-dim", type=int, help="columns of v; default those of q")
    add("--name", help="what the names of functions begin with; default that of the file without lib")
    add("--no-backward", action="store_true", help="no functions for gradients")
    add("--wrt", metavar="NAME[+NAME...]", help="what has gradients; default q, k, v and captured tensors that require one")
    add("--compiler", help="the system's C++ compiler; default $CXX, c++, g++ or clang++")
    return parser


def _found(place: str) -> Any:
    """The attention at FILE.py:NAME or MODULE:NAME. Raises ArgumentError."""
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
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(where)
        except ModuleNotFoundError as error:
            raise ArgumentError(f"there is no module '{where}': {error}") from None
    if not hasattr(module, name):
        raise ArgumentError(f"{where} has no '{name}'")
    return getattr(module, name)


if __name__ == "__main__":
    sys.exit(main())
