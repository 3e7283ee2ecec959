"""The C++ that every library made ahead of time holds, by itself: conversions of numbers, and arithmetic of ranges."""

import ctypes
import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attn_mlir.backends.ahead.header import COMMON, DLPACK
from attn_mlir.passes.intervals.expr import Pool
from attn_mlir.passes.intervals.interval import UNBOUNDED, Interval, absolute, product, quotient, remainder

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
FOLDER = Path(__file__).parents[2] / "backends"
FILES = (
    "ahead/tensor",
    "ahead/values",
    "cpu/ahead/host",
    "ahead/bounds",
    "cpu/ahead/program",
    "ahead/check",
    "ahead/call",
    "ahead/linear",
    "ahead/ffi",
)
ENTRIES = """
extern "C" void convert(const double *from, char *to, int64_t n, int element) {
  for (int64_t i = 0; i < n; ++i) attn::store(to + i * attn::facts(attn::Element(element)).bytes, attn::Element(element), from[i]);
}
extern "C" void widen(const char *from, double *to, int64_t n, int element) {
  for (int64_t i = 0; i < n; ++i) to[i] = attn::load(from + i * attn::facts(attn::Element(element)).bytes, attn::Element(element));
}
static attn::Range range_at(const int64_t *p) {
  attn::Range made;
  made.has_low = p[0], made.low = p[1], made.has_high = p[2], made.high = p[3];
  return made;
}
extern "C" void arithmetic(int op, const int64_t *x, const int64_t *y, int64_t *to) {
  attn::Range a = range_at(x), b = range_at(y);
  const attn::Range both[] = {a, b};
  const int64_t factors[] = {2, -3};
  attn::Range made = op == 0 ? attn::product(a, b) : op == 1 ? attn::quotient(a, b) : op == 2 ? attn::remainder(a, b)
                   : op == 3 ? attn::absolute(a) : op == 4 ? attn::least(both, 2) : op == 5 ? attn::most(both, 2)
                   : attn::scaled_sum(5, both, factors, 2);
  to[0] = made.has_low, to[1] = made.low, to[2] = made.has_high, to[3] = made.high;
}
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("host")
    parts = ["#define ATTN_MLIR_OWN_DLPACK", "#include <stddef.h>", "#include <stdint.h>", DLPACK, COMMON]
    parts += [(FOLDER / Path(name).with_name(f"attn_{Path(name).name}.h")).read_text() for name in FILES]
    (folder / "host.cpp").write_text("\n".join([*parts, ENTRIES]))
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror", "-fPIC", "-shared", "-pthread"]
    subprocess.run(["c++", *flags, str(folder / "host.cpp"), "-o", str(folder / "host.so")], check=True)
    return ctypes.CDLL(str(folder / "host.so"))


@pytest.mark.parametrize(("element", "dtype"), [(1, torch.float16), (2, torch.bfloat16)], ids=str)
def test_16_bits_round_as_torch_does(host: ctypes.CDLL, element: int, dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    wide = torch.empty(len(every), dtype=torch.float64)
    host.widen(ctypes.c_void_p(every.data_ptr()), ctypes.c_void_p(wide.data_ptr()), ctypes.c_int64(len(every)), element)
    assert torch.equal(wide.nan_to_num(7e300), every.double().nan_to_num(7e300))
    # All numbers, those half way to the next one, and what lies just beside these.
    floats = every.float()[~every.isnan() & ~every.isinf()].sort().values
    ties = (floats[1:].double() + floats[:-1].double()) / 2
    drawn = torch.randn(10000, dtype=torch.float64) * torch.logspace(-45, 38, 10000, dtype=torch.float64)
    beside = torch.cat([torch.nextafter(ties.float(), torch.tensor(end)) for end in (torch.inf, -torch.inf)]).double()
    special = torch.tensor([torch.inf, -torch.inf, 65519.99, 65520.0, 3.4e38, 1e300, 0.0, -0.0], dtype=torch.float64)
    given = torch.cat([floats.double(), ties, beside, drawn, special])
    made = torch.empty(len(given), dtype=dtype)
    host.convert(ctypes.c_void_p(given.data_ptr()), ctypes.c_void_p(made.data_ptr()), ctypes.c_int64(len(given)), element)
    assert torch.equal(made.view(torch.int16), given.to(dtype).view(torch.int16))
    nan = torch.full((1,), torch.nan, dtype=torch.float64)
    host.convert(ctypes.c_void_p(nan.data_ptr()), ctypes.c_void_p(made.data_ptr()), ctypes.c_int64(1), element)
    assert made[0].isnan()


def test_ranges_are_those_of_the_analysis(host: ctypes.CDLL) -> None:
    pool, numbers = Pool(), (-7, -2, -1, 0, 1, 3, 8)
    ranges: list[Any] = [pair for pair in itertools.product((None, *numbers), repeat=2) if None in pair or pair[0] <= pair[1]]  # type: ignore[operator]

    def interval(pair: Any) -> Interval:
        low, high = (None if end is None else pool.lift(end) for end in pair)
        return Interval(low, high)

    def words(pair: Any) -> np.ndarray:
        return np.array([number for end in pair for number in (end is not None, end or 0)], dtype=np.int64)

    def total(a: Interval, b: Interval) -> Interval:
        low = None if a.low is None or b.high is None else a.low * 2 - b.high * 3 + 5
        high = None if a.high is None or b.low is None else a.high * 2 - b.low * 3 + 5
        return Interval(low, high)

    rules: dict[int, Any] = {0: product, 1: quotient, 2: remainder, 3: lambda a, b: absolute(a), 6: total}
    found, compared = np.zeros(4, dtype=np.int64), 0
    for a, b in itertools.product(ranges, repeat=2):
        for op, rule in rules.items():
            if op == 1 and a != b and (0, 0) in (a, b):
                continue  # a divisor that is 0 was refused before
            wanted = rule(interval(a), interval(b))
            given = [words(a), words(b)]  # which the call reads
            host.arithmetic(op, *[ctypes.c_void_p(each.ctypes.data) for each in (*given, found)])
            ends = [None if end is None else end.constant for end in wanted]
            made = [int(number) if there else None for there, number in found.reshape(2, 2)]
            assert made == ends or (wanted == UNBOUNDED and made == [None, None]), (op, a, b)
            compared += 1
    assert compared > 9000
