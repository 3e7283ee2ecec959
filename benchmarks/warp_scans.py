"""Scans of linear attention with rows of o, and of dv, as the Hopper emitter and as passes of the `warp` dialect make them: checked against
float64 at odd lengths, then timed in turn.

python benchmarks/warp_scans.py build                 compiles here, without a GPU; says registers and spills, and what passes refuse
python benchmarks/warp_scans.py run [--only WORDS]    on the GPU

A case is "KxV element decay kind", as in "128x64 bf16 step fwd"; kinds are "fwd", rows of o, "state", which also takes and gives states,
"dv", and "side", "side-dv", of sequences that lie side by side: programs of one kernel. "bwd" is a whole backward pass with gradients of
decays, "seg" and "bwd-seg" are programs in segments. `--ways` are emitters with choices, as in "warp:stages=3"; in whole programs "hopper"
and "warp" make all scans, "states" is the Hopper emitter but for scans that give states alone, and "usual" what is chosen.
"""

import argparse
import itertools
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
from dropout_variants import save, timed

from attn_mlir.backends.nvidia import driver
from attn_mlir.backends.nvidia.compile import compile_all
from attn_mlir.backends.nvidia.compiled_kernels import unpack
from attn_mlir.backends.nvidia.derivatives import derivative
from attn_mlir.backends.nvidia.forming.chunk_rows import rows_and_state
from attn_mlir.backends.nvidia.forming.chunks import adds_to_state
from attn_mlir.backends.nvidia.program import NvidiaLaunchPlan
from attn_mlir.backends.nvidia.warp import emitter as warp_emitter
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.errors import AttnError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.linear import LinearDefinition, trace_linear
from attn_mlir.mlir import ir

SIZES = ((64, 64), (64, 128), (128, 64), (128, 128), (256, 64), (256, 128), (256, 256))
KINDS, SEGMENT = ("fwd", "state", "dv", "side", "side-dv", "bwd", "seg", "bwd-seg"), 1024
ODD = (1, 17, 127, 300, 1000)
SHAPES = ((8, 32, 32, 4096), (4, 80, 1, 4096), (1, 16, 16, 2048))
LONG = ((1, 16, 16, 16384), (1, 4, 4, 65536))
"""Batch, heads of v, heads of q and k, positions; those of scans in segments."""
WORST = {"f16": 2e-3, "bf16": 1.2e-2}
_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """One scan."""

    keys: int
    values: int
    element: str
    decay: str
    kind: str

    def __str__(self) -> str:
        return f"{self.keys}x{self.values} {self.element} {self.decay} {self.kind}"

    @property
    def dv(self) -> bool:
        return self.kind.endswith("dv")

    @property
    def forward(self) -> bool:
        return not self.dv and not self.kind.startswith("bwd")

    @property
    def whole(self) -> bool:
        """Whether it is a program of several kernels."""
        return self.kind in ("bwd", "seg", "bwd-seg")

    def kernel(self, way: str) -> tuple[Any, ...]:
        """The program that a way makes of it, not compiled yet. Raises AttnError."""
        emitter, _, words = way.partition(":")
        choices = {name: int(value) for name, value in (word.split("=") for word in words.split(",") if word)}
        states, offsets = self.kind == "state", "i32" if "side" in self.kind else ""
        definition = LinearDefinition(decay=self.decay, offsets=offsets, initial_state=states, final_state=states)
        text = trace_linear(definition, Inputs(self.element, self.keys, self.values)).text
        segment = SEGMENT if self.kind.endswith("seg") else 0
        wanted = ["v"] if self.dv else ["q", "k", "v", *["arg3"] * (self.decay != "none")]
        form = prepare_derivative("", [], segment=segment) if self.forward else derivative("bwd", wanted, "sm_90a", segment)
        if not self.whole:
            return driver._lower(text, *form, {"arch": "sm_90a", "emitter": emitter, **choices})  # pyright: ignore[reportPrivateUsage]
        patches = {"hopper": (warp_emitter, "makes_scan", lambda kernel: False), "warp": (warp_emitter, "makes_scan", _is_scan),
                   "states": (warp_emitter, "rows_and_state", lambda kernel: ())}  # fmt: skip
        with ExitStack() as stack:
            if emitter in patches:
                stack.enter_context(mock.patch.object(*patches[emitter]))
            return driver._lower(text, *form, {"arch": "sm_90a", **choices})  # pyright: ignore[reportPrivateUsage]

    def inputs(self, batch: int, heads: int, of_keys: int, length: int) -> list[torch.Tensor]:
        """What a program takes, drawn; sequences side by side have random lengths."""
        offsets = []
        if "side" in self.kind:
            batch, length, ends = 1, batch * length, torch.randperm(batch * length - 1)[: batch - 1].sort().values + 1
            offsets = [torch.cat((torch.zeros(1), ends, torch.tensor([length]))).int().cuda()]
        q, k = (torch.randn(batch, of_keys, length, self.keys, device="cuda").to(_DTYPES[self.element]) for _ in range(2))
        v, other = (torch.randn(batch, heads, length, self.values, device="cuda").to(_DTYPES[self.element]) for _ in range(2))
        decays = {
            "none": [],
            "step": [-0.1 * torch.rand(batch, heads, length, device="cuda")],
            "head": [-0.1 * torch.rand(heads, device="cuda")],
        }
        state = [torch.randn(batch, heads, self.keys, self.values, device="cuda")] if self.kind == "state" else []
        return [q, k, v, *decays[self.decay], *state, *offsets, *([] if self.forward else [torch.zeros_like(v), other])]

    def right(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The results in float64, of all pairs."""
        if self.kind.startswith("bwd"):
            leaves = [x.double().requires_grad_() for x in inputs[: 3 + (self.decay != "none")]]
            (o,) = Case(self.keys, self.values, self.element, self.decay, "fwd").right(leaves)
            return list(torch.autograd.grad(o, leaves, inputs[-1].double()))
        q, k, v = (x.double() for x in inputs[:3])
        q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
        steps = torch.zeros(v.shape[:3], device="cuda", dtype=torch.float64)
        if self.decay != "none":
            steps = steps + (inputs[3] if self.decay == "step" else inputs[3][:, None]).double()
        sums = steps.cumsum(2)
        pairs = (q @ k.mT) * (sums.unsqueeze(3) - sums.unsqueeze(2)).tril().exp().tril()
        if "side" in self.kind:
            offsets = inputs[3 + (self.decay != "none")]
            number = torch.searchsorted(offsets[1:].contiguous(), torch.arange(v.shape[2], device="cuda"), right=True)
            pairs = torch.where(number[:, None] == number, pairs, 0.0)
        if self.dv:
            return [pairs.mT @ inputs[-1].double()]
        if self.kind != "state":
            return [pairs @ v]
        state, whole = inputs[-1].double(), sums[:, :, -1:]
        o = pairs @ v + (q * sums.exp().unsqueeze(3)) @ state
        return [o, whole.exp().unsqueeze(3) * state + (k * (whole - sums).exp().unsqueeze(3)).mT @ v]


def _is_scan(kernel: ir.Operation) -> bool:
    """Whether passes form a scan over chunks, whoever makes it faster."""
    return bool(adds_to_state(kernel) or rows_and_state(kernel))


def cases(only: str) -> Iterator[Case]:
    """Those whose names have one of these words each."""
    for size, element, decay, kind in itertools.product(SIZES, ("bf16", "f16"), ("step", "head", "none"), KINDS):
        case = Case(*size, element, decay, kind)
        usual = (element, decay) == ("bf16", "step") or (size in ((64, 64), (128, 128)) and kind in ("fwd", "bwd"))
        if usual and all(any(one in str(case).split() for one in word.split("|")) for word in only.split()):
            yield case


Launch = Callable[[Any], Any]


def build(wanted: list[Case], ways: list[str], folder: Path) -> dict[tuple[Case, str], Path]:
    """Compiles the kernels of all cases; says what the compiler tells."""
    keys = list(itertools.product(wanted, ways))
    paths = [folder / str(number) for number in range(len(keys))]
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1, len(keys)), get_context("spawn")) as pool:
        for key, path, told in zip(keys, paths, pool.map(_made, keys, paths), strict=True):
            print(f"{key[0]} {key[1]}: {told}{'' if path.with_suffix('.zip').exists() else ' NOT MADE'}", flush=True)
    return {key: path for key, path in zip(keys, paths, strict=True) if path.with_suffix(".zip").exists()}


def _made(key: tuple[Case, str], path: Path) -> str:
    case, way = key
    try:
        host, units = case.kernel(way)
        binaries = dict(zip(units, compile_all([unit.code for unit in units.values()]), strict=True))
    except AttnError as error:
        return str(error)
    save(path, host, units, binaries)
    told = [f"{b.registers} registers, {b.spills} spills, {u.code.shared_bytes} bytes, {u.code.occupancy} at once"
            for b, u in zip(binaries.values(), units.values(), strict=True)]  # fmt: skip
    return "; ".join(told)


def load(path: Path) -> Launch:
    """A compiled program."""
    fields = json.loads(path.with_suffix(".json").read_text())
    return NvidiaLaunchPlan("", "", {}, *unpack(path.with_suffix(".zip").read_bytes(), fields)).run


def check(case: Case, way: str, launch: Launch) -> bool:
    """Whether results are right at odd lengths, and two launches give the same bits; prints the errors."""
    errors, fits = [], True
    for length in ODD:
        inputs = case.inputs(2, 4, 2, length)
        got, again, right = launch(inputs), launch(inputs), case.right(inputs)
        worst = max(float((a.double() - b).norm() / (b.norm() + 1e-9)) for a, b in zip(got, right, strict=True))
        same = all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
        fits &= worst < WORST[case.element] and same
        errors.append(f"{worst:.0e}{'' if same else '!'}")
    print(f"{case} {way}: {' '.join(errors)}{'' if fits else ' WRONG'}", flush=True)
    return fits


def measure(case: Case, launches: dict[str, Launch], rounds: int) -> None:
    """Prints microseconds of the first way, and the speed of all others in its units."""
    told = []
    for batch, heads, of_keys, length in LONG if case.kind.endswith("seg") else SHAPES:
        if case.dv and of_keys == 1:
            continue
        inputs = case.inputs(batch, heads, of_keys, length)
        best = dict.fromkeys(launches, float("inf"))
        for number in range(rounds + 1):
            for way in list(launches)[:: 1 if number % 2 else -1]:
                taken = timed(lambda launch=launches[way], inputs=inputs: launch(inputs), 5)
                best[way] = min(best[way], taken) if number else best[way]
        first, *others = best.values()
        told.append(f"B{batch} H{heads} S{length} {1e3 * first:.0f} us {' '.join(f'{first / taken:.3f}' for taken in others)}")
    print(f"{case}: {' | '.join(told)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("build", "run"))
    parser.add_argument("--only", default="", help="words that names of cases have, alternatives with |")
    parser.add_argument("--ways", default="hopper warp")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    wanted, ways = list(cases(options.only)), options.ways.split()
    with TemporaryDirectory() as folder:
        made = build(wanted, ways, Path(folder))
        if options.part == "build":
            return
        torch.manual_seed(0)
        programs = {key: load(path) for key, path in made.items()}
        right = {key for key, launch in programs.items() if check(*key, launch)}
        print(f"-- {torch.cuda.get_device_name()}: us of {ways[0]}, then the speed of {', '.join(ways[1:])} in its units", flush=True)
        for case in wanted:
            launches = {way: programs[case, way] for way in ways if (case, way) in right}
            if len(launches) > 1:
                measure(case, launches, options.rounds)


if __name__ == "__main__":
    main()
