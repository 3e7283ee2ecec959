"""Forward kernels of the `warp` dialect beside those of the Hopper emitter, compiled ahead: checked against float64, then timed in turn.

python benchmarks/warp_forward.py build FOLDER    compiles here, without a GPU (ATTN_MLIR_CUDA_COMPILER=nvcc)
python benchmarks/warp_forward.py run FOLDER      on the GPU: needs torch and the driver, neither a compiler nor MLIR's bindings
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from dropout_variants import program, save, timed

DIMS, CASES = (64, 128), ("causal", "full", "sigmoid", "alibi")
KINDS = {
    "hopper": (),
    "warp": (),
    "plain": ("warp-order-tiles", "warp-join-loops", "warp-ping-pong", "warp-stage-stores"),
    "no-order": ("warp-order-tiles",),
    "two-loops": ("warp-join-loops",),
    "no-turns": ("warp-ping-pong",),
    "no-stage": ("warp-stage-stores",),
    "no-sums": ("warp-defer-sums",),
    "no-held": ("warp-hold-factors",),
    "no-stale": ("warp-stale-maximum",),
    "no-vote": ("warp-conditional-rescale",),
    "no-masks": ("warp-merge-masks", "warp-bound-columns"),
    "one-stage": ("warp-pipeline-tiles",),
    "ahead": ("warp-reverse-keys",),
    "start": ("warp-align-tiles",),
    "static": (),
}
"""The Hopper emitter's kernels, those of all passes, those that lack some, and those whose thread blocks have a share of the tiles."""
LENGTHS, SHAPES, SLOPE = (1, 17, 127, 300, 1000), ((4, 4096), (2, 8192)), 0.0625


def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Falls with the distance; one slope for all heads."""
    return score - SLOPE * (q_idx - kv_idx)


def scheduled(function: Any, without: Sequence[str] = (), joined: bool = False, fields: Mapping[str, int] | None = None) -> Any:
    """The code of a kernel that `tile-schedule` has left, through the passes behind it but some.

    `joined`: loops are joined whatever the schedule says. `fields` are added to the schedule.
    """
    from attn_mlir.backends.gpu import attributes
    from attn_mlir.backends.nvidia import pipeline
    from attn_mlir.backends.nvidia.warp.translate import codes_of
    from attn_mlir.mlir import ir
    from attn_mlir.passes.pipeline import Pipeline
    from attn_mlir.passes.regions import find_all
    from attn_mlir.registry import registry

    text = function.get_asm(print_generic_op_form=True)
    module = ir.Module.parse(f"module {{\n{text}\n}}", function.context)
    (parsed,) = find_all(module.operation, "func.func")
    known = attributes.read(parsed, attributes.SCHEDULE)
    with function.context:
        parsed.attributes[attributes.SCHEDULE] = attributes.write({**known, **(fields or {})})
    passes = [name for name in pipeline.SCHEDULE.split(",") if name not in without]
    passes = [f"{name}{{join=true}}" if joined and name == "warp-join-loops" else name for name in passes]
    Pipeline.parse(",".join(passes), registry()).run(module)
    return codes_of(module)[0]


def build(folder: Path, kinds: list[str], cases: list[str]) -> None:
    """Compiles the kernels of every case and writes them to `folder`; says what the compiler tells, or why there is none."""
    from attn_mlir.backends.nvidia import codegen

    emit = codegen.emit
    for name in cases:
        for dim in DIMS:
            for kind in kinds:
                made = partial(scheduled, without=KINDS[kind], fields={"draw": 0} if kind == "static" else {})
                setattr(codegen, "emit", emit if kind == "hopper" else made)
                build_one(folder / f"{kind}-{name}-{dim}", name, dim, {"arch": "sm_90a"})


def build_one(path: Path, name: str, dim: int, choices: Mapping[str, int | str]) -> None:
    """Compiles the kernels of a case with these choices, and writes them; says what the compiler tells, or why there is none."""
    import attn_mlir
    from attn_mlir.backends.nvidia import driver
    from attn_mlir.backends.nvidia.compile import compile_all
    from attn_mlir.backends.program import OUTLINE
    from attn_mlir.errors import AttnError
    from attn_mlir.frontend.emit import Inputs

    path.parent.mkdir(parents=True, exist_ok=True)
    causal = {"mask_mod": attn_mlir.masks.causal()}
    forms = {"causal": causal, "full": {}, "sigmoid": {**causal, "row": attn_mlir.rows.sigmoid}, "alibi": {**causal, "score_mod": alibi}}
    call = attn_mlir.Attention(**forms[name])
    call.__dict__.update(_last=Inputs("f16", dim, dim), _form=None)
    try:
        host, units = driver._lower(call.ir(), "attention", OUTLINE, dict(choices))  # pyright: ignore[reportPrivateUsage]
        binaries = dict(zip(units, compile_all([unit.code for unit in units.values()]), strict=True))
    except AttnError as error:
        print(f"{path.name}: {error}", flush=True)
        return
    save(path, host, units, binaries)
    told = ", ".join(f"{binary.registers} registers, {binary.spills} bytes of spills" for binary in binaries.values())
    print(f"{path.name}: {told}", flush=True)


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, name: str) -> torch.Tensor:
    """The formula."""
    s, at = q @ k.mT / math.sqrt(q.shape[-1]), torch.arange(q.shape[2], device=q.device)
    present = torch.ones(len(at), len(at), dtype=torch.bool, device=q.device)
    present = present if name == "full" else present.tril()
    s = s - SLOPE * (at[:, None] - at) if name == "alibi" else s
    return (s.sigmoid() * present if name == "sigmoid" else s.masked_fill(~present, -torch.inf).softmax(-1)) @ v


def drawn(batch: int, heads: int, length: int, dim: int) -> list[Any]:
    """q, k and v."""
    return [torch.randn(batch, heads, length, dim, device="cuda").half() for _ in range(3)]


def captured(name: str) -> list[Any]:
    """What the program takes behind q, k and v: numbers that its functions read are arguments."""
    return [SLOPE] if name == "alibi" else []


def run(folder: Path, rounds: int, kinds: list[str], cases: list[str], usual: str = "hopper") -> None:
    """Prints relative errors at odd lengths, with a mark where a second launch gives other bits; then times beside the `usual` kind."""
    torch.manual_seed(0)
    made: dict[tuple[str, int], dict[str, Callable[[Any], list[torch.Tensor]]]] = {}
    for dim in DIMS:
        for name in cases:
            there = [kind for kind in kinds if (folder / f"{kind}-{name}-{dim}.zip").exists()]
            made[name, dim] = {kind: program(folder, f"{kind}-{name}-{dim}") for kind in there}
            for kind, launch in made[name, dim].items():
                errors = []
                for length in LENGTHS:
                    inputs = drawn(2, 3, length, dim)
                    q, k, v = (x.double() for x in inputs)
                    inputs += captured(name)
                    (o, *_), wanted = launch(inputs), dense(q, k, v, name)
                    differs = not torch.equal(launch(inputs)[0], o)
                    errors.append(f"{float((o.double() - wanted).norm() / wanted.norm()):.0e}{'!' * differs}")
                print(f"{kind:9} {name:7} D {dim:3}  {'  '.join(errors)}", flush=True)
    print(f"-- {torch.cuda.get_device_name()}, f16, TFLOP/s, and the speed in units of that of {usual}'s kernel")
    for (name, dim), launches in made.items():
        for batch, length in SHAPES:
            inputs = [*drawn(batch, 2048 // dim, length, dim), *captured(name)]
            best: dict[str, float] = {}
            for number in range(rounds + 1):
                for kind in list(launches)[:: 1 if number % 2 else -1]:
                    taken = timed(lambda launch=launches[kind], inputs=inputs: launch(inputs), 5)
                    best[kind] = min(best.get(kind, taken), taken) if number else taken
            work = 4e-9 * batch * 2048 * length**2 * (1 if name == "full" else 0.5)
            told = "  ".join(f"{kind} {work / taken:.0f} {best[usual] / taken:.2f}" for kind, taken in best.items() if usual in best)
            print(f"{name:7} D {dim:3} S {length}  {told}", flush=True)


def main() -> None:
    """Reads the command line."""
    options = parsed(__doc__, KINDS, "hopper")
    if options.what == "build":
        build(options.folder, options.kinds, options.cases)
    else:
        run(options.folder, options.rounds, options.kinds, options.cases)


def parsed(doc: str | None, known: Sequence[str] | Mapping[str, Any], usual: str) -> argparse.Namespace:
    """The command line: what to do, where, with which kinds of kernels, the `usual` one always, and cases."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kinds", default=",".join(known), help=f"which of the kernels, separated by commas; those of {usual} always")
    parser.add_argument("--cases", default=",".join(CASES))
    options = parser.parse_args()
    options.kinds, options.cases = list(dict.fromkeys([usual, *options.kinds.split(",")])), options.cases.split(",")
    unknown = [name for name in options.kinds if name not in known] + [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"not one of {', '.join((*known, *CASES))}: {', '.join(unknown)}")
    return options


if __name__ == "__main__":
    main()
