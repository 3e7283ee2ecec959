"""`attend`: one call of attention, from tensors and what is asked of them to the result."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attn_mlir.api.dropout import NONE, Dropout
from attn_mlir.api.eight_bit import NONE as NO_SCALES
from attn_mlir.api.eight_bit import Scales, refuse_derivatives, refuse_eight_bit, with_scales
from attn_mlir.api.extra_qk import extra_pairs, with_dims
from attn_mlir.api.given_masks import check_sizes, is_block_mask, sizes_of, with_function
from attn_mlir.api.inputs import check_inputs
from attn_mlir.api.options import Options
from attn_mlir.runtime.call import Call, Problem
from attn_mlir.runtime.dispatch import dispatch


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
