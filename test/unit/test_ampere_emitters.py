"""Which code generator makes a kernel for sm_80 where nobody asks for one, and what is said of those that `warp` does not make."""

import ctypes
import math
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from attn_mlir import Attention, masks, mods
from attn_mlir.backends.fields import Fields
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.emitters import SLOW
from attn_mlir.backends.gpu.scheduled import scheduled
from attn_mlir.backends.nvidia import codegen, cuda, driver, pipeline, target
from attn_mlir.backends.nvidia import compile as nvcc
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.tuning.choices import EVERY, with_choices
from attn_mlir.backends.nvidia.tuning.space import NvidiaSpace
from attn_mlir.backends.nvidia.warp import emitter, synchronous
from attn_mlir.backends.program import OUTLINE, function_named, prepare_derivative, reported
from attn_mlir.backends.tuning.facts import KernelFacts
from attn_mlir.backends.tuning.space import Workload, to_measure
from attn_mlir.dialects import loaded
from attn_mlir.frontend.emit import Inputs
from nvidia_fakes import BINARY, fake_gpu, heads, parameter, set_apart

_TABLE = torch.zeros(64)


def _by_key(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + _TABLE[j % 64]


CAUSAL: dict[str, Any] = {"mask_mod": masks.causal()}
FORMS: dict[str, dict[str, Any]] = {
    "causal": CAUSAL,
    "full": {},
    "window": {"mask_mod": masks.sliding_window(100)},
    "captured": {**CAUSAL, "score_mod": _by_key},
    "softcap": {"score_mod": mods.softcap(20.0)},
    "dropout": {**CAUSAL, "dropout_p": 0.2},
}


def traced(form: dict[str, Any], columns: int, element: str = "f16") -> str:
    call = Attention(**form)
    call.__dict__.update(_last=Inputs(element, columns, columns), _form=None)
    return call.ir()


def schedule(text: str, backward: bool = False, **choices: int | str) -> Fields:
    """That of the kernel with products: of the attention, or of its backward pass."""
    chosen: Fields = {"arch": "sm_80", **choices}
    name, prepare = (
        prepare_derivative("bwd", ("q", "k", "v"), pipeline.outline(str(chosen["arch"]))) if backward else ("attention", OUTLINE)
    )
    with reported(), loaded() as context:
        module, host = scheduled(context, text, name, prepare, chosen, pipeline.KERNEL, "NVIDIA")
        called = [function_named(module, step.kernel) for step in host.steps if step.kernel]
        (found,) = (
            op for op in called if attributes.grid_kind(op) in ("rows", "pairs") and "row_dot" not in str(op.attributes["sym_name"])
        )
        return attributes.read(found, attributes.SCHEDULE)


@pytest.mark.parametrize("columns", [64, 128])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_passes_make_what_they_form(form: str, columns: int, backward: bool) -> None:
    fields = schedule(traced(FORMS[form], columns), backward)
    assert (fields["emitter"], fields["arch"], fields.get(SLOW)) == ("warp", "sm_80", None)


def _layer_norm(s: Any) -> Any:
    centred = s - s.mean()
    return centred / ((centred * centred).mean() + 1e-5).sqrt()


def test_kernels_are_formed_once() -> None:
    """To choose the emitter, and not again to emit: a backward pass of two kernels, rows and pairs."""
    text = traced({**CAUSAL, "row": _layer_norm}, 64)
    name, prepare = prepare_derivative("bwd", ("q", "k", "v"), pipeline.outline("sm_80"))
    with mock.patch.object(emitter, "formed", wraps=emitter.formed) as formed, reported(), loaded() as context:
        module, host = scheduled(context, text, name, prepare, {"arch": "sm_80"}, pipeline.KERNEL, "NVIDIA")
        kernels = [function_named(module, step.kernel) for step in host.steps if step.kernel]
        made = [op for op in kernels if attributes.read(op, attributes.SCHEDULE)["emitter"] == "warp"]
        codes = [codegen.emit(op) for op in made]
    assert len(codes) == formed.call_count == 2


def test_wide_rows_and_bf16() -> None:
    made = [schedule(traced(CAUSAL, 192)), schedule(traced({}, 256)), schedule(traced({}, 128, "bf16"))]
    assert [fields["emitter"] for fields in made] == ["warp"] * 3
    with mock.patch.object(driver, "current_target", return_value=target.AMPERE):
        assert driver.slow(traced(CAUSAL, 192), "bwd", ("q", "k", "v")) == driver.slow(traced({}, 256), "bwd", ("q", "k", "v")) == {}


@pytest.mark.parametrize(("columns", "backward", "choices", "why"), [
    (80, True, {}, "q, k and v have 80 columns, not 64, 128, 192, 256"),
    (96, False, {}, "q, k and v have 96 columns, not 64, 128, 192, 256"),
    (64, True, {"shared_bytes": 101376}, "it needs 133120 bytes of shared memory, and there are 101376"),
])  # fmt: skip
def test_what_they_do_not_form_is_tilelangs_and_says_why(columns: int, backward: bool, choices: Fields, why: str) -> None:
    fields = schedule(traced(CAUSAL, columns), backward, **choices)
    assert (fields["emitter"], fields[SLOW]) == ("tilelang", f"made by 'tilelang', not by 'warp': {why}")


def test_scatters_and_more_products_are_tilelangs() -> None:
    with mock.patch.object(driver, "current_target", return_value=target.AMPERE):
        (why,) = driver.slow(traced(FORMS["captured"], 64), "bwd", ("q", "k", "v", "arg3")).values()
        assert why == "made by 'tilelang', not by 'warp': 'tile.scatter_add' has no form on fragments yet"
        (why,) = driver.slow(traced(CAUSAL, 64), "jvp", ("q", "k", "v")).values()
        assert "3 products of rows before its weights, not 1" in why
        told = driver.slow(traced(CAUSAL, 256), "bwd", ("q", "k", "v"), deterministic=True)
        assert all("sums in a fixed order have not been launched with more than 128 columns" in why for why in told.values()) and told


def test_a_refusal_of_a_pass_is_the_reason_and_blocks_are_those_of_before() -> None:
    text = traced(CAUSAL, 128)
    with mock.patch.object(synchronous, "print_ahead", side_effect=Refused("rows are odd")):
        fields = schedule(text)
    assert fields.pop(SLOW) == "made by 'tilelang', not by 'warp': rows are odd"
    assert fields == schedule(text, emitter="tilelang")


def test_who_chose_something_keeps_it() -> None:
    text = traced(CAUSAL, 64)
    assert schedule(text, emitter="tilelang")["emitter"] == "tilelang"
    blocks = schedule(text, block_q=64, block_kv=64)
    assert blocks["emitter"] == "tilelang" and SLOW not in blocks
    assert schedule(with_choices(text, {EVERY: {"block_q": 64, "block_kv": 64, "threads": 128}}))["threads"] == 128


def test_other_chips_are_left_as_they_were() -> None:
    fields = schedule(traced(FORMS["captured"], 64), arch="sm_90a")
    assert fields["emitter"] == "hopper" and SLOW not in fields


def test_a_forward_pass_on_chips_with_less_shared_memory() -> None:
    assert schedule(traced(CAUSAL, 128), shared_bytes=101376)["emitter"] == "warp"


@pytest.mark.parametrize(("capability", "shared", "wanted"), [
    ((8, 0), 163 * 1024, {"arch": "sm_80"}),
    ((8, 9), 99 * 1024, {"arch": "sm_80", "shared_bytes": 99 * 1024}),
    ((10, 0), 227 * 1024, {"arch": "sm_80"}),
    ((9, 0), 1024, {"arch": "sm_90a"}),
])  # fmt: skip
def test_devices_say_what_they_have(capability: tuple[int, int], shared: int, wanted: Fields) -> None:
    device = cuda.Device(0, "GPU", capability, 1, shared)
    with (
        mock.patch.object(torch.cuda, "is_available", return_value=True),
        mock.patch.object(torch.cuda, "current_device", return_value=0),
        mock.patch.object(cuda, "device", return_value=device),
        mock.patch.object(driver, "available", return_value=True),
    ):
        assert driver._for_device() == wanted  # pyright: ignore[reportPrivateUsage]


def test_what_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The whole way on a fake A100, with heads that share keys: a thread block for each tile of 128 queries; no TileLang, no warning."""
    set_apart(monkeypatch, tmp_path / "cache")
    monkeypatch.setattr(nvcc, "_run", lambda *_: BINARY)
    monkeypatch.setattr(driver, "current_target", lambda: target.AMPERE)
    with fake_gpu() as gpu, warnings.catch_warnings():
        warnings.simplefilter("error")
        gpu.attributes |= {16: 108, 97: 163 * 1024, 75: 8, 76: 0}
        program = driver.compile_program(traced(CAUSAL, 64), "attention")
        q, k, v = heads(2, 4, 300, 64), heads(2, 2, 300, 64), heads(2, 2, 300, 64)
        (o,) = program.run([q, k, v])
        (launched,) = gpu.named("cuLaunchKernelEx")
    assert math.prod(launched["grid"]) == 2 * 4 * 3 and launched["threads"] == 128 and launched["shared"] == 48 * 1024
    pointers = [parameter(launched, number, ctypes.c_uint64) for number in range(4)]
    assert pointers == [each.data_ptr() for each in (q, k, v, o)] and o.dtype == torch.float16


def test_slow_kernels_and_explain_tell() -> None:
    with mock.patch.object(driver, "current_target", return_value=target.AMPERE):
        assert driver.slow(traced(CAUSAL, 64), "bwd", ("q", "k", "v")) == {}
        assert driver.slow(traced(CAUSAL, 64), "bwd", ("q", "k", "v"), deterministic=True) == {}
        (told,) = driver.slow(traced(CAUSAL, 96), "bwd", ("q", "k", "v"), deterministic=True).values()
        assert told == "made by 'tilelang', not by 'warp': q, k and v have 96 columns, not 64, 128, 192, 256"
        assert "warp" in driver.compile_program(traced(CAUSAL, 64), "attention").explain()


@pytest.mark.parametrize("columns", [64, 96])
def test_tuners_measure_both_emitters(columns: int) -> None:
    facts = KernelFacts("rows", "f16", (columns,), (columns,), (), 1.0, 5.0)
    measured = to_measure(NvidiaSpace(facts, target.AMPERE, Workload()))
    assert ({"emitter": "warp"} in measured) == (columns == 64) and any(each.get("emitter") == "tilelang" for each in measured)
    assert {"emitter": "warp"} not in to_measure(NvidiaSpace(facts, target.HOPPER, Workload()))


@pytest.mark.parametrize("columns", [192, 256])
def test_wide_backward_passes_of_small_chips_are_tilelangs(columns: int) -> None:
    """Both kernels: the one of dv alone loads do, too, for which its blocks leave room."""
    with (
        mock.patch.object(driver, "current_target", return_value=target.AMPERE),
        mock.patch.object(driver, "_for_device", return_value={"arch": "sm_80", "shared_bytes": 101376}),
    ):
        told = driver.slow(traced(CAUSAL, columns), "bwd", ("q", "k", "v"))
    assert len(told) == 2 and all("bytes of shared memory, and there are 101376" in why for why in told.values())
