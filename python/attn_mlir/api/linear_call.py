"""One call of linear attention: what is asked for, as one object, and the way from there to a result."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from attn_mlir.api.inputs import refuse_jit_trace
from attn_mlir.api.linear_inputs import Erasing, LinearCall, check_linear
from attn_mlir.api.scale import scale_form
from attn_mlir.api.tuning import Tuning
from attn_mlir.frontend.cache import TraceCache
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.entry import Entry
from attn_mlir.frontend.given import Inputs
from attn_mlir.frontend.linear import LinearDefinition, trace_linear
from attn_mlir.frontend.program import Traced
from attn_mlir.runtime.call import Call
from attn_mlir.runtime.dispatch import dispatch
from attn_mlir.runtime.orders import all_in_order

Function = Callable[..., Any]
Mods = tuple[Function | None, ...]
"""Those of q, k, v, the decay, the skip and what is erased."""
Form = tuple[Any, ...]
"""What shapes a trace: element type, K, V, form of the scale, form of the decay, whether there are an initial and a final state, element
type of cu_seqlens, positions of a segment, and perhaps the form of the delta rule."""
_CACHE = TraceCache()


class LinearOptions(NamedTuple):
    """What is computed of the inputs, and what is returned."""

    scale: float | None
    final: bool
    """Whether the final state is returned, too."""
    layout: str
    device: Any
    segment: int | None
    mods: Mods
    read_before: bool

    def form(self, call: LinearCall) -> Form:
        """The form of a call."""
        inputs = call.problem.inputs
        factor = scale_form(self.scale, inputs.head_dim)[0]
        sizes = (inputs.element, inputs.head_dim, inputs.value_dim, factor, call.decay_form)
        return (*sizes, call.given["initial_state"] is not None, self.final, call.offsets, self.segment, call.delta_form)

    def first_form(self) -> Form:
        """What stands for the form of a call until there was one."""
        erases = self.mods[5] is not None or self.read_before
        delta = ("step" if erases else "none", False, False, "decayed" if self.read_before else "after")
        return ("f32", 64, 64, scale_form(self.scale, 64)[0], "step", False, self.final, "", self.segment, delta)

    def erasing(self, erase: Any, erase_key: Any, removed_key: Any) -> Erasing:
        """What a caller says about erasing."""
        return Erasing(erase, self.mods[5], erase_key, removed_key, self.read_before)


def attend_linear(inputs: tuple[Any, ...], options: LinearOptions, tuning: Tuning | None = None) -> tuple[Any, Form, str]:
    """The result, the form of the call, and what computed it; `inputs` are q, k, v and those of `frontend.linear.INPUTS`."""
    q, k, v, decay, initial_state, cu_seqlens, *erase = inputs
    call = check_linear(q, k, v, decay, initial_state, cu_seqlens, options.layout, erasing=options.erasing(*erase))
    refuse_jit_trace()
    form, factor = options.form(call), scale_form(options.scale, call.problem.inputs.head_dim)[1]
    entry, scan = find(options.mods, form, call.problem.device)
    result = run(entry, call, entry.captures(scan, factor), options.layout, options.device, tuning)
    return result, form, options.device or call.problem.device_type


def program_of_form(mods: Mods, form: Form, **further: Any) -> tuple[LinearDefinition, Inputs]:
    """What is traced for mods and a form; `further` are other fields of the program."""
    element, key_dim, value_dim, scale, decay, initial, final, offsets, segment, *delta = form
    if delta:
        erase, erase_key, removed_key, output = delta[0]
        further |= {"erase": erase, "erase_key": erase_key, "removed_key": removed_key, "output": output}
    q_mod, k_mod, v_mod, decay_mod, skip_mod, *erasing = mods
    program = LinearDefinition(q_mod, k_mod, v_mod, decay_mod, skip_mod, scale, decay, initial, final, offsets, segment, **further)
    return dataclasses.replace(program, erase_mod=erasing[0] if erasing else None), Inputs(element, key_dim, value_dim)


def find(mods: Mods, form: Form, device: Any) -> tuple[Entry, Scan]:
    """The traced program of mods for inputs of one form, traced now if it is new."""
    return _CACHE.find(mods, form, lambda: trace_linear(*program_of_form(mods, form), device))


def run(entry: Entry, call: LinearCall, captures: list[Any], layout: str, device: str | None, tuning: Tuning | None) -> Any:
    """o, or (o, final_state), of a call; the program's own inputs among the captures are filled in."""
    q, k, captures = arguments(entry.traced, call, captures)
    target = call.problem.device_type if device is None else device
    made = Call(entry, call.problem, all_in_order((q, k, call.v, *captures), layout, 3), layout, target)
    if tuning is not None:
        made = made._replace(entry=tuning.entry(made))
    results = dispatch(made)
    return (results[0], results[1]) if entry.traced.outputs else results[0]


def arguments(traced: Traced, call: LinearCall, captures: list[Any]) -> tuple[torch.Tensor, torch.Tensor, list[Any]]:
    """q, k and the captures, as the program takes them: with the heads and channels that its mods ask for."""
    filled = list(captures)
    for position, name in enumerate(traced.linear or ()):
        value = call.given[name]
        if name == "decay" and traced.captures[position].rank == 4 and value is not None and value.dim() == 3:
            value = value.unsqueeze(3).expand(*value.shape, call.problem.inputs.head_dim)
        filled[position] = value
    heads = call.problem.sizes["H"]
    q = _with_heads(call.q, heads) if "q" in traced.by_head else call.q
    k = _with_heads(call.k, heads) if "k" in traced.by_head else call.k
    return q, k, filled


def _with_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, h, T, D] as [B, heads, T, D], every head repeated; a view where there is one head."""
    if x.shape[1] == heads:
        return x
    if x.shape[1] == 1:
        return x.expand(-1, heads, -1, -1)
    return x.repeat_interleave(heads // x.shape[1], dim=1)
