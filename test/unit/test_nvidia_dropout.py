"""Bits of dropout that lanes of Hopper kernels make: computed on the CPU from the printed text; plans and kernels of them."""

import ctypes
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attn_mlir
from amd_tools import needs_host_clang
from attn_mlir.backends.amd.clang import find_host_clang
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import driver
from attn_mlir.backends.nvidia.derivatives import derivative
from attn_mlir.backends.nvidia.hopper.kernel_text import header
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.philox import kept, threshold

KINDS = ("tensor", "int")
_ARCH = {"arch": "sm_90a"}
_PRELUDE = """
#include <cstdint>
#include <cstring>
#define ATTN_DEVICE static inline
struct uint4 { uint32_t x, y, z, w; };
struct int4 { int x, y, z, w; };
static uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static struct { int x; } threadIdx;
static unsigned char memory[1 << 17];
namespace attn {
static void warp_sync() {}
static void warp_arrive(uint32_t, bool) {}
static bool elect_one() { return false; }
static int thread_again() { return threadIdx.x; }
static unsigned opaque(unsigned x) { return x; }
static void store_shared_int4(uint32_t to, int x, int y, int z, int w) { const int four[4] = {x, y, z, w}; memcpy(memory + to, four, 16); }
static void store_shared_int(uint32_t to, int x) { memcpy(memory + to, &x, 4); }
static int4 load_shared_int4(uint32_t from) { int4 four; memcpy(&four, memory + from, 16); return four; }
static int load_shared_int(uint32_t from) { int value; memcpy(&value, memory + from, 4); return value; }
} // namespace attn
"""
_MASK = "{ mask = 0; for (int half = 0; half < 2; ++half) if (word >> (8 * half + c % 4 / 2 * 16 + 7) & 1) mask |= 0xffffu << 16 * half; }"
_ROWS, _KEYS = 192, 80


def _library(tmp_path: Path, text: str) -> ctypes.CDLL:
    """The bits' header and more text, as code of this machine; prmt.b32, which repeats highest bits of bytes, in C++."""
    own = header("attn_dropout.cuh").removeprefix(header())
    own, count = re.subn(r'asm\("prmt.*\n', lambda _: f"{_MASK}\n", own)
    assert count == 1
    source, library = tmp_path / "bits.cpp", tmp_path / "bits.so"
    source.write_text(_PRELUDE + own + text)
    subprocess.run([find_host_clang(), "-std=c++17", "-O1", "-shared", "-fPIC", "-w", str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


_ARGUMENTS = "uint32_t key0, uint32_t key1, uint32_t offset, uint32_t drop, uint32_t row, uint32_t first, int begin, unsigned char *out"


def _cases() -> list[tuple[int, int, float, int, int]]:
    """Seed, offset, probability, first key and first row."""
    starts = ((0, 0), (1008, 130), (2**20, 77), (5, 3), (1001, 4000), (127, 1))
    return [((-1) ** n * (2**61 + 12345 * n), 2**31 + n, p, *starts[n]) for n, p in enumerate((0.1, 0.004, 0.998, 0.5, 1 / 3, 0.9))]


def _check(run: Any, shape: tuple[int, int], cases: list[tuple[int, int, float, int, int]]) -> None:
    for seed, offset, p, first, begin in cases:
        got, drop = np.full(shape, 7, np.uint8), threshold(p)
        words = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, offset, drop, 1 * 4 + 3, first)
        run(*map(ctypes.c_uint32, words), begin, got.ctypes.data_as(ctypes.c_void_p))
        q, k = np.arange(shape[0])[:, None] + begin, np.arange(shape[1]) + first
        wanted = kept((np.int64(seed), np.int64(offset)), np.int64(drop), 4, 1, 3, q, k)
        assert np.array_equal(got, wanted), (seed, p, first)


def _dropped(drop: str, keys: int) -> str:
    """Text in which every thread's packed weights are dropped, all of them ones before."""
    return f"""
  for (threadIdx.x = 0; threadIdx.x < {2 * _ROWS}; ++threadIdx.x) {{
    uint32_t packed[{keys // 4}];
    for (uint32_t &two : packed) two = 0xffffffff;
    {drop};
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int c = 0; c < {keys // 4}; ++c)
      for (int e = 0; e < 2; ++e) {{
        const uint32_t number = packed[c] >> 16 * e & 0xffff;
        out[(row + c % 2 * 8) * {keys} + column + c / 2 * 8 + e] = number == 0xffff ? 1 : number == 0 ? 0 : 2;
      }}
  }}
"""


@needs_host_clang
def test_lanes_of_consumers_drop_what_the_definition_drops(tmp_path: Path) -> None:
    """The rounds in a loop and in a row; one and two shares of keys."""
    for keys, unroll in ((128, 1), (256, 7)):
        folder = tmp_path / str(keys)
        folder.mkdir()
        made = f"""
  const attn::Dropout of = {{key0, key1, offset, drop, row}};
  const auto query = [&](int r) {{ return static_cast<uint32_t>(begin + r); }};
  for (threadIdx.x = 0; threadIdx.x < {2 * _ROWS}; ++threadIdx.x)
    attn::dropout_of_warp<{_ROWS}, {keys}, {unroll}>(of, first, 4096, query);
"""
        drop = _dropped(f"attn::drop_own<{_ROWS}>(packed, 4096)", keys)
        library = _library(folder, f'extern "C" void run({_ARGUMENTS}) {{{made}{drop}}}')
        _check(library.run, (_ROWS, keys), _cases())


@needs_host_clang
def test_lanes_of_the_backward_pass_read_what_the_definition_keeps(tmp_path: Path) -> None:
    """By the very lines of the kernel."""
    source = _kernel("bwd", {}).source
    made = re.search(r"attn::dropout_of_keys<128, 4>\(of, .*?, shared \+ \d+ \+ (attn::thread_again.*?), query_of\);", source)
    word = re.search(r"const unsigned kept_here = .*load_shared_int\(shared \+ \d+ \+ (.*?)\) >> (.*);", source)
    bit = re.search(r"\(\(kept_here >> .*? != 0\)", source)
    assert made and word and bit
    library = _library(tmp_path, f"""
extern "C" void run({_ARGUMENTS}) {{
  const attn::Dropout of = {{key0, key1, offset, drop, row}};
  for (threadIdx.x = 0; threadIdx.x < 256; ++threadIdx.x) {{
    const auto query_of = [&](int n) {{ return static_cast<uint32_t>(begin + n + 2 * (threadIdx.x % 32)); }};
    attn::dropout_of_keys<128, 4>(of, first / 16 + threadIdx.x / 32, 4096 + {made[1]}, query_of);
  }}
  for (threadIdx.x = 0; threadIdx.x < 256; ++threadIdx.x) {{
    const int lane = threadIdx.x % 32, tile_row = threadIdx.x / 32 % 4 * 16 + lane / 4, key = threadIdx.x / 128 * 64 + tile_row;
    for (int c = 0; c < 16; ++c) {{
      const unsigned kept_here = (unsigned)attn::load_shared_int(4096 + {word[1]}) >> {word[2]};
      for (int e = 0; e < 2; ++e)
        for (int h = 0; h < 2; ++h) out[(8 * c + lane % 4 * 2 + e) * 128 + key + 8 * h] = {bit[0]};
    }}
  }}
}}
""")  # fmt: skip
    _check(library.run, (128, 128), [case for case in _cases() if case[3] % 64 == 0])


def _kernel(function: str, choices: Mapping[str, int | str], dim: int = 64, mask: Any = None, kind: str = "tensor") -> KernelCode:
    """The kernel with matrix products of a function; `choices` of its schedule."""
    call = attn_mlir.Attention(mask_mod=mask)
    call.__dict__.update(_last=Inputs("bf16", dim, dim), _form=(kind, kind))
    name, prepare = ("attention", driver.OUTLINE)
    if function != "inference":
        name, prepare = derivative(function, ("q", "k", "v"), "sm_90a")
    _, units = driver._lower(call.ir(), name, prepare, {**_ARCH, **choices})
    (code,) = [unit.code for unit in units.values() if "wgmma" in unit.code.source]
    return code


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", [attn_mlir.masks.causal(), attn_mlir.masks.sliding_window(100, 3)], ids=["causal", "window"])
@pytest.mark.parametrize("dim", [64, 128])
def test_lanes_make_them_once_weights_are_packed(dim: int, mask: Any, kind: str) -> None:
    """Then whole blocks keep their maxima, as without dropout. It is what happens unless something else is asked for."""
    for function in ("inference", "fwd"):
        source = _kernel(function, {}, dim, mask, kind).source
        body = source[source.index("__global__") :]
        rows = 192 if dim == 64 else 128
        order = [f"attn::dropout_of_warp<{rows}, 128, ", f"attn::drop_own<{rows}>"]
        order = ["any_reaches<", *order] if function == "inference" else order
        places = [body.rindex(text) for text in order]
        assert places == sorted(places) and "philox_" not in body
    backward = _kernel("bwd", {}, dim, mask, kind).source
    body = backward[backward.index("__global__") :]
    assert f"attn::dropout_of_keys<{128 if dim == 64 else 64}, {4 if dim == 64 else 2}>" in body and "philox_two(" not in body


@pytest.mark.parametrize("function", ["inference", "fwd", "bwd"])
def test_seeds_have_64_bits(function: str) -> None:
    parameters = [each for each in _kernel(function, {}, 64, None, "int").parameters if each.kind == "scalar"]
    assert [each.type for each in sorted(parameters, key=lambda each: each.argument)[:2]] == ["long long", "long long"]


def test_bits_of_each_map() -> None:
    own = _kernel("inference", {"dropout": "own"}).source
    assert "philox_two(" in own and "any_reaches<" not in own[own.index("__global__") :]
    assert "philox_two(" in _kernel("bwd", {"dropout": "own"}).source


@pytest.mark.parametrize("function", ["inference", "bwd"])
def test_what_a_schedule_cannot_be(function: str) -> None:
    with pytest.raises((UnsupportedError, attn_mlir.AttnError), match="dropout is 'lanes' or 'own', not 'ahead'"):
        _kernel(function, {"dropout": "ahead"})


def test_what_drops_more_than_packed_weights_makes_its_own() -> None:
    """The tangent multiplies what is kept with two weights of each pair; its loop has more than two products."""
    source = _kernel("jvp", {}).source
    assert "attn::dropout_of_warp<" not in source and "philox_two(" in source
