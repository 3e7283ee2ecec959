"""Scans over f32 inputs for NVIDIA GPUs: products of pieces of bf16, run by the evaluator, against the recurrence; their kernels."""

import itertools
from typing import Any

import numpy as np
import pytest

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.nvidia import driver, pipeline, target
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.tiles import run_kernel
from attn_mlir.registry import registry
from contexts import loaded_context
from linear_programs import Linear, error, inputs, recurrence

_BOUND = 2e-7
"""rms(error) / rms(reference): factors and sums are rounded to f32, products of pieces leave out 2^-24 of them."""
_WHOLE = {"initial": True, "final": True, "factor": True, "interval": 64}


def swept(program: Linear, given: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the kernel stores, where only what is cast to a narrower type is rounded."""
    with loaded_context():
        module = ir.Module.parse(program.text())
        Pipeline.parse(pipeline.KERNEL, registry()).run(module)
        outputs = {name: np.full(value.shape, np.nan) for name, value in wanted.items()}
        run_kernel(module.body.operations[0].operation, [*given.values(), *outputs.values()], rounding=True)
    return outputs


def rounded(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same numbers as f32 has them."""
    return {name: x.astype(np.float32).astype(np.float64) if x.dtype == np.float64 else x for name, x in given.items()}


def check(program: Linear, gate: float, length: int = 100) -> None:
    given = rounded(inputs(program, 1, {"q": 1, "k": 1, "v": 2, "decay": 2}, length, gate=gate))
    wanted = recurrence(program, given)
    found = swept(program, given, wanted)
    assert {name: error(found[name], value) for name, value in wanted.items() if not error(found[name], value) < _BOUND} == {}


@pytest.mark.parametrize("gate", [0.01, 10.0])
@pytest.mark.parametrize(("direction", "state"), list(itertools.product(("forward", "backward"), ("kv", "vk"))))
def test_products_of_pieces(direction: str, state: str, gate: float) -> None:
    check(Linear(direction=direction, state=state, chunk=64, k=16, v=8, **_WHOLE), gate)


@pytest.mark.parametrize(
    "fields", [{"diagonal": True, "result": True, **_WHOLE}, {"skip": True, "row_mods": True}, {"skip": True, "mods": True}]
)
def test_own_terms_and_what_stands_behind_sums(fields: dict[str, Any]) -> None:
    check(Linear(direction="backward", chunk=64, k=16, v=8, **fields), 1.0)


@pytest.mark.parametrize("gate", [0.01, 10.0])
@pytest.mark.parametrize(("direction", "channels"), list(itertools.product(("forward", "backward"), ("key", "value"))))
def test_decays_of_channels(direction: str, channels: str, gate: float) -> None:
    state = "kv" if channels == "key" else "vk"
    check(Linear(direction=direction, channels=channels, state=state, chunk=32, k=16, v=8, **_WHOLE), gate, 70)


def test_what_is_not_finite_stays_so() -> None:
    """An infinite element has a piece that is NaN: never a finite result."""
    program = Linear(chunk=64, k=16, v=8, initial=True)
    given = rounded(inputs(program, 1, {"q": 1, "k": 1, "v": 1, "decay": 1}, 90))
    for at, value in enumerate((np.inf, -np.inf, np.nan)):
        given["v"][0, 0, 20, at] = value
    with np.errstate(all="ignore"):
        (o,) = swept(program, given, {"o": np.zeros((1, 1, 90, 8))}).values()
    assert np.isfinite(o[0, 0, :, 3:]).all()
    assert not np.isfinite(o[0, 0, 20:, :3]).any()


@pytest.mark.parametrize("keys", [16, 64, 96, 128, 200, 256, 512])
@pytest.mark.parametrize("values", [16, 48, 64, 200, 512])
def test_every_size_has_a_schedule(keys: int, values: int) -> None:
    """Scans of all forms; of channels' decays up to 256 rows of the state."""
    forms: list[dict[str, Any]] = [{}, {"state": "vk", "factor": True, "interval": 256}]
    forms += [{"channels": "key"}] if keys <= 256 else []
    for form in forms:
        with loaded_context():
            module = ir.Module.parse(Linear(chunk=32 if "channels" in form else 64, k=keys, v=values, **form).text())
            Pipeline.parse(pipeline.KERNEL, registry()).run(module)
            fields = attributes.read(module.body.operations[0].operation, attributes.SCHEDULE)
        assert fields["emitter"] == "tilelang" and fields["threads"] in (128, 256, 512)


def test_chips_with_less_shared_memory_have_smaller_blocks() -> None:
    columns = {}
    for arch in ("sm_90a", "sm_80"):
        with loaded_context():
            module = ir.Module.parse(Linear(chunk=64, k=128, v=128).text())
            (function,) = find_all(module.operation, "func.func")
            function.attributes[attributes.CHOICES] = attributes.write({"arch": arch})
            Pipeline.parse(pipeline.KERNEL, registry()).run(module)
            (kernel,) = find_all(module.operation, "func.func")
            columns[arch] = ir.IntegerAttr(ir.DictAttr(kernel.attributes["tile.kernel"])["block_kv"]).value
    assert columns == {"sm_90a": 128, "sm_80": 64}


@pytest.mark.parametrize(("keys", "values", "emitter"), [(64, 64, "scans"), (128, 128, "scans"), (80, 64, "tilelang")])
def test_without_tilelang_warps_make_what_they_can(keys: int, values: int, emitter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver says so in the choices of all kernels; who compiles on such a machine is told what is slower than it could be."""
    monkeypatch.setattr(driver, "available", lambda: False)
    monkeypatch.setattr(driver, "current_target", lambda: target.HOPPER)
    choices = driver._for_device()  # pyright: ignore[reportPrivateUsage]
    assert choices["tilelang"] == 0
    found = []
    for chosen in (choices, {"arch": "sm_90a"}):
        with loaded_context():
            module = ir.Module.parse(Linear(chunk=64, k=keys, v=values).text())
            kernel = module.body.operations[0].operation
            kernel.attributes[attributes.CHOICES] = attributes.write(chosen)
            Pipeline.parse(pipeline.KERNEL, registry()).run(module)
            found.append(attributes.read(module.body.operations[0].operation, attributes.SCHEDULE))
    assert [fields["emitter"] for fields in found] == [emitter, "tilelang"]
    assert "its scans take f16 or bf16, not f32" in str(found[0]["slow"])
