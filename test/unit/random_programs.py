"""Random attention programs: a mask of random conditions, a score mod, and a row of random arithmetic and reductions.

Whatever is drawn stays finite: arguments of exp are bounded, divisors are at least 1.
"""

import numpy as np

Q = "tensor<?x?x?x8xf32>"
ROWS = "tensor<?x?x?xf32>"
CAPTURES = "%ids: tensor<?xi32>, %lengths: tensor<?xi32>, %keep: tensor<?x?xi1>, %slopes: tensor<?xf32>, %n: index, %f: f32"
ARGUMENTS = f"%q: {Q}, %k: {Q}, %v: {Q}, {CAPTURES}"
POSITION = "%b: index, %h: index, %q_idx: index, %kv_idx: index"


class _Body:
    """Lines of one piece."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.lines = rng, list[str]()

    def add(self, expression: str) -> str:
        name = f"%x{len(self.lines)}"
        self.lines.append(f"      {name} = {expression}")
        return name

    def pick(self, values: list[str]) -> str:
        return values[self.rng.integers(len(values))]

    def number(self, low: int, high: int) -> str:
        return self.add(f"arith.constant {self.rng.integers(low, high)} : index")

    def real(self, low: float, high: float) -> str:
        return self.add(f"arith.constant {self.rng.uniform(low, high):.3f} : f32")

    def piece(self, name: str, arguments: str, results: list[str], type_: str) -> str:
        values = f'      "attn.yield"({", ".join(results)}) : ({", ".join([type_] * len(results))}) -> ()'
        return "\n".join([f'    "attn.{name}"() ({{', f"    ^bb0({arguments}):", *self.lines, values, "    }) : () -> ()\n"])


class _Mask(_Body):
    def compare(self, a: str, b: str) -> str:
        predicate = self.pick(["slt", "sle", "sgt", "sge", "eq", "ne"])
        return self.add(f"arith.cmpi {predicate}, {a}, {b} : index")

    def read(self, tensor: str, index: str) -> str:
        element = self.add(f"tensor.extract {tensor}[{index}] : tensor<?xi32>")
        return self.add(f"arith.index_cast {element} : i32 to index")

    def atom(self) -> str:
        match self.rng.integers(10):
            case 0 | 1:
                return self.add(f"arith.cmpi {self.pick(['sge', 'sle'])}, %q_idx, %kv_idx : index")
            case 2:
                distance = self.add("arith.subi %q_idx, %kv_idx : index")
                return self.add(
                    f"arith.cmpi {self.pick(['sle', 'sge', 'slt'])}, {distance}, {self.pick(['%n', self.number(-4, 9)])} : index"
                )
            case 3:
                distance = self.add("arith.subi %kv_idx, %q_idx : index")
                return self.add(f"arith.cmpi sle, {self.add(f'math.absi {distance} : index')}, {self.number(0, 12)} : index")
            case 4:
                return self.compare(self.pick(["%q_idx", "%kv_idx"]), self.number(0, 25))
            case 5:
                size = self.number(2, 9)
                a, b = (self.add(f"arith.floordivsi {i}, {size} : index") for i in ("%q_idx", "%kv_idx"))
                return self.compare(a, b)
            case 6:
                size, distance = self.number(2, 5), self.add("arith.subi %q_idx, %kv_idx : index")
                quotient = self.add(f"arith.floordivsi {distance}, {size} : index")
                rest = self.add(f"arith.subi {distance}, {self.add(f'arith.muli {quotient}, {size} : index')} : index")
                return self.compare(rest, self.number(0, 3))
            case 7:
                return self.add(f"arith.cmpi eq, {self.read('%ids', '%q_idx')}, {self.read('%ids', '%kv_idx')} : index")
            case 8:
                return self.compare("%kv_idx", self.read("%lengths", self.pick(["%b", "%h", "%q_idx"])))
            case _:
                return self.add("tensor.extract %keep[%b, %kv_idx] : tensor<?x?xi1>")

    def condition(self, depth: int) -> str:
        if depth == 0 or self.rng.random() < 0.2:
            return self.atom()
        a = self.condition(depth - 1)
        if self.rng.random() < 0.15:
            return self.add(f"arith.xori {a}, {self.add('arith.constant true')} : i1")
        b = self.condition(depth - 1)
        if self.rng.random() < 0.1:
            return self.add(f"arith.select {self.atom()}, {a}, {b} : i1")
        return self.add(f"arith.{self.pick(['andi', 'andi', 'ori'])} {a}, {b} : i1")


class _Row(_Body):
    """`varying` values depend on the key, `fixed` ones do not."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self.varying, self.fixed = ["%s"], [self.add("arith.constant 1.0 : f32")]

    def reduce(self, kind: str, value: str) -> str:
        return self.add(f'"attn.reduce"({value}) {{kind = "{kind}"}} : (f32) -> f32')

    def unary(self, value: str) -> str:
        match self.rng.integers(7):
            case 0:
                return self.add(f"math.tanh {value} : f32")
            case 1:
                return self.add(f"math.absf {value} : f32")
            case 2:
                return self.add(f"arith.maximumf {value}, {self.add('arith.constant 0.0 : f32')} : f32")
            case 3:
                bounded = self.add(f"math.tanh {value} : f32")
                return self.add(f"math.exp {bounded} : f32")
            case 4:
                bounded = self.add(f"math.tanh {value} : f32")
                return self.add(f"arith.mulf {bounded}, {bounded} : f32")
            case 5:
                return self.add(f"arith.negf {value} : f32")
            case _:
                return self.add(f"arith.mulf {value}, {self.real(-1.5, 1.5)} : f32")

    def at_least_one(self, value: str) -> str:
        absolute = self.add(f"math.absf {value} : f32")
        return self.add(f"arith.addf {absolute}, {self.fixed[0]} : f32")

    def softmax(self, value: str) -> str:
        most = self.reduce("max", value)
        e = self.add(f"math.exp {self.add(f'arith.subf {value}, {most} : f32')} : f32")
        self.fixed += [most, self.reduce("sum", e)]
        return self.add(f"arith.divf {e}, {self.fixed[-1]} : f32") if self.rng.random() < 0.7 else e

    def grow(self) -> None:
        v, r = self.pick(self.varying), self.pick(self.fixed)
        match self.rng.integers(9):
            case 0 | 1:
                self.varying.append(self.unary(v))
            case 2:
                op = self.pick(["addf", "subf", "maximumf", "minimumf"])
                self.varying.append(self.add(f"arith.{op} {v}, {self.pick(self.varying)} : f32"))
            case 3:
                self.varying.append(self.add(f"arith.{self.pick(['addf', 'subf', 'mulf', 'maximumf'])} {v}, {r} : f32"))
            case 4:
                self.varying.append(self.add(f"arith.divf {v}, {self.at_least_one(r)} : f32"))
            case 5 | 6:
                self.fixed.append(self.reduce(self.pick(["sum", "sum", "max", "min"]), v))
            case 7:
                self.fixed.append(self.add(f"arith.{self.pick(['addf', 'subf'])} {r}, {self.pick(self.fixed)} : f32"))
            case _:
                self.varying.append(self.softmax(v))


def random_program(seed: int) -> str:
    """The stage-0 program with this number."""
    rng = np.random.default_rng(seed)
    pieces = []
    score = _Body(rng)
    scaled = score.add(f"arith.mulf %score, {score.real(0.2, 0.5)} : f32")
    if rng.random() < 0.4:
        distance = score.add(f"arith.index_cast {score.add('arith.subi %kv_idx, %q_idx : index')} : index to i64")
        bias = score.add(f"arith.mulf {score.add('tensor.extract %slopes[%h] : tensor<?xf32>')}, %f : f32")
        small = score.add(f"arith.divf {score.add(f'arith.sitofp {distance} : i64 to f32')}, {score.real(8.0, 16.0)} : f32")
        scaled = score.add(f"arith.addf {scaled}, {score.add(f'arith.mulf {small}, {bias} : f32')} : f32")
    pieces.append(score.piece("score", f"%score: f32, {POSITION}", [scaled], "f32"))
    if rng.random() < 0.9:
        mask = _Mask(rng)
        pieces.append(mask.piece("mask", POSITION, [mask.condition(int(rng.integers(0, 3)))], "i1"))
    row = _Row(rng)
    for _ in range(rng.integers(1, 7)):
        row.grow()
    outputs = sorted({row.pick(row.fixed) for _ in range(rng.integers(0, 3))})
    pieces.append(row.piece("row", "%s: f32, %b: index, %h: index, %q_idx: index", [row.varying[-1], *outputs], "f32"))
    types = ", ".join([Q, *[ROWS] * len(outputs)])
    names = ", ".join(f"%r{i}" for i in range(1 + len(outputs)))
    named = ", ".join(f'"out{i}"' for i in range(len(outputs)))
    return (
        f'func.func @attention({ARGUMENTS}) -> ({types}) {{\n  {names} = "attn.attention"(%q, %k, %v) ({{\n{"".join(pieces)}'
        f"  }}) {{outputs = [{named}]}} : ({Q}, {Q}, {Q}) -> ({types})\n  return {names} : {types}\n}}\n"
    )
