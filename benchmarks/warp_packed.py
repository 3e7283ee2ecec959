"""Kernels on packed sequences as the Hopper emitter and as passes of the `warp` dialect make them: compiled, compared, timed in turn.

python benchmarks/warp_packed.py build FOLDER    compiles here, without a GPU; says registers and spills, and what passes refuse
python benchmarks/warp_packed.py check FOLDER    on the GPU: compares with float64, sequence by sequence, and two launches bit by bit
python benchmarks/warp_packed.py time FOLDER     on the GPU: times in turn

Ways are those of `warp_families.py`; "64@warp" is one for rows of 64 columns. Around tensors lies memory full of NaN; with
ATTN_MLIR_POISON=1 results begin as NaN, too.
"""

import argparse
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from family_cases import FAMILIES
from warp_families import Case, build, loaded

import attn_mlir

Lengths = Sequence[int]
CHECKED: dict[str, tuple[Lengths, Lengths]] = {
    "one of 256": ((256,), (256,)),
    "two of 384": ((384, 384), (384, 384)),
    "odd": ((1, 17, 0, 127, 1000, 300), (1, 17, 5, 127, 1000, 300)),
    "other keys": ((100, 3, 640), (60, 150, 1)),
    "many": ((8,) * 700, (8,) * 700),
}
"""Queries and keys of the sequences by which kernels are compared."""
TIMED: dict[str, Lengths] = {
    "64 of 128..8192": torch.randint(128, 8193, (64,), generator=torch.Generator().manual_seed(0)).tolist(),
    "16x4096": (4096,) * 16,
    "256x256": (256,) * 256,
}
"""The lengths of the sequences that are timed."""
WORST = 4e-3


class Traced(Exception):
    """Ends a call once its program is known: its text."""


@contextmanager
def traced() -> Iterator[None]:
    """Calls inside raise Traced."""
    from attn_mlir.runtime.programs import Program

    before = Program.check

    def seen(self: Program, *given: Any, **named: Any) -> Any:
        raise Traced(self.text)

    setattr(Program, "check", seen)
    try:
        yield
    finally:
        setattr(Program, "check", before)


def text_of(case: Case) -> str:
    """The program of a packed call."""
    wide, value = case.columns
    dtype = torch.float16 if case.element == "f16" else torch.bfloat16
    q, k, v = (torch.zeros(4, heads, columns, dtype=dtype) for heads, columns in ((case.group, wide), (1, wide), (1, value)))
    with traced():
        try:
            attn_mlir.attention_varlen(q, k, v, torch.tensor([0, 4], dtype=torch.int32), **FAMILIES[case.family].written)
        except Traced as found:
            return str(found)
    raise RuntimeError("the call has no program")


def _padded(rows: int, heads: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows between others that are NaN, as [1, H, T, D]."""
    memory = torch.full((rows + 512, heads, columns), math.nan, device="cuda", dtype=dtype)
    memory[256 : 256 + rows] = torch.randn(rows, heads, columns, device="cuda").to(dtype)
    return memory[256 : 256 + rows].transpose(0, 1)[None]


def inputs_of(case: Case, heads: int, queries: Lengths, keys: Lengths) -> list[Any]:
    """q, k and v, where sequences lie, and what is captured."""
    wide, value = case.columns
    dtype = torch.float16 if case.element == "f16" else torch.bfloat16
    few = heads // case.group
    shapes = (sum(queries), heads, wide), (sum(keys), few, wide), (sum(keys), few, value)
    q, k, v = (_padded(*shape, dtype) for shape in shapes)
    places: list[Any] = []
    for lengths in (queries, keys):
        count = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        places += [(count.cumsum(0) - count).to(torch.int32), count]
    return [q, k, v, *places, *FAMILIES[case.family].captured(heads, max(*queries, *keys))]


def right(case: Case, inputs: Sequence[Any], queries: Lengths, keys: Lengths, do: torch.Tensor | None) -> list[torch.Tensor]:
    """o, or the gradients of q, k and v, in float64, sequence by sequence. Knows causal masks and whole ones, softmax and sigmoid."""
    made: list[list[torch.Tensor]] = []
    first = [0, 0]
    for n, m in zip(queries, keys, strict=True):
        spans = (first[0], first[0] + n), (first[1], first[1] + m), (first[1], first[1] + m)
        q, k, v = (x[0, :, a:b].double().requires_grad_() for x, (a, b) in zip(inputs[:3], spans, strict=True))
        wide = [x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v)]
        scores = q @ wide[0].mT / q.shape[-1] ** 0.5
        seen = torch.ones(n, m, dtype=torch.bool, device="cuda")
        seen = seen.tril() if FAMILIES[case.family].masked else seen
        if case.family.startswith("sigmoid"):
            weights = scores.sigmoid() * seen
        else:
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0)
        o = weights @ wide[1]
        if do is None:
            made.append([o.detach()])
        else:
            given = torch.autograd.grad(o, (q, k, v), do[0, :, spans[0][0] : spans[0][1]].double(), allow_unused=True)
            made.append([torch.zeros_like(x) if g is None else g.nan_to_num(0) for g, x in zip(given, (q, k, v), strict=True)])
        first = [first[0] + n, first[1] + m]
    return [torch.cat(parts, 1)[None] for parts in zip(*made, strict=True)]


def check(case: Case, folder: Path, only: str) -> str:
    """The relative error of what a case computes for each of `CHECKED`, and whether two launches differ."""
    run, forward = loaded(case, folder), None
    if run is None:
        return f"{case.name}: not there"
    if case.kind == "backward":
        forward = loaded(dataclasses.replace(case, kind="forward", way="hopper"), folder)
    told = []
    for name, (queries, keys) in CHECKED.items():
        if only and name != only:
            continue
        inputs = inputs_of(case, 4, queries, keys)
        do = _padded(sum(queries), 4, case.columns[1], inputs[0].dtype) if case.kind == "backward" else None
        given = [*inputs, *forward(inputs), do] if forward is not None else inputs
        got, again = run(given), run(given)
        torch.cuda.synchronize()
        wanted = right(case, inputs, queries, keys, do)
        apart = [float((a.double() - b).norm() / (b.norm() + 1e-2)) for a, b in zip(got, wanted, strict=False)]
        first = 1 if case.kind == "backward" else 0
        same = all(torch.equal(a, b) for a, b in zip(got[first:], again[first:], strict=True))
        worst = max(x if x == x else math.inf for x in apart)
        told.append(f"{name} {worst:.0e}{'' if same else ' bits differ'}{' WRONG' * (worst > WORST)}")
        print(f"  {case.name}: {told[-1]}", flush=True)
    return f"{case.name}: {'; '.join(told)}"


def time(cases: Sequence[Case], folder: Path, rounds: int) -> None:
    """Times the ways of each program in turn: TFLOP/s of the first, the speed of the others in its units."""
    from dropout_variants import timed

    print(f"-- {torch.cuda.get_device_name()}: {' / '.join(TIMED)}", flush=True)
    for key in dict.fromkeys((case.family, case.dim, case.kind, case.element) for case in cases):
        mine = [case for case in cases if (case.family, case.dim, case.kind, case.element) == key]
        runs: dict[str, Callable[..., Any]] = {case.way: made for case in mine if (made := loaded(case, folder)) is not None}
        case, columns = mine[0], {way: list[str]() for way in runs}
        forward = loaded(dataclasses.replace(case, kind="forward", way="hopper"), folder) if key[2] == "backward" else None
        heads = 1024 // case.columns[0]
        for lengths in TIMED.values():
            inputs = inputs_of(case, heads, lengths, lengths)
            if forward is not None:
                inputs = [*inputs, *forward(inputs), torch.randn_like(inputs[0])]
            taken: dict[str, list[float]] = {way: [] for way in runs}
            for number in range(rounds + 1):
                for way in list(runs)[:: 1 if number % 2 else -1]:
                    each = timed(functools.partial(runs[way], inputs), 3)
                    if number:
                        taken[way].append(each)
            wide, value = case.columns
            work = {"backward": 6 * wide + 4 * value}.get(case.kind, 2 * (wide + value)) * 1e-9 * heads
            pairs = sum(FAMILIES[case.family].work(n) for n in lengths)
            usual = sorted(next(iter(taken.values())))[rounds // 2]
            for way, times in taken.items():
                middle = sorted(times)[rounds // 2]
                columns[way].append(f"{work * pairs / middle:.0f}" if way == next(iter(runs)) else f"{usual / middle:.3f}")
            del inputs
        print(f"{key[2]:9} {key[0]:9} D {key[1]:5} {key[3]}  " + "  ".join(f"{w} {' / '.join(c)}" for w, c in columns.items()), flush=True)


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    for kind in options.kinds.split(","):
        for family in options.families.split(","):
            for dim in options.dims.split(","):
                if kind == "backward":
                    yield Case(family, dim, "forward", "hopper", options.element, options.group, True)
                for way in options.ways:
                    only, _, way = way.rpartition("@")
                    if only and only != dim:
                        continue
                    yield Case(family, dim, kind, way, options.element, options.group, True)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "check", "time"])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/packed"))
    parser.add_argument("--families", default="causal,full,sigmoid,sigmoids")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--kinds", default="inference,forward")
    parser.add_argument("--ways", nargs="+", default=["hopper", "warp"])
    parser.add_argument("--element", choices=["f16", "bf16"], default="f16")
    parser.add_argument("--group", type=int, default=1, help="heads of queries for each head of keys")
    parser.add_argument("--only", default="", help="of the lengths that are compared")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    cases = list(dict.fromkeys(_cases(options)))
    build(cases, options.folder, options.processes)
    torch.manual_seed(0)
    kinds = options.kinds.split(",")
    if options.what == "check":
        for case in cases:
            if case.kind in kinds:
                print(check(case, options.folder, options.only), flush=True)
    elif options.what == "time":
        time([case for case in cases if case.kind in kinds], options.folder, options.rounds)


if __name__ == "__main__":
    main()
