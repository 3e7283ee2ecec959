"""Hashes of generated code before and after a change: benchmarks/generated_hashes.py --write before.json, then --against before.json.

--write FILE      keeps the hashes of every program, of each of its derivatives and targets
--against FILE    compares with those; exit code 1 where code differs, or was made then and is refused now
--only NAME       some programs, by a part of their names           --texts FOLDER   writes the code as well, to be compared by diff
--targets cpu,cuda,hip                                              default: all three

Code is LLVM IR for the CPU, and CUDA C++ (or the TileLang program) and HIP for GPUs. Nothing is compiled further, and no GPU is needed.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from family_cases import alibi, documents, layer_norm, relu_norm

from attn_mlir import masks, mods, rows
from attn_mlir.backends.amd import codegen as amd
from attn_mlir.backends.amd import pipeline as amd_pipeline
from attn_mlir.backends.cpu import pipeline as cpu_pipeline
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.compiled_kernels import outlined
from attn_mlir.backends.host import read_host
from attn_mlir.backends.nvidia import codegen as nvidia
from attn_mlir.backends.nvidia import pipeline as nvidia_pipeline
from attn_mlir.backends.nvidia.tilelang import program_of
from attn_mlir.backends.program import function_named, keep_kernels, prepare_derivative
from attn_mlir.dialects import load_all
from attn_mlir.errors import AttnError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.linear import LinearDefinition, trace_linear
from attn_mlir.frontend.program import Definition, Traced, trace
from attn_mlir.mlir import ir, llvm
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry

TARGETS = ("cpu", "cuda", "hip")
_SLOPES, _POSITIONS = torch.ones(4), torch.zeros(64)


def _two_passes(s: Any) -> Any:
    return (s - s.max() - (s * s).sum()).tanh()


def _difference(s: Any, s2: Any) -> Any:
    return rows.softmax(s) - 0.3 * rows.softmax(s2)


def _attentions() -> dict[str, tuple[Definition, Inputs]]:
    def plain(element: str) -> Inputs:
        return Inputs(element, 64, 64)

    forms: dict[str, Definition] = {
        "softmax": Definition(rows.softmax, scale=0.125, lse=True),
        "causal": Definition(rows.softmax, mask_mod=masks.causal()),
        "alibi window": Definition(rows.softmax, score_mod=alibi, mask_mod=masks.sliding_window(100)),
        "documents": Definition(rows.softmax, mask_mod=documents, scale=0.125),
        "softcap": Definition(rows.softmax, score_mod=mods.softcap(20.0), mask_mod=masks.causal(), scale=0.125),
        "normalised": Definition(relu_norm, score_mod=alibi, mask_mod=masks.causal(), states=True),
        "layer norm": Definition(layer_norm, scale=0.125),
        "two passes": Definition(_two_passes, mask_mod=masks.causal(), scale=0.125),
        "sigmoid": Definition(rows.sigmoid, mask_mod=masks.causal(), scale=0.125),
        "retention": Definition(rows.retention, score_mod=lambda s, b, h, i, j: s * _SLOPES[h], mask_mod=masks.causal(), scale=0.125),
        "mods": Definition(rows.softmax, query_mod=lambda x, b, h, i, d: x * _POSITIONS[i], value_mod=lambda x: x * x, scale=0.125),
    }
    found = {f"{name} {element}": (form, plain(element)) for name, form in forms.items() for element in ("f32", "f16")}
    found["causal bf16"] = (forms["causal"], plain("bf16"))
    found["causal f16 of 128"] = (forms["causal"], Inputs("f16", 128, 128))
    found["packed causal f32"] = (forms["causal"], Inputs("f32", 64, 64, packed=True))
    for element in ("f32", "f16"):
        pair = Definition(_difference, mask_mod=masks.causal(), scale=0.125, extra_scales=(0.125,))
        found[f"two scores {element}"] = (pair, Inputs(element, 64, 64, (64,)))
    return found


def _recurrences() -> dict[str, tuple[LinearDefinition, Inputs]]:
    fading: dict[str, Any] = {"decay_mod": lambda g, b, h, t: g * _SLOPES[h], "v_mod": lambda x, b, h, t: x * _SLOPES[h]}
    forms: dict[str, LinearDefinition] = {
        "linear": LinearDefinition(),
        "fixed decay": LinearDefinition(decay="head", scale=0.125),
        "simple gla": LinearDefinition(decay="step", initial_state=True, final_state=True),
        "mamba": LinearDefinition(decay="step", skip_mod=lambda b, h, t: _SLOPES[h], **fading),
        "gla": LinearDefinition(decay="step channel", scale=0.125, final_state=True),
        "fixed channels": LinearDefinition(decay="head channel"),
        "sequences": LinearDefinition(decay="step", offsets="i32", final_state=True),
        "key mod": LinearDefinition(decay="step", k_mod=lambda x, b, h, t: x * _POSITIONS[t], q_mod=lambda x: x * x),
    }
    return {f"{name} {element}": (form, Inputs(element, 64, 64)) for name, form in forms.items() for element in ("f32", "f16", "bf16")}


def programs() -> dict[str, Callable[[], Traced]]:
    """What traces each program, by its name."""
    made: dict[str, Callable[[], Traced]] = {}
    for name, (form, inputs) in _attentions().items():
        made[name] = lambda form=form, inputs=inputs: trace(form, inputs)
    for name, (recurrence, inputs) in _recurrences().items():
        made[f"linear: {name}"] = lambda form=recurrence, inputs=inputs: trace_linear(form, inputs)
    return made


def _prepared(text: str, function: str, wrt: list[str], outline: str, target: str) -> tuple[ir.Module, Any]:
    options = {"options": cpu_pipeline.DECAYS} if target == "cpu" else {}
    name, prepare = prepare_derivative(function, wrt, outline, 0, residual=target != "cuda", **options)
    module = ir.Module.parse(text)
    Pipeline.parse(prepare, registry()).run(module)
    return module, read_host(function_named(module, name))


def _llvm(text: str, function: str, wrt: list[str]) -> str:
    module, host = _prepared(text, function, wrt, cpu_pipeline.OUTLINE, "cpu")
    keep_kernels(module, host)
    Pipeline.parse(cpu_pipeline.ALL, registry()).run(module)
    return llvm.translate_module_to_llvmir(module.operation)


def _for_gpu(text: str, function: str, wrt: list[str], target: str) -> str:
    outline = nvidia_pipeline.outline("sm_90a") if target == "cuda" else amd_pipeline.OUTLINE
    module, host = _prepared(text, function, wrt, outline, target)
    outlined(module, host, {})
    Pipeline.parse((nvidia_pipeline if target == "cuda" else amd_pipeline).KERNEL, registry()).run(module)
    emit = nvidia.emit if target == "cuda" else amd.emit
    parts = []
    for step in host.steps:
        if step.kernel:
            kernel = function_named(module, step.kernel)
            through_tilelang = attributes.read(kernel, attributes.SCHEDULE)["emitter"] == "tilelang"
            parts.append(program_of(kernel).text if through_tilelang else emit(kernel).source)
    return "\n".join(parts)


def code(traced: Traced, target: str, function: str) -> str:
    """The generated code of a program ("") or its gradient ("bwd") for a target, or what the refusal says."""
    floats = [f"arg{3 + i}" for i, each in enumerate(traced.captures) if each.kind == "tensor" and each.element in ("f16", "bf16", "f32")]
    wrt = ["q", "k", "v", *floats] if function else []
    try:
        with ir.Context() as context:
            load_all(context)
            return _llvm(traced.text, function, wrt) if target == "cpu" else _for_gpu(traced.text, function, wrt, target)
    except AttnError as error:
        return f"refused: {error}"


def measure(only: str, targets: tuple[str, ...], texts: Path | None) -> Iterator[tuple[str, str]]:
    """The name and hash of every piece of code."""
    for name, make in programs().items():
        if only not in name:
            continue
        traced = make()
        for target in targets:
            for function in ("", "bwd"):
                key = f"{name}, {target}{', gradient' if function else ''}"
                made = code(traced, target, function)
                if texts is not None:
                    (texts / f"{key.replace(' ', '_').replace(',', '').replace(':', '')}.txt").write_text(made, encoding="utf-8")
                yield key, ("refused " if made.startswith("refused: ") else "") + hashlib.sha256(made.encode()).hexdigest()[:16]


def main() -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(description="Hashes of generated code, before and after a change.")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--texts", type=Path)
    options = parser.parse_args()
    if options.texts is not None:
        options.texts.mkdir(parents=True, exist_ok=True)
    found = dict(measure(options.only, tuple(options.targets.split(",")), options.texts))
    refused = sum(value.startswith("refused") for value in found.values())
    print(f"{len(found)} pieces of code, {refused} of them refused")
    if options.write is not None:
        options.write.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if options.against is None:
        return 0
    before = json.loads(options.against.read_text(encoding="utf-8"))
    differing = [key for key, value in found.items() if before.get(key) != value]
    print(f"{len(found) - len(differing)} equal", *(f"differs: {key}" for key in differing), sep="\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
