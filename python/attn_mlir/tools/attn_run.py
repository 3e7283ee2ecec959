"""attn-run: executes any stage of a program on random inputs and compares it with what it came from.

`attn-run x.mlir -p 'attn-simplify,attn-online-rewrite'` checks that passes keep the meaning of a program;
`--after-each` names the first one that does not. Without a pipeline the program itself is run, in several ways (block
sizes, split and merged) if it has them.
"""

import argparse
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attn_mlir.diagnostics import Diagnostic, DiagnosticError, from_mlir_error
from attn_mlir.dialects import load_all
from attn_mlir.errors import ArgumentError, AttnError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline, Step
from attn_mlir.passes.regions import find_all
from attn_mlir.reference import Difference, InputMaker, Sizes, compare, difference, evaluate, rows_with_keys
from attn_mlir.reference.compare import output_names
from attn_mlir.reference.evaluator import find_function
from attn_mlir.reference.promote import promoted
from attn_mlir.reference.scalar import element_type
from attn_mlir.registry import registry
from attn_mlir.tools import source
from attn_mlir.tools.source import Source

_LENGTHS = ((1, 1), (17, 23), (23, 17), (40, 40))
# By the element type of q: a device rounds the weights to it.
_ON_DEVICE = {"f16": 5e-3, "bf16": 3e-2, "f64": 1e-9}
_GUARD, _TILE = "attn-guard-empty-rows", "attn-tile"


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
        return _main(path, args)
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
    add("--function", default="attention", help="which function to run")
    add(
        "--tolerance",
        type=float,
        help="largest relative error (absolute below 1); default 1e-9; on a device 3e-5, 5e-3 for f16, 3e-2 for bf16",
    )
    add("--keep-types", action="store_true", help="keep f32, which passes fold constants in; otherwise f64 takes its place")
    add("--device", help="run the compiled kernel of this backend instead, for example cpu")
    for option, default in (("--batch", 2), ("--heads", 4), ("--kv-heads", 2)):
        add(option, type=int, default=default, help=f"default {default}")
    lengths = ", ".join(f"{q}x{kv}" for q, kv in _LENGTHS)
    add("--q-len", type=int, help=f"without lengths, these are run: {lengths}")
    add("--kv-len", type=int)
    add("--seed", type=int, default=0)
    add("--ints", default="0:4", metavar="LOW:HIGH", help="what integer tensors are drawn from")
    add("--index", type=int, default=3, help="value of captured integer scalars")
    add("--capture-size", type=int, help="size of the dimensions of captured tensors")
    add("--block", metavar="N[,N...]", help="keys that an online program takes at once")
    add("--q-block", type=int, help="rows for which bounds are asked at once")
    add("--split", type=int, help="parts of the keys that are run apart and merged")
    add("--round", action="store_true", help="round where the program truncates floats")
    return parser


def _main(path: str, args: argparse.Namespace) -> bool:
    pipeline = Pipeline.parse(args.pass_pipeline, registry())
    given = source.read(path)
    against = source.read(args.against) if args.against else given
    if not args.keep_types and args.device is None:
        given, against = (Source(s.name, promoted(s.text)) for s in (given, against))
    context = ir.Context()
    load_all(context)
    with context:
        runs = _references(_parse(against, context), args)
        return _run(given, context, pipeline, runs, args)


@dataclass(frozen=True)
class _Run:
    """One set of inputs, and what comes of it."""

    sizes: Sizes
    inputs: list[np.ndarray]
    names: list[str]
    wanted: list[np.ndarray]
    filled: np.ndarray | None
    """Which rows have keys; None where the reference is a kernel, which does not tell."""


_Found = list[tuple[_Run, list[Difference]]]


def _references(module: ir.Module, args: argparse.Namespace) -> list[_Run]:
    runs = []
    names = output_names(module, args.function)
    for q_len, kv_len in _lengths(args):
        sizes = Sizes(args.batch, args.heads, args.kv_heads, q_len, kv_len)
        if min(args.batch, args.heads, args.kv_heads, q_len) < 1 or kv_len < 0 or args.heads % args.kv_heads:
            raise ArgumentError(f"sizes must be positive, and heads a multiple of kv-heads, got {sizes}")
        inputs = InputMaker(sizes, args.seed, _integers(args.ints), args.index, args.capture_size).make(module, args.function)
        filled = rows_with_keys(module, inputs, args.function) if find_all(module, "attn.attention", "attn.online") else None
        runs.append(_Run(sizes, inputs, names, evaluate(module, inputs, args.function), filled))
    return runs


def _lengths(args: argparse.Namespace) -> Sequence[tuple[int, int]]:
    if args.q_len is None and args.kv_len is None:
        return _LENGTHS
    return [(args.q_len if args.q_len is not None else 17, args.kv_len if args.kv_len is not None else 23)]


def _integers(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    try:
        limits = int(low), int(high)
    except ValueError:
        limits = (0, 0)
    if not colon or limits[0] >= limits[1]:
        raise ArgumentError(f"--ints takes LOW:HIGH with LOW < HIGH, got '{text}'")
    return limits


def _run(given: Source, context: ir.Context, pipeline: Pipeline, runs: list[_Run], args: argparse.Namespace) -> bool:
    module = _parse(given, context)
    done: list[str] = []
    usual = 1e-9 if args.device is None else _ON_DEVICE.get(_element(module, args.function), 3e-5)
    tolerance = usual if args.tolerance is None else args.tolerance
    if args.device is not None:
        return _report([(run, _on_device(module, run, args.device)) for run in runs], tolerance)

    def check(step: Step, operation: ir.Operation, seconds: float) -> None:
        done.append(step.name)
        if args.after_each:
            found = _compare(operation, runs, args, done)
            failures = [f"{run.sizes}  {d}" for run, ds in found for d in ds if not d.within(tolerance)]
            if failures:
                raise DiagnosticError([Diagnostic("error", f"results are wrong after {step.text}: {failures[0]}")])

    pipeline.run(module, after=[check])
    return _report(_compare(module, runs, args, done), tolerance)


def _compare(module: ir.Module | ir.Operation, runs: list[_Run], args: argparse.Namespace, done: list[str]) -> _Found:
    # Until it is guarded, an online program does not say what rows without keys give; nor does a kernel made of it.
    online = bool(find_all(module, "attn.online")) or _TILE in done
    unguarded = online and _GUARD not in done
    found = []
    for run in runs:
        where = run.filled if unguarded else None
        if where is not None and not where.all():
            print(f"{run.sizes}  {int((~where).sum())} rows without keys left out: {_GUARD} has not run", file=sys.stderr)
        options = {"filled": run.filled, "names": run.names, "function": args.function, **_options(args)}
        found.append((run, compare(module, run.inputs, run.wanted, where, **options)))
    return found


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


def _element(module: ir.Module, function: str) -> str:
    """The element type of q."""
    return str(element_type(find_function(module, function).regions[0].blocks[0].arguments[0].type))


def _on_device(module: ir.Module, run: _Run, device: str) -> list[Difference]:
    from attn_mlir.reference.device import run_on

    results = run_on(module, device, run.inputs)
    return [difference(name, got, want) for name, got, want in zip(run.names, results, run.wanted, strict=True)]


def _report(found: _Found, tolerance: float) -> bool:
    right = True
    for run, differences in found:
        right &= all(d.within(tolerance) for d in differences)
        print(f"{run.sizes}  {'  '.join(map(str, differences))}")
    print("PASS" if right else f"FAIL: an error is above {tolerance:g}")
    return right


def _parse(given: Source, context: ir.Context) -> ir.Module:
    source.check_nesting(given)
    try:
        return ir.Module.parse(given.text)
    except ir.MLIRError as error:
        raise DiagnosticError(from_mlir_error(error, "does not parse")).with_traceback(None) from None


if __name__ == "__main__":
    sys.exit(main())
