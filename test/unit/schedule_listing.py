"""The IR that docs/schedule.md and schedule-ampere.md show, made by the passes: `python test/unit/schedule_listing.py` writes it again."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from attn_mlir.backends.nvidia.pipeline import WARP_AMPERE
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry
from contexts import loaded_context

ROOT = Path(__file__).parents[2]
PAGE, AMPERE, KERNEL = (ROOT / "docs" / name for name in ("schedule.md", "schedule-ampere.md", "schedule-causal.mlir"))
_BLOCK = re.compile(r"<!-- (?P<name>[\w-]+) -->\n```mlir\n(?P<text>.*?)```", re.DOTALL)
_TIDY = "canonicalize,cse"
_HEAD = (
    "// Causal softmax attention in f16, head dimension 64, as the passes of schedule.md leave it; test/unit/schedule_listing.py made it.\n"
)
_TYPES = re.compile(r" : \(.*\) -> .*$| : (index|f32|i1|tensor.*|memref.*)$")
_RESULTS = re.compile(r" -> \(.*\) \{$")
_SEGMENTS = re.compile(r" \{operandSegmentSizes = [^}]*\}|(, )?(operandS|resultS)egmentSizes = array<[^>]*>")


_HOPPER = (
    ("tiles", "nvidia-kernel"),
    ("layouts", f"warp-assign-layouts,{_TIDY}"),
    ("joined", f"warp-align-tiles,warp-order-tiles,warp-merge-masks,warp-join-loops,{_TIDY},warp-bound-columns,warp-defer-sums,{_TIDY}"),
    ("roles", f"warp-specialize,{_TIDY}"),
    ("rings", f"warp-pipeline-loads,warp-draw-tiles,{_TIDY}"),
    ("overlap", f"warp-hold-factors,warp-overlap-products,warp-stale-maximum,warp-conditional-rescale,{_TIDY}"),
    ("ping-pong", f"warp-ping-pong,{_TIDY}"),
    ("stores", f"warp-stage-stores,{_TIDY}"),
)
_TILED = WARP_AMPERE.partition(",warp-assign-layouts")[0]
_AMPERE = (
    ("layouts", f"{_TILED},warp-assign-layouts,{_TIDY}"),
    ("ahead", f"warp-order-tiles,warp-join-loops,{_TIDY},warp-prefetch-loads,{_TIDY}"),
)


def stages(passes_of: Sequence[tuple[str, str]] = _HOPPER) -> dict[str, str]:
    """The program behind `tile-schedule` and behind each pass that forms its kernel."""
    context = loaded_context()
    text = (ROOT / "test" / "Inputs" / "causal-softmax.mlir").read_text().replace("x64xf32>", "x64xf16>")
    found = {}
    with context:
        module = ir.Module.parse(text)
        for name, passes in passes_of:
            Pipeline.parse(passes, registry()).run(module)
            found[name] = module.operation.get_asm(use_name_loc_as_prefix=True)
    return found


def shown() -> dict[str, str]:
    """The excerpts of the page, by the names in front of them; types of operands are left out."""
    made = stages()
    loop = _from(made["tiles"], r"scf.for .* = %c0 to", r"scf.yield")
    layouts = _from(made["layouts"], r"%k_stage:2", r'"warp.arrive"\(%k_free')
    producer = _from(made["rings"], r"scf.for .* = %c0 to", r"arith.addi %k_count")
    consumer = made["ping-pong"][made["ping-pong"].index('sym_name = "producer"') :]
    return {
        "tiles": _folded(_short(loop)),
        "layouts": _quiet(_short(layouts)),
        "producer": _quiet(_short(producer)),
        "consumer": _quiet(_folded(_short(_from(consumer, r"scf.for .* = %c1 to", r"scf.yield .*index")))),
    }


def shown_for_ampere() -> dict[str, str]:
    """The same of the page on sm_80."""
    made = stages(_AMPERE)
    return {
        "layouts": _short(_from(made["layouts"], r"%k_stage:2", r'"warp.mma"')),
        "first": _folded(_short(_from(made["ahead"], r"scf.if", r"scf.for .* = %c0 to"))),
        "loop": _folded(_short(_from(made["ahead"], r"scf.for .* = %c0 to", r"scf.yield .*index"))),
    }


def _folded(text: str) -> str:
    """Without what is inside of maps."""
    return re.sub(r"(\.map\"\([^)]*\)) \(\{\n.*?\n +\}\)", r"\1 ({ ... })", text, flags=re.DOTALL)


def _quiet(text: str) -> str:
    """Without the arithmetic of indices, but for comparisons."""
    return "".join(line for line in text.splitlines(keepends=True) if " = arith." not in line or "cmpi" in line)


def _from(text: str, first: str, last: str) -> str:
    """The lines from the first that matches to the next that does."""
    lines = text.splitlines()
    begin = next(n for n, line in enumerate(lines) if re.search(first, line))
    end = next(n for n, line in enumerate(lines) if n > begin and re.search(last, line))
    return "\n".join(lines[begin : end + 1])


def _short(text: str) -> str:
    """Without the types of operands and results, and without what follows from the number of results."""
    lines = [_SEGMENTS.sub("", _RESULTS.sub(" {", _TYPES.sub("", line))) for line in text.splitlines()]
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "\n".join(line[indent:] for line in lines) + "\n"


def with_listings(page: str, made: dict[str, str]) -> str:
    """The page with excerpts that are current."""
    return _BLOCK.sub(lambda m: f"<!-- {m['name']} -->\n```mlir\n{made[m['name']]}```", page)


def kernel() -> str:
    """The whole kernel."""
    return _HEAD + stages()["stores"]


if __name__ == "__main__":
    PAGE.write_text(with_listings(PAGE.read_text(), shown()))
    AMPERE.write_text(with_listings(AMPERE.read_text(), shown_for_ampere()))
    KERNEL.write_text(kernel())
    sys.exit(0)
