"""Plain CUDA kernels over rows: compiled where nvcc is, run where a GPU is."""

import shutil
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.host import KernelGrid
from attn_mlir.backends.nvidia import codegen
from attn_mlir.backends.nvidia.compile import compile_code
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry
from contexts import loaded_context

TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
Tensor = torch.Tensor


def row_dot(dim: int, a: str, b: str) -> str:
    s, t = f"tensor<?x?x?x{dim}x{a}>", f"tensor<?x?x?x{dim}x{b}>"
    return f"""func.func @kernel(%a: {s}, %b: {t}) -> tensor<?x?x?xf32> {{
  %r = "attn.row_dot"(%a, %b) : ({s}, {t}) -> tensor<?x?x?xf32>
  return %r : tensor<?x?x?xf32>
}}"""


ROWS = """func.func @kernel(%m: tensor<?x?x?xf32>, %l: tensor<?x?x?xf32>, %sink: tensor<?xf32>, %table: tensor<?xf32>)
    -> (tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?xf32>, tensor<?xf32>) {
  %one = arith.constant 1.0 : f32
  %w = "attn.elements"(%m) ({
    "attn.element"() ({
    ^bb0(%b: index, %h: index, %i: index):
      %x = tensor.extract %m[%b, %h, %i] : tensor<?x?x?xf32>
      %y = tensor.extract %l[%b, %h, %i] : tensor<?x?x?xf32>
      %s = tensor.extract %sink[%h] : tensor<?xf32>
      %d = arith.subf %s, %x : f32
      %e = math.exp %d : f32
      %r = arith.divf %one, %y : f32
      %p = arith.mulf %e, %r : f32
      "attn.yield"(%r, %p) : (f32, f32) -> ()
    }) : () -> ()
  }) : (tensor<?x?x?xf32>) -> none
  %r = "attn.collect"(%w) {weight = 0} : (none) -> tensor<?x?x?xf32>
  %p = "attn.collect"(%w) {weight = 1} : (none) -> tensor<?x?x?xf32>
  %ds = "attn.scatter"(%w, %sink) ({
  ^bb0(%b: index, %h: index, %i: index):
    "attn.yield"(%h) : (index) -> ()
  }) {weight = 1} : (none, tensor<?xf32>) -> tensor<?xf32>
  %dt = "attn.scatter"(%w, %table) ({
  ^bb0(%b: index, %h: index, %i: index):
    %c7 = arith.constant 7 : index
    %at = arith.remsi %i, %c7 : index
    "attn.yield"(%at) : (index) -> ()
  }) {weight = 0} : (none, tensor<?xf32>) -> tensor<?xf32>
  return %r, %p, %ds, %dt : tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?xf32>, tensor<?xf32>
}"""

ELEMENTS = """!t = tensor<?x?x?x40xf16>
func.func @kernel(%table: tensor<?xf32>, %x: !t) -> (!t, tensor<?xf32>) {
  %w = "attn.elements"(%x) ({
    "attn.element"() ({
    ^bb0(%b: index, %h: index, %i: index, %d: index):
      %0 = tensor.extract %x[%b, %h, %i, %d] : !t
      %1 = arith.extf %0 : f16 to f32
      %2 = tensor.extract %table[%d] : tensor<?xf32>
      %3 = arith.mulf %1, %2 : f32
      "attn.yield"(%3) : (f32) -> ()
    }) : () -> ()
  }) : (!t) -> none
  %r = "attn.collect"(%w) {weight = 0} : (none) -> !t
  %s = "attn.scatter"(%w, %table) ({
  ^bb0(%b: index, %h: index, %i: index, %d: index):
    "attn.yield"(%d) : (index) -> ()
  }) {weight = 0} : (none, tensor<?xf32>) -> tensor<?xf32>
  return %r, %s : !t, tensor<?xf32>
}"""

DOTS = ((128, "f16", "f16"), (64, "bf16", "bf16"), (80, "f16", "f16"), (96, "f16", "f32"), (33, "f16", "f16"), (256, "f32", "f32"),
        (4, "f16", "f16"))  # fmt: skip
CASES = {f"row_dot {dim} {a} {b}": row_dot(dim, a, b) for dim, a, b in DOTS}
CASES |= {"rows": ROWS, "elements": ELEMENTS}


def code_of(source: str, **choices: int | str) -> KernelCode:
    """The code of the kernel of a program at the stage before tiles."""
    with loaded_context(), ir.Location.unknown():
        module = ir.Module.parse(source)
        Pipeline.parse("attn-tile{block-q=128 block-kv=128},canonicalize,cse", registry()).run(module)
        kernel = find_all(module.operation, "func.func")[0]
        kernel.attributes[attributes.CHOICES] = attributes.write(choices)
        kernel.attributes[attributes.SCHEDULE] = attributes.write(codegen.plan(kernel))
        return codegen.emit(kernel)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("deterministic", [0, 1])
def test_the_kernels_are_made_here(name: str, deterministic: int) -> None:
    code = code_of(CASES[name], deterministic=deterministic)
    assert code.language == "cuda" and code.threads <= 256 and code.shared_bytes == 0
    assert ("load_pack<Aligned>" in code.source) == (name != "rows")
    assert ("if (blockIdx.x != 0) return;" in code.source) == (bool(deterministic) and "row_dot" not in name)


@pytest.mark.parametrize("name", ["row_dot 128 f16 f16", "row_dot 96 f16 f32", "rows", "elements"])
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_nvcc_takes_them(name: str, arch: str) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc")
    binary = compile_code(code_of(CASES[name], arch=arch, deterministic=int(arch == "sm_80")))
    assert binary.code


def test_vectors_and_lanes_follow_the_columns() -> None:
    found = {dim: code_of(row_dot(dim, "f16", "f16")).source for dim in (128, 80, 33)}
    assert "threadIdx.x % 16" in found[128] and "Pack<__half, 8>" in found[128]
    assert "Pack<__half, 8>" in found[80]
    assert "Pack<__half, 1>" in found[33]


def test_what_has_products_is_left_to_others() -> None:
    choices: dict[str, Any] = {"emitter": "simt"}
    source = """func.func @kernel(%q: tensor<?x?x?x8xf16>, %k: tensor<?x?x?x8xf16>) -> tensor<?x?x?x8xf32> {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %k) : (tensor<?x?x?x8xf16>, tensor<?x?x?x8xf16>) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  %r = "attn.key_sum"(%w, %q) {weights = array<i64: 0>} : (none, tensor<?x?x?x8xf16>) -> tensor<?x?x?x8xf32>
  return %r : tensor<?x?x?x8xf32>
}"""
    with pytest.raises(Exception, match="the emitter 'simt' does not make this kernel"):
        code_of(source, **choices)


def launch(code: KernelCode, over: int, arguments: Sequence[Any]) -> None:
    """Runs a kernel on the current GPU."""
    from attn_mlir.backends.nvidia.launch import CudaLauncher

    device = torch.device("cuda", torch.cuda.current_device())
    shape = KernelGrid("kernel", 128, "rows", over, (), (), False)
    CudaLauncher(shape, code, compile_code(code), device, device.index)(arguments)


def strided(shape: Sequence[int], layout: str, dtype: torch.dtype) -> Tensor:
    """A random tensor [B, H, S, D]: dense, [B, S, H, D] in memory, columns apart, or rows at odd places."""
    b, h, s, d = shape
    made = {
        "dense": lambda: torch.randn(b, h, s, d),
        "bshd": lambda: torch.randn(b, s, h, d).transpose(1, 2),
        "apart": lambda: torch.randn(b, h, s, 2 * d)[..., ::2],
        "odd": lambda: torch.randn(b, h, s, d + 1)[..., :d],
    }[layout]()
    shift = torch.empty_strided(made.shape, made.stride(), dtype=dtype, device="cuda")
    return shift.copy_(made)


def check_row_dot(dim: int, a: str, b: str, layouts: tuple[str, str], length: int) -> None:
    shape = (2, 3, length, dim)
    x, y = strided(shape, layouts[0], TYPES[a]), strided(shape, layouts[1], TYPES[b])
    out = torch.full((2, length, 3), torch.nan, device="cuda").transpose(1, 2)
    launch(code_of(row_dot(dim, a, b)), 0, [x, y, out])
    torch.testing.assert_close(out.double(), (x.double() * y.double()).sum(-1), rtol=1e-5, atol=1e-5 * dim**0.5)


def check_rows(length: int, deterministic: int) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(3)
    m = torch.randn(2, 3, length, device="cuda", generator=generator)
    l = torch.rand(2, 3, length, device="cuda", generator=generator) + 0.5
    sink, table = torch.randn(3, device="cuda", generator=generator), torch.zeros(7, device="cuda")
    outs = [torch.full((2, 3, length), torch.nan, device="cuda") for _ in range(2)]
    slots = (1, 2, 3) if deterministic else (1, 1, 1)
    sums = [torch.zeros(*slots, n, device="cuda") for n in (3, 7)]
    given = [total if deterministic else total.expand(1, 2, 3, -1) for total in sums]
    launch(code_of(ROWS, deterministic=deterministic), 0, [m, l, sink, table, *outs, *given])
    r = 1 / l.double()
    p = torch.exp(sink.double()[None, :, None] - m.double()) * r
    places = torch.arange(length, device="cuda") % 7
    wanted = [r, p, p.sum((0, 2)), torch.zeros(7, device="cuda", dtype=torch.float64).index_add_(0, places, r.sum((0, 1)))]
    got = [*outs, *(total.sum((0, 1, 2)) for total in sums)]
    for x, y in zip(got, wanted, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=2e-5, atol=1e-5)
    return got


def check_elements(length: int, deterministic: int) -> None:
    x, table = strided((2, 3, length, 40), "bshd", torch.float16), torch.randn(40, device="cuda")
    out, sums = torch.full_like(x, torch.nan), torch.zeros(1, 2, 3, 40, device="cuda")
    launch(code_of(ELEMENTS, deterministic=deterministic), 1, [table, x, out, sums])
    wanted = x.double() * table.double()
    torch.testing.assert_close(out.double(), wanted, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(sums.sum((0, 1, 2)).double(), wanted.sum((0, 1, 2)), rtol=1e-4, atol=1e-3)


LAYOUTS = [("dense", "dense"), ("bshd", "dense"), ("apart", "bshd"), ("odd", "odd")]


@pytest.mark.gpu
@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("length", [1, 128, 300])
@pytest.mark.parametrize("name", [name for name in CASES if "row_dot" in name])
def test_row_dot(name: str, length: int, layouts: tuple[str, str]) -> None:
    _, dim, a, b = name.split()
    check_row_dot(int(dim), a, b, layouts, length)


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [0, 1])
@pytest.mark.parametrize("length", [1, 128, 300])
def test_rows_and_sums(length: int, deterministic: int) -> None:
    first = check_rows(length, deterministic)
    if deterministic:
        assert all(torch.equal(a, b) for a, b in zip(first, check_rows(length, deterministic), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [0, 1])
def test_elements(deterministic: int) -> None:
    check_elements(300, deterministic)
