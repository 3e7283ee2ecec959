"""attn-tune: ranks the schedules of a program's kernels by the model of a device, and measures the best of them.

`attn-tune x.mlir --device cpu` or `attn-tune softmax --causal --dim 128 --dtype bf16 --device cuda`: a program with an @attention, or an
attention known by name. Of each kernel a table is printed: the schedules by rank, with the milliseconds of the model and of the clock, what
the model says binds, how many schedules are left out and why, and how well both orders agree. `--dry-run` prints the model's part alone,
with `--arch` for a chip that need not be there. The exit code is 1 where a kernel's untuned schedule does not run; the table says why.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attn_mlir.api import arch
from attn_mlir.backends import backend_for, load_backends
from attn_mlir.backends.tuning.program import Tuner
from attn_mlir.diagnostics import Diagnostic, DiagnosticError
from attn_mlir.driver import tuner_of
from attn_mlir.errors import ArgumentError, AttnError
from attn_mlir.reference.inputs import Sizes
from attn_mlir.tools import source, tune_table
from attn_mlir.tools.arguments import Parser
from attn_mlir.tools.plot import scatter
from attn_mlir.tools.problems import FUNCTIONS, TuneProblem, columns_of, module_of, names, ready_made

_DTYPES = {
    "f16": "f16", "float16": "f16", "fp16": "f16", "bf16": "bf16", "bfloat16": "bf16", "f32": "f32", "float32": "f32", "fp32": "f32",
    "f64": "f64", "float64": "f64", "fp64": "f64",
}  # fmt: skip
_POSITIVE = ("batch", "heads", "kv_heads", "q_len", "kv_len", "dim", "value_dim", "top", "threads", "show")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    args = _parser().parse_args(argv)
    try:
        _check(args)
        return _main(args)
    except DiagnosticError as error:
        for diagnostic in error.diagnostics:
            print(diagnostic.renamed(args.input) if args.input != "-" else diagnostic, file=sys.stderr)
    except (AttnError, OSError) as error:
        print(f"attn-tune: error: {error}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="attn-tune", description=__doc__, formatter_class=layout, allow_abbrev=False)
    add = parser.add_argument
    add("input", metavar="FILE|NAME", help=f"an MLIR file, - for standard input, or one of {', '.join(names())}")
    add("--device", default="cpu", help="for example cpu, cuda, hip-emulated; default cpu")
    add("--arch", default="", help="rank for this chip, which need not be there, such as sm_80, gfx942, RTX4090; takes --dry-run")
    add("--function", default="attention", help=f"what is tuned: one of {', '.join(FUNCTIONS)}; default attention")
    add("--wrt", default="q+k+v", metavar="NAME[+NAME...]", help="the arguments that derivatives are for; default q+k+v")
    add("--causal", action="store_true", help="of an attention known by name")
    add("--dtype", help=f"of one known by name: {', '.join(dict.fromkeys(_DTYPES.values()))}; default f32 on a CPU, else bf16")
    add("--dim", type=int, help="columns of q and k of one known by name; default 64")
    add("--value-dim", type=int, help="columns of v; default those of q")
    for option, told in (("--batch", "1"), ("--heads", "8"), ("--kv-heads", "those of q"), ("--q-len", "1024"), ("--kv-len", "--q-len")):
        add(option, type=int, help=f"default {told}")
    add("--top", type=int, metavar="K", help="how many of the model's best are measured; default: as many as the device's tuner does")
    add("--show", type=int, default=20, metavar="N", help="rows of the table that are printed at most; default 20")
    add("--dry-run", action="store_true", help="the model's ranking only: nothing is compiled or measured")
    add("--tune-file", default="", metavar="FILE", help="where results are kept, for `tune_file` of Attention and others")
    add("--plot", type=Path, metavar="FILE.svg", help="draws predicted against measured times")
    add("--threads", type=int, help="of the CPU; default: as many as torch has")
    add("--seed", type=int, default=0)
    return parser


def _check(args: argparse.Namespace) -> None:
    """Raises ArgumentError, naming the option, for what cannot be."""
    for name in _POSITIVE:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ArgumentError(f"--{name.replace('_', '-')} must be positive, got {value}")
    if args.seed < 0:
        raise ArgumentError(f"--seed must not be negative, got {args.seed}")
    if args.function not in FUNCTIONS:
        raise ArgumentError(f"--function is one of {', '.join(FUNCTIONS)}, got '{args.function}'")
    if args.dtype is not None and args.dtype not in _DTYPES:
        raise ArgumentError(f"--dtype is one of {', '.join(dict.fromkeys(_DTYPES.values()))}, got '{args.dtype}'")
    if args.arch and not args.dry_run:
        raise ArgumentError(f"--arch {args.arch} ranks for a chip by its description, which measures nothing: add --dry-run")
    if args.plot is not None and args.dry_run:
        raise ArgumentError("--plot draws measured times, which --dry-run does not take")
    if args.plot is not None and args.plot.suffix != ".svg":
        raise ArgumentError(f"--plot writes SVG: give a name that ends in .svg, got '{args.plot}'")
    heads, kv_heads = args.heads or 8, args.kv_heads or args.heads or 8
    if heads % kv_heads:
        raise ArgumentError(f"--heads must be a multiple of --kv-heads, got {heads} and {kv_heads}")


def _main(args: argparse.Namespace) -> int:
    import torch

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    tuner = _tuner(args.device)
    problem = TuneProblem(_text(args), _sizes(args), args.device, args.seed, tuple(args.wrt.split("+")))
    if args.dry_run:
        job, shapes = problem.job(args.function), problem.shapes(columns_of(problem.text))
        kernels = tuner.kernels(problem.text, job, shapes, _arch(args))[1]
        for kernel in kernels:
            print(tune_table.ranking(kernel, args.show))
        return _some(kernels)
    refusal = tuner.refusal(args.device)
    if refusal:
        raise ArgumentError(f"nothing can be measured: {refusal}. --dry-run prints the model's ranking")
    measured = tune_table.measure(tuner, problem, args.function, args.tune_file, args.top or tuner.count)
    for kernel, report in measured:
        print(tune_table.ranking(kernel, args.show, report))
    if args.plot is not None:
        points = {k.name: [(t.predicted_ms, t.ms) for t in r.trials if not t.problem] for k, r in measured if r is not None}
        args.plot.write_text(scatter(points, "predicted ms", "measured ms"))
    if any(report is not None and report.unusable for _, report in measured):
        return 1
    return _some([kernel for kernel, _ in measured])


def _arch(args: argparse.Namespace) -> Any:
    """The chip to rank for: a name that the backend knows, or the facts of one that `attn_mlir.api.arch` describes."""
    made = getattr(arch, args.arch) if args.arch in arch.__all__ and args.arch != "Arch" else None
    if made is None:
        return args.arch
    device = {"CUDA": "cuda", "ROCM": "hip"}[made().platform]
    if backend_for(device) is not backend_for(args.device):
        raise ArgumentError(f"--arch {args.arch} is a GPU of another kind than --device {args.device}: give --device {device}")
    return made().target()


def _some(kernels: Sequence[object]) -> int:
    if not kernels:
        print("the program has no kernels with something to choose")
    return 0


def _tuner(device: str) -> Tuner:
    found = tuner_of(device)
    if found is None:
        known = sorted(name for backend in load_backends().values() if backend.tune for name in backend.device_types)
        raise ArgumentError(f"--device is one of {', '.join(known)}, got '{device}'")
    return found


def _text(args: argparse.Namespace) -> str:
    """The module: of a file, or of an attention known by name."""
    if args.input in names():
        element = _DTYPES[args.dtype] if args.dtype else "f32" if args.device == "cpu" else "bf16"
        dim = args.dim or 64
        return ready_made(args.input, element, dim, args.value_dim or dim, args.causal)
    if args.input != "-" and not Path(args.input).suffix and not Path(args.input).exists():
        raise ArgumentError(f"there is no file '{args.input}', and no attention of that name; known are {', '.join(names())}")
    told = [f"--{name}" for name in ("dtype", "dim", "value-dim", "causal") if getattr(args, name.replace("-", "_"))]
    if told:
        raise ArgumentError(f"{told[0]} is for attentions known by name: the program says it itself")
    try:
        return module_of(source.read(args.input))
    except MemoryError:
        raise DiagnosticError([Diagnostic("error", "the program does not fit into memory")]) from None


def _sizes(args: argparse.Namespace) -> Sizes:
    heads, queries = args.heads or 8, args.q_len or 1024
    keys = args.kv_len or queries
    if args.input.startswith("linear") and keys != queries:
        raise ArgumentError(f"--kv-len: a linear attention has one length, got {queries} and {keys}")
    return Sizes(args.batch or 1, heads, args.kv_heads or heads, queries, keys)


if __name__ == "__main__":
    sys.exit(main())
