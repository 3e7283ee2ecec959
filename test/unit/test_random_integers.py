"""Random arithmetic of integers: printed for a GPU, compiled as C++ for the host, and compared with the reference op by op.

Values that fit are kept in 32 bits, others in 64; `std::min` and `std::max` refuse operands of two types, as CUDA's do.
"""

import ctypes
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from attn_mlir.backends.gpu.scalar_ops import helper_source
from attn_mlir.backends.gpu.scalars import Names, Scalars
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.scalar import SCALARS
from contexts import loaded_context
from test_nvidia_scalars import HOST

COUNT, LINES, SAMPLES = 60, 14, 200
TYPES = {"i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64}
BINARY = ("addi", "subi", "muli", "minsi", "maxsi", "andi", "ori", "xori", "minsi", "maxsi", "subi")
DIVISIONS = ("divsi", "remsi", "floordivsi", "remsi", "floordivsi")
ORDERS = "eq ne slt sle sgt sge ult uge".split()


def function(seed: int) -> str:
    """A function of an integer of each type, whose last value is the result."""
    draw = random.Random(seed)
    lines = [f"%a_{type_} = arith.index_cast %{type_} : {type_} to index" for type_ in TYPES]
    values = [f"%a_{type_}" for type_ in TYPES]
    for number in range(LINES):
        x, y, name = draw.choice(values[-5:]), draw.choice(values), f"%v{number}"
        kind = draw.randrange(10)
        if kind < 4:
            lines.append(f"{name} = arith.{draw.choice(BINARY)} {x}, {y} : index")
        elif kind < 6:
            least = "" if draw.randrange(2) else "-"
            lines.append(f"%d{number} = arith.constant {least}{draw.randrange(2, 300)} : index")
            lines.append(f"{name} = arith.{draw.choice(DIVISIONS)} {x}, %d{number} : index")
        elif kind == 6:
            op, most = draw.choice((("shli", 9), ("shrsi", 60), ("shrsi", 12)))
            lines.append(f"%d{number} = arith.constant {draw.randrange(most)} : index")
            lines.append(f"{name} = arith.{op} {x}, %d{number} : index")
        elif kind == 7:
            lines.append(f"{name} = math.absi {x} : index")
        elif kind == 8:
            lines.append(f"%c{number} = arith.cmpi {draw.choice(ORDERS)}, {x}, {y} : index")
            lines.append(f"{name} = arith.select %c{number}, {y}, {draw.choice(values)} : index")
        else:
            lines.append(f"%c{number} = arith.constant 1 : index")
            lines.append(f"%m{number} = arith.maxsi {y}, %c{number} : index")
            lines.append(f"{name} = arith.{draw.choice(DIVISIONS)} {x}, %m{number} : index")
        values.append(name)
    arguments = ", ".join(f"%{type_}: {type_}" for type_ in TYPES)
    return f"func.func @f({arguments}) -> index {{\n" + "\n".join(lines) + f"\nreturn {values[-1]} : index\n}}"


def printed(text: str, number: int) -> tuple[str, set[str]]:
    """The function as C++, and the helper functions that it calls."""
    with loaded_context(), ir.Location.unknown():
        module = ir.Operation.parse(f"module {{ {text} }}")
        (op,) = find_all(module, "func.func")
        lines: list[str] = []
        scalars = Scalars(lines, Names(), lambda op, at: "", lambda op, at: "", "  ")
        types = []
        for position, argument in enumerate(op.regions[0].blocks[0].arguments):
            types.append(scalars.type_of(argument))
            scalars.bind(argument, f"a{position}")
        result = scalars.emit(find_all(op, "func.return")[0].operands[0])
        helpers = set(scalars._context.helpers)
    parameters = ", ".join(f"{type_} a{position}" for position, type_ in enumerate(types))
    return f'extern "C" long long f{number}({parameters}) {{\n' + "\n".join(lines) + f"\n  return {result};\n}}\n", helpers


def expected(text: str, arguments: list[np.ndarray]) -> np.ndarray:
    """What the ops give, one after the other."""
    with loaded_context(), ir.Location.unknown(), np.errstate(all="ignore"):
        module = ir.Operation.parse(f"module {{ {text} }}")
        (op,) = find_all(module, "func.func")
        block = op.regions[0].blocks[0]
        known = dict(zip(block.arguments, arguments, strict=True))
        for view in list(block.operations)[:-1]:
            inner = view.operation
            constant = inner.name == "arith.constant"
            rule = SCALARS.get(inner.name)
            assert constant or rule is not None, inner.name
            given = [known[operand] for operand in inner.operands]
            value = np.full(SAMPLES, inner.attributes["value"].value, np.int64) if constant or rule is None else rule(inner, *given)
            known[inner.results[0]] = np.broadcast_to(np.asarray(value), (SAMPLES,))
        return known[list(block.operations)[-1].operation.operands[0]].astype(np.int64)


def test_printed_integers_have_the_values_of_the_ops(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    texts = [function(seed) for seed in range(COUNT)]
    made = [printed(text, number) for number, text in enumerate(texts)]
    source = tmp_path / "integers.cpp"
    helpers = helper_source({helper for _, used in made for helper in used})
    source.write_text(HOST + helpers + "".join(text for text, _ in made))
    subprocess.run(["g++", "-O1", "-w", "-fwrapv", "-shared", "-fPIC", "-o", tmp_path / "integers.so", source], check=True)
    library = ctypes.CDLL(str(tmp_path / "integers.so"))
    generator = np.random.default_rng(0)
    special = [0, 1, -1, 127, -128, 7]
    for number, text in enumerate(texts):
        arguments = []
        for kind in TYPES.values():
            limits = np.iinfo(kind)
            low, high = (-(1 << 40), 1 << 40) if kind is np.int64 else (limits.min, limits.max)
            wide = generator.integers(low, high, SAMPLES)
            wide[: len(special)], wide[len(special)] = special, limits.min if kind is not np.int64 else 5
            arguments.append(wide.astype(np.int64))
        run = getattr(library, f"f{number}")
        run.restype, run.argtypes = ctypes.c_longlong, [ctypes.c_byte, ctypes.c_short, ctypes.c_int, ctypes.c_longlong]
        got = np.array([run(*map(int, row)) for row in zip(*arguments, strict=True)])
        np.testing.assert_array_equal(got, expected(text, arguments), err_msg=f"{text}\n{made[number][0]}")
