"""The chunked form of linear attention is believed only where it agrees with the recurrence."""

import numpy as np
import pytest

from attn_mlir.passes.derivation import chunk
from attn_mlir.passes.derivation.chunk import ChunkForm, Sample, check_chunks, chunked, derive_chunks
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.segments import check_segments
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.reference import InputMaker, Sizes, evaluate
from attn_mlir.registry import registry
from programs import parsed, text_of


@pytest.mark.parametrize("forward", [True, False])
def test_the_derived_form_is_confirmed(forward: bool) -> None:
    _, report = derive_chunks(forward)
    assert report.points > 1000
    assert report.error < 1e-12


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("name", ["chunk_decay", "input_decay", "output_decay", "decay_mask"])
def test_each_wrong_factor_is_caught(forward: bool, name: str) -> None:
    form, _ = derive_chunks(forward)
    g, wrong = form.places.graph, dict(form.factors)
    wrong[name] = g.const(1.0)
    with pytest.raises(DerivationError, match="differs from the recurrence"):
        check_chunks(ChunkForm(form.places, forward, wrong))
    wrong[name] = g.mul(form.factors[name], g.unary("math.exp", form.leaves(name)[0]))  # One log decay too many.
    with pytest.raises(DerivationError, match="differs from the recurrence"):
        check_chunks(ChunkForm(form.places, forward, wrong))


def test_the_form_of_one_direction_is_wrong_for_the_other() -> None:
    form, _ = derive_chunks(True)
    with pytest.raises(DerivationError, match="differs from the recurrence"):
        check_chunks(ChunkForm(form.places, False, form.factors))


def test_factors_that_grow_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of decays that grow give growing factors; where decays are at most 1 that would be an error of the form."""
    form, _ = derive_chunks(True)
    growing = next(p for p in chunk.problems() if (p.g > 0).any())
    *_, largest = chunked(form, growing, 16)
    assert largest > 1

    def inverse(form: ChunkForm, p: Sample, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        *results, _ = chunked(form, p, size)
        return results[0], results[1], np.asarray(2.0)

    monkeypatch.setattr(chunk, "chunked", inverse)
    with pytest.raises(DerivationError, match="grows"):
        check_chunks(form)


@pytest.mark.parametrize("name", ["simple-gla", "gla"])
def test_extreme_decays_give_no_nan(name: str) -> None:
    """-inf forgets everything, also where a recurrence would multiply infinity by 0; huge decays lose nothing else."""
    with parsed(text_of(f"linear/{name}")) as module:
        inputs = InputMaker(Sizes(q_len=33), 1).make(module)
        rng = np.random.default_rng(0)
        inputs[3] = np.where(rng.random(inputs[3].shape) < 0.3, -np.inf, np.where(rng.random(inputs[3].shape) < 0.3, -1e30, inputs[3]))
        wanted = evaluate(module, inputs)
        Pipeline.parse("attn-chunk-rewrite{chunk=8}", registry()).run(module)
        got = evaluate(module, inputs)
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("forward", [True, False])
def test_segments_are_confirmed_and_wrong_ones_caught(forward: bool) -> None:
    form, _ = derive_chunks(forward)
    report = check_segments(form)
    assert report.points > 1000 and report.error < 1e-12
    wrong = {**form.factors, "chunk_decay": form.places.graph.const(1.0)}
    with pytest.raises(DerivationError, match="differ from the recurrence"):
        check_segments(ChunkForm(form.places, forward, wrong))
