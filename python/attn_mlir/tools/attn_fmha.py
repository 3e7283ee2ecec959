"""attn-fmha: CK-tile's FMHA examples on this compiler's kernels: `attn-fmha fwd -b 2 -h 8 -s 1024 -d 128 -mask t:128,0`.

Options, columns and tolerances are those of `example_fmha_fwd` and `example_fmha_bwd`. Exit code 0: right, or not validated;
1: results are wrong; 2: the options are.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from attn_mlir.errors import ArgumentError, AttnError, PerformanceWarning
from attn_mlir.tools.fmha.options import FmhaOptions, parse, parser

_USAGE = """usage: attn-fmha fwd|bwd [-name value]...     runs, validates and times an attention
       attn-fmha --list [fwd|bwd] [-name value]...   names the kernels for these options, all precisions and head dimensions
       attn-fmha fwd|bwd -?                          lists the options
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    listing = "--list" in words
    words = [word for word in words if word not in ("--list", "-list")]
    asked = words.pop(0) if words and words[0] in ("fwd", "bwd") else ""
    if any(word in ("-?", "--help", "-help") for word in words):
        print(parser(asked == "bwd").format_help() if asked else _USAGE, end="")
        return 0
    if not asked and not listing:
        print(f"{_USAGE}attn-fmha: error: say fwd or bwd first{f', got {words[0]!r}' if words else ''}", file=sys.stderr)
        return 2
    try:
        return _list(asked or "fwd", words) if listing else _run(parse(words, asked == "bwd"))
    except ArgumentError as error:
        print(f"attn-fmha: error: {error}", file=sys.stderr)
        return 2
    except AttnError as error:
        print(f"attn-fmha: not supported: {error}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not _is_about_memory(error):
            raise
        print("attn-fmha: error: the tensors do not fit into memory; -v=0 leaves the dense formula out", file=sys.stderr)
        return 2


def _is_about_memory(error: Exception) -> bool:
    """Torch tells of it by a class of its own on GPUs, by the message of a RuntimeError on the CPU."""
    words = ("out of memory", "can't allocate memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _list(asked: str, words: Sequence[str]) -> int:
    from attn_mlir.tools.fmha import names

    options = _on_device(parse(words, asked == "bwd"), runs=False)
    given = [word.lstrip("-").partition("=")[0] for word in words if word.startswith("-")]
    found = list(names.listed(options, given))
    for name, reason in found:
        print(name) if name else print(f"attn-fmha: not supported: {reason}", file=sys.stderr)
    return 0 if any(name for name, _ in found) else 2


def _run(options: FmhaOptions) -> int:
    """Calls the attention once, validates what it gives, then times it. The line grows while this goes on."""
    from attn_mlir.tools.fmha import report

    options = _on_device(options)
    print(report.problem_line(options), end="", flush=True)
    try:
        return _compute(options)
    except (AttnError, MemoryError, RuntimeError):
        print()
        raise


def _compute(options: FmhaOptions) -> int:
    import torch

    from attn_mlir.tools.fmha import measure, names, problem, report, validate

    made = problem.make(options)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", PerformanceWarning)
        outputs = made.call()
        call: Callable[[], Any] = made.call
        if options.backward:
            o, *lse = outputs
            call = lambda: torch.autograd.grad(o, made.leaves, made.grad, retain_graph=True)  # noqa: E731
            outputs = (*call(), *lse)
    if options.names:
        print(f", {' @ '.join(names.kernels(options))}", end="", flush=True)
    emulated = options.device != made.q.device.type
    taken = None if emulated else measure.milliseconds(call, options, made.q.device, by_events=options.timer == "gpu")
    measured = report.Measured(taken, measure.flops(options), measure.bytes_moved(options))
    print(f", {measured}", end="", flush=True)
    faults = validate.faults(made, outputs) if options.validate else []
    valid = None if not options.validate else not faults
    print("" if valid is None else f", valid:{'y' if valid else 'n'}")
    for fault in faults:
        print(f"  {fault}", file=sys.stderr)
    for warning in told:
        print(f"attn-fmha: warning: {warning.message}", file=sys.stderr)
    if options.json:
        report.write_json(options, measured, valid)
        print(f"Results written to {options.json} successfully")
    return 1 if faults else 0


def _on_device(options: FmhaOptions, runs: bool = True) -> FmhaOptions:
    """The options with a device that is known, and there if something `runs` on it. Raises ArgumentError."""
    import torch

    from attn_mlir.backends import load_backends, tensors_of

    known = sorted(name for backend in load_backends().values() for name in backend.device_types if backend.compile)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in known:
        raise ArgumentError(f"-device is one of {', '.join(known)}; got '{device}'")
    if runs and tensors_of(device) == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(f"-device={device}: torch sees no GPU here; use -device=cpu or -device=hip-emulated")
    return replace(options, device=device)


if __name__ == "__main__":
    raise SystemExit(main())
