"""`attend` and `attend_linear`: one call of attention, or linear attention, from tensors and what is asked of them to the result."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attn_mlir.api.dropout import NONE, Dropout
from attn_mlir.api.eight_bit import NONE as NO_SCALES
from attn_mlir.api.eight_bit import Scales, refuse_derivatives, refuse_eight_bit, with_scales
from attn_mlir.api.extra_qk import extra_pairs, with_dims
from attn_mlir.api.given_masks import check_sizes, is_block_mask, sizes_of, with_function
from attn_mlir.api.inputs import check_inputs, refuse_jit_trace
from attn_mlir.api.linear_inputs import LinearCall, check_linear
from attn_mlir.api.options import LinearOptions, Options, RecurrenceForm, call_form
from attn_mlir.api.scale import scale_form
from attn_mlir.api.tuning import Tuning
from attn_mlir.frontend.entry import Entry
from attn_mlir.frontend.program import Traced
from attn_mlir.runtime.call import Call, Problem
from attn_mlir.runtime.dispatch import dispatch
from attn_mlir.runtime.orders import all_in_order


def attend(
    qkv: Sequence[torch.Tensor], options: Options, dropout: Dropout = NONE, extra: Sequence[torch.Tensor] = (), scales: Scales = NO_SCALES,
    problem: Problem | None = None, tuning: Any = None,
) -> tuple[Any, Call]:  # fmt: skip
    """The result of attention, and the call that computed it. `extra` are q2, k2, q3...; `problem`: what is known of q, k and v."""
    q, k, v = qkv
    if problem is None:
        problem = check_inputs(q, k, v, options.layout)
    given: Mapping[str, Any] = {}
    narrow = problem.inputs.kv_element
    if narrow or scales is not NO_SCALES:
        problem, given = with_scales(problem, scales)
    mask = options.functions[4]
    if is_block_mask(mask):
        check_sizes(sizes_of(mask), problem.sizes)
        options = options._replace(functions=with_function(options.functions))
    if extra:
        refuse_eight_bit(qkv, "extra_qk")
        pairs = extra_pairs(extra, q, problem, problem.layout)
        call = options.call(with_dims(problem, pairs), qkv, dropout, pairs.values)
    else:
        call = options.call(problem, qkv, dropout, given)
        if narrow:
            refuse_derivatives(call)
    if tuning is not None:
        call = call._replace(entry=tuning.entry(call))
    results = dispatch(call)
    if not (options.lse or options.states) and call.entry.traced.weights == 1:
        return results[0], call
    return options.named(results, call.entry), call


def attend_linear(inputs: tuple[Any, ...], options: LinearOptions, tuning: Tuning | None = None) -> tuple[Any, RecurrenceForm, str]:
    """The result, the form of the call, and what computed it; `inputs` are q, k, v and those of `frontend.linear.INPUTS`."""
    q, k, v, decay, initial_state, cu_seqlens, *erase = inputs
    call = check_linear((q, k, v), decay, initial_state, cu_seqlens, options.layout, options.erasing(*erase))
    refuse_jit_trace()
    scale, factor = scale_form(options.scale, call.problem.inputs.head_dim)
    form = call_form(call, scale, options.final, options.segment)
    entry, scan = form.find(options.mods, call.problem.device)
    result = run_linear(entry, call, entry.captures(scan, factor), options.layout, options.device, tuning)
    return result, form, options.device or call.problem.device_type


def run_linear(entry: Entry, call: LinearCall, captures: list[Any], layout: str, device: str | None, tuning: Tuning | None) -> Any:
    """o, or (o, final_state), of a call; the program's own inputs among the captures are filled in."""
    q, k, captures = linear_arguments(entry.traced, call, captures)
    target = call.problem.device_type if device is None else device
    made = Call(entry, call.problem, all_in_order((q, k, call.v, *captures), layout, 3), layout, target)
    if tuning is not None:
        made = made._replace(entry=tuning.entry(made))
    results = dispatch(made)
    return (results[0], results[1]) if entry.traced.outputs else results[0]


def linear_arguments(traced: Traced, call: LinearCall, captures: list[Any]) -> tuple[torch.Tensor, torch.Tensor, list[Any]]:
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
