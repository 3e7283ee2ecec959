"""attn-generate: kernel instances as sources of a library: `attn-generate --filter 'fmha_fwd_d64_*_mt_*' --target cpu --out generated`.

Writes one source file a kernel, manifest.json, an API header that finds an instance by its traits, and a CMake project that builds all of
it in parallel. Instances are the usual ones of the target, or those of a Python file. Files that stay the same are not written again.
See docs/generate.md.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from attn_mlir.backends.tuning.processes import cores
from attn_mlir.driver import library_project
from attn_mlir.errors import ArgumentError, AttnError
from attn_mlir.tools.arguments import Parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    args = _parser().parse_args(argv)
    try:
        return _run(args)
    except (AttnError, OSError) as error:
        print(f"attn-generate: error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="attn-generate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("--filter", action="append", default=[], metavar="GLOB[,GLOB...]", help="patterns of names; default: all instances")
    add("--target", default="cpu", help="what kernels are for: cpu, sm_90a (or cuda:90a), gfx90a (or hip:gfx90a); default cpu")
    add("--out", type=Path, metavar="DIR", help="the folder of the project")
    add(
        "--instances",
        default="",
        metavar="FILE.py[:NAME]",
        help="a Python file with a list of instances, `instances` where no NAME is given",
    )
    add("--name", default="attn_fmha", help="what the library, its header and its functions are called; default attn_fmha")
    add("--list", action="store_true", help="prints the names of the instances, and generates nothing")
    add("-j", "--jobs", type=int, default=cores(), help="in how many processes; default as many as there are processors")
    add("--quiet", action="store_true", help="prints nothing but errors")
    return parser


def _run(args: argparse.Namespace) -> int:
    from attn_mlir import __version__
    from attn_mlir.tools.attn_ahead import target_of
    from attn_mlir.tools.generate import listed, write

    target = target_of(args.target)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", args.name):
        raise ArgumentError(f"--name '{args.name}' is no name of functions in C: use letters, digits and _")
    if args.jobs < 1:
        raise ArgumentError(f"--jobs is a number of processes, at least 1, got {args.jobs}")
    library_project(target, args.name)  # tells of targets that there are not
    instances = listed.chosen(listed.instances_of(args.instances, target), args.filter)
    if args.list:
        print("\n".join([each.name for each in instances]))
        return 0
    if args.out is None:
        raise ArgumentError("name the folder of the project with --out, or see the names of instances with --list")
    job = write.WriteJob(os.path.abspath(args.instances) if args.instances else "", target, args.name, args.out.absolute())
    refused = write.generate(job, instances, __version__, args.jobs, (lambda text: None) if args.quiet else print)
    for name, reason in refused.items():
        print(f"attn-generate: error: {name}: {reason}", file=sys.stderr)
    if refused:
        print(
            f"attn-generate: error: {len(refused)} of {len(instances)} instances cannot be made: choose others by --filter", file=sys.stderr
        )
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
