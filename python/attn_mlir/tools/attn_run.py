"""attn-run: executes any stage of a program on random inputs and compares it with what it came from.

`attn-run x.mlir -p 'attn-simplify,attn-online-rewrite'` checks that passes keep the meaning of a program;
`--after-each` names the first one that does not. Without a pipeline the program itself is run, in several ways (block
sizes, split and merged) if it has them. Kernels of the `warp` dialect run in several schedules, on what their function
runs on. Derivatives that `attn-differentiate` adds are compared with differences of @attention when they appear, and
with themselves after the passes that follow.
"""

import argparse
import contextlib
import io
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attn_mlir.diagnostics import Diagnostic, DiagnosticError
from attn_mlir.dialects import load_all
from attn_mlir.errors import ArgumentError, AttnError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline, PipelineStep
from attn_mlir.reference import Difference, difference
from attn_mlir.reference.derivatives import kind_of
from attn_mlir.reference.evaluator import find_function, functions_of
from attn_mlir.reference.promote import promoted
from attn_mlir.reference.scalar import element_type
from attn_mlir.registry import registry
from attn_mlir.tools import places, scheduled, source
from attn_mlir.tools.runs import LENGTHS, EvaluatedRun, Runs, compared
from attn_mlir.tools.source import Source

# By the element type of q: a device rounds the weights to it.
_ON_DEVICE = {"f16": 5e-3, "bf16": 3e-2, "f64": 1e-9}
_GUARD = "attn-guard-empty-rows"
_DIFFERENTIATE = "attn-differentiate"
_BY_DIFFERENCES = 1e-6


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    args = _parser().parse_args(argv)
    right = True
    for path in args.inputs or ["-"]:
        if len(args.inputs) > 1:
            print(f"{path}:")
        right &= _checked(path, args)
    return 0 if right else 1


def _checked(path: str, args: argparse.Namespace) -> bool:
    """Runs one file; reports what goes wrong."""
    try:
        _check(args)
        given = source.read(path)
        try:
            return _main(given, args)
        except DiagnosticError as error:
            raise places.placed(error, given, lambda bare: _quietly(bare, args)) from None
        except MemoryError:
            error = DiagnosticError([Diagnostic("error", "the program's tensors do not fit into memory")])
            raise places.placed(error, given, lambda bare: None) from None
    except DiagnosticError as error:
        for diagnostic in error.diagnostics:
            print(diagnostic.renamed("<stdin>" if path == "-" else path), file=sys.stderr)
    except AttnError as error:
        print(f"attn-run: error: {error}", file=sys.stderr)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
        print(f"attn-run: internal error: {type(error).__name__}: {error} ({where})", file=sys.stderr)
    return False


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="attn-run", description=__doc__, formatter_class=layout, allow_abbrev=False)
    add = parser.add_argument
    add("inputs", nargs="*", metavar="FILE", help="MLIR files, - or none for standard input")
    add("-p", "--pass-pipeline", default="", help="applied before running; the result is compared with the input as it was")
    add("--after-each", action="store_true", help="compare after every pass, and name the first that changes the results")
    add("--against", metavar="FILE", help="compare with this program instead")
    add("--function", help="which function to run; by default every attention and derivative")
    add("--primal", metavar="FILE", help="where @attention is, and @attention_fwd, when the file holds derivatives of it only")
    add("--wrt", metavar="NAME[+NAME...]", help="the arguments that derivatives are for, when these are not all floating tensors")
    add(
        "--tolerance",
        type=float,
        help="largest relative error (absolute below 1); default 1e-9; on a device 3e-5, 5e-3 for f16, 3e-2 for bf16",
    )
    add("--keep-types", action="store_true", help="keep f32, which passes fold constants in; otherwise f64 takes its place")
    add("--device", help="run the compiled kernel of this backend instead, for example cpu")
    for option, default in (("--batch", 2), ("--heads", 4), ("--kv-heads", 2)):
        add(option, type=int, default=default, help=f"default {default}")
    lengths = ", ".join(f"{q}x{kv}" for q, kv in LENGTHS)
    add("--q-len", type=_lengths, metavar="N[,N...]", help=f"without lengths, these are run: {lengths}")
    add("--kv-len", type=_lengths, metavar="N[,N...]", help="as many as of --q-len, each of them with one of these")
    add("--seed", type=int, default=0)
    add("--ints", default="0:4", metavar="LOW:HIGH", help="what integer tensors are drawn from")
    add("--index", type=int, default=3, help="value of captured integer scalars")
    add("--capture-size", type=int, help="size of the dimensions of captured tensors")
    add("--block", metavar="N[,N...]", help="keys that an online program takes at once")
    add("--q-block", type=int, help="rows for which bounds are asked at once")
    add("--split", type=int, help="parts of the keys that are run apart and merged")
    add("--round", action="store_true", help="round where the program truncates floats")
    return parser


def _lengths(text: str) -> list[int]:
    """Numbers between commas."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"takes numbers, got '{text}'") from None


def _check(args: argparse.Namespace) -> None:
    """Raises ArgumentError for numbers that no program takes."""
    if args.capture_size is not None and args.capture_size < 0:
        raise ArgumentError(f"--capture-size must not be negative, got {args.capture_size}")
    if args.seed < 0:
        raise ArgumentError(f"--seed must not be negative, got {args.seed}")


def _quietly(given: Source, args: argparse.Namespace) -> None:
    """The same again, for the diagnostics alone."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        _main(given, args)


def _main(given: Source, args: argparse.Namespace) -> bool:
    pipeline = Pipeline.parse(args.pass_pipeline, registry())
    against, primal = (source.read(other) if other else given for other in (args.against, args.primal))
    if not args.keep_types and args.device is None and not scheduled.holds_kernel(given):
        given, against, primal = (Source(s.name, promoted(s.text)) for s in (given, against, primal))
    context = ir.Context()
    load_all(context)
    with context:
        runs = Runs(source.parse(primal), args)
        return _run(given, against, context, pipeline, runs, args)


_Found = list[tuple[EvaluatedRun, list[Difference]]]


def _run(given: Source, against: Source, context: ir.Context, pipeline: Pipeline, runs: Runs, args: argparse.Namespace) -> bool:
    module, reference = source.parse(given), source.parse(against)
    usual = 1e-9 if args.device is None else _ON_DEVICE.get(_element(runs.original), 3e-5)
    tolerance = usual if args.tolerance is None else args.tolerance
    if args.device is not None:
        return _report(_on_device(reference, runs, args), tolerance, runs)
    runs.meet(reference)
    if args.function is not None and _DIFFERENTIATE not in [step.name for step in pipeline.steps]:
        find_function(reference, args.function)
    done: list[str] = []
    seen: tuple[str, bool] | None = None
    found: _Found = []

    def compare(operation: ir.Operation) -> _Found:
        """What passes leave as it was gives the same results again."""
        nonlocal seen, found
        now = (operation.get_asm(print_generic_op_form=True), _GUARD in done)
        if now != seen:
            seen, found = now, _compare(operation, runs, args, done)
        return found

    def check(step: PipelineStep, operation: ir.Operation, seconds: float) -> None:
        done.append(step.name)
        runs.meet(operation)
        if args.after_each:
            failures = [f"{_label(run, runs)}  {d}" for run, ds in compare(operation) for d in ds if not d.within(tolerance)]
            if failures:
                raise DiagnosticError([Diagnostic("error", f"results are wrong after {step.text}: {failures[0]}")])

    pipeline.run(module, after=[check])
    right = _report(compare(module.operation), tolerance, runs)
    return scheduled.check_kernels(module, runs, args.tolerance) and right


def _compare(module: ir.Operation, runs: Runs, args: argparse.Namespace, done: list[str]) -> _Found:
    found = []
    for run in runs.of(module):
        differences, left_out = compared(module, run, _GUARD in done, _options(args))
        if left_out:
            print(f"{_label(run, runs)}  {left_out} fully masked rows left out: {_GUARD} has not run", file=sys.stderr)
        found.append((run, differences))
    return found


def _label(run: EvaluatedRun, runs: Runs) -> str:
    """The sizes of a run, and its function where there are several."""
    return str(run.sizes) if list(runs.known) == ["attention"] else f"@{run.function} {run.sizes}"


def _options(args: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if args.block is not None:
        try:
            options["block"] = tuple(int(n) for n in args.block.split(","))
        except ValueError:
            raise ArgumentError(f"--block takes numbers, got '{args.block}'") from None
    for name in ("q_block", "split"):
        if getattr(args, name) is not None:
            options[name] = getattr(args, name)
            if options[name] < 1:
                raise ArgumentError(f"--{name.replace('_', '-')} must be positive, got {options[name]}")
    return {**options, "rounding": True} if args.round else options


def _element(module: ir.Module) -> str:
    """The element type of q."""
    return str(element_type(find_function(module, "attention").regions[0].blocks[0].arguments[0].type))


def _on_device(module: ir.Module, runs: Runs, args: argparse.Namespace) -> _Found:
    """Runs the compiled function, which of a derivative is compiled from @attention."""
    from attn_mlir.reference.device import run_derivative_on, run_on

    derivative = kind_of(args.function or "")
    if derivative is not None and args.function not in functions_of(module):
        wrt = f" wrt={args.wrt}" if args.wrt else ""
        functions = {"jvp": "fwd+jvp", "bwd2": "fwd+bwd+bwd2"}.get(derivative[1], "fwd+bwd")
        Pipeline.parse(f"{_DIFFERENTIATE}{{functions={functions}{wrt}}}", registry()).run(module)
    runs.meet(module)
    found = []
    for run in runs.of(module):
        derivative = kind_of(run.function)
        if derivative is None:
            results = run_on(module, args.device, run.inputs, run.function)
        else:
            results = run_derivative_on(runs.original, module, args.device, derivative[1], run.wrt, run.inputs)
        found.append((run, [difference(name, got, want) for name, got, want in zip(run.names, results, run.wanted, strict=True)]))
    return found


def _report(found: _Found, tolerance: float, runs: Runs) -> bool:
    runs.check_any()
    checked = [(run, run.by_differences) for runs_ in runs.known.values() for run in runs_ if run.by_differences is not None]
    for run, differences in checked:
        print(f"{_label(run, runs)}  by differences: {'  '.join(map(str, differences))}")
    for run, differences in found:
        print(f"{_label(run, runs)}  {'  '.join(map(str, differences))}")
    derived = _within(checked, _BY_DIFFERENCES)
    same = _within(found, tolerance)
    if not derived:
        print(f"FAIL: a derivative is more than {_BY_DIFFERENCES:g} from differences of what it is the derivative of")
    if not same:
        print(f"FAIL: an error is above {tolerance:g}")
    if derived and same:
        print("PASS")
    return derived and same


def _within(found: _Found, tolerance: float) -> bool:
    return all(d.within(tolerance) for _, differences in found for d in differences)


if __name__ == "__main__":
    sys.exit(main())
