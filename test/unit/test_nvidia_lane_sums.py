"""Sums that a warp makes of its fragments before they are added to a captured tensor's gradient, on the host: 32 threads are the lanes."""

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir.backends.amd.clang import find_host_clang

pytestmark = needs_host_clang
_HOPPER = Path(__file__).parents[2] / "backends/nvidia/hopper"
_SHIM = """
#include <barrier>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>
#define ATTN_DEVICE static inline
typedef _Float16 __half;
typedef __bf16 __nv_bfloat16;
struct __half2 { _Float16 x, y; };
struct float2 { float x, y; };
static float2 make_float2(float x, float y) { return {x, y}; }
static float2 __half22float2(__half2 pair) { return {(float)pair.x, (float)pair.y}; }
static float __uint_as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static std::barrier<> warp(32);
static float slots[32];
static thread_local int own;
static float __shfl_sync(unsigned, float x, int lane) {
  slots[own] = x;
  warp.arrive_and_wait();
  const float found = slots[lane & 31];
  warp.arrive_and_wait();
  return found;
}
static float __shfl_xor_sync(unsigned, float x, int mask) { return __shfl_sync(0, x, own ^ mask); }
"""
_CALLS = """
template <typename Body> static void lanes(Body body) {
  std::vector<std::thread> all;
  for (int lane = 0; lane < 32; ++lane) all.emplace_back([&, lane] { body(own = lane); });
  for (std::thread &each : all) each.join();
}
// [16 keys, 8 C queries] to numbers[lane, N / 4] of diagonals, and which ones they are.
template <int C, typename Half> static void bands(const uint16_t *weights, float *sums, int *diagonals) {
  constexpr int N = (C + 2 + 3) / 4 * 4;
  lanes([&](int lane) {
    uint32_t pairs[2 * C];
    for (int c = 0; c < C; ++c)
      for (int h = 0; h < 2; ++h) memcpy(&pairs[2 * c + h], weights + (lane / 4 + 8 * h) * 8 * C + 8 * c + lane % 4 * 2, 4);
    float of_band[N];
    attn::band_sums<C, N, Half>(pairs, of_band, lane);
    for (int n = 0; n < N / 4; ++n) {
      sums[lane * (N / 4) + n] = of_band[n];
      diagonals[lane * (N / 4) + n] = lane / 4 + 8 * (attn::band_number<C>(lane) + n - C);
    }
  });
}
template <int N> static void columns(const float *of, float *sums) {
  lanes([&](int lane) {
    float x[N];
    for (int n = 0; n < N; ++n) x[n] = of[lane * N + n];
    attn::sum_of_lanes(x, lane);
    for (int g = 0; g < N / 8; ++g) sums[lane * (N / 8) + g] = x[g];
  });
}
#define BANDS(C) \\
  extern "C" void bands_f16_##C(const uint16_t *w, float *s, int *d) { bands<C, __half>(w, s, d); } \\
  extern "C" void bands_bf16_##C(const uint16_t *w, float *s, int *d) { bands<C, __nv_bfloat16>(w, s, d); }
BANDS(2) BANDS(4) BANDS(6) BANDS(8) BANDS(10) BANDS(12) BANDS(16)
extern "C" void columns_8(const float *of, float *sums) { columns<8>(of, sums); }
extern "C" void columns_16(const float *of, float *sums) { columns<16>(of, sums); }
extern "C" void columns_24(const float *of, float *sums) { columns<24>(of, sums); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    bands = (_HOPPER / "attn_bands.cuh").read_text()
    rows = (_HOPPER / "attn_rows.cuh").read_text()
    along = bands[bands.index("ATTN_DEVICE float2 band_pair") : bands.index("// The sum of what a thread has packed.")]
    over = rows[rows.index("template <int N> ATTN_DEVICE void sum_of_lanes") : rows.index("// Smallest and largest")]
    folder = tmp_path_factory.mktemp("lanes")
    source, made = folder / "lanes.cpp", folder / "lanes.so"
    source.write_text(f"{_SHIM}namespace attn {{\n{along}{over}}}\n{_CALLS}")
    flags = ["-x", "c++", "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-pthread"]
    subprocess.run([find_host_clang(), *flags, "-o", str(made), str(source)], check=True)
    return ctypes.CDLL(str(made))


def pointer(x: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("eights", [2, 4, 6, 8, 10, 12, 16])
def test_each_diagonal_of_a_warp_has_one_lane(eights: int, dtype: torch.dtype, library: Any) -> None:
    """NaN and infinity stay on their diagonals, too."""
    queries, numbers = 8 * eights, (eights + 2 + 3) // 4
    weights = torch.randn(16, queries).to(dtype)
    weights[3, 5], weights[9, 0] = float("nan"), float("inf")
    sums, diagonals = torch.empty(32, numbers), torch.empty(32, numbers, dtype=torch.int32)
    getattr(library, f"bands_{'f16' if dtype == torch.float16 else 'bf16'}_{eights}")(pointer(weights), pointer(sums), pointer(diagonals))
    found = {int(d): float(s) for d, s in zip(diagonals.flatten(), sums.flatten(), strict=True)}
    assert len(found) == 32 * numbers
    for diagonal in range(1 - queries, 16):
        wanted = weights.double().diagonal(-diagonal).sum()
        torch.testing.assert_close(torch.tensor(found.pop(diagonal)).double(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert not any(found.values())


@pytest.mark.parametrize("numbers", [8, 16, 24])
def test_each_query_of_a_warp_has_one_lane(numbers: int, library: Any) -> None:
    of = torch.randn(32, numbers)
    sums = torch.empty(32, numbers // 8)
    getattr(library, f"columns_{numbers}")(pointer(of), pointer(sums))
    wanted = of.double().reshape(8, 4, numbers).sum(0)
    for lane in range(32):
        for group in range(numbers // 8):
            place = 8 * group + lane // 16 % 2 * 4 + lane // 8 % 2 * 2 + lane // 4 % 2
            assert abs(float(sums[lane, group]) - float(wanted[lane % 4, place])) < 1e-5
