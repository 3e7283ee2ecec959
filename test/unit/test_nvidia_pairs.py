"""Kernels over pairs for Hopper: what is planned, and that nvcc compiles it without spilling."""

import re
import shutil
from pathlib import Path
from unittest import mock

import pytest
import torch

from attn_mlir import Attention
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import blocks, codegen, driver, pipeline
from attn_mlir.backends.nvidia.compile import Cubin
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.errors import AttnError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry
from contexts import loaded_context
from machine_code import compiled

INPUTS = Path(__file__).parents[1] / "Inputs"
NVCC = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")


def kernels(
    name: str,
    head: int = 64,
    value: int | None = None,
    element: str = "f16",
    function: str = "bwd",
    wrt: str = "q+k+v",
    choices: str = "",
    rounded: bool = False,
) -> list[tuple[dict[str, int | str], KernelCode]]:
    """The schedule and the code of all kernels of a derivative that run over pairs, those of the `warp` dialect left out.

    `rounded`: their stored results are 16 bits.
    """
    text = (INPUTS / f"{name}.mlir").read_text()
    text = text.replace("x32xf32", f"x{head if value is None else value}x{element}").replace("x64xf32", f"x{head}x{element}")
    context = loaded_context()
    module = ir.Module.parse(text, context)
    outline = f"attn-simplify,attn-recover-rows,attn-differentiate{{functions={function} wrt={wrt} only=true}},attn-simplify,attn-outline"
    Pipeline.parse(f"{outline}{{keep-hosts=false}}", registry()).run(module)
    with context:
        functions = find_all(module.operation, "func.func")
        for op in functions if choices else []:
            op.attributes["tile.choices"] = ir.Attribute.parse(choices)
        others = mock.patch.object(codegen, "preferred", lambda kernel, fields: fields)
        with others, mock.patch.object(blocks, "blocks_of_quotients", return_value=None):
            Pipeline.parse(pipeline.KERNEL, registry()).run(module)
        found = []
        for kernel in find_all(module.operation, "func.func"):
            sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
            if "grid" in sizes and ir.StringAttr(sizes["grid"]).value == "pairs":
                if rounded:
                    _round(kernel, ir.Type.parse(element))
                found.append((attributes.read(kernel, attributes.SCHEDULE), codegen.emit(kernel)))
        return found


def _round(kernel: ir.Operation, element: ir.Type) -> None:
    """As the driver does with results that nothing else reads."""
    kinds = [ir.StringAttr(kind).value for kind in ir.ArrayAttr(ir.DictAttr(kernel.attributes["tile.kernel"])["outputs"])]
    outputs = list(kernel.regions[0].blocks[0].arguments)[-1 - len(kinds) : -1]
    for output, kind in zip(outputs, kinds, strict=True):
        old = ir.MemRefType(output.type)
        if kind == "store":
            output.set_type(ir.MemRefType.get(old.shape, element, old.layout, loc=kernel.location))


def multiplying(code: KernelCode) -> Cubin:
    assert "wgmma.mma_async" in code.source
    return compiled(code)


def test_registers_of_roles_fit() -> None:
    """More registers than the launch has make setmaxnreg wait for ever."""
    (schedule, code), *_ = kernels("causal-softmax", 128)
    assert schedule["emitter"] == "hopper" and schedule["kind"] == "pairs"
    at_launch = 65536 // code.threads // 8 * 8
    assert 256 * 240 + 128 * 24 <= at_launch * code.threads
    assert "more_registers<240>" in code.source and "fewer_registers<24>" in code.source


def test_boxes_of_tensors() -> None:
    """Keys come as 128 rows, queries as a block, sums over keys leave as 64 rows of 32 numbers."""
    for name, queries in (("derivatives/softmax", 80), ("causal-softmax", 64)):
        ((_, code),) = kernels(name, 128, 128)
        boxes = [p.box for p in code.parameters if p.kind == "descriptor"]
        assert boxes == [(64, queries), (64, 128), (64, 128), (64, queries), (32, queries)]


@pytest.mark.parametrize(
    ("name", "options", "queries"),
    [
        ("derivatives/softmax", {"element": "bf16"}, 80),
        ("derivatives/softmax", {"choices": "{deterministic = 1 : i64}"}, 80),
        ("derivatives/softmax", {"choices": "{block_q = 128 : i64, block_kv = 64 : i64}"}, 64),
        ("derivatives/softmax", {"value": 64}, 64),
        ("derivatives/softmax", {"wrt": "q"}, 64),
        ("causal-softmax", {}, 64),
        ("causal-softmax", {"choices": "{block_q = 128 : i64, block_kv = 80 : i64}"}, 80),
        ("softcap", {}, 64),
    ],
    ids=str,
)
def test_blocks_of_80_queries(name: str, options: dict[str, str], queries: int) -> None:
    """Where registers suffice, sums over keys are transposed, and leave in the registers of the scores."""
    ((schedule, code),) = kernels(name, 128, **{"value": 128, "rounded": True, **options})  # type: ignore[arg-type]
    assert schedule["emitter"] == "hopper" and f"+= {queries})" in code.source
    assert ("!(attn::opaque(1)))" in code.source) == (queries == 80)


def test_kernels_of_the_warp_dialect_have_blocks_of_64_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its passes know no transposed sums over keys."""
    wanted = "nvidia-choose-blocks{transpose=false}"
    assert wanted in pipeline.WARP
    monkeypatch.setattr(pipeline, "KERNEL", pipeline.KERNEL.replace("nvidia-choose-blocks", wanted))
    ((_, code),) = kernels("derivatives/softmax", 128, 128, rounded=True)
    assert "+= 64)" in code.source and "!(attn::opaque(1)))" not in code.source


def test_a_factor_of_each_head_keeps_blocks_of_64_queries() -> None:
    """It is one value more than registers have room for."""
    factor = torch.ones(4)
    call = Attention(score_mod=lambda s, b, h, i, j: s * factor[h])
    call.__dict__.update(_last=Inputs("f16", 128, 128), _form=None)
    _, units = driver._lower(call.ir(), *prepare_derivative("bwd", ("q", "k", "v"), pipeline.outline("sm_90a")), {"arch": "sm_90a"})  # pyright: ignore[reportPrivateUsage]
    (pairs,) = (unit for name, unit in units.items() if name.endswith("pairs"))
    assert "+= 64)" in pairs.code.source and "!(attn::opaque(1)))" not in pairs.code.source


@pytest.mark.parametrize(("head", "queries"), [(64, 80), (128, 72)])
def test_other_blocks_are_refused(head: int, queries: int) -> None:
    """A warpgroup makes 64 columns of a transposed sum, no less, and products of weights advance by 16 queries."""
    choices = f'{{emitter = "hopper", block_q = 128 : i64, block_kv = {queries} : i64}}'
    with pytest.raises(AttnError, match="the emitter 'hopper' does not make this kernel"):
        kernels("derivatives/softmax", head, head, choices=choices)


@NVCC
@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_blocks_of_80_queries_are_not_serialised(element: str) -> None:
    """A step needs 228 registers of 240 beside addresses: what the compiler cannot place, it multiplies one after the other."""
    ((_, code),) = kernels("derivatives/softmax", 128, 128, element=element, rounded=True)
    binary = multiplying(code)
    assert binary.spills <= 16 and not binary.warnings  # two registers of the step with fewer queries, written and read once a program


def test_wide_heads_are_left_to_another_emitter() -> None:
    """Their sums do not fit in registers."""
    pytest.importorskip("tilelang")
    ((schedule, _),) = kernels("derivatives/softmax", 192, 128)
    assert schedule["emitter"] == "tilelang"


@NVCC
@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize("name", ["derivatives/softmax", "causal-softmax"])
@pytest.mark.parametrize("choices", ["", "{deterministic = 1 : i64}"])
def test_bar_shapes_do_not_spill(name: str, head: int, choices: str) -> None:
    ((_, code),) = kernels(name, head, choices=choices, rounded=True)
    early = "of_queries" in code.source and "+= 80)" in code.source  # spills registers of the step with fewer queries
    assert multiplying(code).spills <= (24 if early else 0)


@NVCC
@pytest.mark.parametrize("name", ["relu", "sigmoid-causal"])
def test_rows_whose_scores_wait_are_not_serialised(name: str) -> None:
    """Elements stay in the registers of the products until all are computed: packed on the way, they would need others beside these."""
    ((_, code),) = kernels(name, 64, rounded=True)
    assert bool(re.search(r"weights(_2)?\[c\] = attn::pack_f16\(product", code.source)) == (name == "relu")
    assert multiplying(code).spills == 0


@pytest.mark.parametrize(("head", "rounded"), [(64, True), (128, True), (64, False)])
def test_results(head: int, rounded: bool) -> None:
    """In 16 bits they leave through shared memory, at a head dimension of 128 one after the other."""
    ((_, code),) = kernels("derivatives/softmax", head, head, rounded=rounded, choices="{claims = 0 : i64}")
    stores = code.source.count("attn::tma_store(")
    assert stores == (2 * head // 64 if rounded else 0)
    waits = code.source.count("attn::named_sync(8 + warpgroup, 128);")
    assert waits == 2 + (0 if not rounded else 3 if head == 64 else 4)  # partial sums are written, and read
    assert code.grid == "persistent" and code.shared_bytes <= 232448


def test_who_adds_sums_over_keys() -> None:
    """Warps of their own under a mask, else a thread of each warpgroup of consumers; both by TMA."""
    for name, own in (("derivatives/softmax", False), ("causal-softmax", True)):
        ((schedule, code),) = kernels(name, 64, choices='{key_sums = "consumers"}')
        assert schedule["reduction_warps"] == own and schedule["key_sums"] == "consumers"
        assert ("else if (warp >= 2 && warp < 4)" in code.source) == own
        assert "attn::tma_add(&out" in code.source


def test_order_of_programs() -> None:
    """Several heads run together under a mask, the longest programs first, and where sums have a fixed order."""
    for name, choices, group, heads in (
        ("derivatives/softmax", "", 1, "1 / blocks"),
        ("causal-softmax", "", 256, "min(8, 256 / blocks)"),
        ("derivatives/softmax", "{deterministic = 1 : i64}", 512, "min(32, 512 / blocks)"),
        ("causal-softmax", "{deterministic = 1 : i64, descending = 0 : i64}", 1, "min(1, 1 / blocks)"),
        ("causal-softmax", "{group = 512 : i64, heads = 0 : i64}", 512, "512 / blocks"),
    ):
        ((schedule, code),) = kernels(name, 64, choices=choices)
        assert (schedule["order"], schedule["group"], code.grid) == ("dynamic", group, "persistent")
        assert f"const int together = min(pairs, max(1, {heads}));" in code.source


@NVCC
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("derivatives/alibi-causal-softmax", {"wrt": "q+k+v+arg3"}),
        ("sigmoid-causal", {"element": "bf16"}),
        ("softcap", {}),
        ("sliding-window", {"head": 128}),
        ("derivatives/softmax", {"head": 32, "value": 32}),
        ("derivatives/softmax", {"head": 80, "value": 96}),
        ("derivatives/softmax", {"head": 64, "value": 128}),
        ("derivatives/softmax", {"head": 64, "value": 64, "function": "bwd2"}),
        ("derivatives/softmax", {"head": 64, "value": 64, "wrt": "q"}),
        ("derivatives/softmax", {"head": 64, "value": 64, "wrt": "k+v"}),
    ],
    ids=str,
)
def test_compiles(name: str, options: dict[str, str | int]) -> None:
    found = kernels(name, **options)  # type: ignore[arg-type]
    assert found
    for schedule, code in found:
        assert schedule["emitter"] == "hopper"
        multiplying(code)


def test_semaphores() -> None:
    """Sums over keys in a fixed order: the programs of the last keys come first, each waits for the one of the next keys."""
    choices = '{deterministic = 1 : i64, descending = 0 : i64, key_sums = "consumers"}'
    ((schedule, code),) = kernels("causal-softmax", 64, choices=choices)
    assert (schedule["deterministic"], schedule["semaphore_rows"], schedule["semaphore_parts"]) == (1, 128, 2)
    assert "attn::semaphore_wait(semaphore, block + 2)" in code.source and "attn::semaphore_pass(semaphore, block + 1)" in code.source
    assert "const int block = blocks - 1 - inside / width" in code.source
    # Whoever has begun holds the lowest numbers: thread blocks draw all of them, and each one that is none.
    draw = (
        "__shfl_sync(0xffffffffu, lane == 0 ? (int)atomicInc(reinterpret_cast<unsigned *>(counter), programs - 1 + (int)gridDim.x) : 0, 0);"
    )
    assert code.source.count(f"program = {draw}") == 2 and "blockIdx" not in code.source
    ((_, other),) = kernels("causal-softmax", 64)
    assert "int program = blockIdx.x;" in other.source and "atomicInc" not in other.source


@pytest.mark.usefixtures("unlowered")
def test_programs_that_wait_are_drawn() -> None:
    """In a grid of programs those of lower numbers may not have begun."""
    pytest.importorskip("tilelang")
    ((schedule, _),) = kernels("causal-softmax", 64, choices='{deterministic = 1 : i64, order = "tiles"}')
    assert schedule["emitter"] == "tilelang" and "drawn from a counter, not by order = 'tiles'" in str(schedule["slow"])


@pytest.mark.usefixtures("unlowered")
@pytest.mark.parametrize(("name", "emitter"), [("sliding-window", "hopper"), ("key-padding", "tilelang")])
def test_turns_of_masks(name: str, emitter: str) -> None:
    """A window's queries begin and end later for later keys; of other masks nobody knows which blocks of keys add to a block of queries."""
    pytest.importorskip("tilelang")
    found = kernels(name, 64, choices="{deterministic = 1 : i64}")
    assert [schedule["emitter"] for schedule, _ in found] == [emitter]
