"""Single queries of packed sequences for sm_80: kernels of the `warp` dialect for parts of the keys and for all, in the evaluator."""

from typing import Any

import pytest
import torch

from attn_mlir import attention_varlen, masks
from attn_mlir.backends.gpu.packed import Ragged
from attn_mlir.backends.gpu.split import list_of_whole, lists_for, lower_parts, lower_whole
from attn_mlir.backends.nvidia import codegen, pipeline
from attn_mlir.backends.nvidia.emulation.kernel import EvaluatedKernel, form
from attn_mlir.backends.nvidia.warp.synchronous import DECODE
from attn_mlir.mlir import ir
from machine_code import compiled
from program_texts import text_of
from varlen_cases import offsets

HEADS, GROUP, COLUMNS = 2, 4, 64
QUERIES, KEYS = (1, 0, 1, 1, 0), (70, 4, 0, 131, 3)
CHOICES: dict[str, int | str] = {"arch": "sm_80", DECODE: 1, "block_q": 64, "block_kv": 64}
Tensor = torch.Tensor


def traced() -> str:
    q, k = torch.randn(2, HEADS * GROUP, COLUMNS).half(), torch.randn(30, HEADS, COLUMNS).half()
    mask = masks.causal("bottom_right")
    return text_of(lambda: attention_varlen(q, k, k.clone(), offsets([1, 1]), offsets([20, 10]), mask_mod=mask))


def problem() -> tuple[list[Any], Tensor]:
    """What kernels take before their outputs, and o of [entries, heads of keys, group, columns] in float64; 0 where there are no keys."""
    draw, rows = torch.Generator().manual_seed(1), (len(KEYS) - 2, HEADS, GROUP, COLUMNS)
    q = torch.randn(rows, generator=draw).half()
    k, v = (torch.randn(1, HEADS, sum(KEYS), COLUMNS, generator=draw).half() for _ in range(2))
    of_q, of_k = offsets(QUERIES), offsets(KEYS)
    wanted = torch.zeros(rows, dtype=torch.float64)
    for n, (some, count) in enumerate(zip(QUERIES, KEYS, strict=True)):
        if some and count:
            own, first = int(of_q[n]), int(of_k[n])
            keys, values = (x[0, :, first : first + count].double() for x in (k, v))
            wanted[own] = (q[own].double() @ keys.mT / 8).softmax(-1) @ values
    return [q, Ragged(k), Ragged(v), of_q[:-1], of_q.diff(), of_k[:-1], of_k.diff()], wanted


def close(got: Tensor, wanted: Tensor) -> None:
    assert torch.isfinite(got).all() and float((got.double() - wanted).norm()) <= 2e-3 * float(wanted.norm())


def texts(lower: Any) -> tuple[Any, dict[str, str]]:
    """The units that a function lowers, and the kernels that passes form among them, by their names."""
    found: dict[str, str] = {}

    def emit(function: ir.Operation) -> Any:
        code = codegen.emit(function)
        if 'emitter = "warp"' in str(function.attributes["tile.schedule"]):
            found[code.name], _ = form(function)
        return code

    return lower(traced(), CHOICES, pipeline.KERNEL, emit, "NVIDIA"), found


def test_all_keys() -> None:
    """A sequence without a query writes nothing over that of the next one, and the last one reads no entry that is not there."""
    unit, found = texts(lower_whole)
    inputs, wanted = problem()
    o = torch.zeros(wanted.shape, dtype=unit.dtypes[0])
    kernel = EvaluatedKernel(found[unit.code.name])
    kernel([*inputs, Ragged(o) if len(inputs) in unit.kernel.ragged else o, list_of_whole(len(KEYS), GROUP, 64, o.device)], {7: "add"})
    close(o, wanted)


@pytest.mark.parametrize("cut", [(1, 192), (3, 64)])
def test_parts_of_keys(cut: tuple[int, int]) -> None:
    """Merged as `attn.merge` of softmax does; the kernel that merges is for the same chip."""
    (parts, combine), found = texts(lower_parts)
    assert (parts.schedule["emitter"], combine.code.arch) == ("warp", "sm_80")
    inputs, wanted = problem()
    rows = (len(KEYS) * cut[0], HEADS, GROUP)
    partial = [torch.zeros(*rows, COLUMNS), *(torch.zeros(rows) for _ in range(2))]
    work, _ = lists_for(len(KEYS), GROUP, cut, 64, partial[0].device)
    EvaluatedKernel(found[parts.code.name])([*inputs, *partial, work], dict.fromkeys((7, 8, 9), "add"))
    sums, most, weights = (x.double().unflatten(0, (len(KEYS), cut[0])) for x in partial)
    scale = (most - most.amax(1, keepdim=True)).exp()
    merged = (sums * scale[..., None]).sum(1) / (weights * scale).sum(1).clamp(min=1e-30)[..., None]
    close(merged[torch.tensor(QUERIES) > 0], wanted)
    assert (sums[torch.tensor(QUERIES) == 0] == 0).all()


def test_machine_code() -> None:
    """Without spills."""
    for lower in (lower_whole, lower_parts):
        units, found = texts(lower)
        codes = [unit.code for unit in (units if isinstance(units, tuple) else (units,)) if unit.code.name in found]
        assert codes and all(compiled(code).spills == 0 for code in codes)
