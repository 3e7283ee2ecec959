"""Kernels of several queries on keys in pages, as the Hopper emitter and as passes of the `warp` dialect make them, beside packed keys.

python benchmarks/warp_pages.py build FOLDER    compiles here, without a GPU; says registers and spills, and what passes refuse
python benchmarks/warp_pages.py check FOLDER    on the GPU: compares with float64, sequence by sequence, and two launches bit by bit
python benchmarks/warp_pages.py time FOLDER     on the GPU: times in turn, in CUDA graphs

A way is "packed" or "pages", and after a slash one of `warp_families.py`: "pages/usual", "pages/hopper", "pages/warp:tell=1". Pages
hold NaN behind the last key of a sequence, and tables numbers of no page behind its last page.
"""

import argparse
import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from warp_families import Case, build, loaded
from warp_packed import Traced, traced

import attn_mlir
from attn_mlir import masks, mods, rows

Tensor = torch.Tensor
Run = Callable[[Sequence[Any]], list[Tensor]]
_CAUSAL: dict[str, Any] = {"mask_mod": masks.causal("bottom_right")}
_WINDOW, _CAP = 300, 20.0
FAMILIES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "causal": (_CAUSAL, []),
    "full": ({}, []),
    "window": ({"mask_mod": masks.sliding_window(_WINDOW, 0, align="bottom_right")}, [_WINDOW, 0]),
    "lse": ({**_CAUSAL, "return_lse": True}, []),
    "sigmoid": ({**_CAUSAL, "row": rows.sigmoid}, []),
    "softcap": ({**_CAUSAL, "score_mod": mods.softcap(_CAP)}, [_CAP]),
}
"""How programs are written, and the numbers that they capture."""
QUERIES, KEYS = (1, 3, 200, 2, 127, 65, 0, 40), (1, 17, 1000, 0, 127, 300, 50, 16)
"""Of the sequences that are compared."""
MIXED = tuple(range(1024, 8193, 1024))
TIMED: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "8 of 1024..8192, all queries": (MIXED, MIXED),
    "8 of 1024..8192, 512 last queries": ((512,) * 8, MIXED),
    "8 of 256 queries, 8192 keys": ((256,) * 8, (8192,) * 8),
    "8 of 16 queries, 32768 keys": ((16,) * 8, (32768,) * 8),
    "32 of 32 queries, 2048 keys": ((32,) * 32, (2048,) * 32),
    "1 of 4096": ((4096,), (4096,)),
}
WORST = 4e-3


@dataclass(frozen=True)
class Served(Case):
    """A program on packed queries whose keys are packed, too, or lie in pages."""

    paged: bool = True

    @property
    def name(self) -> str:
        return f"{super().name}-{'paged' if self.paged else 'beside'}"

    def text(self) -> str:
        dtype = torch.float16 if self.element == "f16" else torch.bfloat16
        q, k = torch.zeros(4, self.group, self.columns[0], dtype=dtype), torch.zeros(2, 16, 1, self.columns[0], dtype=dtype)
        ints, more = torch.int32, FAMILIES[self.family][0]
        places: dict[str, Any] = {"cu_seqlens_k": torch.tensor([0, 4, 20], dtype=ints)}
        if self.paged:
            places = {"seqused_k": torch.tensor([3, 9], dtype=ints), "block_table": torch.tensor([[0], [1]], dtype=ints)}
        k = k if self.paged else k.flatten(0, 1)
        with traced():
            try:
                attn_mlir.attention_varlen(q, k, k, torch.tensor([0, 2, 4], dtype=ints), **places, **more)
            except Traced as found:
                return str(found)
        raise RuntimeError("the call has no program")


@dataclass
class Problem:
    """q, k and v of sequences, on the GPU; `packed` and `pages` are what kernels take of them."""

    q: Tensor
    k: Tensor
    v: Tensor
    queries: Sequence[int]
    keys: Sequence[int]

    @staticmethod
    def drawn(case: Case, heads: int, queries: Sequence[int], keys: Sequence[int]) -> "Problem":
        """Normal numbers."""
        dtype = torch.float16 if case.element == "f16" else torch.bfloat16
        shapes = [(sum(queries), heads), *[(sum(keys), heads // case.group)] * 2]
        q, k, v = (torch.randn(*shape, case.columns[0], device="cuda").to(dtype) for shape in shapes)
        return Problem(q, k, v, queries, keys)

    def packed(self) -> list[Any]:
        """Where sequences follow each other."""
        (of_q, n), (of_k, m) = (_places(lengths) for lengths in (self.queries, self.keys))
        return [*(x.transpose(0, 1)[None] for x in (self.q, self.k, self.v)), of_q, n, of_k, m]

    def pages(self, size: int) -> list[Any]:
        """Where keys lie in pages, in any order."""
        counts, (of_q, n), used = [-(-m // size) for m in self.keys], _places(self.queries), _places(self.keys)[1]
        caches = [torch.full((sum(counts) + 3, size, *x.shape[1:]), math.nan, device="cuda", dtype=x.dtype) for x in (self.k, self.v)]
        order, table = torch.randperm(sum(counts) + 3, device="cuda"), torch.empty(len(counts), max(counts) + 1, dtype=torch.int32)
        table[0::2], table[1::2] = 2_000_000_000, -5
        first = page = 0
        for b, (m, count) in enumerate(zip(self.keys, counts, strict=True)):
            mine = order[page : page + count]
            table[b, :count] = mine.int().cpu()
            for cache, x in zip(caches, (self.k, self.v), strict=True):
                whole = torch.full((count * size, *x.shape[1:]), math.nan, device="cuda", dtype=x.dtype)
                whole[:m] = x[first : first + m]
                cache[mine] = whole.view(count, size, *x.shape[1:])
            first, page = first + m, page + count
        views = [cache.transpose(1, 2) for cache in caches]
        return [self.q.transpose(0, 1)[None], *views, of_q, n, torch.zeros_like(used), used, table.cuda()]

    def right(self, family: str) -> Tensor:
        """o in float64, [1, H, T, D]."""
        found, a, b = [], 0, 0
        for n, m in zip(self.queries, self.keys, strict=True):
            q, k, v = (x[i : i + c].double().transpose(0, 1) for x, i, c in ((self.q, a, n), (self.k, b, m), (self.v, b, m)))
            k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
            scores = q @ k.mT / q.shape[-1] ** 0.5
            scores = _CAP * (scores / _CAP).tanh() if family == "softcap" else scores
            apart = torch.arange(n, device="cuda")[:, None] + (m - n) - torch.arange(m, device="cuda")
            seen = {"full": apart == apart, "window": (apart >= 0) & (apart <= _WINDOW)}.get(family, apart >= 0)
            if family == "sigmoid":
                found.append((scores.sigmoid() * seen) @ v)
            else:
                found.append(scores.masked_fill(~seen, -math.inf).softmax(-1).nan_to_num(0) @ v)
            a, b = a + n, b + m
        return torch.cat(found, 1)[None]


def _places(lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    count = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    return (count.cumsum(0) - count).int(), count


def inputs_of(case: Served, problem: Problem, size: int) -> list[Any]:
    """What the kernel of a case takes."""
    return [*(problem.pages(size) if case.paged else problem.packed()), *FAMILIES[case.family][1]]


def check(cases: Sequence[Served], folder: Path, sizes: Sequence[int]) -> None:
    """Prints the relative error of each case, for pages of each size, and whether two launches differ."""
    for case in cases:
        run, told = loaded(case, folder), []
        problem = Problem.drawn(case, 2 * case.group, QUERIES, KEYS)
        for size in sizes if case.paged and run is not None else sizes[:1]:
            if run is None:
                told.append("not there")
                break
            inputs = inputs_of(case, problem, size)
            got, again = run(inputs)[0], run(inputs)[0]
            wanted = problem.right(case.family)
            apart = float((got.double() - wanted).norm() / wanted.norm())
            told.append(f"{size} {apart:.0e}{' WRONG' * (not apart <= WORST)}{'' if torch.equal(got, again) else ' bits differ'}")
        print(f"  {case.name}: {'; '.join(told)}", flush=True)


def graph(run: Run, inputs: Sequence[Any]) -> torch.cuda.CUDAGraph:
    """A call in a CUDA graph, which reads these inputs wherever they lie: somebody has to keep them."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run(inputs)
    torch.cuda.current_stream().wait_stream(stream)
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made):
        run(inputs)
    return made


def time(cases: Sequence[Served], folder: Path, sizes: Sequence[int], rounds: int, only: Sequence[int]) -> None:
    """Prints the microseconds of the first way, and the speed of the others in its units."""
    print(f"-- {torch.cuda.get_device_name()}; {rounds} rounds", flush=True)
    for number, (name, (queries, keys)) in enumerate(TIMED.items()):
        for key in dict.fromkeys((case.family, case.dim) for case in cases if number in only):
            mine = [case for case in cases if (case.family, case.dim) == key]
            problem = Problem.drawn(mine[0], 32, queries, keys)
            graphs: dict[str, torch.cuda.CUDAGraph] = {}
            kept: dict[tuple[bool, int], list[Any]] = {}
            for case in mine:
                run = loaded(case, folder)
                for size in sizes if case.paged else (0,):
                    if run is None:
                        continue
                    inputs = kept.setdefault((case.paged, size), []) or inputs_of(case, problem, size)
                    kept[case.paged, size] = inputs
                    graphs[f"{case.way} {size}" if case.paged else f"packed {case.way}"] = graph(run, inputs)
            taken: dict[str, list[float]] = {way: [] for way in graphs}
            for turn in range(rounds + 1):
                for way, made in list(graphs.items())[:: 1 if turn % 2 else -1]:
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    begin.record()
                    made.replay()
                    end.record()
                    end.synchronize()
                    if turn:
                        taken[way].append(begin.elapsed_time(end))
            times = {way: statistics.median(each) for way, each in taken.items()}
            first = next(iter(times.values()))
            told = "; ".join(f"{way} {first / each:.3f}" for way, each in times.items())
            print(f"{name}, {key[0]} D{key[1]}: {1000 * first:.0f} us; {told}", flush=True)


def _cases(options: argparse.Namespace) -> Iterator[Served]:
    for family in options.families.split(","):
        for dim in options.dims.split(","):
            for way in options.ways:
                only, _, rest = way.rpartition("@")
                if not only or only == dim:
                    kind, _, way = rest.partition("/")
                    yield Served(family, dim, "inference", way, options.element, options.group, True, kind == "pages")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "check", "time"])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/pages"))
    parser.add_argument("--families", default="causal")
    parser.add_argument("--dims", default="128,64")
    parser.add_argument("--ways", nargs="+", default=["packed/usual", "pages/hopper", "pages/usual"])
    parser.add_argument("--element", choices=["f16", "bf16"], default="bf16")
    parser.add_argument("--group", type=int, default=4, help="heads of queries for each head of keys")
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--shapes", type=int, nargs="+", default=list(range(len(TIMED))))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    cases = list(dict.fromkeys(_cases(options)))
    build(cases, options.folder, options.processes)
    torch.manual_seed(0)
    if options.what == "check":
        check(cases, options.folder, options.sizes)
    elif options.what == "time":
        time(cases, options.folder, options.sizes, options.rounds, options.shapes)


if __name__ == "__main__":
    main()
