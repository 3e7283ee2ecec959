"""What a report shows of programs for the emulation of Hopper: `warp` kernels, their CUDA, and the timeline of their roles."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.seeing import Known, compilers_word, emitted, kernels_in, watched
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.compiled_kernels import round_results
from attn_mlir.backends.nvidia.derivatives import derivative
from attn_mlir.backends.nvidia.emulation import CHIPS, choices_of
from attn_mlir.backends.nvidia.emulation.kernel import refusal
from attn_mlir.backends.nvidia.forming.facts import target_of
from attn_mlir.backends.nvidia.forming.refusal import reasons
from attn_mlir.backends.nvidia.warp import kernel_code, rules_for
from attn_mlir.backends.nvidia.warp.emitter import passes_for
from attn_mlir.backends.program import reported
from attn_mlir.backends.seen import Facts, Seen, StageRecorder, Timeline
from attn_mlir.dialects import loaded
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.errors import EvaluationError
from attn_mlir.reference.inputs import Sizes
from attn_mlir.reference.scalar import element_type
from attn_mlir.reference.tiles import inputs_of
from attn_mlir.reference.warp import Costs, Fault, arguments_of, check_registers, kernels_of, run_timed
from attn_mlir.reference.warp.registers import BESIDE
from attn_mlir.registry import registry

_BLOCKS_OF_QUERIES, _BLOCKS_OF_KEYS = 2, 4
_COPY_LATENCY = 600
"""Cycles, about those of global memory."""
_TIDY = ("canonicalize", "cse")


def see(
    source: str, function: str, wrt: Sequence[str], compiled: Callable[[Sequence[KernelCode]], list[Known]] | None, device: str
) -> Seen:
    """See `Backend.see`; `compiled` tells what a compiler says of kernels."""
    recorder = StageRecorder(source)
    prepared = derivative(function, wrt, CHIPS[device])
    with reported(), loaded() as context:
        module, host = watched(context, recorder, prepared, choices_of(device), pipeline.TILED_FOR_WARP, "NVIDIA")
        round_results(module, host)
        inputs = {_name(kernel): inputs_of(kernel) for kernel in kernels_in(module, host)}
        problem = _square(recorder.block) if wrt else _problem(recorder.block)
        recorder.skipped = _TIDY
        Pipeline.parse(passes_for(*find_all(module.operation, "func.func")), registry()).run(module, after=[recorder])
        kernels = kernels_of(module)
        if kernels:
            recorder.form(module.operation)
        made = [emitted(kernel, lambda kernel: kernel_code(kernel, rules_for(kernel))) for kernel in kernels]
        facts = [Facts(code.name, tuple(_known(kernel, code))) for kernel, (code, _) in zip(kernels, made, strict=True)]
        timelines = [Timeline(_name(op), why=refusal(op)) for op in find_all(module.operation, "func.func")]
        draw = _of_square if wrt else _arguments
        timelines += [_timeline(kernel, problem, draw(kernel, problem, inputs[_name(kernel)])) for kernel in kernels]
    told = compilers_word([code for code, _ in made], compiled)
    facts = [Facts(each.kernel, (*each.known, *more)) for each, more in zip(facts, told, strict=True)]
    shown = tuple(code for _, code in made)
    return Seen(recorder.stages, recorder.schedule, shown, tuple(facts), recorder.block, recorder.formed, tuple(timelines))


def _name(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["sym_name"]).value


def _problem(block: tuple[int, int] | None) -> Sizes:
    """One head with a few blocks of queries and keys."""
    queries, keys = block or (128, 128)
    return Sizes(1, 1, 1, _BLOCKS_OF_QUERIES * queries, _BLOCKS_OF_KEYS * keys)


def _square(block: tuple[int, int] | None) -> Sizes:
    """One head with as many queries as keys, a few blocks of them: all tensors of its derivatives have one shape."""
    length = _BLOCKS_OF_QUERIES * max(block or (128, 128))
    return Sizes(1, 1, 1, length, length)


def _of_square(kernel: ir.Operation, problem: Sizes, inputs: int) -> list[Any]:
    """Arguments of a kernel of derivatives: tensors over positions at random, captures, and zeros, to which sums may be added.

    Sums in slots have one of them. A counter is 0. A number behind the outputs is the length of a chunk: that of a block.
    """
    draw = np.random.default_rng(0)
    over = (problem.batch, problem.heads, problem.q_len)
    shapes = {3: over, 4: over, 5: (1, *over)}
    given: list[Any] = []
    for number, type_ in enumerate(arguments_of(kernel)):
        tensor = ir.MemRefType(type_) if isinstance(type_, ir.MemRefType) else None
        dims = shapes.get(tensor.rank, ()) if tensor is not None else ()
        if tensor is not None and dims and all(tensor.is_dynamic_dim(axis) for axis in range(len(dims))):
            shape = (*dims, *tensor.shape[len(dims) :])
            given.append(draw.standard_normal(shape) if number < inputs else np.zeros(shape))
        elif tensor is not None and number >= inputs:  # a counter
            given.append(np.zeros([1 if tensor.is_dynamic_dim(axis) else tensor.shape[axis] for axis in range(tensor.rank)], np.int32))
        else:
            given.append(_capture(draw, type_, problem) if number < inputs else problem.q_len // _BLOCKS_OF_QUERIES)
    return given


def _arguments(kernel: ir.Operation, problem: Sizes, inputs: int) -> list[Any]:
    """q, k and v at random, captures, and memory for the outputs, which are what follows so many inputs."""
    draw = np.random.default_rng(0)
    q, k, v, *rest = arguments_of(kernel)
    rows = {0: (problem.batch, problem.heads, problem.q_len), 1: (problem.batch, problem.kv_heads, problem.kv_len)}
    given: list[Any] = [draw.standard_normal((*rows[min(n, 1)], ir.MemRefType(t).shape[3])) for n, t in enumerate((q, k, v))]
    given += [_capture(draw, type_, problem) for type_ in rest[: inputs - 3]]
    outputs = [tensor for type_ in rest[inputs - 3 :] if (tensor := ir.MemRefType(type_)).rank > 1]  # no counter, which runs bring along
    return [*given, *(np.full((*rows[0], *tensor.shape[3:]), np.nan) for tensor in outputs)]


def _capture(draw: np.random.Generator, type_: ir.Type, problem: Sizes) -> Any:
    """A number, or a tensor that varies along its last axis alone, large enough for every index; integers ascend as those of documents."""
    whole = isinstance(element_type(type_), (ir.IntegerType, ir.IndexType))
    if not isinstance(type_, ir.MemRefType):
        return 1 if whole else 1.0
    largest = 2 * max(problem.q_len, problem.kv_len)
    shape = [largest if type_.is_dynamic_dim(axis) else type_.shape[axis] for axis in range(type_.rank)]
    size = shape[-1] if shape else 1
    row = np.sort(draw.integers(0, 2, size)) if whole else draw.standard_normal(size)
    return np.broadcast_to(row if shape else row[0], shape)


def _timeline(kernel: ir.Operation, problem: Sizes, arguments: list[Any]) -> Timeline:
    """The timeline of a kernel; what the evaluator does not run is told in its place."""
    chip = target_of(kernel)
    costs = Costs(chip.tensor_flops, chip.lanes, chip.special_lanes, chip.l2_bytes, _COPY_LATENCY)
    try:
        events = run_timed(kernel, arguments, costs)
        return Timeline(_name(kernel), f"{problem}, random inputs, one thread block", tuple(events), tuple(costs.told()))
    except EvaluationError as error:
        return Timeline(_name(kernel), why=str(error))


def _known(kernel: ir.Operation, code: KernelCode) -> Known:
    """What is known without a compiler."""
    given = [f"{_name(role)} {ir.IntegerAttr(role.attributes['registers']).value}" for role in find_all(kernel, "warp.role")]
    return [
        ("made by", f"passes of the warp dialect for {code.arch}"),
        ("thread block", f"{code.threads} threads, grid: {code.grid}"),
        ("shared memory", f"{code.shared_bytes:,} bytes a thread block"),
        ("registers of roles", f"{', '.join(given)}; {_registers(kernel)}"),
        *[(f"{pass_} refused", why) for pass_, why in reasons(kernel).items()],
    ]


def _registers(kernel: ir.Operation) -> str:
    """An estimate, not what a compiler takes."""
    try:
        return f"fragments and {BESIDE} more: {', '.join(f'{name} {count}' for name, count in check_registers(kernel).items())}"
    except Fault as fault:
        return f"estimated: {fault.diagnostics[0].message}"
