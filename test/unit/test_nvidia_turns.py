"""Turns of sums over keys in a fixed order, as printed for Hopper: whoever has a multiprocessor, every program gets its turn.

The text of the warps that add runs on threads of the host: `parts` of them are a thread block, of which so many run at a time, in some
order. It knows semaphores, and who adds to which queries; other waits are for warps of the same thread block, which pass no program by.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from test_nvidia_ordered_sums import ORDERED
from test_nvidia_pairs import kernels

COMPILER = next((name for name in (os.environ.get("CXX") or "c++", "g++", "clang++") if shutil.which(name)), None)
HOST = r"""
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <tuple>
#include <vector>
using std::max, std::min;
constexpr int kParts = PARTS, kGroup = 2;
static int batches, heads, queries, keys, seconds;  // heads: of keys
static std::mutex lock;
static std::atomic<int> drawn, done;
static int by_number;
static std::map<std::tuple<int, int, int, int>, std::vector<int>> added;  // by batch, head, query, part
struct Block { int number; std::vector<int> programs; };
static thread_local Block *own;
static thread_local size_t taken;
static thread_local int now_adding;
static thread_local std::mt19937 chance;
static std::chrono::steady_clock::time_point begin;
CONSTANTS
static int next_program() {
  std::lock_guard<std::mutex> guard(lock);
  if (taken == own->programs.size()) own->programs.push_back(by_number && !taken ? own->number : drawn++);
  return own->programs[taken++];
}
static void wait_a_little() { if (chance() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(chance() % 60)); }
namespace attn {
template <class... T> static void barrier_wait(T...) {}
template <class... T> static void warp_arrive(T...) {}
template <class... T> static void barrier_arrive(T...) {}
template <class... T> static void named_sync(T...) { wait_a_little(); }
template <int N> static void bulk_wait() { wait_a_little(); }
template <int N> static void bulk_wait_read() {}
static void bulk_commit() {}
static int uniform(int x) { return x; }
static int load_shared_int(uint32_t at) { return at >= kNext && at < kNext + 8 ? now_adding = next_program() : kGroup; }
static std::atomic_ref<int> number(const int *at) { return std::atomic_ref<int>(*const_cast<int *>(at)); }
static int semaphore_now(const int *at) { return number(at).load(); }
static void semaphore_pass(int *at, int to) { number(at).store(to); }
static void semaphore_wait(const int *at, int wanted) {
  while (number(at).load() != wanted) {
    if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(seconds))
      std::printf("deadlock\n"), std::fflush(stdout), std::_Exit(2);
    std::this_thread::yield();
  }
}
static void tma_add(const void *, uint32_t, int column, int query, int head, int batch) {
  std::lock_guard<std::mutex> guard(lock);
  added[{batch, head, query, column}].push_back(now_adding);
}
}
static void __syncwarp() {}
template <class T> static T quotient(T a, T b) { return a / b; }
static std::vector<int> counters;
static void adds(int warp) {
  PARAMETERS
  const int lane = 0;
  const uint32_t shared = 0, barriers = 1u << 20;
  int *const semaphores = counters.data();
  static const int MAPS;
  DECLARED
  ROLE
}
int main(int, char **given) {
  batches = 2, heads = 2, queries = std::atoi(given[1]), keys = std::atoi(given[2]), by_number = std::atoi(given[3]);
  const int room = std::atoi(given[4]), seed = std::atoi(given[5]), blocks = (keys + KEYS - 1) / KEYS, programs = blocks * heads * batches;
  seconds = by_number ? 2 : 60;
  counters.assign(batches * heads * kGroup * ((queries + 15) / 16) * 2, 0);
  const int grid = min(programs, GRID);
  std::vector<Block> all;
  for (int n = 0; n < grid; ++n) all.push_back({n, {}});
  std::mt19937 order(seed);
  if (seed) std::shuffle(all.begin(), all.end(), order); else std::reverse(all.begin(), all.end());
  if (by_number) drawn = grid;
  begin = std::chrono::steady_clock::now();
  std::atomic<int> next{0};
  std::vector<std::thread> places;  // multiprocessors
  for (int place = 0; place < room; ++place)
    places.emplace_back([&] {
      for (int which; (which = next++) < grid;) {
        std::vector<std::thread> warps;
        for (int part = 0; part < kParts; ++part)
          warps.emplace_back([&, part] { own = &all[which], taken = 0, chance.seed(seed * 1000 + which * 2 + part), adds(FIRST + part); });
        for (std::thread &warp : warps) warp.join();
      }
    });
  for (std::thread &place : places) place.join();
  if (!by_number && drawn != programs + grid) std::printf("%d draws of %d and %d\n", drawn.load(), programs, grid), std::exit(1);
  size_t sums = 0;
  for (auto &[where, who] : added) {
    sums += who.size();
    if (!std::is_sorted(who.begin(), who.end())) std::printf("not in order\n"), std::exit(1);
  }
  std::printf("%zu sums, %zu places\n", sums, added.size());
}
"""
CASES = {
    "window, 128 columns": ("sliding-window", 128),
    "window, 64 columns": ("sliding-window", 64),
    "causal, 128 columns": ("causal-softmax", 128),
    "causal, 64 columns": ("causal-softmax", 64),
    "no mask, 64 columns": ("derivatives/softmax", 64),
}


def _block(text: str, start: int) -> str:
    """What is between the brace that opens before `start` and the one that closes it."""
    depth, at = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return text[start : at - 1]


def host_program(name: str, head: int) -> str:
    """A program for the host of the warps of a kernel that add."""
    ((_, code),) = kernels(name, head, choices=ORDERED)
    kernel = code.source.split("__global__")[1]
    roles = [
        (int(found[1]), int(found[2]), _block(kernel, found.end()))
        for found in re.finditer(r"if \(warp >= (\d) && warp < (\d)\) \{", kernel)
    ]
    ((first, end, role),) = [each for each in roles if "semaphore" in each[2]]
    assert "attn::semaphore_wait(" in role and "atomicInc" in kernel
    sizes = {"n0": "batches", "n1": "heads", "n2": "keys"}
    values = {f"{tensor}_{size}": value for tensor in "kv" for size, value in sizes.items()}
    values |= {"q_n0": "batches", "q_n1": "heads * kGroup", "q_n2": "queries", "blocks": "(keys + KEYS - 1) / KEYS"}
    integers = re.findall(r"^    (?:int|long long) (\w+)[,)]", kernel.split("{\n")[0], re.MULTILINE)
    declared = kernel.split("__syncthreads();")[1].split("if (warpgroup ==")[0]
    key_block = re.search(r"const int key0 = (\d+) \* block;", kernel)
    assert key_block is not None
    parts = {
        "PARTS": str(end - first),
        "CONSTANTS": re.findall(r"^  (constexpr uint32_t kNextFull = .*;)", kernel, re.MULTILINE)[0],
        "PARAMETERS": "\n  ".join(f"const int {each} = {values.get(each, 0)};" for each in integers),
        "MAPS": ", ".join(sorted({f"{each} = 0" for each in re.findall(r"&(\w+_map\w*)", role)})),
        "DECLARED": declared,
        "ROLE": role,
        "FIRST": str(first),
        "GRID": "11",
        "KEYS": key_block[1],
    }
    text = HOST
    for word in ("PARAMETERS", "DECLARED", "ROLE", "CONSTANTS", "MAPS", "PARTS", "FIRST", "GRID", "KEYS"):
        text = re.sub(rf"\b{word}\b", lambda _, word=word: parts[word], text)
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("turns")


def ran(program: Path, *numbers: int) -> tuple[int, str]:
    """`numbers`: queries, keys, whether first programs are by number, multiprocessors, and a seed (0: the last thread blocks first)."""
    made = subprocess.run([program, *map(str, numbers)], capture_output=True, text=True, timeout=100, check=False)
    return made.returncode, made.stdout + made.stderr


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("case", CASES)
def test_every_program_gets_its_turn(case: str, folder: Path) -> None:
    """Of one thread block at a time, of some and of all, in any order; sums come in the order of programs, as many in each run."""
    program = folder / re.sub(r"\W+", "_", case)
    program.with_suffix(".cpp").write_text(host_program(*CASES[case]))
    command = [str(COMPILER), "-std=c++20", "-O1", "-w", "-pthread", str(program.with_suffix(".cpp")), "-o", str(program)]
    subprocess.run(command, check=True)
    for queries, keys in ((1, 1), (17, 127), (700, 700), (300, 1000), (1000, 130)):
        found = {ran(program, queries, keys, 0, room, seed) for room, seed in ((1, 0), (2, 1), (3, 2), (7, 3), (11, 0), (11, 4))}
        assert len(found) == 1 and next(iter(found))[0] == 0, found
    # Where thread blocks begin with programs of their numbers, the last ones wait for those that have not begun.
    status, told = ran(program, 1000, 1000, 1, 1, 0)  # by each thread that sees it before the process ends
    assert status == 2 and set(told.splitlines()) == {"deadlock"}
