"""The delta rule's chunked form and gradients are believed only where they agree with the recurrence; the evaluator is the recurrence."""

import dataclasses

import numpy as np
import pytest
import torch

from attn_mlir.passes.derivation.chunk import ChunkForm
from attn_mlir.passes.derivation.delta import check_delta, derive_delta
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.differentiation.delta_check import certified_delta, check_delta_gradients
from attn_mlir.passes.differentiation.delta_plan import delta_plan
from attn_mlir.passes.differentiation.errors import DifferentiationError
from attn_mlir.reference import InputMaker, Sizes, evaluate
from delta_reference import delta_reference
from programs import parsed, text_of


@pytest.mark.parametrize("forward", [True, False])
def test_the_chunked_form_is_confirmed(forward: bool) -> None:
    form, report = derive_delta(forward)
    assert report.points > 1000
    assert report.error < 1e-12
    for name in ("input_decay", "output_decay", "decay_mask"):
        wrong = {**form.factors, name: form.places.graph.const(1.0)}
        with pytest.raises(DerivationError, match="differs from the recurrence"):
            check_delta(ChunkForm(form.places, forward, wrong))


@pytest.mark.parametrize(("channels", "output"), [("none", "after"), ("key", "decayed")])
@pytest.mark.parametrize("removed", [False, True])
def test_gradients_are_confirmed(removed: bool, output: str, channels: str) -> None:
    assert certified_delta(removed, output, channels).error < 1e-9
    plan = delta_plan(removed, output)
    for role in plan:
        made = plan[role]
        for change in ({"reads": "decayed" if made.reads == "written" else "written"}, {"output": "after"}, {"second": None}):
            changed = dataclasses.replace(made, **change)  # pyright: ignore[reportArgumentType]
            if changed == made or ("reads" in change and made.erase is None):
                continue
            with pytest.raises(DifferentiationError, match="differs from differences"):
                check_delta_gradients(removed, output, channels, {**plan, role: changed})


@pytest.mark.parametrize("name", ["gated-delta", "kda", "removed-key"])
def test_the_evaluator_is_the_recurrence(name: str) -> None:
    with parsed(text_of(f"linear/{name}")) as module:
        inputs = InputMaker(Sizes(batch=2, heads=4, kv_heads=2, q_len=29), 3).make(module)
        o, final = evaluate(module, inputs)
    q, k, v, g, state, *keys, beta = (torch.from_numpy(np.asarray(x, float)) for x in inputs)
    a, beta = keys[0] if keys else k, beta[:2, :4, :29]
    e = beta.unsqueeze(3) * a.repeat_interleave(4 // a.shape[1], 1)
    r = keys[1] if len(keys) > 1 else None
    wanted = delta_reference(q, k, beta.unsqueeze(3) * v, g, e, r, state, 0.25, read_before=name == "kda")
    for found, expected in zip((o, final), wanted, strict=True):
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12, atol=1e-12 * expected.abs().max().item())
