"""The kernel that widens dense 8-bit keys and values in memory, with its instructions as C++ on the host."""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir.backends.nvidia import cuda, widened_ahead, widening
from gpu_cases import GPU
from host_kernels import host_library

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
F16, BF16 = torch.float16, torch.bfloat16
Tensor = torch.Tensor
Launch = Callable[..., None]
_HOST = """
#include <cstdint>
struct uint2 { uint32_t x, y; };
struct uint4 { uint32_t x, y, z, w; };
static uint32_t numbers_of[256];
"""
_CALL = """
extern "C" void call(const void *form, int blocks, int threads, const uint16_t *numbers) {
  for (int i = 0; i < 256; ++i) numbers_of[i] = numbers[i];
  host_launch<AttnWidening>(attn_widen_e4m3_f16, form, blocks, 1, threads, 0);
}
"""


def host_launcher(folder: Path, change: Callable[[str], str] = str) -> Launch:
    """What starts the kernel on the host; a table tells what its instructions make of a byte."""
    instead = "wide = numbers_of[pair & 255] | numbers_of[pair >> 8] << 16;\n  return wide;"
    text, count = re.subn(r"if \(Byte == E4M3\)\n.*?return wide;", instead, change(widening.source()), flags=re.DOTALL)
    assert count == 1 and "asm" not in text
    library = host_library(folder, _HOST + text + _CALL)

    def start(entry: str, source: Any, form: bytes, grid: tuple[int, int, int], block: tuple[int, int, int], where: Any) -> None:
        byte, half = re.fullmatch(r"attn_widen_(\w+)_(\w+)", entry).groups()  # type: ignore[union-attr]
        types = {"e4m3": E4, "e5m2": E5}[byte], {"f16": F16, "bf16": BF16}[half]
        numbers = torch.arange(256, dtype=torch.uint8).view(types[0]).to(types[1])
        library.call(ctypes.c_char_p(form), grid[0], block[0], ctypes.c_void_p(numbers.data_ptr()))

    return start


def on_host(monkeypatch: pytest.MonkeyPatch, folder: Path, change: Callable[[str], str] = str) -> None:
    monkeypatch.setattr(widening.own_kernel, "start", host_launcher(folder, change))
    monkeypatch.setattr(cuda, "current_stream", lambda _: 0)


def both(byte: torch.dtype, keys: int = 83) -> tuple[Tensor, Tensor]:
    """Keys as they are, and values of more columns with positions before heads; all bytes are in them."""
    k, v = (torch.randint(0, 256, shape, dtype=torch.uint8) for shape in ((2, 3, keys, 32), (2, keys, 3, 72)))
    return k.view(byte), v.view(byte).transpose(1, 2)


def right(half: torch.dtype, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel widens them as torch does."""
    wide = widened_ahead.empties(k, v, half)
    assert widening.widen((k, v), wide) and all(y.stride() == x.stride() for x, y in zip((k, v), wide, strict=True))
    return all(torch.equal(y.view(torch.int16), x.to(half).view(torch.int16)) for x, y in zip((k, v), wide, strict=True))


@needs_host_clang
def test_all_bytes_of_keys_and_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Several thread blocks of each, the last ones of which have less to do."""
    on_host(monkeypatch, tmp_path)
    for byte in (E4, E5):
        for half in (F16, BF16):
            assert right(half, *both(byte))
    assert right(F16, *both(E4, 1)) and right(F16, *both(E4, 1024 // 3))


_LOAD = "int i = {}; i < kEach; ++i) {{\n    const attn_wide_size at = first + attn_wide_size(i) * blockDim.x;\n    if (at < size)"
FAULTS = {
    "values are keys": ("keys ? f.keys : f.values", "f.keys"),
    "values begin where keys end": ("keys ? blockIdx.x : blockIdx.x - f.key_blocks", "blockIdx.x"),
    "halves of a word change places": ("words[i].y >> 16", "words[i].y"),
    "words change places": ("static_cast<unsigned short>(words[i].x))", "static_cast<unsigned short>(words[i].y))"),
    "the last ones are not written": ("if (at >= size) continue;", "if (at + 1 >= size) continue;"),
    "a load is left out": (_LOAD.format(0), _LOAD.format(1)),
}


@needs_host_clang
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old, new = FAULTS[fault]
    assert old in widening.source()
    on_host(monkeypatch, tmp_path, lambda text: text.replace(old, new))
    assert not right(F16, *both(E4))


def test_what_torch_widens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with gaps, repeated rows, odd addresses and sizes; the kernel does not start."""
    monkeypatch.setattr(widening.own_kernel, "start", lambda *_: pytest.fail("it starts"))
    k, v = both(E4)
    odd = torch.zeros(3 * 5 + 1, dtype=torch.uint8).view(E4)
    for other in (
        k[..., :16],
        k[:1].expand(2, 3, 83, 32),
        odd[:15].view(1, 3, 5, 1),
        torch.zeros(33, dtype=torch.uint8)[1:].view(E4).view(1, 1, 1, 32),
    ):
        assert not widening.widen((other, v), widened_ahead.empties(other, v, F16))
        _, wide_k, wide_v = widened_ahead.widened([torch.zeros(1).half(), other, v])
        assert torch.equal(wide_k.float().nan_to_num(1e9), other.float().nan_to_num(1e9)) and wide_v.stride() == v.stride()


@pytest.mark.parametrize("types", [pytest.param((byte, half), marks=GPU) for byte in (E4, E5) for half in (F16, BF16)])
def test_all_bytes_on_a_gpu(types: tuple[torch.dtype, torch.dtype]) -> None:
    byte, half = types
    k, v = (x.view(torch.uint8).cuda().view(byte) for x in both(byte))
    wide = widened_ahead.empties(k, v, half)
    assert widening.widen((k, v), wide)
    for x, y in zip((k, v), wide, strict=True):
        assert torch.equal(y.isnan(), x.float().isnan()) and torch.equal(y.nan_to_num(7, 8, 9), x.to(half).nan_to_num(7, 8, 9))
