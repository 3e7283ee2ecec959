"""Backward kernels of the `warp` dialect beside those of the Hopper emitter, compiled ahead: checked against float64, then timed in turn.

python benchmarks/warp_backward.py build FOLDER    compiles here, without a GPU (ATTN_MLIR_CUDA_COMPILER=nvcc)
python benchmarks/warp_backward.py run FOLDER      on the GPU: needs torch and the driver, neither a compiler nor MLIR's bindings

Each kind is checked in a process of its own, so that one that fails or hangs does not end the others. Times are those of the whole backward
pass: of the kernel over pairs, of the two small ones before it, which are the Hopper emitter's, and of zeros for dq.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from dropout_variants import outcomes, program, save, time_apart, timed
from warp_forward import dense, scheduled

CASES = ("causal", "full", "sigmoid")
_SPLIT = "warp-split-maps"
KINDS = {
    "hopper": (),
    "warp": (),
    "joined": (),
    "no-split": (_SPLIT,),
    "no-delay": (_SPLIT, "warp-delay-waits"),
    "no-rows": (_SPLIT, "warp-stage-rows"),
    "no-order": (_SPLIT, "warp-order-tiles"),
    "no-stage": (_SPLIT, "warp-stage-stores"),
    "static": (),
    "hopper-ordered": (),
    "ordered": (),
    "whole": (),
    "sm80": (),
    "sm80-tilelang": (),
    "sm80-64x64": (),
    "sm80-128x64": (),
    "sm80-128x128": (),
    "sm80-stage": (),
    "sm80-together": (),
    "sm80-rows": ("warp-stage-rows",),
}
"""The Hopper emitter's kernels, those of all passes, those whose loops are joined as the forward's are, those that lack some passes, those
whose thread blocks have a fixed share of the tiles, and those that add dq in a fixed order, so that two launches give the same bits of it,
too. "whole": what is chosen where wide sums are not given kernels of their own (`nvidia-split-pairs`). "sm80": kernels for sm_80, of the
`warp` dialect, of TileLang, with other blocks of keys and of queries, with one stage, with one wait for both tiles, without numbers of rows
in shared memory; newer chips run the PTX that comes along."""
LENGTHS, SHAPES = (1, 17, 127, 300, 1000), ((4, 4096), (2, 8192))
CHECK_SECONDS, TIME_SECONDS = 45, 60


@dataclass(frozen=True)
class Wanted:
    """What is built, checked and timed: kinds of kernels, cases, and columns of keys and of values, such as "64" or "192x128"."""

    folder: Path
    kinds: list[str]
    cases: list[str]
    dims: list[str]

    def options(self) -> list[str]:
        """The same on a command line, without the kinds."""
        return ["--cases", ",".join(self.cases), "--dims", ",".join(self.dims)]


def columns(dim: str) -> tuple[int, int]:
    """Those of q and k, and of v."""
    first, _, second = dim.partition("x")
    return int(first), int(second or first)


def build(wanted: Wanted) -> None:
    """Compiles the kernels of every case and writes them to `folder`; says what the compiler tells, or why there is none."""
    import attn_mlir
    from attn_mlir.backends.nvidia import codegen, driver, pipeline
    from attn_mlir.backends.nvidia.compile import compile_all
    from attn_mlir.backends.program import prepare_derivative
    from attn_mlir.errors import AttnError
    from attn_mlir.frontend.emit import Inputs

    wanted.folder.mkdir(parents=True, exist_ok=True)
    causal = {"mask_mod": attn_mlir.masks.causal()}
    forms = {"causal": causal, "full": {}, "sigmoid": {**causal, "row": attn_mlir.rows.sigmoid}}
    emit = codegen.emit

    def emitted(function: Any, kind: str) -> Any:
        """Kernels over pairs are formed by passes; the others are the same for all kinds."""
        if kind.startswith("sm80"):
            with mock.patch.object(pipeline, "OTHERS", ",".join(step for step in pipeline.OTHERS.split(",") if step not in KINDS[kind])):
                return emit(function)
        is_pairs = 'grid = "pairs"' in str(function.attributes["tile.kernel"])
        fields = {"draw": 0} if "static" in kind else {}
        own = is_pairs and not kind.startswith(("hopper", "whole"))
        return scheduled(function, KINDS[kind], joined=kind == "joined", fields=fields) if own else emit(function)

    for name in wanted.cases:
        for dim in wanted.dims:
            call = attn_mlir.Attention(**forms[name])
            call.__dict__.update(_last=Inputs("f16", *columns(dim)), _form=None)
            for kind in ["forward", *wanted.kinds]:
                setattr(codegen, "emit", emit if kind == "forward" else lambda function, kind=kind: emitted(function, kind))
                arch = "sm_80" if kind.startswith("sm80") else "sm_90a"
                outline = pipeline.outline(arch).replace(pipeline.split(arch) if kind == "whole" else "", "")
                form = prepare_derivative("fwd" if kind == "forward" else "bwd", ("q", "k", "v"), outline)
                try:
                    choices: dict[str, int | str] = {"arch": arch, **({"deterministic": 1} if "ordered" in kind else {})}
                    choices |= {} if kind.startswith("hopper") else {"claims": 0}  # passes that are left out may be those that claim
                    if arch == "sm_80":
                        choices |= ampere(kind)
                    elif columns(dim) == (128, 128):  # passes know no transposed sums over keys, as blocks of 80 queries have
                        choices |= {"block_q": 128, "block_kv": 64}
                    host, units = driver._lower(call.ir(), *form, choices)  # pyright: ignore[reportPrivateUsage]
                    binaries = dict(zip(units, compile_all([unit.code for unit in units.values()]), strict=True))
                except AttnError as error:
                    print(f"{kind}-{name}-{dim}: {error}", flush=True)
                    continue
                path = wanted.folder / f"{kind}-{name}-{dim}"
                save(path, host, units, binaries)
                for unit, binary in zip(units.values(), binaries.values(), strict=True):
                    if "rows" in unit.code.name or "pairs" in unit.code.name or len(units) == 1:
                        told = f"{binary.registers} registers, {binary.spills} bytes of spills, {unit.code.shared_bytes} bytes shared"
                        print(f"{path.name}: {unit.code.language} {told}", flush=True)


_WORDS: dict[str, dict[str, int]] = {"stage": {"stages": 1}, "together": {"together": 1}}


def ampere(kind: str) -> dict[str, int | str]:
    """What is chosen for a kind of kernels for sm_80."""
    _, _, word = kind.partition("-")
    keys, _, queries = word.partition("x")
    blocks = {"block_q": int(keys), "block_kv": int(queries)} if queries.isdigit() else {}
    return {"emitter": "tilelang" if word == "tilelang" else "warp", **blocks, **_WORDS.get(word, {})}


def drawn(batch: int, heads: int, of_keys: int, length: int, dim: str) -> list[torch.Tensor]:
    """q, k, v and do for batch, heads of queries and of keys."""
    wide, value = columns(dim)
    shapes = (heads, wide), (of_keys, wide), (of_keys, value), (heads, value)
    return [torch.randn(batch, h, length, d, device="cuda").half() for h, d in shapes]


def check(wanted: Wanted) -> None:
    """Prints relative errors of dq, dk and dv at odd lengths, with a mark where a second launch gives other bits of dk or dv.

    Of kinds with a fixed order, also where it gives other bits of dq.
    """
    torch.manual_seed(0)
    folder, (kind,) = wanted.folder, wanted.kinds
    for name in wanted.cases:
        for dim in wanted.dims:
            if not (folder / f"{kind}-{name}-{dim}.zip").exists():
                continue
            forward, backward = program(folder, f"forward-{name}-{dim}"), program(folder, f"{kind}-{name}-{dim}")
            errors = []
            for length in LENGTHS:
                q, k, v, do = drawn(2, 4, 2, length, dim)
                wide = [x.double().requires_grad_() for x in (q, k, v)]
                both = (wide[1].repeat_interleave(2, 1), wide[2].repeat_interleave(2, 1))
                right = torch.autograd.grad(dense(wide[0], *both, name), wide, do.double())
                inputs = [q, k, v, *forward([q, k, v]), do]
                got = backward(inputs)
                again = backward(inputs)
                worst = max(float((a.double() - b).norm() / (b.norm() + 1e-2)) for a, b in zip(got, right, strict=True))
                exact = 0 if "ordered" in kind else 1
                differs = not all(torch.equal(a, b) for a, b in zip(got[exact:], again[exact:], strict=True))
                errors.append(f"{worst:.0e}{'!' * differs}" + ("" if worst < 5e-3 else " WRONG"))
            print(f"{kind:9} {name:7} D {dim:3}  {'  '.join(errors)}", flush=True)


def measure(wanted: Wanted, rounds: int) -> None:
    """Prints the speed of all kinds, timed in turn."""
    print(f"-- {torch.cuda.get_device_name()}, f16, TFLOP/s, and the speed in units of that of the Hopper emitter's kernel", flush=True)
    folder = wanted.folder
    for name in wanted.cases:
        for dim in wanted.dims:
            there = [kind for kind in wanted.kinds if (folder / f"{kind}-{name}-{dim}.zip").exists()]
            launches: dict[str, Callable[[Any], Any]] = {kind: program(folder, f"{kind}-{name}-{dim}") for kind in there}
            for batch, length in SHAPES:
                wide, value = columns(dim)
                heads = 2048 // wide
                q, k, v, do = drawn(batch, heads, heads, length, dim)
                inputs = [q, k, v, *program(folder, f"forward-{name}-{dim}")([q, k, v]), do]
                best: dict[str, float] = {}
                for number in range(rounds + 1):
                    for kind in list(launches)[:: 1 if number % 2 else -1]:
                        taken = timed(lambda launch=launches[kind], inputs=inputs: launch(inputs), 5)
                        best[kind] = min(best.get(kind, taken), taken) if number else taken
                work = 2e-9 * batch * heads * (3 * wide + 2 * value) * length**2 * (1 if name == "full" else 0.5)
                told = "  ".join(
                    f"{kind} {work / taken:.0f} {best['hopper'] / taken:.2f}" for kind, taken in best.items() if "hopper" in best
                )
                print(f"{name:7} D {dim:3} S {length}  {told}", flush=True)


def run(wanted: Wanted, rounds: int) -> None:
    """Checks all kinds at the same time, each in its own process, then times those that are right in turn."""
    here, begin = [sys.executable, str(Path(__file__).resolve())], time.time()
    told = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": {**os.environ, "ATTN_MLIR_POISON": "1"}}
    command = [*here, "check", str(wanted.folder), *wanted.options(), "--kinds"]
    checks: dict[str, Any] = {kind: subprocess.Popen([*command, kind], **told) for kind in wanted.kinds}
    right = []
    for kind, process, text in outcomes(checks, begin, CHECK_SECONDS):
        print(text.strip()[-2000:], flush=True)
        if process.returncode == 0 and "WRONG" not in text:
            right.append(kind)
    print(f"right: {', '.join(right)}; {time.time() - begin:.0f} s so far", flush=True)
    timing = [*here, "time", str(wanted.folder), *wanted.options(), "--rounds", str(rounds), "--kinds", ",".join(right)]
    time_apart(timing, TIME_SECONDS)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "run", "check", "time"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--dims", default="64,128", help='columns, such as "256,192x128": of keys x of values')
    options = parser.parse_args()
    kinds, cases = options.kinds.split(","), options.cases.split(",")
    unknown = [name for name in kinds if name not in KINDS] + [name for name in cases if name not in CASES]
    if unknown:
        parser.error(f"not one of {', '.join((*KINDS, *CASES))}: {', '.join(unknown)}")
    wanted = Wanted(options.folder, kinds, cases, options.dims.split(","))
    match options.what:
        case "build":
            build(wanted)
        case "run":
            run(wanted, options.rounds)
        case "check":
            check(wanted)
        case _:
            measure(wanted, options.rounds)


if __name__ == "__main__":
    main()
