"""Damaged input for the tools: which file, through which passes and with which arguments, all by the number of the job."""

import random
import re
from functools import cache
from pathlib import Path

from attn_mlir.backends import load_backends
from attn_mlir.passes.options import full_spec
from attn_mlir.registry import registry
from fuzz_pool import Job
from mutations import damage, exchange, restructure

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("attn-opt", "attn-run", "attn-translate")
_UPSTREAM = ("cse", "canonicalize", "func.func(cse)", "symbol-dce", "inline", "convert-scf-to-cf", "sccp", "lower-affine", "")
_SMALL: tuple[str, ...] = ("--q-len 3 --kv-len 5 --batch 1", "--q-len 1 --kv-len 1", "--q-len 4 --kv-len 2 --heads 2 --batch 1")
_FLAGS = {
    "attn-opt": ("--split-input-file", "--verify-diagnostics", "--print-ir-after-all", "--mlir-print-op-generic", "--mlir-print-debuginfo",
                 "--timing", "--attn-explain", "--show-passes", "--print-ir-after=attn-tile", "--attn-tile=block-q=0", "--nothing"),
    "attn-run": ("--after-each", "--keep-types", "--round", "--split=2", "--split=0", "--block=1,2", "--block=x", "--q-block=3",
                 "--ints=0:1", "--ints=3", "--wrt=q", "--wrt=nobody", "--function=attention_bwd",
                 "--function=nobody", "--tolerance=nan", "--heads=3",
                 "--kv-heads=0", "--capture-size=0", "--capture-size=-1", "--index=-5", "--seed=-1", "--device=cpu", "--device=abacus",
                 "--primal=nothing.mlir", "--against=nothing.mlir"),
    "attn-translate": ("--report", "--to=nothing", "--to", "-o/nowhere/x", "--output"),
}  # fmt: skip


def corpus() -> list[str]:
    """The parts of all test inputs, without comments, which would only be damaged to no effect."""
    texts = [path.read_text() for path in sorted((ROOT / "test").rglob("*.mlir"))]
    parts = [part for text in texts for part in re.split(r"^// -----.*\n", text, flags=re.MULTILINE)]
    return [cleaned for part in parts if (cleaned := re.sub(r"^\s*//.*\n", "", part, flags=re.MULTILINE)).strip()]


_corpus = cache(corpus)


@cache
def programs() -> list[str]:
    """Whole programs, which get furthest."""
    folder = ROOT / "test" / "Inputs"
    return [path.read_text() for path in sorted(folder.rglob("*.mlir"))]


def job_of(tool: str, number: int, seed: int, folder: Path) -> Job:
    """The job of a number; its input is written to a file in `folder`."""
    rng = random.Random(f"{tool} {number} {seed}")
    path = folder / f"case{number}.mlir"
    path.write_bytes(_input(rng))
    arguments = {"attn-opt": _opt, "attn-run": _run, "attn-translate": _translate}[tool](rng)
    damaged = rng.random() < 0.2
    if damaged:
        arguments.insert(rng.randrange(len(arguments) + 1), rng.choice(_FLAGS[tool]))
    return Job(tool, (str(path), *arguments), str(path), damaged or "-p=damaged" in arguments or _is_damaged(arguments))


def _input(rng: random.Random) -> bytes:
    text = rng.choice(programs() if rng.random() < 0.5 else _corpus())
    kind = rng.random()
    if kind < 0.35:
        return damage(text, rng)
    text = restructure(text, rng) if kind < 0.6 else text
    return exchange(text, rng) if kind < 0.95 else text.encode()


def _opt(rng: random.Random) -> list[str]:
    return ["-p", _pipeline(rng)] if rng.random() < 0.9 else []


def _run(rng: random.Random) -> list[str]:
    sizes = rng.choice(_SMALL).split()
    return [*sizes, "-p", _pipeline(rng)] if rng.random() < 0.5 else sizes


def _translate(rng: random.Random) -> list[str]:
    targets = sorted(name for backend in load_backends().values() for name in backend.translations)
    return ["--to", rng.choice([name for name in targets if not name.endswith("-report")])]


def _pipeline(rng: random.Random) -> str:
    """Some passes in an order that may suit the input, seldom damaged."""
    known = registry()
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(sorted(known.pipelines))
    if kind < 0.5:
        return rng.choice(_UPSTREAM)
    names = list(known.passes)
    text = ",".join(sorted(rng.sample(names, rng.randint(1, 4)), key=names.index)) if kind < 0.8 else _with_options(rng)
    return exchange_pipeline(text, rng) if kind > 0.9 else text


def _with_options(rng: random.Random) -> str:
    """One pass, its options at their defaults, or with other numbers."""
    known = registry()
    text = full_spec(known.load(rng.choice(list(known.passes)))).replace("<required>", "fwd")
    return re.sub(r"(?<==)\d+", lambda _: str(rng.choice((0, 1, -1, 3, 64, 10**20))), text)


def exchange_pipeline(text: str, rng: random.Random) -> str:
    """A pipeline with a character or two that do not belong there; marked by a space at its end."""
    for _ in range(rng.randint(1, 2)):
        place = rng.randrange(len(text) + 1)
        text = text[:place] + rng.choice("{}(),=-' \0é0%\n") + text[place + rng.randint(0, 3) :]
    return text + " "


def _is_damaged(arguments: list[str]) -> bool:
    """Whether the arguments may be refused by themselves: the pipeline, or a format of several files without a place for them."""
    pipeline = arguments[arguments.index("-p") + 1] if "-p" in arguments else ""
    return pipeline.endswith(" ") or "{" in pipeline or not {"cubin", "warp-cubin"}.isdisjoint(arguments)
