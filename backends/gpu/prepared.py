"""Kernels whose first part runs before them, for all chunks at the same time: what the host is told, and its steps."""

from collections.abc import Sequence
from dataclasses import replace

from attn_mlir.backends.host import Argument, Host, HostStep, StepResult
from attn_mlir.backends.sizes import SizeStep
from attn_mlir.mlir import ir

PREPARED = "gpu.prepared"
"""An attribute of a kernel: the name of the one that runs before it, and the columns and elements of the tensors [B, H, T, columns] which
that makes, T a multiple of a chunk, arguments after this kernel's inputs. -n columns: a tensor [B, H, N n], n numbers for each of N chunks.
"""


def describe(name: str, types: Sequence[ir.Type], lengths: Sequence[int]) -> ir.Attribute:
    """The attribute; `lengths` tells how many numbers a chunk has in each tensor, 0 where it has rows of columns."""
    memory = [ir.MemRefType(type_) for type_ in types]
    index = ir.IntegerType.get_signless(64)
    sizes = [-length if length else type_.shape[3] for type_, length in zip(memory, lengths, strict=True)]
    columns = ir.ArrayAttr.get([ir.IntegerAttr.get(index, size) for size in sizes])
    elements = ir.ArrayAttr.get([ir.StringAttr.get(str(type_.element_type)) for type_ in memory])
    return ir.DictAttr.get({"kernel": ir.StringAttr.get(name), "columns": columns, "elements": elements})


def with_prepared(module: ir.Module, host: Host) -> Host:
    """The host function with steps for these kernels."""
    functions = {ir.StringAttr(view.operation.attributes["sym_name"]).value: view.operation for view in module.body.operations}
    numbers, steps, made = list(range(len(host.arguments))), list[HostStep](), len(host.arguments)
    for step in host.steps:
        step = replace(step, operands=tuple(numbers[operand] for operand in step.operands))
        function = functions.get(step.kernel)
        if function is not None and PREPARED in function.attributes:
            before = _before(function, step)
            steps.append(before)
            step = replace(step, operands=(*step.operands, *range(made, made + len(before.results))))
            made += len(before.results)
        steps.append(step)
        numbers += range(made, made + len(step.results))
        made += len(step.results)
    return replace(host, steps=tuple(steps), returns=tuple(numbers[value] for value in host.returns))


def _before(function: ir.Operation, step: HostStep) -> HostStep:
    """The step of the first part, of the same operands."""
    facts = ir.DictAttr(function.attributes[PREPARED])
    kernel = ir.DictAttr(function.attributes["tile.kernel"])
    over, chunk = (ir.IntegerAttr(kernel[name]).value for name in ("over", "block_q"))
    heads, results = tuple((SizeStep("size", over, axis),) for axis in range(2)), []
    chunks = (SizeStep("size", over, 2), SizeStep("number", chunk), SizeStep("ceil"))
    for columns, element in zip(ir.ArrayAttr(facts["columns"]), ir.ArrayAttr(facts["elements"]), strict=True):
        count, kind = ir.IntegerAttr(columns).value, ir.StringAttr(element).value
        if count > 0:
            rows = (*chunks, SizeStep("number", chunk), SizeStep("*"))
            results.append(StepResult((*heads, rows, (SizeStep("number", count),)), Argument(kind, (-1, -1, -1, count))))
        else:
            numbers = (*chunks, SizeStep("number", -count), SizeStep("*"))
            results.append(StepResult((*heads, numbers), Argument(kind, (-1, -1, -1))))
    return HostStep(ir.StringAttr(facts["kernel"]).value, step.operands, tuple(results))
