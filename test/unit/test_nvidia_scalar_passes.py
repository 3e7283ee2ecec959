"""The passes that make scalar code cheaper on NVIDIA GPUs: kernels compute what they did before, in f64 and f32, rows and pairs."""

import os

import pytest
import torch

from attn_mlir.backends.cpu import driver, pipeline, program
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.reference import InputMaker, Sizes, compare, evaluate
from attn_mlir.registry import registry
from gradient_cases import MASKS, MODS, ROWS, row_case
from gradient_checks import compiled_errors
from programs import INPUTS, parsed, text_of
from test_numerics_stages import STAGES, check

PASSES = (
    "gpu-narrow-bounds,gpu-lazy-rescale,gpu-narrow-comparisons,gpu-float-positions,gpu-tanh,gpu-logistic,gpu-sink-factors,gpu-row-terms,"
    "gpu-fold-scale,gpu-exp2,canonicalize,cse,gpu-share-reciprocals,canonicalize,cse"
)
EVERY = os.environ.get("ATTN_MLIR_SLOW_TESTS", "") not in ("", "0")
PROGRAMS = sorted(path.stem for path in INPUTS.glob("*.mlir"))


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    stages = STAGES.format(*((8, 4), (5, 16))[seed % 2])
    check(seed, f"{stages.replace('}', ' whole=true}') if seed % 3 else stages},canonicalize,cse,{PASSES}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_in_f32(name: str) -> None:
    maker = InputMaker(Sizes(1, 4, 2, 21, 21), 5, (0, 3))
    with parsed(text_of(name)) as module:
        inputs = maker.make(module)
        wanted = evaluate(module, inputs)
        Pipeline.parse(f"{STAGES.format(16, 8)},canonicalize,cse,{PASSES}", registry()).run(module)
        for difference in compare(module, inputs, wanted):
            assert difference.within(2e-3 if "f16" in name else 1e-5), difference


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU backend with these passes behind its tiling."""
    changed = pipeline.KERNEL.replace("canonicalize,cse,", f"canonicalize,cse,{PASSES},")
    assert PASSES in changed
    monkeypatch.setattr(pipeline, "KERNEL", changed)
    monkeypatch.setattr(driver, "_KERNELS", {})
    monkeypatch.setattr(program, "_PROGRAMS", {})


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("number", "row"), list(enumerate(ROWS))[:: 1 if EVERY else 3])
def test_gradients_do_not_move(number: int, row: str) -> None:
    masks, mods = list(MASKS), list(MODS)
    # Which keys attain the maximum is asked of scores in f64 bit by bit, but a sum in another order is rounded differently.
    mod = mods[0] if row == "two maxima" else mods[(number // 3) % len(mods)]
    found = compiled_errors(row_case(row, masks[number % len(masks)], mod))
    wrong = {name: error for name, error in found.items() if not error <= 1e-9}
    assert not wrong


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("mod", MODS)
def test_gradients_in_f32(mod: str) -> None:
    found = compiled_errors(row_case("softmax", "causal", mod), torch.float32)
    wrong = {name: error for name, error in found.items() if not error <= 1e-4}
    assert not wrong
