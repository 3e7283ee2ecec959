"""Random linear attentions: derived gradients agree with autograd of the recurrence, in float64."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.reference import InputMaker, Sizes, evaluate
from attn_mlir.registry import registry
from linear_reference import reference
from programs import parsed, text_of
from random_linear import gradients, random_linear

EXAMPLES = 25
TOLERANCE = 1e-10


@settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None)
@given(st.data())
def test_random_linear_attention(data: st.DataObject) -> None:
    case = random_linear(lambda count: data.draw(st.integers(0, count - 1)))
    wrong = {name: error for name, error in gradients(case, "attn-differentiate") if not error <= TOLERANCE}
    assert not wrong, f"relative errors above {TOLERANCE}: {wrong}\n{case.text}"


@settings(max_examples=6, derandomize=True, deadline=None, database=None)
@given(st.data())
def test_random_linear_attention_in_chunks(data: st.DataObject) -> None:
    case = random_linear(lambda count: data.draw(st.integers(0, count - 1)))
    found = gradients(case, "attn-differentiate,attn-simplify,attn-outline,attn-chunk-rewrite{chunk=4},attn-simplify")
    wrong = {name: error for name, error in found if not error <= TOLERANCE}
    assert not wrong, f"relative errors above {TOLERANCE}: {wrong}\n{case.text}"


def test_gradients_of_decays_over_several_intervals() -> None:
    """Beyond an interval the gradient of the decays is put together from states; decays from near 0 to -10."""
    with parsed(text_of("linear/simple-gla")) as module:
        inputs = InputMaker(Sizes(1, 1, 1, 520)).make(module)
        inputs[3] = np.where(np.arange(520) % 97 == 5, -10.0, 0.02 * inputs[3])
        Pipeline.parse("attn-differentiate{interval=256},attn-chunk-rewrite", registry()).run(module)
        results = evaluate(module, inputs, "attention_fwd")
        rng = np.random.default_rng(0)
        weights = [rng.standard_normal(x.shape) for x in results]
        found = evaluate(module, [*inputs, *results, *weights], "attention_bwd")
    q, k, v, decay, state = leaves = [torch.from_numpy(np.asarray(x)).requires_grad_() for x in inputs]
    o, final = reference(q, k, v, decay, scale=0.25, initial_state=state)
    loss = (o * torch.from_numpy(weights[0])).sum() + (final * torch.from_numpy(weights[1])).sum()
    for got, wanted in zip(found, torch.autograd.grad(loss, leaves), strict=True):
        np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-9, atol=1e-9)
