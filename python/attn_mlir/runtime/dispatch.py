"""`dispatch`: the one way in which calls are run, whatever looks at their tensors.

| what looks at the tensors | who runs the call |
|---|---|
| a transform of torch.func, or tangents | `transforms` |
| a mode (torch.export, make_fx), or a tensor of a class of its own | the operator of `ops` |
| autograd, as some tensor requires a gradient | `eager.EagerForward` |
| nobody | the kernel, by its short way where it ran on tensors of the same shapes before |

Inside torch.compile `forward_in_graph` calls the operator, as dynamo traces it.
"""

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, maybe_current_level
from torch.autograd import forward_ad

from attn_mlir import driver
from attn_mlir.backends import devices_with, tensors_of
from attn_mlir.capture_kinds import pack
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.runtime import compute, programs
from attn_mlir.runtime.call import Call
from attn_mlir.runtime.eager import EagerForward
from attn_mlir.runtime.orders import REPEATED, all_in_order, output_order
from attn_mlir.runtime.task import Task

_PLAIN = (Tensor, torch.nn.Parameter)
_modes = torch._C._len_torch_dispatch_stack


def dispatch(call: Call) -> Sequence[Tensor]:
    """Each o, in the order of the layout, and the row outputs."""
    entry, problem, values, layout, device, deterministic = call
    if forward_ad._current_level >= 0 or maybe_current_level() is not None:
        made = _transformed(call)
        if made is not None:
            return made
    program = entry.programs[deterministic]
    if program is None or device != problem.device_type:
        program = program_on(call)
    recorded, wrt, plain = torch.is_grad_enabled(), "", not _modes()
    for x in values:
        if isinstance(x, Tensor):
            if type(x) not in _PLAIN:
                plain = False
            if recorded and x.requires_grad:
                recorded, wrt = False, _names(program, needing_gradient(values))
    if not plain:
        values = call.heads_first()
        task, captures = _task(program, call, wrt, held=wrt != "")
        made = ops().call_forward(task, values[:3], captures)
        return all_in_order(made[: program.made], output_order(layout), program.weights)
    if wrt:
        task, captures = _task(program, call, wrt)
        return EagerForward.apply(task, layout != "bhsd", *values[:3], *captures)[: program.made]  # type: ignore[no-untyped-call]
    if len(values) > 3:
        program.check(values[3:], problem.sizes, problem.device)
    kernel = program.kernels.get(device)
    repeat = getattr(kernel, "again", None)
    if repeat is not None and layout in REPEATED:
        made = repeat(values, layout)
        if made is not None:
            return made
    if problem.is_empty:
        return _nothing(program, call)
    kernel = kernel or program.kernel(device)
    if layout == "bhsd":
        return kernel.run(values[0], values[1], values[2], values[3:])
    q, k, v, *captures = call.heads_first()
    return all_in_order(kernel.run(q, k, v, captures, output_order(layout)), output_order(layout), program.weights)


def is_plain(values: Sequence[Any]) -> bool:
    """Whether an operator is not needed: no mode looks at operators, and no tensor is of a class of its own."""
    if _modes():
        return False
    for value in values:
        if type(value) not in _PLAIN and isinstance(value, Tensor):
            return False
    return True


def is_seen(values: Sequence[Any]) -> bool:
    """Whether anything looks at what happens to the values: autograd, a transform, tangents, a mode or a class of its own."""
    return bool(needing_gradient(values)) or may_carry_tangents() or maybe_current_level() is not None or not is_plain(values)


def may_carry_tangents() -> bool:
    """Whether a forward-mode derivative is being computed, as within torch.autograd.forward_ad.dual_level()."""
    return forward_ad._current_level >= 0


def refuse_transformed(values: Sequence[Any], what: str, instead: str = "attention_varlen on packed keys") -> None:
    """Raises UnsupportedError where a value is of a transform of torch.func, or has a tangent; `what` takes neither, `instead` does."""
    dual = may_carry_tangents()
    for value in values:
        if not isinstance(value, Tensor):
            continue
        if is_functorch_wrapped_tensor(value) or (dual and _is_float(value) and forward_ad.unpack_dual(value).tangent is not None):
            raise UnsupportedError(
                f"{what} no derivatives, and no torch.vmap: call it outside of transforms of torch.func and without tangents, or {instead}"
            )


def needing_gradient(values: Sequence[Any]) -> list[int]:
    """Which of the values, tensors or numbers, need a gradient."""
    if not torch.is_grad_enabled():
        return []
    if maybe_current_level() is None:
        return [i for i, value in enumerate(values) if isinstance(value, Tensor) and value.requires_grad]
    return [i for i, value in enumerate(values) if _is_float(value) and transforms().needs_gradient(value)]


def wanted_in_graph(program: str, values: Sequence[Any]) -> list[int]:
    """Which arguments of a program need a gradient, inside torch.compile."""
    if not torch.is_grad_enabled():
        return []
    found = programs.find(program)
    floats = [i for i, value in enumerate(values) if isinstance(value, Tensor) and value.is_floating_point() and value.requires_grad]
    return [i for i in floats if found.takes_derivative(i)]


def forward_in_graph(values: Sequence[Any], names: Sequence[str], kinds: Sequence[str], program: str, layout: str) -> list[Tensor]:
    """What `dispatch` gives, inside torch.compile: the call of the operator on q, k and v, [B, H, S, D], and the captures.

    `names` are those of the program's arguments, `kinds` what the captures are. A graph gets q where no tensor is captured, which nobody
    reads: AOTInductor makes None of an empty list.
    """
    wrt = [names[i] for i in wanted_in_graph(program, values)]
    tensors, numbers = pack(kinds, values[3:])
    words = program, "+".join(wrt), layout
    return torch.ops.attn_mlir.forward(values[0], values[1], values[2], tensors or [values[0]], *numbers, *words)


def gradient_task(call: Call) -> tuple[Task, list[Tensor]]:
    """The task of a call some of whose values need a gradient, and the captured tensors."""
    program = program_on(call)
    return _task(program, call, _names(program, needing_gradient(call.values)))


def program_on(call: Call) -> programs.Program:
    """The program, whose derivatives are for the call's device, too. Raises ArgumentError where that takes no tensors such as q."""
    program, problem, device = programs.program_of(call.entry, call.deterministic), call.problem, call.device
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


def _names(program: programs.Program, positions: Sequence[int]) -> str:
    """`wrt` of a derivative by the arguments at these positions, but for those of which only sizes matter."""
    return "+".join([program.argument(i) for i in positions if program.takes_derivative(i)])


def _task(program: programs.Program, call: Call, wrt: str, held: bool = True) -> tuple[Task, list[Tensor]]:
    """The task of a call, and the captured tensors; where they are `held`, those whose memory numpy may change are copied."""
    captures = call.values[3:]
    if held:
        if not program.derivatives:
            driver.compiler_for(call.device)  # whose error says which devices there are
        captures = [value.clone() if getattr(value, "shares_numpy", False) else value for value in captures]
    tensors, numbers = pack(program.kinds, captures)
    return Task(program, wrt, call.layout, numbers, len(tensors)), tensors


def _nothing(program: programs.Program, call: Call) -> Sequence[Tensor]:
    """The results where there are no rows or no keys: o is 0, lse is -inf."""
    q, k, v, *captures = call.heads_first()
    made = compute.empty_results(program.results(q, k, v, captures), q.device, call.layout, program.weights)
    for result in made:
        result.zero_()
    program.fill_empty(made[program.weights :])
    return all_in_order(made, output_order(call.layout), program.weights)


def _transformed(call: Call) -> Sequence[Tensor] | None:
    """The results inside of transforms, or of tensors with tangents; None where neither is there."""
    dual = may_carry_tangents()
    if dual and transforms().has_batch(call.values):
        return transforms().for_each(lambda *values: dispatch(call._replace(values=values)), call.values)
    parts = [forward_ad.unpack_dual(x) if dual and _is_float(x) else (x, None) for x in call.values]
    changes = [change for _, change in parts]
    moved = any(change is not None for change in changes)
    if not moved and maybe_current_level() is None:
        return None
    program = program_on(call)
    wrt = _names(program, needing_gradient(call.values))
    task, tensors = _task(program, call, wrt)
    if not moved or wrt or needing_gradient(changes):  # one function has both derivatives, so that each may have the other
        made = transforms().forward(task, *call.heads_first()[:3], *tensors)[: program.made]
    elif not any(change is not None and program.takes_derivative(i) for i, change in enumerate(changes)):
        return dispatch(call._replace(values=[primal for primal, _ in parts]))
    else:
        call = call._replace(values=[primal for primal, _ in parts])
        changes = call._replace(values=changes).heads_first()
        tensors = [*call.heads_first()[:3], *_task(program, call, "")[1]]
        both = transforms().tangent_of(task, tensors, [changes[position] for position in program.tensor_positions()])
        made = [forward_ad.make_dual(a, b) for a, b in zip(both[: program.made], both[program.made :], strict=True)]
    return all_in_order(made, output_order(call.layout), program.weights)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


@functools.cache
def ops() -> Any:
    """The torch operators, which are registered when they are first needed."""
    return importlib.import_module("attn_mlir.runtime.ops")


@functools.cache
def transforms() -> Any:
    """The same for the transforms of torch.func."""
    return importlib.import_module("attn_mlir.runtime.transforms")
