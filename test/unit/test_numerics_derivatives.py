"""Every example program differentiated: right by differences and by PyTorch's autograd, and the same after each later pass."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import test_evaluator_dense as dense
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.reference import InputMaker, Sizes, compare, evaluate, rows_with_keys
from attn_mlir.reference.derivatives import DerivativePoint, inputs_with_gradient
from attn_mlir.reference.promote import promoted
from attn_mlir.registry import registry
from programs import INPUTS, parsed, text_of
from random_programs import random_program

PROGRAMS = sorted(path.stem for path in INPUTS.glob("*.mlir") if path.stem != "paged-causal")
"""Keys in pages have no derivatives."""
STAGES = ("attn-simplify", "attn-outline", "attn-resolve-masks", "attn-online-rewrite,attn-guard-empty-rows")
# Second derivatives where a row has one key: its variance is 0, and rounding is multiplied by 1e12.
ILL_CONDITIONED = {"layer-norm"}
SECOND = ("alibi-signed", "causal-softmax", "document", "entropy", "relu-normalised", "retention", "sink", "softcap", "std-temperature")
SIZES = (Sizes(2, 4, 2, 5, 7), Sizes(1, 3, 3, 7, 5), Sizes(2, 2, 1, 1, 1))
Tensor = torch.Tensor


@contextmanager
def differentiated(name: str, functions: str, sizes: Sizes, captures: Sequence[object] | None = None) -> Iterator[DerivativePoint]:
    """A program of test/Inputs with derivatives for all its floating tensors; captures are drawn unless given."""
    with derived(text_of(name), functions, InputMaker(sizes, PROGRAMS.index(name))) as point:
        if captures is not None:
            point.inputs[3:] = [np.asarray(c) for c in captures]
        yield point


@contextmanager
def derived(text: str, functions: str, maker: InputMaker) -> Iterator[DerivativePoint]:
    """A program with its derivatives, in float64."""
    with parsed(promoted(text)) as module:
        original = ir.Module.parse(str(module))
        Pipeline.parse(f"attn-simplify,attn-recover-rows,attn-differentiate{{functions={functions}}}", registry()).run(module)
        wrt = inputs_with_gradient(module, original, "attention_bwd", [])
        yield DerivativePoint(module, original, "attention", maker.make(original), wrt)


def check_stages(point: DerivativePoint, kinds: Sequence[str], tolerance: float = 1e-10) -> None:
    arguments = {kind: point.arguments(kind) for kind in kinds}
    wanted = {kind: evaluate(point.module, arguments[kind], f"attention_{kind}") for kind in kinds}
    names = {kind: point.results(kind) for kind in kinds}
    filled = rows_with_keys(point.original, point.inputs)
    for stage in STAGES:
        Pipeline.parse(stage, registry()).run(point.module)
        for kind in kinds:
            rows = None if kind.startswith("bwd") else filled
            found = compare(point.module, arguments[kind], wanted[kind], filled=rows, names=names[kind], function=f"attention_{kind}")
            for difference in found:
                assert difference.within(tolerance), f"@attention_{kind} after {stage}: {difference}"


def check_differences(point: DerivativePoint, kinds: Sequence[str]) -> None:
    for kind in kinds:
        results = evaluate(point.module, point.arguments(kind), f"attention_{kind}")
        assert all(np.isfinite(r).all() for r in results if kind.startswith("bwd")), "gradients are finite"
        for difference in point.check(kind, results) or []:
            assert difference.within(1e-6), f"@attention_{kind}: {difference}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_first_derivatives(name: str) -> None:
    kinds = ("fwd", "bwd", "jvp")
    with differentiated(name, "+".join(kinds), SIZES[PROGRAMS.index(name) % 2]) as point:
        check_differences(point, kinds)
        check_stages(point, kinds, 1e-7 if name in ILL_CONDITIONED else 1e-10)


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(name: str) -> None:
    with differentiated(name, "fwd+bwd+bwd2", SIZES[PROGRAMS.index(name) % 3]) as point:
        check_differences(point, ["bwd2"])
        check_stages(point, ["bwd2"])


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    kinds = ("fwd", "bwd", "jvp", "bwd2")
    maker = InputMaker(Sizes(2, 4, 2, 6, 7), seed, (0, 2 + seed), index=seed % 7)
    with derived(random_program(seed), "+".join(kinds), maker) as point:
        check_differences(point, kinds)
        check_stages(point, kinds, 1e-8)


WITHOUT_KEYS = {"length", "empty-rows"}  # whose dense formula gives NaN gradients


def retention(s: Tensor, m: Tensor, c: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    return (s / (s * m).abs().sum(-1, keepdim=True).detach().clamp(min=1.0),)


def entropy(s: Tensor, m: Tensor, c: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    p, lse = dense.softmax(s, m, c)
    return p, lse, -(p * torch.where(m, p, 1.0).log()).sum(-1)


# Where the formula of the values is not that of the gradients: what is detached, and the slope of x log x at 0.
ROWS = {"retention": retention, "entropy": entropy}


def leaves_of(point: DerivativePoint) -> list[Tensor]:
    return [torch.from_numpy(np.asarray(x)).clone() for x in point.inputs]


def formula(name: str, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The results of a program as PyTorch computes them."""
    case = dataclasses.replace(dense.CASES[name], row=ROWS.get(name, dense.CASES[name].row))
    captures = dict(zip(case.captures, inputs[3:], strict=True))
    return dense.dense(case, inputs[0], inputs[1], inputs[2], captures)


@pytest.mark.parametrize("name", sorted(dense.CASES.keys() - WITHOUT_KEYS))
def test_gradients_are_those_of_autograd(name: str) -> None:
    second = name in SECOND
    sizes = Sizes(dense.B, dense.H, dense.HKV, dense.SQ, dense.SKV)
    rng = np.random.default_rng(7)
    captures = [draw(rng) for draw in dense.CASES[name].captures.values()]
    with differentiated(name, "fwd+bwd+jvp" + "+bwd2" * second, sizes, captures) as point:
        inputs = [x.requires_grad_(i in point.wrt) for i, x in enumerate(leaves_of(point))]
        weights = [torch.from_numpy(w).requires_grad_() for w in point.weights()]
        leaves = [inputs[i] for i in point.wrt]
        gradients = torch.autograd.grad(formula(name, inputs), leaves, weights, create_graph=True)
        check_close(point, "bwd", gradients, 1e-7 if name in ILL_CONDITIONED else 1e-11)
        along = torch.stack([(g * torch.from_numpy(d)).sum() for g, d in zip(gradients, point.directions(), strict=True)]).sum()
        tangents = torch.autograd.grad(along, weights, create_graph=True)
        results = evaluate(point.module, point.arguments("jvp"), "attention_jvp")
        rows = 1 + point.rows
        for got, want in zip([results[1], *results[rows + 1 :]], tangents, strict=True):
            np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-8, atol=1e-8 if name in ILL_CONDITIONED else 1e-11)
        if second:
            wanted = torch.autograd.grad(along, [*leaves, *weights], allow_unused=True, materialize_grads=True)
            check_close(point, "bwd2", wanted, 1e-10)


def check_close(point: DerivativePoint, kind: str, wanted: Sequence[Tensor], tolerance: float) -> None:
    got = evaluate(point.module, point.arguments(kind), f"attention_{kind}")
    assert len(got) == len(wanted)
    for name, mine, theirs in zip(point.results(kind), got, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=tolerance, atol=tolerance, err_msg=f"{kind} {name}")
