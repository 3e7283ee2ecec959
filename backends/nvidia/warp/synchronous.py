"""Which kernels of chips without TMA come from the `warp` dialect where nobody asks for an emitter: those that passes form."""

from collections.abc import Mapping

from attn_mlir.backends.fields import tuned_name
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import CHOICES, Fields
from attn_mlir.backends.nvidia import blocks, pipeline, thresholds
from attn_mlir.backends.nvidia.forming.facts import FIELDS
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.target import TARGETS
from attn_mlir.backends.nvidia.tuning.choices import EVERY
from attn_mlir.backends.nvidia.warp.emitter import UNFORMED, print_ahead
from attn_mlir.backends.program import function_named
from attn_mlir.errors import AttnError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry

__all__ = ["DECODE", "SHARED", "UNFORMED", "is_open", "refusals", "why_not"]

SHARED = "shared_bytes"
"""In the choices of such a kernel: the shared memory of a thread block, on chips that have less than the one they are generated for."""
DECODE = "decode"
"""In the choices of kernels of single queries whose blocks are for passes, too. No driver asks for it: they have not been launched."""
_OPEN = frozenset({*FIELDS, "arch", "length", "longer", "deterministic", SHARED})
"""Choices beside which it is open who makes a kernel; others, blocks among them, are those of TileLang."""


def is_open(function: ir.Operation, facts: blocks.NvidiaFacts, tuned: Mapping[str, Fields]) -> bool:
    """Whether passes are asked first for the kernel of a function before tiling: rows or pairs of 16 bits, and nobody chose how."""
    chosen = {**tuned.get(EVERY, {}), **tuned.get(tuned_name(function), {}), **attributes.read(function, CHOICES)}
    target = TARGETS.get(str(chosen.get("arch", "")))
    if target is None or target.bulk_copies or facts.grid not in ("rows", "pairs") or facts.bits != 16 or facts.widened:
        return False
    open_ = _OPEN | ({DECODE, "block_q", "block_kv"} if DECODE in chosen else set())
    return all(name in open_ or name.startswith(attributes.LAUNCH) for name in chosen)


def why_not(function: ir.Operation, facts: blocks.NvidiaFacts) -> str:
    """What is known of an open kernel without tiling it: why it is left to another emitter; empty where passes are asked."""
    most = thresholds.SYNCHRONOUS_PRODUCTS[facts.grid]
    if facts.products > most:
        return f"a block has {facts.products} products of rows before its weights, not {most}: they spill, or have not been launched"
    known = thresholds.SYNCHRONOUS_COLUMNS[facts.grid]
    special = ("packed sequences",) if find_all(function, "attn.sequences") else ()
    special += ("sums in a fixed order",) if facts.grid == "pairs" and attributes.read(function, CHOICES).get("deterministic") else ()
    if special and max(facts.head, facts.value) > thresholds.SYNCHRONOUS_WIDE:
        return f"{' and '.join(special)} have not been launched with more than {thresholds.SYNCHRONOUS_WIDE} columns"
    other = sorted({facts.head, facts.value} - known)
    if other:
        return f"q, k and v have {' and '.join(map(str, other))} columns, not {', '.join(map(str, sorted(known)))}"
    return ""


def refusals(module: ir.Operation, names: list[str]) -> dict[str, str]:
    """Why no kernel is made of functions, by their names, which have blocks and "warp" as their emitter; a copy of the module is tiled."""
    copied = ir.Module.parse(module.get_asm(print_generic_op_form=True, enable_debug_info=True), module.context)
    handler = module.context.attach_diagnostic_handler(lambda _: True)
    try:
        Pipeline.parse(pipeline.TILING, registry()).run(copied)
    except AttnError as error:
        return dict.fromkeys(names, f"it is not tiled in these blocks: {str(error).splitlines()[0]}")
    finally:
        handler.detach()
    with module.context:
        found = {name: _refusal(function_named(copied, name)) for name in names}
    return {name: reason for name, reason in found.items() if reason}


def _refusal(kernel: ir.Operation) -> str:
    """Why passes form no kernel of a tiled function, or none that its chip runs."""
    choices = attributes.read(kernel, CHOICES)
    facts = {item.name for item in ir.DictAttr(kernel.attributes["tile.kernel"])}
    if "paged" in facts:
        return "its kernels read no keys in pages (block_table)"
    fields = {name: value for name, value in choices.items() if name in ("emitter", "arch", *FIELDS) or name.startswith(attributes.LAUNCH)}
    try:
        code = print_ahead(kernel, fields)
    except (Refused, AttnError) as reason:
        return str(reason).splitlines()[0]
    most = int(choices.get(SHARED, TARGETS[str(choices["arch"])].shared_bytes))
    return f"it needs {code.shared_bytes} bytes of shared memory, and there are {most}" if code.shared_bytes > most else ""
