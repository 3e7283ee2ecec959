"""Families of programs as the Hopper emitter and as passes of the `warp` dialect make them: compiled, compared, timed in turn.

python benchmarks/warp_families.py build FOLDER    compiles here, without a GPU; says registers and spills, and what passes refuse
python benchmarks/warp_families.py run FOLDER      on the GPU: compiles what FOLDER lacks, compares results at odd lengths, times in turn
python benchmarks/warp_families.py which           who makes each kernel by default, and why passes form none where they do not

A way is "hopper", "warp", one of them with choices, as in "warp:stages=3,group=8" or "hopper:deterministic=1", or "usual". Results
are compared with float64 where a family has a formula here, and with those of the first way in all.
"""

import argparse
import importlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from family_cases import FAMILIES

import attn_mlir
from attn_mlir.frontend.emit import Inputs

Shapes = Sequence[tuple[int, int]]
ODD, SHAPES = (1, 17, 127, 300, 1000), ((16, 1024), (4, 4096), (1, 16384))
HEADS, WORST = 2048, 4e-3


@dataclass(frozen=True)
class Case:
    """A program: its family, columns, derivative ("inference", "forward", "backward", "tangent"), and how its kernels are made."""

    family: str
    dim: str
    """Columns of q and k, and of v where they differ: "128", "192x128"."""
    kind: str
    way: str
    element: str = "f16"
    group: int = 1
    """Heads of queries for each head of keys."""
    packed: bool = False
    """Whether it is of packed sequences (`warp_packed.py`)."""

    @property
    def columns(self) -> tuple[int, int]:
        """Those of q and k, and of v."""
        first, _, second = self.dim.partition("x")
        return int(first), int(second or first)

    @property
    def name(self) -> str:
        """That of its files."""
        way = self.way.translate(str.maketrans(":=,", "___"))
        return "-".join([self.family, self.dim, self.kind, self.element, way, *(["packed"] if self.packed else [])])

    def text(self) -> str:
        """Its program."""
        if self.packed:
            return importlib.import_module("warp_packed").text_of(self)
        call = attn_mlir.Attention(**FAMILIES[self.family].written)
        call.__dict__.update(_last=Inputs(self.element, *self.columns), _form=FAMILIES[self.family].form)
        return call.ir()


def _choices(way: str) -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for item in filter(None, way.partition(":")[2].split(",")):
        name, _, value = item.partition("=")
        found[name] = int(value) if value.lstrip("-").isdigit() else value
    return found


def _planned(way: str, told: list[str]) -> Callable[[Any], Any]:
    """What `codegen.plan` is in a way: kernels of products as it asks, others as ever. Says to `told` who would make it, and who does."""
    from attn_mlir.backends.gpu import attributes
    from attn_mlir.backends.nvidia import codegen
    from attn_mlir.backends.nvidia.forming.facts import FIELDS
    from attn_mlir.backends.nvidia.forming.refusal import Refused
    from attn_mlir.backends.nvidia.warp.emitter import print_ahead
    from attn_mlir.backends.nvidia.warp.preferred import preferred
    from attn_mlir.errors import UnsupportedError

    def plan(kernel: Any) -> Any:
        fields = codegen.EMITTERS.plan(kernel)
        if fields.get("emitter") != "hopper" or attributes.grid_kind(kernel) not in ("rows", "pairs"):
            return fields
        usual = preferred(kernel, fields)
        if way.startswith("hopper") or way == "usual":
            return usual if way == "usual" else fields
        own = {"arch", "length", "longer", "deterministic", "semaphore_over", "semaphore_rows", "semaphore_parts", *FIELDS}
        kept = {name: value for name, value in fields.items() if name in own or name.startswith(attributes.LAUNCH)}
        made = {**kept, **_choices(way), "emitter": "warp"}
        try:
            print_ahead(kernel, made)
        except (Refused, UnsupportedError) as error:
            told.append(f"{usual['emitter']}, not formed: {error}")
            return fields
        told.append(str(usual["emitter"]))
        return made

    return plan


def lowered(case: Case, told: list[str] | None = None) -> tuple[Any, Any, list[str]]:
    """The host program and kernels of a case, and what is told of each kernel of products, which is added to `told`."""
    from attn_mlir.backends.nvidia import codegen, driver, pipeline
    from attn_mlir.backends.program import OUTLINE, prepare_derivative

    kinds = {"forward": "fwd", "backward": "bwd", "tangent": "jvp"}
    form = ("attention", OUTLINE)
    if case.kind in kinds:
        form = prepare_derivative(kinds[case.kind], ("q", "k", "v"), pipeline.outline("sm_90a"))
    told = [] if told is None else told
    chosen = _choices(case.way)
    blocks = {
        name: value for name, value in chosen.items() if name in ("block_q", "block_kv", "deterministic") or case.way.startswith("hopper")
    }
    before = codegen.plan
    setattr(codegen, "plan", _planned(case.way, told))
    try:
        host, units = driver._lower(case.text(), *form, {"arch": "sm_90a", **blocks})  # pyright: ignore[reportPrivateUsage]
    finally:
        setattr(codegen, "plan", before)
    return host, units, told


def compiled(case: Case, folder: Path) -> str:
    """Compiles a case into a folder; says what the compiler tells of its kernels of products."""
    from dropout_variants import save

    from attn_mlir.backends.nvidia.compile import compile_all
    from attn_mlir.errors import AttnError

    path = folder / case.name
    try:
        host, units, told = lowered(case)
        if case.way.startswith("warp") and any("not formed" in word for word in told):
            text = f"{case.name}: {'; '.join(told)}"
        else:
            binaries = dict(zip(units, compile_all([unit.code for unit in units.values()]), strict=True))
            save(path, host, units, binaries)
            each = [f"{units[name].schedule.get('emitter')} {b.registers} registers {b.spills} spilled{' SERIAL' * bool(b.warnings)}"
                    for name, b in binaries.items() if units[name].schedule.get("emitter") in ("warp", "hopper")]  # fmt: skip
            text = f"{case.name}: {'; '.join(each)}"
    except AttnError as error:
        text = f"{case.name}: {str(error)[:300]}"
    (folder / f"{case.name}.txt").write_text(text)
    return text


def build(cases: Sequence[Case], folder: Path, processes: int) -> None:
    """Compiles the cases that a folder lacks in some processes, and prints what is told of them."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = [case for case in cases if not (folder / f"{case.name}.txt").exists()]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for text in pool.map(compiled, cases, [folder] * len(cases)):
            print(text, flush=True)


def loaded(case: Case, folder: Path) -> Callable[[Sequence[Any]], list[torch.Tensor]] | None:
    """A compiled case, as a function of its inputs; None where it was not compiled."""
    from attn_mlir.backends.nvidia.compiled_kernels import unpack
    from attn_mlir.backends.nvidia.program import NvidiaLaunchPlan

    path = folder / case.name
    if not path.with_suffix(".zip").exists():
        return None
    found = unpack(path.with_suffix(".zip").read_bytes(), json.loads(path.with_suffix(".json").read_text()))
    return NvidiaLaunchPlan("", "", {}, *found).run


def inputs_of(case: Case, batch: int, heads: int, length: int, saved: Callable[..., Any] | None) -> list[Any]:
    """What a case takes; `saved` is the forward pass of a backward one."""
    wide, value = case.columns
    dtype = torch.float16 if case.element == "f16" else torch.bfloat16
    shapes = (heads, wide), (heads // case.group, wide), (heads // case.group, value)
    q, k, v = (torch.randn(batch, h, length, columns, device="cuda").to(dtype) for h, columns in shapes)
    given = [q, k, v, *FAMILIES[case.family].captured(heads, length)]
    if case.kind == "tangent":
        return [*given, *(torch.randn_like(x) for x in (q, k, v))]
    return [*given, *saved(given), torch.randn(*q.shape[:3], value, device="cuda").to(dtype)] if saved is not None else given


def compare(case: Case, runs: dict[str, Callable[..., Any]], saved: Callable[..., Any] | None) -> str:
    """The largest relative difference of each way from the first one at odd lengths, and whether two launches differ."""
    worst: dict[str, float] = {}
    marks: dict[str, str] = {}
    for length in ODD:
        inputs = inputs_of(case, 2, 4, length, saved)
        right = [x.float() for x in next(iter(runs.values()))(inputs)]
        for way, run in runs.items():
            got, again = run(inputs), run(inputs)
            apart = [float((a.float() - b).norm() / (b.norm() + 1e-2)) for a, b in zip(got, right, strict=True)]
            worst[way] = max(worst.get(way, 0.0), *(each if each == each else math.inf for each in apart))
            first = 1 if case.kind == "backward" else 0
            if not all(torch.equal(a, b) for a, b in zip(got[first:], again[first:], strict=True)):
                marks[way] = " bits differ"
    return "  ".join(f"{way} {error:.0e}{marks.get(way, '')}{' WRONG' * (error > WORST)}" for way, error in list(worst.items())[1:])


def run(cases: Sequence[Case], folder: Path, rounds: int, shapes: Shapes = SHAPES) -> None:
    """Compares and times the ways of each program in turn, at batch sizes and lengths."""
    from dropout_variants import timed

    torch.manual_seed(0)
    about = f"{cases[0].element}, groups of {cases[0].group}; TFLOP/s of the first way, speed of the others in its units"
    print(f"-- {torch.cuda.get_device_name()}, {about} at S {shapes}", flush=True)
    for key in dict.fromkeys((case.family, case.dim, case.kind) for case in cases):
        mine = [case for case in cases if (case.family, case.dim, case.kind) == key]
        runs = {case.way: made for case in mine if (made := loaded(case, folder)) is not None}
        saved = loaded(Case(*key[:2], "forward", "hopper", mine[0].element), folder) if key[2] == "backward" else None
        if len(runs) < 2 or (key[2] == "backward" and saved is None):
            print(f"{key}: only {', '.join(runs)}", flush=True)
            continue
        try:
            told = compare(mine[0], runs, saved)
            speeds = _speeds(mine[0], runs, saved, (rounds, shapes), timed)
        except Exception as error:
            print(f"{key}: {type(error).__name__} {str(error)[:200]}", flush=True)
            if "CUDA" in str(error):
                raise
            continue
        print(f"{key[2]:9} {key[0]:10} D {key[1]:7}  {speeds}   | {told}", flush=True)


def _speeds(case: Case, runs: dict[str, Callable[..., Any]], saved: Any, how: tuple[int, Shapes], timed: Callable[..., float]) -> str:
    rounds, shapes = how
    wide, value = case.columns
    work = {"backward": 6 * wide + 4 * value, "tangent": 4 * wide + 4 * value}.get(case.kind, 2 * (wide + value)) * 1e-9
    columns: dict[str, list[str]] = {way: [] for way in runs}
    for batch, length in shapes:
        inputs = inputs_of(case, batch, HEADS // wide, length, saved)
        taken: dict[str, list[float]] = {way: [] for way in runs}
        for number in range(rounds + 1):
            for way in list(runs)[:: 1 if number % 2 else -1]:
                each = timed(lambda way=way, inputs=inputs: runs[way](inputs), 3)
                if number:
                    taken[way].append(each)
        usual = sorted(taken[next(iter(runs))])[rounds // 2]
        for way, times in taken.items():
            middle = sorted(times)[rounds // 2]
            first = work * batch * (HEADS // wide) * FAMILIES[case.family].work(length) / middle
            columns[way].append(f"{first:.0f}" if not columns[way] and way == next(iter(runs)) else f"{usual / middle:.3f}")
    return "  ".join(f"{way} {' / '.join(told)}" for way, told in columns.items())


def which(cases: Sequence[Case]) -> None:
    """Prints who makes the kernels of products by default, and whether passes form them."""
    from attn_mlir.errors import UnsupportedError

    for case in cases:
        if case.way.startswith("warp"):
            told: list[str] = []
            try:
                lowered(case, told)
            except UnsupportedError as error:  # what was formed for results in f32, and is not for those in 16 bits
                told.append(f"not formed: {error}")
            print(f"{case.kind:9} {case.family:10} D {case.dim:7}: {'; '.join(told)}", flush=True)


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    for kind in options.kinds.split(","):
        for family in options.families.split(","):
            for dim in options.dims.split(","):
                if kind == "backward":
                    yield Case(family, dim, "forward", "hopper", options.element, options.group)
                for way in options.ways:
                    yield Case(family, dim, kind, way, options.element, options.group)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "run", "which"])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/families"))
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--kinds", default="inference,backward")
    parser.add_argument("--ways", nargs="+", default=["hopper", "warp"])
    parser.add_argument("--element", choices=["f16", "bf16"], default="f16")
    parser.add_argument("--group", type=int, default=1, help="heads of queries for each head of keys")
    parser.add_argument("--shapes", default=",".join(f"{batch}x{length}" for batch, length in SHAPES), help="batch sizes and lengths")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    cases = list(dict.fromkeys(_cases(options)))
    if options.what == "which":
        which(cases)
        return
    build(cases, options.folder, options.processes)
    if options.what == "run":
        shapes = [(int(batch), int(length)) for batch, _, length in (each.partition("x") for each in options.shapes.split(","))]
        run([case for case in cases if case.kind in options.kinds.split(",")], options.folder, options.rounds, shapes)


if __name__ == "__main__":
    main()
