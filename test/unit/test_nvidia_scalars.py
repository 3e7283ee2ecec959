"""The CUDA code of scalar ops: compiled as C++ for the host and compared with the float64 reference, and compiled for the GPU."""

import ctypes
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attn_mlir.backends.gpu.scalar_ops import helper_source
from attn_mlir.backends.gpu.scalars import Names, Scalars, dependence, float_literal, frontier
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk
from attn_mlir.reference.scalar import SCALARS, round_to
from contexts import loaded_context

HOST = """#include <cmath>
#include <cstring>
#include <algorithm>
#define __device__
#define __forceinline__ inline
struct __half { float value; };
struct __nv_bfloat16 { float value; };
static __half __float2half_rn(float x) { return {(float)(_Float16)x}; }
static float __half2float(__half x) { return x.value; }
static __nv_bfloat16 __float2bfloat16_rn(float x) {
  unsigned bits; std::memcpy(&bits, &x, 4);
  if (x == x) bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000u;
  std::memcpy(&x, &bits, 4); return {x};
}
static float __bfloat162float(__nv_bfloat16 x) { return x.value; }
static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static double rsqrt(double x) { return 1.0 / sqrt(x); }
static int __float_as_int(float x) { int bits; std::memcpy(&bits, &x, 4); return bits; }
static float __int_as_float(int x) { float number; std::memcpy(&number, &x, 4); return number; }
using std::min; using std::max;
"""
DEVICE = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"


@dataclass(frozen=True)
class Case:
    """One op: its text on %0, %1..., the types of its arguments and of its result, and the relative error allowed in f32."""

    text: str
    types: tuple[str, ...]
    result: str
    error: float = 2.5e-7


def _float_cases() -> list[Case]:
    cases: list[Case] = []
    for type_ in ("f32", "f64"):
        two = "addf subf mulf divf maximumf minimumf maxnumf minnumf remf".split()
        cases += [Case(f"arith.{name} %0, %1 : {type_}", (type_, type_), type_) for name in two]
        one = "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt cbrt absf sinh cosh asin acos atan erf erfc floor ceil trunc roundeven round"
        cases += [Case(f"math.{name} %0 : {type_}", (type_,), type_, 6e-7) for name in one.split()]
        cases += [Case(f"math.{name} %0 : {type_}", (type_,), type_, 1e-6) for name in ("tanh", "sin", "cos")]
        cases += [Case(f"math.tan %0 : {type_}", (type_,), type_, 2e-5)]
        cases += [Case(f"math.{name} %0, %1 : {type_}", (type_, type_), type_) for name in ("copysign", "atan2")]
        cases += [Case(f"math.powf %0, %1 : {type_}", (type_, type_), type_, 2e-5)]
        cases += [Case(f"math.{name} %0 : {type_}", (type_,), "i1") for name in ("isnan", "isinf", "isfinite")]
        cases += [Case(f"math.fma %0, %1, %2 : {type_}", (type_,) * 3, type_), Case(f"arith.negf %0 : {type_}", (type_,), type_)]
        cases += [Case(f"arith.cmpf {p}, %0, %1 : {type_}", (type_, type_), "i1") for p in PREDICATES]
        cases += [Case(f"arith.select %0, %1, %2 : {type_}", ("i1", type_, type_), type_)]
        cases += [Case(f"arith.sitofp %0 : {i} to {type_}", (i,), type_) for i in ("i1", "i8", "i32", "i64")]
        cases += [Case(f"arith.uitofp %0 : {i} to {type_}", (i,), type_) for i in ("i1", "i8", "i32", "i64")]
        cases += [Case(f"arith.fptosi %0 : {type_} to {i}", (f"small {type_}",), i) for i in ("i32", "i64")]
    cases += [Case(f"arith.extf %0 : {h} to {f}", (h,), f) for h in ("f16", "bf16") for f in ("f32", "f64")]
    cases += [Case(f"arith.truncf %0 : {f} to {h}", (f,), h) for h in ("f16", "bf16") for f in ("f32", "f64")]
    cases += [Case("arith.truncf %0 : f64 to f32", ("f64",), "f32"), Case("arith.extf %0 : f32 to f64", ("f32",), "f64")]
    cases += [Case("arith.addf %0, %1 : f16", ("f16", "f16"), "f16"), Case("arith.maximumf %0, %1 : bf16", ("bf16", "bf16"), "bf16")]
    return cases


PREDICATES = "false oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno true".split()
DIVISIONS = ("floordivsi", "ceildivsi", "divsi", "remsi", "divui", "remui", "ceildivui")


def _integer_cases() -> list[Case]:
    cases: list[Case] = []
    for type_ in ("index", "i64", "i32", "i8"):
        names = ("addi", "subi", "muli", "minsi", "maxsi", "minui", "maxui", "andi", "ori", "xori", *DIVISIONS)
        cases += [Case(f"arith.{name} %0, %1 : {type_}", (type_, type_), type_) for name in names]
        cases += [Case(f"arith.{name} %0, %1 : {type_}", (type_, f"shift {type_}"), type_) for name in ("shli", "shrsi", "shrui")]
        cases += [Case(f"arith.cmpi {p}, %0, %1 : {type_}", (type_, type_), "i1") for p in CMPI]
        cases += [Case(f"arith.select %0, %1, %2 : {type_}", ("i1", type_, type_), type_), Case(f"math.absi %0 : {type_}", (type_,), type_)]
    cases += [Case(f"arith.{name} %0, %1 : i1", ("i1", "i1"), "i1") for name in ("andi", "ori", "xori", "addi", "muli")]
    cases += [Case(f"arith.cmpi {p}, %0, %1 : i1", ("i1", "i1"), "i1") for p in CMPI]
    cases += [Case(f"arith.index_cast %0 : {i} to index", (i,), "index") for i in ("i8", "i16", "i32", "i64")]
    cases += [Case(f"arith.index_cast %0 : index to {i}", ("index",), i) for i in ("i16", "i32", "i64")]
    cases += [
        Case(f"arith.{name} %0 : {a} to {b}", (a,), b)
        for name in ("extsi", "extui")
        for a, b in (("i1", "i32"), ("i8", "i64"), ("i32", "i64"))
    ]
    cases += [Case(f"arith.trunci %0 : {a} to {b}", (a,), b) for a, b in (("i64", "i32"), ("i32", "i8"), ("i32", "i1"))]
    return cases


CMPI = "eq ne slt sle sgt sge ult ule ugt uge".split()
CASES = [*_float_cases(), *_integer_cases()]
_CTYPES: dict[str, Any] = {"f16": np.float32, "bf16": np.float32, "f32": np.float32, "f64": np.float64, "i1": np.bool_, "i8": np.int8,
                           "i16": np.int16, "i32": np.int32, "i64": np.int64, "index": np.int64}  # fmt: skip


def parse(text: str) -> ir.Operation:
    return ir.Operation.parse(text)


def function_of(case: Case) -> str:
    """A function of the op."""
    types = [type_.split()[-1] for type_ in case.types]
    parameters = ", ".join(f"%{i}: {type_}" for i, type_ in enumerate(types))
    return f"func.func @f({parameters}) -> {case.result} {{\n %r = {case.text}\n return %r : {case.result}\n}}"


def c_function(case: Case, number: int) -> tuple[str, set[str]]:
    """A C++ function of arrays, and its helper functions."""
    with loaded_context(), ir.Location.unknown():
        module = parse(f"module {{ {function_of(case)} }}")
        function = find_all(module, "func.func")[0]
        lines: list[str] = []
        scalars = Scalars(lines, Names(), lambda op, at: "", lambda op, at: "", "    ")
        arguments = list(function.regions[0].blocks[0].arguments)
        types = [scalars.type_of(argument) for argument in arguments]
        for i, argument in enumerate(arguments):
            scalars.bind(argument, f"a{i}[e]")
        value = find_all(function, "func.return")[0].operands[0]
        result, type_ = scalars.emit(value), "long long" if case.result in ("index", "i64") else scalars.type_of(value)
        helpers = set(scalars._context.helpers)
    parameters = ", ".join([*(f"const {t} *a{i}" for i, t in enumerate(types)), f"{type_} *out", "int n"])
    body = "\n".join([*lines, f"    out[e] = {result};"])
    return f'extern "C" DEVICE void f{number}({parameters}) {{\n  for (int e = 0; e < n; ++e) {{\n{body}\n  }}\n}}\n', helpers


def source_of(cases: list[Case]) -> str:
    made = [c_function(case, number) for number, case in enumerate(cases)]
    return helper_source({helper for _, helpers in made for helper in helpers}) + "".join(text for text, _ in made)


def samples(kind: str, rng: np.random.Generator, position: int) -> np.ndarray:
    """Random and special numbers of a type, as float64 or int64."""
    small, type_ = kind.startswith("small"), kind.split()[-1]
    n = 400
    if type_ in ("f16", "bf16", "f32", "f64"):
        x = np.concatenate(
            [rng.normal(size=n // 4), 10 * rng.normal(size=n // 4), np.exp(6 * rng.normal(size=n // 2)) * rng.choice([-1, 1], n // 2)]
        )
        special = [0.0, -0.0, 1.0, -1.0, 2.0, 3.0, 0.5, 2.5, -2.5, 88.0, -100.0] + ([] if small else [np.inf, -np.inf, np.nan, 3e38, -3e38])
        x = np.concatenate([x, special])
        x = np.clip(x, -1e6, 1e6) if small else x
        return np.roll(rng.permutation(x), position).astype(np.float64 if type_ == "f64" else np.float32).astype(np.float64)
    if kind.startswith("shift"):
        return rng.integers(0, 6, n + 16)
    if type_ == "i1":
        return rng.integers(0, 2, n + 16).astype(bool)
    bits = {"index": 64}.get(type_) or int(type_[1:])
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    some = [0, 1, -1, 2, 3, 7, -7, low, high, low + 1, 64, 100, -100, 5, -2, 12]
    return rng.permutation(np.concatenate([rng.integers(-100, 100, n // 2), rng.integers(low, high, n // 2), some]).astype(np.int64))


def expected(case: Case, args: list[np.ndarray]) -> np.ndarray:
    """The reference's result; divisors that have no quotient are replaced as documented."""
    with loaded_context(), ir.Location.unknown(), np.errstate(all="ignore"):
        module = parse(f"module {{ {function_of(case)} }}")
        op = next(op for op in walk(module) if op.name.startswith(("arith.", "math.")))
        return np.asarray(SCALARS[op.name](op, *args))


def with_divisors(case: Case, args: list[np.ndarray]) -> list[np.ndarray]:
    if not any(name in case.text for name in DIVISIONS):
        return args
    wraps = (args[0] == np.iinfo(_CTYPES[case.result]).min) & (args[1] == -1) & ("ui " not in case.text)
    return [args[0], np.where((args[1] == 0) | wraps, 1, args[1])]


def round_type(x: np.ndarray, type_: str) -> np.ndarray:
    with ir.Context():
        return round_to(x, ir.Type.parse(type_))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("scalars")
    source = folder / "scalars.cpp"
    source.write_text(f"{HOST}#define DEVICE\n{source_of(CASES)}")
    subprocess.run(["g++", "-O1", "-w", "-fwrapv", "-shared", "-fPIC", "-o", folder / "scalars.so", source], check=True)
    return ctypes.CDLL(str(folder / "scalars.so"))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.text.replace(" ", "_") for case in CASES])
def test_printed_code_computes_the_op(library: ctypes.CDLL, number: int) -> None:
    case = CASES[number]
    rng = np.random.default_rng(number)
    args = [samples(kind, rng, position) for position, kind in enumerate(case.types)]
    types = [kind.split()[-1] for kind in case.types]
    if "ceil" in case.text and case.result in ("index", "i64"):  # the reference leaves 64 bits there
        args = [np.where(np.abs(a.astype(np.float64)) > 2.0**62, 5, np.abs(a) if "ui" in case.text else a) for a in args]
    args = [round_type(a, t) if t in ("f16", "bf16") else a for a, t in zip(args, types, strict=True)]
    stored = [np.ascontiguousarray(a.astype(_CTYPES[t])) for a, t in zip(args, types, strict=True)]
    out = np.zeros(len(args[0]), _CTYPES[case.result])
    getattr(library, f"f{number}")(*(a.ctypes.data_as(ctypes.c_void_p) for a in [*stored, out]), ctypes.c_int(len(out)))
    compare(case, args, out)


def compare(case: Case, args: list[np.ndarray], out: np.ndarray) -> None:
    """Fails where `out` is not the op's result within the case's error."""
    wanted = expected(case, with_divisors(case, args))
    if case.result[0] in "i":
        wanted = wanted.astype(_CTYPES[case.result])
        if "fpto" in case.text:
            wanted, out = wanted.astype(np.int64), out.astype(np.int64)
        np.testing.assert_array_equal(out, wanted)
        return
    if case.result in ("f16", "bf16"):
        wanted = round_type(wanted, case.result)
    tiny = {"f64": 1e-300, "f32": 1e-37}.get(case.result, 1e-37)
    large = {"f64": 1e300, "f32": 3.2e38}.get(case.result, 3.2e38)
    with np.errstate(all="ignore"):
        compared = ~((np.abs(wanted) > large) & np.isfinite(wanted)) & ~((np.abs(wanted) < tiny) & (wanted != 0))
        if "powf" in case.text:
            compared &= (args[0] != -np.inf) & ((args[0] != 0) | ~np.signbit(args[0]))
            compared &= ~((args[0] == 1) & np.isnan(args[1]))
        trigonometric = any(name in case.text for name in ("sin ", "cos ", "tan ")) & (np.abs(args[0]) > 1e4)
        compared &= ~trigonometric
        error = case.error if case.result != "f64" else 1e-13
        absolute = 3e-7 if any(name in case.text for name in ("sin ", "cos ", "tan ")) else 0.0
        np.testing.assert_allclose(out[compared], wanted[compared], rtol=max(error, 0.0), atol=absolute)
        over = (np.abs(wanted) > large) & np.isfinite(wanted) & ~np.asarray(trigonometric)
        assert (np.abs(out[over]) > 0.99 * large).all()


def test_device_code_compiles(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc")
    source = tmp_path / "scalars.cu"
    source.write_text(f"{DEVICE}#define DEVICE __global__\n{source_of([case for case in CASES if 'f64' not in case.text])}")
    command = [
        "nvcc",
        "-gencode=arch=compute_90a,code=sm_90a",
        "-std=c++17",
        "-O1",
        "-use_fast_math",
        "-Werror",
        "all-warnings",
        "-cubin",
        "-o",
    ]
    subprocess.run([*command, tmp_path / "scalars.cubin", source], check=True)


MAP = """
func.func @f(%q: tensor<128x64xf32>, %m: tensor<128xf32>, %slopes: memref<?xf32>, %h: index, %row: index, %columns: index) {
  %c64 = arith.constant 64 : index
  %scale = arith.constant 0.1 : f32
  %r = "tile.map"(%c64, %columns) ({
  ^bb0(%i: index, %j: index):
    %s = tensor.extract %q[%i, %j] : tensor<128x64xf32>
    %scaled = arith.mulf %s, %scale : f32
    %slope = memref.load %slopes[%h] : memref<?xf32>
    %pos = arith.addi %row, %i : index
    %far = arith.muli %pos, %pos : index
    %near = arith.cmpi sge, %far, %j : index
    %max = tensor.extract %m[%i] : tensor<128xf32>
    %t = arith.subf %scaled, %max : f32
    %e = math.exp %t : f32
    %p = arith.mulf %e, %slope : f32
    %x = arith.select %near, %p, %scale : f32
    "tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<128x64xf32>
  return
}
"""


def test_scopes_and_dependence() -> None:
    """What depends on the row only is printed outside of the loop over columns; names are the user's; wide products are 64 bits."""
    with loaded_context(), ir.Location.unknown():
        module = parse(f"module {{ {MAP} }}")
        function = find_all(module, "func.func")[0]
        _, _, _, h, row, _ = function.regions[0].blocks[0].arguments
        block = find_all(module, "tile.map")[0].regions[0].blocks[0]
        depends = dependence(block)
        values = {op.name: op.results[0] for op in walk(find_all(module, "tile.map")[0]) if op.results}
        assert depends[values["memref.load"]] == frozenset()
        assert depends[values["arith.muli"]] == {0}
        assert depends[values["math.exp"]] == {0, 1}
        uniform, rows = frontier(block, depends, frozenset()), frontier(block, depends, frozenset({0}))
        assert [v.owner.operation.name for v in uniform] == ["memref.load"]
        assert sorted(v.owner.operation.name for v in rows) == ["arith.muli", "tensor.extract"]
        lines: list[str] = []

        def extract(op: ir.Operation, at: list[str]) -> str:
            return f"q[{at[0]}][{at[1]}]" if len(at) == 2 else f"m[{at[0]}]"

        outer = Scalars(lines, Names(), lambda op, at: f"slopes[{at[0]}]", extract)
        for value, name in zip([h, row, *block.arguments], "h row i j".split(), strict=True):
            outer.bind(value, name)
        for value in [*uniform, *rows]:
            outer.emit(value)
        assert not any("j" in line for line in lines)
        inner = outer.nested(lines, "  ")
        inner.emit(list(block.operations)[-1].operation.operands[0])
        text = "\n".join(lines)
        assert "const long long" in text and "q[i][j] * 0.1f" in text and "expf(" in text and text.count("slopes[h]") == 1
        assert not outer.helper_source()


@pytest.mark.parametrize("value", [0.1, -0.125, 1e-45, 3.4028234663852886e38, 16777216.0, 1e10, -1e-10])
def test_literals_are_exact(value: float) -> None:
    assert np.float32(float_literal(value).strip("()f")) == np.float32(value)


def test_unknown_ops_are_refused() -> None:
    with loaded_context(), ir.Location.unknown():
        module = parse("module { func.func @f(%0: i32) -> i32 { %r = math.ctpop %0 : i32\n return %r : i32 } }")
        function = find_all(module, "func.func")[0]
        scalars = Scalars([], Names(), lambda op, at: "", lambda op, at: "")
        scalars.bind(function.regions[0].blocks[0].arguments[0], "a")
        with pytest.raises(UnsupportedError, match=r"no C\+\+ form of 'math\.ctpop'"):
            scalars.emit(find_all(module, "func.return")[0].operands[0])


@pytest.mark.parametrize(
    ("name", "power", "dividends"),
    [
        ("quotients_2", 63, (1.0, 256.0, -(2.0**-8))),
        ("quotients_4", 31, (1.0, -256.0, 2.0**-8)),
        ("quotients_4_wide", 63, (1.0, 1.7, -2.0)),
    ],
)
def test_quotients_that_share_a_reciprocal(name: str, power: int, dividends: tuple[float, ...], tmp_path: Path) -> None:
    """a / (1 + exp2(t)), and 2^-p a where that is less, for all a of `gpu-share-reciprocals`; a NaN leaves none of its group as it was."""
    count, least = 2 if name == "quotients_2" else 4, 2.0**-power
    arguments = f"a, least, *(const float(*)[{count}])x, *(float(*)[{count}])y"
    call = f'extern "C" void call(float a, float least, const float *x, float *y) {{ {name}({arguments}); }}'
    source = tmp_path / "quotients.cpp"
    source.write_text(f"{HOST}{helper_source({name})}\n{call}\n")
    compiler = shutil.which("clang++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-std=c++17", "-o", tmp_path / "quotients.so", source], check=True)
    function = ctypes.CDLL(str(tmp_path / "quotients.so")).call
    t = np.random.default_rng(0).uniform(-1, 1, (3000, count)) * np.array([[4.0], [40.0], [140.0]]).repeat(1000, 0)
    x, made = np.exp2(t - power).astype(np.float32), np.zeros((3000, count), np.float32)

    def divide(dividend: float, row: np.ndarray, out: np.ndarray) -> None:
        numbers = [ctypes.c_float(dividend * least), ctypes.c_float(least)]
        function(*numbers, ctypes.c_void_p(row.ctypes.data), ctypes.c_void_p(out.ctypes.data))

    x[0], x[1] = 0.0, np.inf  # quotients of a, and the least ones
    exact = np.maximum(1 / (1 + x.astype(np.float64) / least), least)
    for dividend in dividends:
        for row, out in zip(x, made, strict=True):
            divide(dividend, row, out)
        assert np.abs(made / (dividend * exact) - 1).max() < 1e-6
    x[0, 1] = np.nan
    divide(1.0, x[0], made[0])
    assert not np.isfinite(made[0]).any()
