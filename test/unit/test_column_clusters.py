"""Heads of more than 256 columns on Hopper: thread blocks of a cluster share their columns, and add up scores of each other."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir import Attention, attention, masks
from attn_mlir.api.rows import sigmoid, softmax
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import column_clusters, hopper
from attn_mlir.backends.nvidia.tuning.choices import EVERY, with_choices
from attn_mlir.errors import AttnError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, trace
from generated_code import complaints, kernels
from gpu_cases import GPU
from nvidia_fakes import set_apart

COMPILER = next((name for name in (os.environ.get("CXX") or "c++", "g++", "clang++") if shutil.which(name)), None)
HEADER = Path(hopper.__file__).parent / "attn_cluster.cuh"
causal = masks.causal()

EXCHANGE = r"""
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>
#define ATTN_DEVICE static inline
struct float4 { float x, y, z, w; };
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct Index { unsigned x; };
static thread_local Index threadIdx;
static thread_local uint32_t rank_of_block;
static std::unique_ptr<std::barrier<>> warps[4];
static void __syncwarp() { warps[rank_of_block]->arrive_and_wait(); }
// Shared memory of rank r is at r << 16. A barrier at an address: arrivals that are left, bytes that are awaited, and its phase.
static unsigned char memory[4 << 16];
struct Barrier {
  std::atomic_flag taken;
  int count, arrivals, bytes, phase;
  void change(int arrived, int more) {
    while (taken.test_and_set()) std::this_thread::yield();
    arrivals -= arrived, bytes += more;
    if (arrivals < 0) std::printf("too many arrivals\n"), std::exit(1);
    if (arrivals == 0 && bytes == 0) arrivals = count, ++phase;
    taken.clear();
  }
  int now() {
    while (taken.test_and_set()) std::this_thread::yield();
    const int found = phase;
    taken.clear();
    return found;
  }
};
static Barrier barriers[8];
static Barrier &at(uint32_t address) { return barriers[(address >> 16) * 2 + (address & 1)]; }
namespace attn {
static uint32_t cluster_rank() { return rank_of_block; }
static uint32_t shared_of(uint32_t address, uint32_t rank) { return (address & 0xffff) | rank << 16; }
static uint32_t here(uint32_t address) { return shared_of(address, rank_of_block); }
static void barrier_arrive_there(uint32_t barrier) { at(barrier).change(1, 0); }
static void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) { at(here(barrier)).change(1, int(bytes)); }
static void barrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  while ((at(here(barrier)).now() & 1) == int(parity)) std::this_thread::yield();
}
static void send(uint32_t to, uint32_t barrier, float a, float b, float c, float d) {
  const float4 value{a, b, c, d};
  std::memcpy(memory + to, &value, 16), at(barrier).change(0, -16);
}
static void copy_there(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
  std::memcpy(memory + to, memory + here(from), bytes), at(barrier).change(0, -int(bytes));
}
static void fence_proxy_async() {}
static void store_shared4(uint32_t address, float a, float b, float c, float d) {
  const float4 value{a, b, c, d};
  std::memcpy(memory + here(address), &value, 16);
}
static float4 load_shared4(uint32_t address) {
  float4 value;
  return std::memcpy(&value, memory + here(address), 16), value;
}
PART
}
static float number(uint32_t round, uint32_t rank, uint32_t lane, int i) {
  uint32_t x = round * 7919 + rank * 104729 + lane * 1299709 + uint32_t(i) * 15485863;
  x ^= x >> 15, x *= 2246822519u, x ^= x >> 13, x *= 3266489917u;
  return float(int(x >> 8)) / 4096.0f - 2048.0f;
}
template <int Parts, int N, bool Copies> static void send_in(const float (&scores)[N], uint32_t round) {
  if constexpr (Copies) attn::copy_to_cluster<Parts, 32 * N * 4>(scores, 64, 0, 1, round);
  else attn::send_to_cluster<Parts, 32 * N * 4>(scores, 64, 0, 1, round);
}
template <int Parts, int N, bool Copies, bool Ahead> static void check() {
  std::vector<std::thread> threads;
  for (int r = 0; r < Parts; ++r) {
    warps[r] = std::make_unique<std::barrier<>>(32);
    for (int which = 0; which < 2; ++which) {
      Barrier &b = barriers[2 * r + which];
      b.count = b.arrivals = which ? Parts - 1 : 1, b.bytes = b.phase = 0;
    }
  }
  for (uint32_t rank = 0; rank < Parts; ++rank)
    for (unsigned lane = 0; lane < 32; ++lane)
      threads.emplace_back([=] {
        threadIdx.x = lane, rank_of_block = rank;
        float scores[N], next[N];
        const auto make = [&](float (&to)[N], uint32_t round) {
          for (int i = 0; i < N; ++i) to[i] = number(round, rank, lane, i);
        };
        make(scores, 0), send_in<Parts, N, Copies>(scores, 0);
        for (uint32_t round = 0; round < 20; ++round) {
          if ((lane + round + rank) % 13 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
          attn::add_of_cluster<Parts, 32 * N * 4>(scores, 64, 0, 1, round);
          make(next, round + 1);
          if (Ahead && round < 19) send_in<Parts, N, Copies>(next, round + 1);
          if ((lane + round + rank) % 11 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
          for (int i = 0; i < N; ++i) {
            float sum = number(round, 0, lane, i);
            for (uint32_t of = 1; of < Parts; ++of) sum += number(round, of, lane, i);
            if (sum != scores[i]) std::printf("%d, %u: %g, not %g\n", Parts, round, scores[i], sum), std::exit(1);
          }
          if (!Ahead && round < 19) send_in<Parts, N, Copies>(next, round + 1);
          std::memcpy(scores, next, sizeof scores);
        }
      });
  for (std::thread &thread : threads) thread.join();
}
template <bool Copies, bool Ahead> static void check_all() {
  check<2, 32, Copies, Ahead>(), check<3, 24, Copies, Ahead>(), check<4, 16, Copies, Ahead>();
}
int main() {
  check_all<false, false>(), check_all<false, true>(), check_all<true, false>(), check_all<true, true>();
  std::printf("done\n");
}
"""


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_scores_are_added_up_in_order(tmp_path: Path) -> None:
    """The exchange on this processor, a thread for each lane: the same bits for all, and no buffer is sent to while it is read."""
    assert COMPILER is not None
    part = HEADER.read_text().partition("// Sends a warp's fragment")[2].rpartition("} // namespace attn")[0]
    path = tmp_path / "exchange.cpp"
    path.write_text(EXCHANGE.replace("PART", "// Sends" + part))
    flags = ["-std=c++20", "-O1", "-pthread", "-Wall", "-Werror", "-Wno-unused-function", "-Wno-unknown-pragmas"]
    subprocess.run([COMPILER, *flags, str(path), "-o", str(tmp_path / "exchange")], check=True)
    made = subprocess.run([str(tmp_path / "exchange")], capture_output=True, text=True, check=False, timeout=120)
    assert made.stdout == "done\n" and made.returncode == 0


def kernel_of(head: int, value: int, mask: Callable[..., Any] | None = None, row: Any = softmax, **mods: Any) -> KernelCode:
    """The kernel of an attention of bf16."""
    form = Definition(row, mask_mod=mask, scale=0.125, **mods)
    (code,) = kernels(trace(form, Inputs("bf16", head, value)), ("",), ("nvidia",))
    return code


@pytest.mark.parametrize(
    ("columns", "options", "cluster"),
    [
        ((512, 512), {"mask": causal}, 2),
        ((576, 512), {}, 2),
        ((320, 320), {"mask": masks.sliding_window(100), "row": sigmoid}, 2),
        ((192, 512), {}, 2),
        ((768, 768), {"mask": causal}, 3),
        ((1024, 1024), {"score_mod": lambda s, b, h, i, j: torch.tanh(s)}, 4),
        ((512, 256), {}, 1),
        ((512, 512), {"query_mod": lambda x, b, h, i, d: x * d}, 1),
    ],
)
def test_who_can_share_columns(monkeypatch: pytest.MonkeyPatch, columns: tuple[int, int], options: dict[str, Any], cluster: int) -> None:
    monkeypatch.setattr(column_clusters, "pays", lambda *_: True)
    code = kernel_of(*columns, **options)
    assert code.cluster == cluster and not complaints(code)
    assert ("add_of_cluster<" in code.source) == (cluster > 1) and code.shared_bytes <= 232448


SLOPES = torch.zeros(4)


@pytest.mark.parametrize(
    ("options", "heavy"),
    [
        ({}, False),
        ({"mask": masks.sliding_window(100)}, False),
        ({"score_mod": lambda s, b, h, i, j: SLOPES[h] * torch.tanh(s) + SLOPES[i]}, False),
        ({"score_mod": lambda s, b, h, i, j: s + SLOPES[h] * (j - i)}, True),
        ({"score_mod": lambda s, b, h, i, j: s + SLOPES[j]}, True),
        ({"mask": lambda b, h, i, j: SLOPES[j] > 0}, True),
        ({"mask": lambda b, h, i, j: j < SLOPES[b]}, False),
        ({"row": sigmoid}, True),
    ],
)
def test_heavy_weights_come_otherwise(options: dict[str, Any], heavy: bool) -> None:
    """What depends on keys besides scores, and rows without a maximum: slices up to 384 columns, and above scores as they are needed."""
    for columns, cluster in ((320, 1), (384, 1 if heavy else 2), (512, 2)):
        code = kernel_of(columns, columns, **options)
        assert code.cluster == cluster
        ahead = re.search(r"send_to_cluster<2, \d+>\(next", code.source) is not None
        assert ahead == (cluster > 1 and not heavy) and ("send_to_cluster<" in code.source) == (cluster > 1)


@pytest.mark.parametrize(
    ("chosen", "printed"),
    [
        ({"ahead": 0}, "send_to_cluster<2, 32768>(s"),
        ({"ahead": 1}, "send_to_cluster<2, 32768>(next"),
        ({"ahead": 2}, "send_to_cluster<2, 32768>(next"),
        ({"ahead": 1, "order": "static"}, "send_to_cluster<2, 32768>(next"),
        ({"ahead": 0, "exchange": "copies"}, "copy_to_cluster<2, 32768>(s"),
        ({"ahead": 1, "exchange": "copies"}, "copy_to_cluster<2, 32768>(next"),
    ],
)
def test_ways_of_exchange(chosen: dict[str, int | str], printed: str) -> None:
    program = trace(Definition(softmax, mask_mod=causal, scale=0.125), Inputs("bf16", 512, 512))
    (code,) = kernels(replace(program, text=with_choices(program.text, {EVERY: {"cluster": 2, **chosen}})), ("",), ("nvidia",))
    assert not complaints(code) and code.shared_bytes <= 232448 and printed in code.source
    assert ("_to_cluster<2, 32768>(next" in code.source) == bool(chosen.get("ahead", 1))


@pytest.mark.parametrize("chosen", [{"ahead": 3}, {"exchange": "letters"}])
def test_no_other_exchange(chosen: dict[str, int | str]) -> None:
    program = trace(Definition(softmax, scale=0.125), Inputs("bf16", 512, 512))
    with pytest.raises(AttnError, match="no kernel is made whose columns 2 thread blocks share"):
        kernels(replace(program, text=with_choices(program.text, {EVERY: {"cluster": 2, **chosen}})), ("",), ("nvidia",))


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Callable[..., Any] | None) -> tuple[torch.Tensor, torch.Tensor]:
    """o and the log-sum-exp in float64."""
    q, k, v = q.double(), *(x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.mT * q.shape[-1] ** -0.5
    if mask is not None:
        i, j = torch.arange(s.shape[-2], device=s.device)[:, None], torch.arange(s.shape[-1], device=s.device)
        s = s.masked_fill(~mask(0, 0, i, j), float("-inf"))
    lse = s.logsumexp(-1)
    return torch.exp(s - lse.clamp(min=-1e30)[..., None]) @ v, lse


class TestOnAGpu:
    pytestmark = GPU

    @pytest.fixture(autouse=True)
    def shared(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Clusters, also where slices are the default."""
        set_apart(monkeypatch, tmp_path)
        monkeypatch.setattr(column_clusters, "pays", lambda *_: True)

    @pytest.mark.parametrize("lengths", [(1, 1), (17, 300), (127, 127), (1000, 1000), (1000, 129)])
    @pytest.mark.parametrize(("head", "value"), [(512, 512), (576, 512), (320, 320), (1024, 1024), (192, 512)])
    @pytest.mark.parametrize("mask", [None, causal, lambda b, h, i, j: i >= j + 20])
    def test_results(self, lengths: tuple[int, int], head: int, value: int, mask: Callable[..., Any] | None) -> None:
        q, k, v = (
            torch.randn(2, h, n, d, device="cuda").bfloat16()
            for h, n, d in ((4, lengths[0], head), (2, lengths[1], head), (2, lengths[1], value))
        )
        call = Attention(mask_mod=mask, return_lse=True)
        (o, lse), (again, _) = call(q, k, v), call(q, k, v)
        assert torch.equal(o, again)
        wanted, sums = exact(q, k, v, mask)
        assert (o.double() - wanted).norm() <= 5e-3 * wanted.norm() and torch.equal(lse.isneginf(), sums.isneginf())
        assert torch.allclose(lse.double(), sums, atol=1e-3)

    def test_extreme_scores(self) -> None:
        """Extreme scores: rows with one weight, whose parts of the scores are far from each other."""
        q, k, v = (torch.randn(1, 2, 500, 512, device="cuda").half() * s for s in (30, 30, 1))
        o = attention(q, k, v)
        assert (o.double() - exact(q, k, v, None)[0]).norm() <= 5e-3 * v.double().norm()
