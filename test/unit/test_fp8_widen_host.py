"""The warps of the producer that widen 8-bit tiles to 16 bits for Hopper, with their instructions as C++ on the host."""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
HEADER = Path(__file__).parents[2] / "backends/nvidia/hopper/attn_widen.cuh"
NAMES = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16", E4: "E4M3", E5: "E5M2"}
Tensor = torch.Tensor
Change = Callable[[str], str]

HOST = """
#include <cstdint>
#include <cstring>
#include <algorithm>
using std::min;
#define ATTN_DEVICE inline
struct __half {}; struct __nv_bfloat16 {}; struct __half2 { uint32_t bits; }; struct float2 { float x, y; };
static unsigned char shared_memory[1 << 20];
static uint32_t widened_of[256];
inline float2 __half22float2(__half2 pair) { float2 both; std::memcpy(&both.x, &pair, 4); return both; }
inline uint32_t pack_bf16(float pair, float) {
  uint32_t bytes; std::memcpy(&bytes, &pair, 4);
  return widened_of[bytes & 255] | widened_of[bytes >> 16 & 255] << 16;
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
PAIRS = {torch.float16: "widened_of[pair & 255] | widened_of[pair >> 8] << 16", torch.bfloat16: "(pair & 255) | (pair >> 8) << 16"}


def same(text: str) -> str:
    return text


def as_host_code(text: str, half: torch.dtype) -> str:
    """The header with its instructions in C++."""
    edits = [
        (r'asm\("cvt.rn.f16x2.e.m.x2[^;]*;[^;]*;', f"wide = {PAIRS[half]};"),
        (r'asm volatile\("ld.shared.v4.*?: "r"\(at\) : "memory"\);', "std::memcpy(words[i], shared_memory + at, 16);"),
        (
            r'asm volatile\("\{\\n.reg .pred p.*?::"r"\((at.*?)\),\s*"r".*?: "memory"\);',
            r"if (wanted) std::memcpy(shared_memory + (\1), wide + 4 * part, 16);",
        ),
    ]
    for pattern, instead in edits:
        text, count = re.subn(pattern, instead, text, flags=re.DOTALL)
        assert count
    assert "asm" not in text
    return text


def on_host(folder: Path, sizes: dict[str, int], half: torch.dtype, byte: torch.dtype, change: Change) -> ctypes.CDLL:
    """`widen_tile` for tiles of these sizes."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    source = HOST + as_host_code(change(HEADER.read_text().replace("#pragma once\n", "")), half) + CALL
    for name, value in {**sizes, "HALF": NAMES[half], "BYTE": NAMES[byte]}.items():
        source = source.replace(name, str(value))
    (folder / "host.cpp").write_text(source)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-w", "-o", str(folder / "host.so"), str(folder / "host.cpp")], check=True)
    return ctypes.CDLL(str(folder / "host.so"))


def widened(
    folder: Path, size: tuple[int, int, int], change: Change = same, types: tuple[torch.dtype, torch.dtype] = (torch.float16, E4)
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What it makes of random bytes, rows, columns and how many rows there are, and where TMA would put the same numbers of 16 bits."""
    (rows, columns, there), (half, byte) = size, types
    boxes = -(-columns // 256)
    each, step = -(-columns // boxes), 16 if boxes == 1 else 64
    width = -(-each // step) * step
    library = on_host(folder, {"ROWS": rows, "COLUMNS": columns, "WIDTH": width}, half, byte, change)
    tile = torch.randint(0, 256, (rows, boxes * width), dtype=torch.uint8)
    tile[:, columns:] = 0  # as TMA fills columns that there are not
    brought = tile.view(rows, boxes, width).transpose(0, 1).contiguous()
    table = torch.arange(256, dtype=torch.uint8).view(byte).to(half).view(torch.int16).contiguous()
    atoms = -(-columns // 64)
    out = torch.zeros(atoms * rows * 128, dtype=torch.uint8)
    to = -(-brought.numel() // 1024) * 1024
    first, second, third = (ctypes.c_void_p(x.data_ptr()) for x in (brought, table, out))
    library.run(first, brought.numel(), second, there, to, third, out.numel())
    numbers = torch.zeros(rows, atoms * 64, dtype=torch.int16)
    numbers[:there, :columns] = table[tile[:there, :columns].long()]
    wanted = torch.zeros(atoms, rows, 8, 8, dtype=torch.int16)
    for row in range(rows):
        for chunk in range(8):
            wanted[:, row, chunk ^ (row & 7)] = numbers[row].view(atoms, 8, 8)[:, chunk]
    return out.view(torch.int16), wanted.view(-1)


@pytest.mark.parametrize(("rows", "columns"), [(128, 64), (64, 72), (128, 128), (80, 192), (64, 256), (32, 320)])
def test_threads_put_numbers_where_tma_would(rows: int, columns: int, tmp_path: Path) -> None:
    there = rows - 5 if columns > 64 else rows
    assert torch.equal(*widened(tmp_path, (rows, columns, there)))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("byte", [E4, E5])
def test_all_bytes(half: torch.dtype, byte: torch.dtype, tmp_path: Path) -> None:
    made, wanted = widened(tmp_path, (64, 64, 64), types=(half, byte))
    assert len(wanted.unique()) > 240 and torch.equal(made, wanted)


FAULTS = {
    "rows that are not there are widened": ("int(rows) + row < there", "true"),
    "chunks are not swizzled": ("(lane % 4 * 2 ^ row)", "(lane % 4 * 2)"),
    "halves of a register change places": ("words[i / 2] >> 16 * (i % 2)", "words[i / 2] >> 16 * (1 - i % 2)"),
    "both chunks have one place": ("at ^ (part << 4)", "at"),
    "columns past the last one are loaded": ("int(atom) * 64 + first < Columns", "true"),
    "lanes take each other's rows": ("to += row * 128", "to += (7 - row) * 128"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, tmp_path: Path) -> None:
    old, new = FAULTS[name]

    def change(text: str) -> str:
        assert text.count(old) == 1
        return text.replace(old, new)

    assert not torch.equal(*widened(tmp_path, (32, 72, 27), change))
