"""What a report shows of programs for the CPU."""

from collections import Counter
from collections.abc import Sequence

from attn_mlir.backends.cpu import pipeline
from attn_mlir.backends.cpu.driver import PARTNERS
from attn_mlir.backends.cpu.program import function_named
from attn_mlir.backends.cpu.target import host
from attn_mlir.backends.host import read_host
from attn_mlir.backends.program import keep_kernels, prepare_derivative, reported
from attn_mlir.backends.seen import Facts, Seen, StageRecorder
from attn_mlir.dialects import loaded
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all, walk
from attn_mlir.registry import registry

_STEPS = tuple(step for step in pipeline.LLVM.split(",") if not step.startswith("cpu-lower"))
_SKIPPED = tuple(step.partition("{")[0] + (")" if "(" in step else "") for step in _STEPS)
"""Upstream conversions, of which only the result is shown."""


def see(source: str, function: str, wrt: Sequence[str], binaries: bool) -> Seen:
    """See `Backend.see`."""
    recorder = StageRecorder(source)
    with reported(), loaded():
        module = ir.Module.parse(source)
        linear = bool(find_all(module.operation, "attn.linear_attention"))
        if function or linear or PARTNERS in source:
            name, prepare = prepare_derivative(function, wrt, pipeline.OUTLINE, residual=True, options=pipeline.DECAYS)
            Pipeline.parse(prepare, registry()).run(module, after=[recorder])
            keep_kernels(module, read_host(function_named(module, name)))
        Pipeline.parse(pipeline.KERNEL, registry()).run(module, after=[recorder])
        kernels = {_name(op): _kernel(op) for op in find_all(module.operation, "func.func") if "tile.kernel" in op.attributes}
        recorder.skipped = _SKIPPED
        Pipeline.parse(pipeline.LLVM, registry()).run(module, after=[recorder])
        recorder.add("llvm", module.operation)
        facts = tuple(
            Facts(name, (*kernels[name], *_compiled(op)))
            for op in find_all(module.operation, "llvm.func")
            if (name := _name(op)) in kernels
        )
    return Seen(recorder.stages, recorder.schedule, (), facts, recorder.block)


def _name(function: ir.Operation) -> str:
    return ir.StringAttr(function.attributes["sym_name"]).value


def _kernel(function: ir.Operation) -> list[tuple[str, str]]:
    """What the scheduled kernel says."""
    given = ir.DictAttr(function.attributes["tile.kernel"])
    facts = [
        (name.replace("_", " "), str(given[name]).split(" : ")[0].strip('"')) for name in ("grid", "block_q", "block_kv") if name in given
    ]
    buffers = {
        int(ir.IntegerAttr(n).value) for op in walk(function) if "buffer" in op.attributes for n in ir.ArrayAttr(op.attributes["buffer"])
    }
    return [*facts, ("tile buffers", str(len({number for number in buffers if number >= 0})))]


def _compiled(function: ir.Operation) -> list[tuple[str, str]]:
    """What its LLVM IR says: vectors, stack buffers, and how many of which ops the text holds."""
    counts, widths, stack = Counter[str](), Counter[str](), 0
    for op in walk(function):
        counts[op.name.rpartition(".")[2]] += 1
        for result in op.results:
            if isinstance(result.type, ir.VectorType) and op.name.startswith("llvm.intr.fm"):
                widths[str(result.type)] += 1
        if op.name == "llvm.alloca":
            stack += _bytes(op)
    named = {"fmuladd": "multiply-adds", "load": "loads", "store": "stores", "masked": "masked accesses", "call": "calls"}
    told = ", ".join(f"{counts[key]} {name}" for key, name in named.items() if counts[key])
    vectors = ", ".join(f"{name} ({count} multiply-adds)" for name, count in widths.most_common()) or "none in products"
    return [
        ("processor", host().name),
        ("vectors", vectors),
        ("buffers on the stack", f"{stack:,} bytes a thread"),
        ("instructions of the text", f"{sum(counts.values()):,}: {told}"),
    ]


def _bytes(op: ir.Operation) -> int:
    """Of an `llvm.alloca` of a constant number of elements; 0 where that is not known."""
    owner = op.operands[0].owner
    if isinstance(owner, ir.Block) or owner.operation.name != "llvm.mlir.constant":
        return 0
    element = str(ir.TypeAttr(op.attributes["elem_type"]).value)
    sizes = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i8": 1, "i1": 1, "i32": 4, "i64": 8}
    return ir.IntegerAttr(owner.operation.attributes["value"]).value * sizes.get(element, 0)
