"""Kernels whose first part runs before them, for all chunks at the same time: what the host is told, and its steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attn_mlir.backends.gpu.stored_forms import StoredForms
from attn_mlir.backends.host import Argument, Host, HostStep, StepResult
from attn_mlir.backends.sizes import SizeStep
from attn_mlir.mlir import ir

PREPARED = "gpu.prepared"
"""An attribute of a kernel: the name of the one that runs before it, which of this one's inputs that takes, and the columns and elements of
the tensors [B, H, T, columns] which it makes, T a multiple of a chunk, arguments after this kernel's inputs. -n columns: a tensor
[B, H, N n], n numbers for each of N chunks.
"""


def describe(name: str, inputs: Sequence[int], types: Sequence[ir.Type], lengths: Sequence[int]) -> ir.Attribute:
    """The attribute; `lengths` tells how many numbers a chunk has in each tensor, 0 where it has rows of columns."""
    memory = [ir.MemRefType(type_) for type_ in types]
    index = ir.IntegerType.get_signless(64)
    sizes = [-length if length else type_.shape[3] for type_, length in zip(memory, lengths, strict=True)]
    columns, places = (ir.ArrayAttr.get([ir.IntegerAttr.get(index, number) for number in numbers]) for numbers in (sizes, inputs))
    elements = ir.ArrayAttr.get([ir.StringAttr.get(str(type_.element_type)) for type_ in memory])
    return ir.DictAttr.get({"kernel": ir.StringAttr.get(name), "inputs": places, "columns": columns, "elements": elements})


@dataclass
class _First:
    """The first part of a kernel: its step, of the host's values, what it stores, and where its results are once it ran."""

    step: HostStep
    forms: tuple[int, ...]
    made: int = -1


def with_prepared(module: ir.Module, host: Host) -> Host:
    """The host function with steps for these kernels.

    What one of them stores, others may, too, as scans of the same segments do: the one that stores most runs for all that need no more.
    """
    functions = {ir.StringAttr(view.operation.attributes["sym_name"]).value: view.operation for view in module.body.operations}
    firsts = _firsts(functions, host)
    numbers, steps, made = list(range(len(host.arguments))), list[HostStep](), len(host.arguments)
    for place, step in enumerate(host.steps):
        operands = tuple(numbers[operand] for operand in step.operands)
        if place in firsts:
            own = firsts[place]
            # The operands of what runs for others must be there before the first of these.
            fit = [each for each in firsts.values() if set(own.forms) <= set(each.forms) and max(each.step.operands) < len(numbers)]
            first = max(fit, key=lambda each: (each.made >= 0, len(each.forms)))
            if first.made < 0:
                steps.append(replace(first.step, operands=tuple(numbers[operand] for operand in first.step.operands)))
                first.made, made = made, made + len(first.step.results)
            operands += tuple(first.made + first.forms.index(form) for form in own.forms)
        steps.append(replace(step, operands=operands))
        numbers += range(made, made + len(step.results))
        made += len(step.results)
    return replace(host, steps=tuple(steps), returns=tuple(numbers[value] for value in host.returns))


def _firsts(functions: dict[str, ir.Operation], host: Host) -> dict[int, _First]:
    """The first parts of the kernels that have one, by the number of their step."""
    known, found = StoredForms(), dict[int, _First]()
    for place, step in enumerate(host.steps):
        function = functions.get(step.kernel)
        if function is not None and PREPARED in function.attributes:
            before = _before(function, step)
            found[place] = _First(before, known.of(functions[before.kernel], before.operands))
    return found


def _before(function: ir.Operation, step: HostStep) -> HostStep:
    """The step of the first part."""
    facts = ir.DictAttr(function.attributes[PREPARED])
    kernel = ir.DictAttr(function.attributes["tile.kernel"])
    inputs = [ir.IntegerAttr(each).value for each in ir.ArrayAttr(facts["inputs"])]
    over, chunk = (ir.IntegerAttr(kernel[name]).value for name in ("over", "block_q"))
    over = inputs.index(over)
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
    return HostStep(ir.StringAttr(facts["kernel"]).value, tuple(step.operands[place] for place in inputs), tuple(results))
