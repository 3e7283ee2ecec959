"""attn-ahead: makes a library with C functions of an attention: `attn-ahead model.py:attention --dtype f32 --dim 64 -o libx.so`.

The attention is an `Attention`, `LinearAttention` or engine that a Python file, or a module by its dotted name, has under a name at its top
level. A name that ends with .a makes a static library. `attn-ahead --list` shows the targets, `attn-ahead --cmake` the folder for CMake's
find_package(attn_mlir). See docs/ahead-of-time.md.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attn_mlir import driver
from attn_mlir.api.ahead import InputSpec, LinearSpec, compile_ahead
from attn_mlir.api.engine import AttentionEngine
from attn_mlir.api.linear import LinearAttention
from attn_mlir.api.linear_engine import LinearAttentionEngine
from attn_mlir.backends.program import DTYPES
from attn_mlir.errors import ArgumentError, AttnError
from attn_mlir.tools.arguments import Parser
from attn_mlir.tools.python_files import found

_FLOATS = ("f32", "f16", "bf16", "f64")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    args = _parser().parse_args(argv)
    if args.list or args.cmake:
        lines = [f"{name:8}{text}" for name, text in driver.library_tools().items()]
        print("\n".join(lines) if args.list else Path(__file__).parents[1] / "cmake")
        return 0
    if args.attention is None or args.output is None:
        print("attn-ahead: error: name an attention, FILE.py:NAME, and the library with -o; or use --list", file=sys.stderr)
        return 2
    try:
        attention, inputs = found(args.attention), _inputs(args)
        wrt = None if args.wrt is None else args.wrt.split("+")
        made = compile_ahead(
            attention,
            inputs,
            target_of(args.target),
            args.output,
            name=args.name,
            backward=not args.no_backward,
            wrt=wrt,
            compiler=args.compiler,
            deterministic=args.deterministic,
        )
        if args.depfile is not None:
            args.depfile.write_text(_depfile(made.library, args.attention), encoding="utf-8")
    except (AttnError, OSError) as error:
        print(f"attn-ahead: error: {error}", file=sys.stderr)
        return 1
    print(f"{made.library}\n{made.header}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="attn-ahead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("attention", nargs="?", metavar="FILE.py:NAME|MODULE:NAME", help="where the attention is")
    add("-o", "--output", type=Path, help="the library, such as libx.so or libx.a; the header lies beside it")
    add("--target", default="cpu", help="what it is for: cpu, sm_90a (or cuda:90a), gfx90a (or hip:gfx90a); default cpu")
    add("--dtype", choices=_FLOATS, help="that of q, k and v; default f32, engines know it")
    add("--dim", type=int, help="columns of q and k; default 64, engines know them")
    add("--value-dim", type=int, help="columns of v; default those of q")
    add("--inputs", metavar="NAME", help="the InputSpec or LinearSpec that the file has under this name, in place of these three")
    add("--name", help="what the names of functions begin with; default that of the file without lib")
    add("--no-backward", action="store_true", help="no functions for gradients")
    add("--wrt", metavar="NAME[+NAME...]", help="what has gradients; default q, k, v and captured tensors that require one")
    add("--compiler", help="the system's C++ compiler; default $CXX, c++, g++ or clang++")
    add("--deterministic", action="store_true", help="gradients have the same bits in every run on a GPU, too")
    add("--depfile", type=Path, metavar="FILE", help="writes what the library was made from, as make and ninja read it")
    add("--list", action="store_true", help="the targets, and what making libraries for them takes here")
    add("--cmake", action="store_true", help="the folder with attn_mlirConfig.cmake")
    return parser


def target_of(name: str) -> str:
    """The target of a name that may have a language in front, as CMake's function takes it: cuda:90a is sm_90a, hip:gfx90a gfx90a."""
    language, _, arch = name.rpartition(":")
    if language not in ("", "cuda", "hip"):
        raise ArgumentError(f"target '{name}': write cpu, cuda:90a or hip:gfx90a")
    return f"sm_{arch}" if language == "cuda" else arch


def _inputs(args: argparse.Namespace) -> Any:
    """What `compile_ahead` is told of inputs: None where the command line tells nothing, for engines. Raises ArgumentError."""
    if args.inputs is not None:
        for option, given in (("--dtype", args.dtype), ("--dim", args.dim), ("--value-dim", args.value_dim)):
            if given is not None:
                raise ArgumentError(f"--inputs tells dtype and head dimensions: leave out {option}")
        return found(f"{args.attention.rpartition(':')[0]}:{args.inputs}")
    given = [args.dtype, args.dim, args.value_dim]
    if given == [None] * 3 and isinstance(found(args.attention), (AttentionEngine, LinearAttentionEngine)):
        return None
    kind = LinearSpec if isinstance(found(args.attention), LinearAttention) else InputSpec
    return kind(DTYPES[args.dtype or "f32"], 64 if args.dim is None else args.dim, args.value_dim)


def _depfile(library: Path, place: str) -> str:
    """A rule of make: the library depends on the file with the attention, on modules in its folder, and on this package."""
    package, where = Path(__file__).absolute().parents[1], place.rpartition(":")[0]
    own = [Path(where).absolute()] if where.endswith(".py") else []
    folders = [package, *[path.parent for path in own]]
    places = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    loaded = {Path(each).absolute() for each in places if each}
    files = {*own, *[path for path in loaded if any(path.is_relative_to(folder) for folder in folders)]}
    files |= {path for name in ("*.h", "*.hip", "*.cu") for path in (package / "backends").rglob(name)}
    texts = [str(path).replace(" ", "\\ ") for path in (library.absolute(), *sorted(files))]
    return f"{texts[0]}: " + " \\\n  ".join(texts[1:]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
