"""attn-opt: runs a pass pipeline over MLIR text.

Project and upstream passes mix freely: `attn-opt in.mlir -p 'attn-simplify,func.func(cse)'`, or, one flag a pass and in
this order, `attn-opt in.mlir --attn-simplify --cse --attn-tile='block-q=32 block-kv=64'`.
"""

import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attn_mlir.diagnostics import Diagnostic, DiagnosticError
from attn_mlir.dialects import load_all
from attn_mlir.errors import AttnError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry
from attn_mlir.tools import expectations, listing, places, source
from attn_mlir.tools.arguments import OptArguments, parse_arguments
from attn_mlir.tools.source import Source


@dataclass(frozen=True)
class Outcome:
    """What became of one chunk: its output (None if it failed), and what was reported."""

    output: str | None
    reported: tuple[Diagnostic, ...] = ()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    try:
        return _main(sys.argv[1:] if argv is None else argv)
    except DiagnosticError as error:
        _report(error.diagnostics)
    except AttnError as error:
        print(f"attn-opt: error: {error}", file=sys.stderr)
    except BrokenPipeError:
        # The reader went away; give the interpreter a place to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
        print(f"attn-opt: internal error: {type(error).__name__}: {error} ({where})", file=sys.stderr)
    return 1


def _main(argv: Sequence[str]) -> int:
    options = parse_arguments(argv, registry())
    if options.show_passes or options.show_pipelines:
        print(listing.passes(registry()) if options.show_passes else listing.pipelines(registry()))
        return 0
    pipeline = Pipeline.parse(options.pipeline, registry())
    listing.check_names(options.print_after, pipeline)
    text = source.read(options.input)
    outcomes = []
    failed = False
    for chunk in source.chunks(text) if options.split_input_file else [text]:
        outcome = process(chunk, pipeline, options)
        problems = expectations.compare(chunk, outcome.reported) if options.verify_diagnostics else outcome.reported
        failed |= bool(problems) or (outcome.output is None and not options.verify_diagnostics)
        _report(problems)
        outcomes.append(outcome)
    _write(options.output, [o.output for o in outcomes if o.output is not None])
    return 1 if failed else 0


def process(chunk: Source, pipeline: Pipeline, options: OptArguments) -> Outcome:
    """Parses `chunk` and runs `pipeline` on it."""
    # Not `with context`: a module must not outlive it, nor may its handles.
    context = ir.Context()
    load_all(context)
    try:
        with context:
            module = source.parse(chunk)
        timer = listing.Timer()
        printer = listing.StagePrinter(sys.stderr, options, chunk)
        with context:
            pipeline.run(module, after=(timer, printer))
            if options.timing:
                print(timer, file=sys.stderr)
            return Outcome(_explain(module) if options.explain else listing.asm(module.operation, options, chunk))
    except DiagnosticError as error:
        found = places.placed(error, chunk, lambda bare: _quietly(bare, pipeline))
        return Outcome(None, tuple(diagnostic.renamed(chunk.name) for diagnostic in found.diagnostics))


def _quietly(chunk: Source, pipeline: Pipeline) -> None:
    """Parses and runs, for the diagnostics alone."""
    context = ir.Context()
    load_all(context)
    with context:
        pipeline.run(source.parse(chunk), each=True)


def _explain(module: ir.Module) -> str:
    from attn_mlir.passes.explain import explain

    text = explain(module)
    return text if text.endswith("\n") else f"{text}\n"


def _report(diagnostics: Iterable[Diagnostic]) -> None:
    for diagnostic in diagnostics:
        print(diagnostic, file=sys.stderr)


def _write(path: str, outputs: Sequence[str]) -> None:
    text = "\n// -----\n\n".join(outputs)
    if path == "-":
        print(text, end="", flush=True)
        return
    try:
        with Path(path).open("w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise DiagnosticError([Diagnostic("error", f"cannot write the file: {error.strerror}", path)]) from None


if __name__ == "__main__":
    sys.exit(main())
