"""8-bit k and v beside 16-bit q: caches of half the bytes. On all devices; on Hopper bytes come by TMA, and warps of the producer widen them."""

import functools
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir import Attention, attention, attention_varlen, driver, masks, rows
from attn_mlir.backends.gpu.program import PartsForm
from attn_mlir.backends.nvidia import driver as nvidia
from attn_mlir.backends.program import OUTLINE
from attn_mlir.diagnostics import DiagnosticError
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.runtime import programs
from fp8_cases import dense, outliers, scaled
from generated_code import complaints
from gpu_cases import GPU
from machine_code import compiled

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
EMULATED = shutil.which("clang++") or shutil.which("clang++-22") or shutil.which("clang-22")
DEVICES = ["cpu", *(pytest.param(name, marks=pytest.mark.skipif(EMULATED is None, reason="no clang")) for name in ("hip-emulated", "hip-emulated-gfx942"))]
DEVICES += [pytest.param("cuda", marks=GPU)]
ERROR = {torch.float16: 2e-3, torch.bfloat16: 1e-2}
HEADER = Path(__file__).parents[2] / "backends/nvidia/hopper/attn_widen.cuh"
Tensor = torch.Tensor


def error(o: Tensor, right: Tensor) -> float:
    return float((o.double().cpu() - right).norm() / (right.norm() + 1e-2))


def on(device: str, *tensors: Tensor) -> list[Tensor]:
    return [x.cuda() if device == "cuda" else x for x in tensors]


def run_on(device: str) -> dict[str, Any]:
    return {} if device == "cuda" else {"device": device}


# ---- numbers, on every device


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("q_type", "kv_type", "dim"), [(torch.float16, E4, 64), (torch.bfloat16, E5, 40)])
@pytest.mark.parametrize(("shape", "queries"), [((), 17), ((2,), 17), ((2, 2), 1)])
def test_odd_lengths_scales_and_rows_without_keys(
    q_type: torch.dtype, kv_type: torch.dtype, dim: int, shape: tuple[int, ...], queries: int, device: str
) -> None:
    """The first two rows see nothing; scales for all, by head, by sequence and head."""
    q, (k, v) = outliers(2, 4, queries, dim).to(q_type), (outliers(2, 2, 77, dim, seed=seed).to(kv_type) for seed in (1, 2))
    scales = {name: torch.rand(shape) + 0.5 for name in ("k_descale", "v_descale")}
    given: dict[str, Any] = {name: on(device, scale)[0] for name, scale in scales.items()}
    o, lse = attention(*on(device, q, k, v), mask_mod=lambda b, h, i, j: j <= i * 9 - 18, return_lse=True, **given, **run_on(device))
    seen = torch.arange(77) <= torch.arange(queries)[:, None] * 9 - 18
    right = dense(q.double(), scaled(k, scales["k_descale"]), scaled(v, scales["v_descale"]), mask=seen)
    assert o.dtype == q_type and error(o, right) < ERROR[q_type]
    assert (o[:, :, :2] == 0).all() and (lse[:, :, :2] == -torch.inf).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kv_type", "largest"), [(E4, 448.0), (E5, 57344.0)])
def test_ends_of_the_range(kv_type: torch.dtype, largest: float, device: str) -> None:
    """Every byte is the number that torch has for it; NaN reaches its own column alone."""
    every = torch.arange(256, dtype=torch.uint8).view(kv_type)
    finite = every[torch.isfinite(every.float())]
    v = finite.repeat(2)[: 2 * (len(finite) // 64) * 64].view(1, 1, -1, 64).contiguous()
    q, k = torch.zeros(1, 1, v.shape[2], 64).bfloat16(), torch.zeros(v.shape).to(kv_type)
    for q_type in (torch.bfloat16, torch.float16):
        o = attention(*on(device, q.to(q_type), k, v), mask_mod=lambda b, h, i, j: j == i, **run_on(device))
        assert torch.equal(o.float().cpu(), v.float())
    assert float(v.float().max()) == largest
    v = torch.ones(1, 1, 130, 64).to(kv_type)
    v[0, 0, 7, 3] = float("nan")
    q, k = torch.zeros(1, 1, 33, 64).bfloat16(), torch.zeros(v.shape).to(kv_type)
    o = attention(*on(device, q, k, v), **run_on(device)).float().cpu()
    assert torch.isnan(o[0, 0, :, 3]).all()
    o[0, 0, :, 3] = 1.0
    assert torch.equal(o, torch.ones(o.shape))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths", [[1, 40, 7], [1, 1, 1]], ids=str)
def test_packed_sequences_and_pages_whose_rest_is_nan(lengths: list[int], device: str) -> None:
    used, heads = [300, 129, 16], 2
    q = outliers(sum(lengths), 4, 64).half()
    pages = [outliers(24, 16, heads, 64, seed=seed).to(E4) for seed in (2, 3)]
    table = torch.randperm(24)[: 3 * 8].view(3, 8).int()
    table = torch.cat([table, table.flip(0), table.flip(1)], 1)
    own = {(int(table[b, p // 16]), p % 16) for b, n in enumerate(used) for p in range(n)}
    for place in {(page, row) for page in range(24) for row in range(16)} - own:
        for x in pages:
            x[place] = float("nan")
    ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]).int()
    scale = torch.rand(3, heads) + 0.5
    given = on(device, q, *pages, ends, torch.tensor(used).int(), table, scale)
    options: dict[str, Any] = {"seqused_k": given[4], "block_table": given[5], "max_q": max(lengths), "max_k": 300, "k_descale": given[6]}
    o = attention_varlen(given[0], given[1], given[2], given[3], **options, **run_on(device))
    for n, (first, last) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
        k, v = (x[table[n].long()].flatten(0, 1).transpose(0, 1)[None, :, : used[n]].double() for x in pages)
        right = dense(q[None, first:last].transpose(1, 2).double(), k * scale[n][None, :, None, None].double(), v)
        assert error(o[None, first:last].transpose(1, 2), right) < 2e-3, n


# ---- what Hopper's kernels are


def lowered(head: int, q: str = "f16", kv: str = "f8E4M3FN", arch: str = "sm_90a", row: Any = rows.softmax, **more: Any) -> Any:
    call = Attention(mask_mod=masks.causal(), row=row)
    call.__dict__.update(_last=Inputs(q, head, head, kv_element=kv, output=q, **more), _form=None)
    _, units = nvidia._lower(call.ir(), "attention", OUTLINE, {"arch": arch})  # pyright: ignore[reportPrivateUsage]
    return next(iter(units.values()))


@pytest.mark.parametrize(("q", "kv"), [("f16", "f8E4M3FN"), ("bf16", "f8E5M2")])
@pytest.mark.parametrize("head", [16, 64, 72, 128, 192, 256, 576])
def test_kernels(head: int, q: str, kv: str) -> None:
    """TMA brings bytes, as wide as they are; the others of the producer's warps widen them, and nothing spills."""
    unit = lowered(head, q, kv)
    half, byte = {"f16": "__half", "bf16": "__nv_bfloat16"}[q], {"f8E4M3FN": "E4M3", "f8E5M2": "E5M2"}[kv]
    source = unit.code.source
    assert unit.schedule["emitter"] == "hopper" and unit.schedule["widen"] >= 2
    found = re.findall(rf"attn::widen_tile<(\d+), (\d+), (\d+), (\d+), \d, false, {half}, attn::{byte}>", source)
    assert len(found) == 2 and all(int(width) % 16 == 0 and int(warps) == unit.schedule["wideners"] for _, _, width, warps in found)
    boxes = {(p.argument, p.box[0], p.swizzle) for p in unit.code.parameters if p.kind == "descriptor" and p.argument in (1, 2)}
    assert {(1, int(found[0][2]), 0), (2, int(found[1][2]), 0)} == boxes
    assert source.count("attn::widen_tile<") == 2 and not complaints(unit.code)
    assert compiled(unit.code).spills <= 8


def test_rows_of_several_passes_send_tiles_in_their_order() -> None:
    """Messages tell which tensor a stage is of: a first pass over keys alone needs no values."""

    def above_mean(s: Any) -> Any:
        return (s - s.mean()).sigmoid() * (s - s.mean()).exp()

    unit = lowered(64, row=above_mean)
    sent = unit.code.source.count("attn::store_shared_int4(shared + kRawMessages")
    assert unit.schedule["widen"] >= 2 and sent > 4 and not complaints(unit.code), (sent, unit.schedule)


@functools.lru_cache(1)
def single_queries(dim: int, values: int) -> Any:
    q, used = torch.randn(3, 8, dim).bfloat16(), torch.tensor([3, 5, 9]).int()
    k, v = (torch.randn(6, 16, 2, columns).to(E4) for columns in (dim, values))
    attention_varlen(q, k, v, torch.arange(4).int(), seqused_k=used, block_table=torch.arange(6).int().view(3, 2))
    return driver.compile_derivative(next(reversed(programs._TABLE.values())).text, "cuda", "", [])


@pytest.mark.parametrize(("dim", "values"), [(64, 64), (128, 128), (256, 256), (576, 512)])
def test_parts_of_pages(dim: int, values: int) -> None:
    made = single_queries(dim, values)
    parts, combine = made.lower_parts()
    assert parts.schedule["widen"] >= 2 and parts.kernel.paged and "one < some" not in parts.code.source
    assert not any(complaints(unit.code) for unit in (parts, combine)) and compiled(parts.code).spills <= 8


def test_pages_of_any_size_are_refused_and_values_among_keys_are_widened_twice() -> None:
    made = single_queries(576, 512)
    assert made.lower_parts(PartsForm(False, True)) is None
    k = torch.zeros(1, 1, 4, 576).to(E4)
    assert not made.shares_values([torch.zeros(1, 1, 1, 576).half(), k, k[..., :512]])


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"head": 64, "arch": "sm_80"}, "sm_80 has no 8-bit"), ({"head": 64, "q": "f32"}, "beside q of f32"), ({"head": 64, "kv": "f8E4M3FNUZ"}, "f8E4M3FNUZ")],
)
def test_what_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises((DiagnosticError, UnsupportedError), match=f"{reason}.*or compute on the CPU"):
        lowered(**options)


# ---- the warps that widen, on the host

HOST = """
#include <cstdint>
#include <cstring>
#include <algorithm>
using std::min;
#define ATTN_DEVICE inline
struct __half {}; struct __nv_bfloat16 {}; struct __half2 { uint32_t bits; }; struct float2 { float x, y; };
static unsigned char shared_memory[1 << 20];
static uint32_t widened_of[256];
static bool exactly;
inline float2 __half22float2(__half2 pair) { exactly = true; float2 both; std::memcpy(&both.x, &pair, 4); return both; }
inline uint32_t pack_bf16(float pair, float) {
  uint32_t bytes; std::memcpy(&bytes, &pair, 4);
  return widened_of[bytes & 255] | widened_of[bytes >> 16 & 255] << 16;
}
inline uint32_t prmt(uint32_t word, uint32_t selector) {
  uint32_t made = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t which = selector >> 4 * i & 15, byte = which & 4 ? 0 : word >> 8 * (which & 3) & 255;
    made |= (which & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
  }
  return made;
}
inline uint32_t times(uint32_t pair, uint32_t scale) {
  uint32_t made = 0;
  for (int half = 0; half < 2; ++half) {
    float a, b;
    uint32_t bits = (pair >> 16 * half & 0xffff) << 16, other = (scale >> 16 * half & 0xffff) << 16;
    std::memcpy(&a, &bits, 4), std::memcpy(&b, &other, 4);
    a *= b, std::memcpy(&bits, &a, 4);
    made |= bits >> 16 << 16 * half;
  }
  return made;
}
"""
CALL = """
extern "C" void run(const unsigned char *bytes, int count, const uint16_t *table, int there, uint32_t to, unsigned char *out, int size) {
  for (int i = 0; i < 256; ++i) widened_of[i] = table[i];
  std::memset(shared_memory, 0x5a, sizeof(shared_memory));
  std::memcpy(shared_memory, bytes, count);
  for (int thread = 0; thread < 32 * 3; ++thread)
    attn::widen_tile<ROWS, COLUMNS, WIDTH, 3, 2, true, HALF, attn::BYTE>(0, to, there, thread / 32, thread % 32);
  std::memcpy(out, shared_memory + to, size);
}
"""


def on_host(tmp_path: Path, rows: int, columns: int, width: int, half: str, byte: str, change: Callable[[str], str]) -> Any:
    """`widen_tile` with its instructions as C++."""
    import ctypes

    text = change(HEADER.read_text().replace("#pragma once\n", ""))
    pairs = {"__half": "widened_of[pair & 255] | widened_of[pair >> 8] << 16", "__nv_bfloat16": "(pair & 255) | (pair >> 8) << 16"}
    text = re.sub(r'asm\("cvt.rn.f16x2.e.m.x2[^;]*;[^;]*;', f"wide = {pairs[half]};", text)
    text = re.sub(r'asm\("prmt[^;]*;[^;]*;', "wide = prmt(word, part ? 0xb3a2 : 0x9180);", text)
    text = re.sub(r'asm\("mul[^;]*;[^;]*;', "wide = times(wide, Byte::kScale);", text)
    text = re.sub(r'asm volatile\("ld.shared.v4.*?: "r"\(at\) : "memory"\);', "std::memcpy(words[i], shared_memory + at, 16);", text, flags=re.DOTALL)
    stored = r'asm volatile\("\{\\n.reg .pred p.*?::"r"\((at.*?)\),\s*"r".*?: "memory"\);'
    text = re.sub(stored, r"if (wanted) std::memcpy(shared_memory + (\1), wide + 4 * part, 16);", text, flags=re.DOTALL)
    assert "asm" not in text
    source = HOST + text + CALL.replace("ROWS", str(rows)).replace("COLUMNS", str(columns)).replace("WIDTH", str(width)).replace("HALF", half).replace("BYTE", byte)
    (tmp_path / "host.cpp").write_text(source)
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-w", "-o", str(tmp_path / "host.so"), str(tmp_path / "host.cpp")], check=True)
    return ctypes.CDLL(str(tmp_path / "host.so"))


def widened_on_host(
    tmp_path: Path, rows: int, columns: int, there: int, change: Callable[[str], str] = lambda text: text,
    half: torch.dtype = torch.float16, byte: torch.dtype = E4, finite: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What it makes of random bytes, and where TMA would put the same numbers of 16 bits."""
    names = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16", E4: "E4M3", E5: "E5M2"}
    boxes = -(-columns // 256)
    step = 16 if boxes == 1 else 64
    width = -(-(-(-columns // boxes)) // step) * step
    library = on_host(tmp_path, rows, columns, width, names[half], names[byte], change)
    bytes_ = torch.randint(0, 256, (boxes, rows, width), dtype=torch.uint8)
    if finite:
        bytes_[~torch.isfinite(bytes_.view(byte).float())] = 1
    tile = bytes_.transpose(0, 1).flatten(1)
    bytes_.view(-1)[:] = torch.where((torch.arange(boxes * width) < columns).expand(rows, -1), tile, 0).view(rows, boxes, width).transpose(0, 1).reshape(-1)
    table = torch.arange(256, dtype=torch.uint8).view(byte).to(half).view(torch.int16).contiguous()
    panels = -(-columns // 64)
    out = torch.zeros(panels * rows * 128, dtype=torch.uint8)
    library.run(
        *(__import__("ctypes").c_void_p(x) if n in (0, 2, 5) else x for n, x in enumerate((
            bytes_.data_ptr(), bytes_.numel(), table.data_ptr(), there, -(-bytes_.numel() // 1024) * 1024, out.data_ptr(), out.numel(),
        )))
    )  # fmt: skip
    numbers = torch.zeros(rows, panels * 64, dtype=torch.int16)
    wide = table[bytes_.transpose(0, 1).flatten(1).long()][:, :columns]
    numbers[:there, :columns] = wide[:there]
    wanted = torch.zeros(panels, rows, 8, 8, dtype=torch.int16)
    for row in range(rows):
        for chunk in range(8):
            wanted[:, row, chunk ^ (row & 7)] = numbers[row].view(panels, 8, 8)[:, chunk]
    return out.view(torch.int16), wanted.view(-1)


@pytest.mark.parametrize(("rows", "columns"), [(128, 64), (64, 72), (128, 128), (80, 192), (64, 256), (32, 320)])
def test_threads_put_numbers_where_tma_would(rows: int, columns: int, tmp_path: Path) -> None:
    for there in (rows, rows - 5, 0):
        assert torch.equal(*widened_on_host(tmp_path, rows, columns, there)), there


@pytest.mark.parametrize("byte", [E4, E5])
@pytest.mark.parametrize("finite", [False, True])
def test_bf16_is_made_of_shifted_bytes(byte: torch.dtype, finite: bool, tmp_path: Path) -> None:
    """Subnormal numbers and signs of zeros as well; where a thread finds a byte that is no number, it converts."""
    change = (lambda text: text.replace("finite = (carried & 0x80808080) == 0", "finite = true")) if finite else lambda text: text
    made, wanted = widened_on_host(tmp_path, 64, 64, 64, change, torch.bfloat16, byte, finite)
    assert len(wanted.unique()) > (240 if byte == E4 else 230) and torch.equal(made, wanted)


FAULTS = {
    "rows that are not there are widened": ("int(rows) + row < there", "true"),
    "chunks are not swizzled": ("(lane % 4 * 2 ^ row)", "(lane % 4 * 2)"),
    "halves of a register change places": ("word >> 16 * part", "word >> 16 * (1 - part)"),
    "both chunks have one place": ("at ^ (part << 4)", "at"),
    "columns past the last one are loaded": ("int(atom) * 64 + first < Columns", "true"),
    "lanes take each other's rows": ("row = lane / 4, first", "row = 7 - lane / 4, first"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, tmp_path: Path) -> None:
    old, new = FAULTS[name]

    def change(text: str) -> str:
        assert text.count(old) == 1
        return text.replace(old, new)

    assert not torch.equal(*widened_on_host(tmp_path, 32, 72, 27, change))
