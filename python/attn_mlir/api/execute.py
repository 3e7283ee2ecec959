"""What every form of the API does with a traced program: runs it, with derivatives where they are asked for."""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._functorch import maybe_current_level
from torch.autograd import forward_ad

from attn_mlir import driver
from attn_mlir.api.inputs import Problem, may_carry_tangents
from attn_mlir.backends import devices_with, tensors_of
from attn_mlir.backends.allocation import empty, empty_heads
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.capture_kinds import pack
from attn_mlir.mlir import LOCK
from attn_mlir.passes.pipeline import PIPELINES
from attn_mlir.runtime import programs
from attn_mlir.runtime.orders import REPEATED, output_order

_CODE = ("tilelang", "cuda", "hip")
"""Stages that are source code and no IR."""


def program_of(entry: Entry, deterministic: bool = False) -> programs.Program:
    """The program of a trace, which all equal traces share."""
    program = entry.programs[deterministic]
    if program is None:
        program = entry.programs[deterministic] = programs.find(programs.register(entry.traced, deterministic))
    return program


def kernel_of(entry: Entry, device: str) -> driver.Kernel:
    """The kernel of a traced program for a device, compiled at its first use."""
    return program_of(entry).kernel(device)


def stages_of(entry: Entry, device: str) -> dict[str, str]:
    """A traced program as IR, for a device: "traced", and after each pass, by the pass's name."""
    with LOCK:
        return kernel_of(entry, device).stages()


def slow_of(entry: Entry) -> str:
    """What `explain()` says of kernels, compiled of a trace, that are slower than their device can do, and of inputs that they copied."""
    every = [served for program in entry.programs if program is not None for served in (program, *program.served.values())]
    slow = {name: reason for program in every for name, reason in program.slow.items()}
    copied = {name: reason for program in every for name, reason in program.copies().items()}
    lines = [f"slow: {name}: {reason}\n" for name, reason in slow.items()]
    return "".join([*lines, *[f"copied: {name}, in a call of this process: {reason}\n" for name, reason in copied.items()]])


def stage_of(entry: Entry, stage: str, stages: Callable[[], dict[str, str]], pretty: bool = False) -> str:
    """One of what `stages` returns, which is not called for "traced"; of a named pipeline, what its last pass made. Raises ArgumentError.

    `pretty` is for people, where the stage is IR: CUDA, HIP and TileLang stay as they are.
    """
    made = {"traced": entry.traced.text} if stage == "traced" else stages()
    of_pipeline = [name for name in made if name in PIPELINES.get(stage, "").split(",")]
    stage = of_pipeline[-1] if of_pipeline else stage
    if stage not in made:
        raise ArgumentError(f"stage is one of {', '.join(made)}; got {stage!r}")
    if not pretty or stage in _CODE:
        return made[stage]
    return importlib.import_module("attn_mlir.pretty").pretty_text(made[stage])


def execute(
    entry: Entry,
    problem: Problem,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    captures: list[Any],
    layout: str,
    device: str,
    deterministic: bool = False,
) -> list[torch.Tensor]:
    """Each o and the row outputs, for q, k, v in [B, H, S, D]; `layout` is that of the memory of results, `device` where to compute."""
    program = _program_for(entry, problem, device, deterministic)
    values = (q, k, v, *captures)
    if may_carry_tangents():
        if transforms().has_batch(values):
            return transforms().for_each(
                lambda q, k, v, *rest: execute(entry, problem, q, k, v, list(rest), layout, device, deterministic), values
            )
        if any(forward_ad.unpack_dual(value).tangent is not None for value in values if _is_float(value)):
            return _with_tangents(entry, problem, values, layout, device, deterministic)
    transformed = maybe_current_level() is not None
    wrt = _names(program, needing_gradient(values))
    if wrt or transformed:
        tensors, floats, ints = _split(program, captures, device)
        if transformed:
            call = transforms().Call(program.name, wrt, layout, tuple(floats), tuple(ints), len(tensors))
            results = transforms().forward(call, q, k, v, tensors)
        elif eager().applies(values):
            results = eager().forward(q, k, v, tensors, floats, ints, program.name, wrt, layout)
        else:
            results = ops().forward(q, k, v, some_tensors(tensors, q), floats, ints, program.name, wrt, layout)
        return results[: program.made]
    if not eager().applies(values):  # torch.export and the like want an operator to look at
        tensors, floats, ints = program.kinds.pack(captures)
        return ops().forward(q, k, v, some_tensors(tensors, q), floats, ints, program.name, "", layout)
    if captures:
        program.check(captures, problem.sizes, problem.device)
    if problem.is_empty:
        return _empty_results(program, problem, q, layout)
    return program.kernel(device).run(q, k, v, captures, layout if layout == "bhsd" else output_order(layout))


def forward_in_graph(values: Sequence[Any], names: Sequence[str], kinds: Sequence[str], program: str, layout: str) -> list[torch.Tensor]:
    """What `execute` gives, inside torch.compile: the call of the operator on q, k, v and the captures.

    `names` are those of the program's arguments, `kinds` what the captures are.
    """
    wrt = []
    if torch.is_grad_enabled():
        found = programs.find(program)
        for position, (value, name) in enumerate(zip(values, names, strict=True)):
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.requires_grad and found.takes_derivative(position):
                wrt.append(name)
    tensors, floats, ints = pack(kinds, values[3:])
    return torch.ops.attn_mlir.forward(
        values[0], values[1], values[2], some_tensors(tensors, values[0]), floats, ints, program, "+".join(wrt), layout
    )


def some_tensors(captures: list[Any], q: torch.Tensor) -> list[Any]:
    """The captured tensors of an operator in a graph, never none: AOTInductor makes None of an empty list. Who has none reads none."""
    return captures or [q]


def direct(entry: Entry, problem: Problem, values: Sequence[Any], layout: str, device: str, deterministic: bool) -> list[Any] | None:
    """What `execute` gives for plain tensors outside of transforms, in fewer steps; None where these do not do.

    Here q, k and v, the first of `values`, and o have the orders of `layout`.
    """
    if may_carry_tangents() or maybe_current_level() is not None or not eager().applies(values):
        return None
    if torch.is_grad_enabled() and any([value.requires_grad for value in values if isinstance(value, torch.Tensor)]):
        return _differentiable(entry, problem, values, layout, device, deterministic)
    program = entry.programs[deterministic]
    kernel = None if program is None else program.kernels.get(device)
    if kernel is None or device != problem.device_type:
        return None
    repeat = getattr(kernel, "again", None)
    if len(values) > 3:
        program.check(values[3:], problem.sizes, problem.device)  # type: ignore[union-attr]
    if repeat is not None:
        return repeat(values, layout) if layout in REPEATED else None
    return None if layout != "bhsd" or problem.is_empty else kernel.run(*values[:3], values[3:])


def _differentiable(
    entry: Entry, problem: Problem, values: Sequence[Any], layout: str, device: str, deterministic: bool
) -> list[Any] | None:
    """The same where some tensors need a gradient."""
    program = _program_for(entry, problem, device, deterministic)
    wrt = _names(program, needing_gradient(values))
    if not wrt:
        return None
    numbers = _split(program, values[3:], device)
    return eager().forward(*values[:3], *numbers, program.name, wrt, layout, given=True)[: program.made]


def _names(program: programs.Program, positions: Sequence[int]) -> str:
    """`wrt` of a derivative by the arguments at these positions, but for those of which only sizes matter."""
    return "+".join([program.argument(i) for i in positions if program.takes_derivative(i)])


def _split(program: programs.Program, captures: Sequence[Any], device: str) -> tuple[list[torch.Tensor], list[float], list[int]]:
    """Captures by kind, for a derivative; tensors that share memory with numpy may change before the backward, and are copied."""
    if not program.derivatives:
        driver.compiler_for(device)  # whose error says which devices there are
    return program.kinds.pack([value.clone() if getattr(value, "shares_numpy", False) else value for value in captures])


def _program_for(entry: Entry, problem: Problem, device: str, deterministic: bool) -> programs.Program:
    """The program, whose derivatives are for `device`, too. Raises ArgumentError where that takes no tensors such as q."""
    program = program_of(entry, deterministic)
    if device == problem.device_type:
        return program
    driver.compiler_for(device)
    tensors = tensors_of(device)
    if tensors != problem.device_type:
        taken = f"device={device!r} was asked for" if tensors == device else f"device={device!r} takes tensors on {tensors!r}"
        others = sorted(devices_with(problem.device_type))
        hint = f", or use device={' or '.join(map(repr, others))}" if tensors != device and others else ""
        raise ArgumentError(f"q is on {problem.device}, but {taken}: move q, k and v with .to({tensors!r}){hint}")
    return programs.served_by(program, device)


@functools.cache
def ops() -> Any:
    """The torch operators, which are registered when they are first needed."""
    return importlib.import_module("attn_mlir.runtime.ops")


@functools.cache
def eager() -> Any:
    """The shorter way for plain tensors."""
    return importlib.import_module("attn_mlir.runtime.eager")


@functools.cache
def transforms() -> Any:
    """The same for the transforms of torch.func."""
    return importlib.import_module("attn_mlir.runtime.transforms")


def needing_gradient(values: Sequence[Any]) -> list[int]:
    """Which of the values, tensors or numbers, need a gradient."""
    if not torch.is_grad_enabled():
        return []
    needed = _requires_gradient if maybe_current_level() is None else transforms().needs_gradient
    return [i for i, value in enumerate(values) if _is_float(value) and needed(value)]


def _requires_gradient(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _with_tangents(
    entry: Entry, problem: Problem, values: Sequence[Any], layout: str, device: str, deterministic: bool
) -> list[torch.Tensor]:
    """The results as dual tensors; arguments without a tangent are constants."""
    program = _program_for(entry, problem, device, deterministic)
    primals, changes = zip(*(forward_ad.unpack_dual(value) if _is_float(value) else (value, None) for value in values), strict=True)
    wrt = _names(program, needing_gradient(values))
    if wrt or needing_gradient(changes):  # one function has both derivatives, so that each may have the other
        tensors, floats, ints = _split(program, values[3:], device)
        call = transforms().Call(program.name, wrt, layout, tuple(floats), tuple(ints), len(tensors))
        return transforms().forward(call, *values[:3], tensors)[: program.made]
    if not any(change is not None and program.takes_derivative(i) for i, change in enumerate(changes)):
        return execute(entry, problem, primals[0], primals[1], primals[2], list(primals[3:]), layout, device, deterministic)
    tensors, floats, ints = _split(program, primals[3:], device)
    call = transforms().Call(program.name, "", layout, tuple(floats), tuple(ints), len(tensors))
    made = transforms().tangent_of(call, [*primals[:3], *tensors], [changes[position] for position in program.tensor_positions()])
    count = program.made
    return [forward_ad.make_dual(primal, change) for primal, change in zip(made[:count], made[count:], strict=True)]


def _empty_results(program: programs.Program, problem: Problem, q: torch.Tensor, layout: str) -> list[torch.Tensor]:
    """The results where there are no rows or no keys: o is 0, lse is -inf."""
    sizes = problem.sizes
    shape = (sizes["B"], sizes["Hq"], sizes["Sq"])
    each = [empty_heads((*shape, sizes["Dv"]), q.dtype, output_order(layout), q.device).zero_() for _ in range(program.weights)]
    score = torch.float64 if q.dtype == torch.float64 else torch.float32
    rows = [empty(shape, dtype=score, device=q.device) for _ in program.outputs]
    program.fill_empty(rows)
    return [*each, *rows]
