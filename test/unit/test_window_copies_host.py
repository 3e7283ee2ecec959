"""What lanes copy of windows of captured tensors (`attn_window_copies.cuh`), on the host: every element, at addresses of words alone."""

import re
import subprocess
from pathlib import Path

import pytest

from attn_mlir.backends.nvidia import warp
from attn_mlir.backends.nvidia.warp.windows import HEADER
from test_column_clusters import COMPILER

MAIN = r"""
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#define ATTN_DEVICE static inline
using std::min;
struct CUtensorMap { unsigned long long words[16]; };
static unsigned char shared[1 << 16];
static int arrived, words;
namespace attn {
static void store_shared(uint32_t to, float value) { std::memcpy(shared + to, &value, 4); }
static void barrier_arrive(uint32_t) { ++arrived; }
static void copy_word(uint32_t to, const void *from, int bytes) {
  const bool fits = reinterpret_cast<uintptr_t>(from) % 4 == 0 && to % 4 == 0 && bytes >= 0 && bytes <= 4;
  if (!fits) std::printf("a word at %p, %d bytes\n", from, bytes), std::exit(1);
  uint32_t word = 0;
  std::memcpy(&word, from, bytes), std::memcpy(shared + to, &word, 4), ++words;
}
}
@HEADER@
template <typename Element, int Rows, int Columns>
static void check(int offset, int rows, int columns, long long stride, long long step, int row, int column) {
  alignas(16) static Element memory[1 << 16];
  for (int n = 0; n < 1 << 16; ++n) memory[n] = Element(n % 2000 + 1);
  std::memset(shared, 0xff, sizeof shared), arrived = words = 0;
  for (int lane = 0; lane < 32; ++lane)
    attn::copy_window<Element, Rows, Columns>(memory + offset, stride, step, row, column, rows, columns, 0, 0, lane);
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < Columns; ++c) {
      const int i = row + r, j = column + c;
      const bool exists = i >= 0 && i < rows && j >= 0 && j < columns;
      const Element wanted = exists ? memory[offset + i * stride + j * step] : Element(0);
      Element found;
      std::memcpy(&found, shared + attn::window_place<Rows>(r, c * int(sizeof(Element))), sizeof found);
      if (found != wanted) std::printf("element (%d, %d) at %d of offset %d, stride %lld\n", r, c, column, offset, stride), std::exit(1);
    }
  if (arrived != 32) std::printf("%d arrivals\n", arrived), std::exit(1);
  // In words where rows begin at words.
  if (words != 0 != (step == 1 && column >= 0 && (offset + column) * sizeof(Element) % 4 == 0 && stride * sizeof(Element) % 4 == 0))
    std::printf("%d words at offset %d\n", words, offset), std::exit(1);
}
template <typename Element> static void check_all() {
  for (int offset : {0, 1, 2, 3})
    for (int column : {-3, 0, 1, 2, 3, 5, 64, 99, 100, 200})
      for (int row : {-2, 0, 5, 69, 70, 300})
        for (long long stride : {0, 100, 101, 104}) {
          check<Element, 64, 128>(offset, 70, 99, stride, 1, row, column);
          check<Element, 128, 64>(offset, 70, 100, stride, 1, row, column);
        }
  check<Element, 64, 128>(0, 70, 99, 1, 71, 3, 5), check<Element, 64, 128>(1, 70, 99, 100, 0, 3, 5);
}
int main() { check_all<float>(), check_all<unsigned short>(); }
"""


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_all_elements_are_copied_and_no_word_is_read_between_two(tmp_path: Path) -> None:
    """A column and an address that are both odd make an even place; where nothing exists, the address stays that of a word."""
    assert COMPILER is not None
    header = (Path(warp.__file__).parent / HEADER).read_text().replace("#pragma once", "")
    header, stores = re.subn(
        r'asm volatile\("st\.shared\.b16.*?: "memory"\);', "std::memcpy(shared + to, &value, 2);", header, flags=re.DOTALL
    )
    operands = r'asm volatile\("cp\.async\.ca\.shared\.global [^"]*" ::"r"\((.*?)\), "l"\(at\),\s*"r"\((.*?)\)\s*: "memory"\);'
    header, copies = re.subn(operands, r"copy_word(\1, at, \2);", header, flags=re.DOTALL)
    header, arrivals = re.subn(r'asm volatile\("cp\.async\.mbarrier.*?: "memory"\);', "barrier_arrive(barrier);", header, flags=re.DOTALL)
    assert (stores, copies, arrivals) == (1, 1, 1)
    path = tmp_path / "copies.cpp"
    path.write_text(MAIN.replace("@HEADER@", header))
    subprocess.run([COMPILER, "-std=c++20", "-O1", "-w", str(path), "-o", str(tmp_path / "copies")], check=True)
    made = subprocess.run([str(tmp_path / "copies")], capture_output=True, text=True, check=False, timeout=120)
    assert not made.returncode, made.stdout
