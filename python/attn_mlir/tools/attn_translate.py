"""attn-translate: what a backend makes of a program: `attn-translate in.mlir --to llvm`.

The input may be at any stage; the backend's pipeline runs first.
"""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from attn_mlir.backends import Backend, load_backends
from attn_mlir.diagnostics import Diagnostic, DiagnosticError
from attn_mlir.dialects import load_all
from attn_mlir.errors import AttnError, CompileError, PerformanceWarning, UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.tools import places, source
from attn_mlir.tools.source import Source


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    try:
        return _main(argv)
    except DiagnosticError as error:
        for diagnostic in error.diagnostics:
            print(diagnostic, file=sys.stderr)
    except (AttnError, OSError) as error:
        print(f"attn-translate: error: {error}", file=sys.stderr)
    return 1


def _main(argv: Sequence[str] | None) -> int:
    targets = _targets()
    parser = argparse.ArgumentParser(prog="attn-translate", description="Translates a program for a backend.")
    parser.add_argument("input", nargs="?", default="-", help="MLIR file, or - for standard input")
    parser.add_argument("--to", required=True, choices=sorted(targets), help="what to make")
    parser.add_argument("-o", "--output", type=Path, help="where to write it (default: standard output)")
    parser.add_argument("--report", action="store_true", help="facts of the compiled code instead of it, for formats that have them")
    options = parser.parse_args(argv)
    if options.report:
        if f"{options.to}-report" not in targets:
            parser.error(f"--to {options.to} has no report")
        options.to = f"{options.to}-report"
    backend = targets[options.to]
    text = source.read(options.input)
    try:
        result = _translate(backend, options.to, text)
    except (CompileError, UnsupportedError) as error:
        told = error if isinstance(error, DiagnosticError) else DiagnosticError([Diagnostic("error", str(error))])
        found = places.placed(told, text, lambda bare: _translate(backend, options.to, bare))
        raise DiagnosticError([diagnostic.renamed(text.name) for diagnostic in found.diagnostics]) from None
    _write(result, options.output)
    return 0


def _write(result: str | bytes | dict[str, bytes], output: Path | None) -> None:
    """Writes what was made. Of several files, NAME becomes OUTPUT with NAME before its suffix. Raises CompileError without an OUTPUT."""
    if isinstance(result, dict):
        if output is None:
            raise CompileError(
                f"the module makes {len(result)} files ({', '.join(result)}): say where they go with -o, such as -o out.cubin"
            )
        for name, data in result.items():
            path = output.with_name(f"{output.stem}.{name}{output.suffix}")
            path.write_bytes(data)
            print(path, file=sys.stderr)
        return
    data = result if isinstance(result, bytes) else result.encode()
    if output is not None:
        output.write_bytes(data)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()


def _translate(backend: Backend, target: str, text: Source) -> str | bytes | dict[str, bytes]:
    with ir.Context() as context:
        load_all(context)
        module = source.parse(text)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", PerformanceWarning)
            result = backend.load(backend.translations[target])(module)
    for warning in told:
        print(f"attn-translate: remark: {warning.message}", file=sys.stderr)
    return result


def _targets() -> dict[str, Backend]:
    return {name: backend for backend in load_backends().values() for name in backend.translations}


if __name__ == "__main__":
    sys.exit(main())
