"""Backward programs that do not fill all multiprocessors a last time are shared by them: when, how, and that results stay right."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir.backends.gpu.ahead import tables
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.emitters import Refusal
from attn_mlir.backends.nvidia import driver, hopper, pipeline, thresholds
from attn_mlir.backends.nvidia.compiled_kernels import own_memory, own_words
from attn_mlir.backends.nvidia.hopper import pairs_plan
from attn_mlir.backends.nvidia.launch import COUNTER_WORDS
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.frontend.emit import Inputs
from attn_mlir.mlir import ir
from test_nvidia_pairs import kernels

COMPILER = next((name for name in (os.environ.get("CXX") or "c++", "g++", "clang++") if shutil.which(name)), None)
HEADER = Path(hopper.__file__).parent / "attn_pieces.cuh"

SHARED = r"""
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>
#define ATTN_DEVICE static inline
struct int4 { int x, y, z, w; };
namespace attn {
PART
}
static void require(bool holds, const char *what, int programs, int blocks, int total) {
  if (!holds) std::printf("%s: %d programs, %d blocks, %d steps\n", what, programs, blocks, total), std::exit(1);
}
static int shared = 0;
static void check(int programs, int blocks, int total, int most, int pieces, int least, int gain) {
  const attn::Sharing s = attn::shared_programs(programs, blocks, total, most, pieces, least, gain);
  const int4 packed{s.whole, s.total, s.chunk, s.steps};
  auto holds = [&](bool is, const char *what) { require(is, what, programs, blocks, total); };
  holds(s.workers <= most && s.workers <= blocks, "too many workers");
  holds(!s.workers || (s.whole >= blocks && s.chunk + gain <= total && s.chunk >= least), "shared without a gain");
  shared += s.workers > 0;
  std::vector<std::vector<int>> done(size_t(programs), std::vector<int>(size_t(total), 0));
  std::vector<int> partial(size_t(s.workers), -1);
  for (int draw = 0; draw < s.whole + s.workers; ++draw) {
    int unit = attn::unit_of_draw(draw, s.whole), steps = 0;
    bool waited = false;
    for (bool more = true; more; ++unit) {
      const attn::Piece p = attn::piece_of(unit, packed);
      holds(unit < s.whole + 2 * s.workers && p.program < programs && 0 <= p.begin && p.begin < p.end && p.end <= total, "no piece");
      holds((p.worker < 0) == (draw < s.whole) && (p.worker < 0 || p.worker == draw - s.whole), "another worker");
      for (int i = p.begin; i < p.end; ++i) ++done[size_t(p.program)][size_t(i)];
      steps += p.end - p.begin;
      if (p.end < total) {
        holds(!waited && partial[size_t(p.worker)] < 0, "a piece that others wait for comes after one that waits, or a second one");
        partial[size_t(p.worker)] = p.program;
      } else if (p.begin > 0) {
        waited = true;
        int from = attn::first_worker(p.program, packed);
        holds(from < p.worker, "nobody has the beginning");
        for (; from < p.worker; ++from) holds(partial[size_t(from)] == p.program, "waits for what nobody has begun");
        for (int &other : partial) other = other == p.program ? -2 : other;
      }
      more = attn::has_second_piece(unit, packed);
    }
    holds(draw < s.whole ? steps == total : steps <= s.chunk, "more steps than are due");
  }
  for (const auto &program : done)
    for (int count : program) holds(count == 1, "a step that is not done once");
  for (int left : partial) holds(left < 0, "a partial sum that nobody adds");
}
int main() {
  for (int total : {1, 2, 3, 5, 13, 16, 52, 103, 256})
    for (int blocks : {1, 2, 5, 7, 132})
      for (int rest = 0; rest < blocks; rest += blocks > 7 ? 3 : 1)
        for (int rounds : {0, 1, 3}) {
          check(rounds * blocks + rest, blocks, total, 144, 8, 2, 3);
          check(rounds * blocks + rest, blocks, total, 144, 16, 1, 1);
          check(rounds * blocks + rest, blocks, total, 4, 3, 2, 1);
        }
  check(2048, 132, 13, 144, 8, 2, 3), check(4096, 132, 256, 144, 8, 2, 3), check(512, 132, 412, 144, 8, 2, 3);
  // More steps than an int can count are not shared.
  require(attn::shared_programs(2 * 132 - 1, 132, 1 << 30, 144, 8, 2, 3).workers == 0, "too many steps", 0, 0, 0);
  std::printf("%d\n", shared);
}
"""


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_every_step_is_done_once(tmp_path: Path) -> None:
    """The header's arithmetic on this processor: who has which steps, in which order, and whose sums are waited for."""
    assert COMPILER is not None
    part = HEADER.read_text().partition("namespace attn {")[2].partition("// ---- (what precedes")[0]
    assert "shared_programs" in part and "first_worker" in part
    path = tmp_path / "pieces.cpp"
    path.write_text(SHARED.replace("PART", part))
    flags = ["-std=c++17", "-O1", "-Wall", "-Werror", "-Wno-unused-function"]
    subprocess.run([COMPILER, *flags, str(path), "-o", str(tmp_path / "pieces")], check=True)
    made = subprocess.run([str(tmp_path / "pieces")], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout
    assert int(made.stdout) > 100


@pytest.mark.parametrize(
    ("name", "options", "pieces"),
    [
        ("derivatives/softmax", {}, None),  # warps of the producer add where there are few keys
        ("derivatives/softmax", {"choices": f"{{length = {thresholds.CLAIMED_KEYS[False]} : i64}}"}, 8),
        ("derivatives/softmax", {"head": 128, "element": "bf16"}, 8),
        ("derivatives/softmax", {"head": 128, "choices": "{block_q = 128 : i64, block_kv = 64 : i64}"}, 8),
        ("derivatives/softmax", {"choices": "{pieces = 4 : i64}"}, 4),
        ("derivatives/softmax", {"choices": "{pieces = 0 : i64}"}, 0),
        ("derivatives/softmax", {"choices": "{deterministic = 1 : i64}"}, None),
        ("derivatives/softmax", {"choices": "{reduction_warps = 1 : i64}"}, None),
        ("derivatives/softmax", {"choices": '{order = "static"}'}, None),
        ("causal-softmax", {}, None),
        ("causal-softmax", {"head": 128}, None),
    ],
)
def test_which_programs_are_shared(name: str, options: dict[str, Any], pieces: int | None) -> None:
    """Those that all have the same steps, and may add to the same queries in any order."""
    ((schedule, code),) = kernels(name, **options)
    assert schedule["emitter"] == "hopper" and schedule.get("pieces") == pieces
    words = [p.box[0] for p in code.parameters if p.kind == "counter"]
    if not pieces:
        assert "attn::piece_at(" not in code.source and "partial_words" not in schedule and set(words) <= {0}
        return
    head = options.get("head", 64)
    assert schedule["partial_words"] == 144 * 128 * 2 * head and words == [8 + 2 * 144] and words[0] <= COUNTER_WORDS
    roles = code.source.count("uint32_t step = 0;")
    assert code.source.count("if (program >= programs) break;") == roles and code.source.count("attn::piece_at(unit, ") == 1
    # A warp tells that it has begun a round, and reads the round's slot until its end. So a slot is written again when all have begun the
    # second round after it: the producer waits for the second one before that which it tells, which has the fourth slot on.
    loops = code.source.split("for (;; step += 1u << 28)")[1:]
    readers = [loop for loop in loops if "piece_at(" not in loop]
    assert len(loops) == roles == len(readers) + 1
    assert all(loop.index("attn::warp_arrive(shared + kNextFree") < loop.index("attn::rows_of_piece(") for loop in readers)
    assert code.source.count("(attn::opaque(step) >> 28 & 3)") == 2 * roles + 1 and code.source.count("16 * (round % 4)") == roles
    assert code.source.count("attn::rows_of_piece(") == 2 * roles  # two loops over queries in each role
    assert f"144, {pieces}, 2, 3)" in code.source


@pytest.mark.parametrize(
    ("name", "choices", "message"),
    [
        ("causal-softmax", {"pieces": 8, "reduction_warps": 0}, "no mask"),
        ("derivatives/softmax", {"pieces": 8, "deterministic": 1}, "no fixed order"),
        ("derivatives/softmax", {"pieces": 8, "order": "tiles"}, "are drawn"),
    ],
)
def test_what_is_asked_for_in_vain(name: str, choices: dict[str, int | str], message: str) -> None:
    found: list[Refusal] = []
    original = pairs_plan.plan_pairs

    def planned(kernel: ir.Operation, target: Any, given: Any) -> Any:
        result = original(kernel, target, {**given, **choices})
        if isinstance(result, Refusal):
            found.append(result)
        return original(kernel, target, given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hopper, "plan_pairs", planned)
        kernels(name)
    assert found and all(message in refusal.reason and "(pieces)" in refusal.reason for refusal in found)


def backward_units(**options: Any) -> dict[str, GpuKernel]:
    """The kernels of a backward pass of 64 columns, of many keys."""
    call = attn_mlir.Attention(**options)
    call.__dict__.update(_last=Inputs("f16", 64, 64), _form=("tensor", "tensor") if options else None)
    outline = prepare_derivative("bwd", ("q", "k", "v"), pipeline.outline("sm_90a"))
    return driver._lower(call.ir(), *outline, {"arch": "sm_90a", "length": thresholds.CLAIMED_KEYS[False]})[1]  # pyright: ignore[reportPrivateUsage]


def test_memory_for_partial_sums() -> None:
    """It comes after a launch's arguments, in libraries, too; nothing of it is zero before, and flags are the counter's."""
    units = backward_units()
    (unit,) = [unit for name, unit in units.items() if "pairs" in name]
    words = int(unit.schedule["partial_words"])
    heads = [(2, 4, 1000, 64)] * 6
    assert words == 144 * 2 * 64 * 128 and own_words(unit, heads) == (words, 0)
    (made,) = own_memory(unit, [torch.zeros(1, 1, 8, 64)] * 6)
    assert made.shape == (words,) and made.dtype == torch.int32
    assert [p.argument for p in unit.code.parameters if p.kind == "pointer"][-1] == 6 + 3 + 1  # operands, results, keys of a block
    table = tables._kernel_table("one", unit, "code")  # pyright: ignore[reportPrivateUsage]
    assert f", -1, 0, 0, {words}, " in table and "{attn::COUNTER, -1, -1, attn::INT, 296, 0, 128, 0}" in table
    others = [own_words(other, heads) for name, other in units.items() if "pairs" not in name]
    assert others and set(others) == {(0, 0)}


def test_dropout_is_not_shared() -> None:
    """Its programs keep what belongs to a head."""
    units = backward_units(dropout_p=0.1)
    schedules = [unit.schedule for name, unit in units.items() if "pairs" in name]
    assert schedules and all("pieces" not in schedule for schedule in schedules)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize(
    ("batch", "query_heads", "key_heads", "queries", "keys"),
    [(1, 17, 17, 1000, 1000), (3, 40, 40, 700, 200), (1, 36, 18, 513, 1024), (2, 68, 68, 1300, 100), (5, 8, 8, 900, 2000)],
)
def test_numbers(dtype: torch.dtype, head: int, batch: int, query_heads: int, key_heads: int, queries: int, keys: int) -> None:
    """Gradients against float64 where some programs are shared; dk and dv have the same bits in every launch."""
    q, do = (torch.randn(batch, query_heads, queries, head, device="cuda").to(dtype) for _ in range(2))
    k, v = (torch.randn(batch, key_heads, keys, head, device="cuda").to(dtype) for _ in range(2))
    given = [x.requires_grad_() for x in (q, k, v)]
    o = attn_mlir.attention(q, k, v)
    got = torch.autograd.grad(o, given, do, retain_graph=True)
    wide = [x.detach().double().requires_grad_() for x in given]
    both = [x.repeat_interleave(query_heads // key_heads, 1) for x in wide[1:]]
    right = torch.autograd.grad((wide[0] @ both[0].mT / head**0.5).softmax(-1) @ both[1], wide, do.double())
    for mine, other in zip(got, right, strict=True):
        assert float((mine.double() - other).norm()) <= (2e-3 if dtype == torch.float16 else 2e-2) * float(other.norm())
    for _ in range(3):
        again = torch.autograd.grad(o, given, do, retain_graph=True)
        assert all(torch.equal(one, two) for one, two in zip(got[1:], again[1:], strict=True))
