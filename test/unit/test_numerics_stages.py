"""Random programs through the whole pipeline: after every pass they still compute what they did before."""

import numpy as np
import pytest

from attn_mlir.passes.pipeline import Pipeline, PipelineStep
from attn_mlir.reference import InputMaker, Sizes, compare, evaluate, rows_with_keys
from attn_mlir.reference.promote import promoted
from attn_mlir.registry import registry
from programs import parsed
from random_programs import random_program

STAGES = "attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{{block-q={} block-kv={}}}"
LENGTHS = ((17, 23), (20, 9), (1, 1), (12, 12))


def check(seed: int, stages: str, tolerance: float = 1e-7) -> None:
    """Runs a random program after every stage. Sizes follow from the seed."""
    q_len, kv_len = LENGTHS[seed % len(LENGTHS)]
    maker = InputMaker(Sizes(2, 4, 2, q_len, kv_len), seed, (0, 2 + seed % 20), index=seed % 7)
    with parsed(promoted(random_program(seed))) as module:
        inputs = maker.make(module)
        wanted, filled = evaluate(module, inputs), rows_with_keys(module, inputs)
        assert all(np.isfinite(x).all() for x in wanted), "the program itself must be sound"
        done: list[str] = []

        def compare_after(step: PipelineStep, operation: object, seconds: float) -> None:
            done.append(step.name)
            guarded = "attn-guard-empty-rows" in done or "attn-online-rewrite" not in done
            for found in compare(module, inputs, wanted, None if guarded else filled, filled=filled):
                assert found.within(tolerance), f"after {step.text}: {found}\n{random_program(seed)}"

        Pipeline.parse(stages, registry()).run(module, after=[compare_after])


# 288 and 364 have a weight that is the same for every key, 661 weights that cancel, 703 a row output that no key defines.
@pytest.mark.parametrize("seed", [*range(40), 288, 364, 661, 703])
def test_random_programs(seed: int) -> None:
    check(seed, STAGES.format(*((8, 4), (5, 16), (64, 64), (1, 3))[seed % 4]))


@pytest.mark.parametrize("seed", range(100, 110))
def test_passes_in_another_order(seed: int) -> None:
    check(
        seed,
        "attn-online-rewrite,attn-simplify,canonicalize,cse,attn-resolve-masks,attn-guard-empty-rows,attn-tile{block-q=4 block-kv=8},cse",
    )


def test_programs_differ() -> None:
    texts = [random_program(seed) for seed in range(40)]
    assert len(set(texts)) == 40
    assert random_program(3) == texts[3]
    for word in ("attn.mask", "attn.reduce", "tensor.extract %ids", "tensor.extract %keep", "floordivsi", "out1"):
        assert 3 <= sum(word in text for text in texts) <= 39
