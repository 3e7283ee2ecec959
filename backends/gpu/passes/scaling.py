"""Multiplies values of a map's region by constants where that costs nothing for an element.

A value that does not depend on both indices is scaled once for a row or column; a product hands the factor to one of its factors, a
sum to its terms, of which one may become the first factor of a multiply-add. Sums of scores that may be large stay whole: what is left
of s - m would be the residual of the multiples of s and m.
"""

import math
from collections.abc import Iterator

import numpy as np

from attn_mlir.backends.gpu.scalars import dependence
from attn_mlir.mlir import arith, ir
from attn_mlir.mlir import math as math_ops
from attn_mlir.passes.magnitudes import Magnitudes
from attn_mlir.passes.regions import find_all, maker
from attn_mlir.passes.simplification.folding import number

_SUMS = ("arith.addf", "arith.subf")
_ALL_SUMS = (*_SUMS, "math.fma")


def float_maps(module: ir.Operation, rank: int | None = None) -> Iterator[ir.Operation]:
    """The maps, all or those over `rank` indices."""
    for op in find_all(module, "tile.map", "tile.scatter_add"):
        if rank is None or len(op.regions[0].blocks[0].arguments) == rank:
            yield op


def is_real(value: ir.Value) -> bool:
    """Whether it is an f32 or f64."""
    return isinstance(value.type, (ir.F32Type, ir.F64Type))


def used_once(value: ir.Value) -> bool:
    """Whether there is a single use."""
    return sum(1 for _ in value.uses) == 1


def erase_unused(block: ir.Block) -> None:
    """Erases arithmetic of a region that nothing reads any more, so that what it read may count as used once."""
    for op in [view.operation for view in block.operations][::-1]:
        if op.name.startswith(("arith.", "math.")) and not any(True for result in op.results for _ in result.uses):
            op.erase()


def unnamed(location: ir.Location) -> ir.Location:
    """The place in the user's source without the name of a variable."""
    return location.child_loc if isinstance(location, ir.NameLoc) else location


def constant(value: float, type_: ir.Type) -> ir.Value:
    """An `arith.constant` of a float type."""
    return arith.ConstantOp(type_, ir.FloatAttr.get(type_, value)).result


def factor(value: ir.Value) -> tuple[ir.Value, float] | None:
    """(x, c) where `value` is x times a constant, or x by a constant; c is a normal number of the type."""
    op = maker(value, "arith.mulf", "arith.divf")
    if op is None:
        return None
    x, y = op.operands
    c = number(y)
    if c is None and op.name == "arith.mulf":
        x, c = y, number(x)
    if c is None:
        return None
    c = c if op.name == "arith.mulf" else 1.0 / c if c else math.inf
    return (x, c) if is_normal(c, value.type) else None


def is_normal(c: float, type_: ir.Type) -> bool:
    """Whether a factor is neither 0, nor NaN or infinite, nor so small or large that a part of it is."""
    limit = 1e37 if isinstance(type_, ir.F32Type) else 1e300
    return math.isfinite(c) and 1.0 / limit < abs(c) < limit


class Scaler:
    """Scales values of one region; new ops go to the insertion point."""

    def __init__(self, block: ir.Block, bounded: bool) -> None:
        """`bounded`: terms of a sum stay finite where only the scaling makes them overflow.

        The lowest finite number stands for the maximum over nothing: -inf less its multiple would be NaN.
        """
        self._depends, self._bounded = dependence(block), bounded
        self._magnitudes, self._whole, self._used = Magnitudes(block, ordinary=True), dict[ir.Value, bool](), dict[ir.Value, bool]()
        self.rank = len(block.arguments)
        self._all = frozenset(range(self.rank))

    def depends(self, value: ir.Value) -> frozenset[int]:
        """The indices that a value of the region depends on."""
        return self._depends.get(value, frozenset())

    def cheap(self, value: ir.Value) -> bool:
        """Whether it is computed once for a row, for a column or at all, not for every element."""
        return self.partial(self.depends(value))

    def partial(self, on: frozenset[int]) -> bool:
        """Whether these are not all indices."""
        return on != self._all

    def whole(self, value: ir.Value) -> bool:
        """Whether it is a sum, computed for every element, that loses digits when a factor goes to its terms: one may be large.

        Of a term for every element and another of a row or column the first one counts: the other one is what is known of a row. Only
        sums that more than products and sums are made of: gradients lose no more digits than they have lost.
        """
        if value not in self._whole:
            op = None if self.cheap(value) else maker(value, *_ALL_SUMS)
            self._whole[value] = op is not None and self._matters(value) and self._magnitudes.has_large_terms(op, self._counted(op))
        return self._whole[value]

    def _counted(self, op: ir.Operation) -> list[int]:
        """The terms of a sum that tell how large it may be."""
        *factors, last = op.operands
        on = [frozenset[int]().union(*map(self.depends, factors)), self.depends(last)]
        return [number for number in range(2) if not self.partial(on[number])] or [0, 1]

    def _matters(self, value: ir.Value) -> bool:
        """Whether other functions than products and sums are taken of a value, or other maps may."""
        if value not in self._used:
            self._used[value] = False  # there is no cycle
            self._used[value] = any(self._matters_to(use.owner.operation, use.operand_number) for use in value.uses)
        return self._used[value]

    def _matters_to(self, op: ir.Operation, number: int) -> bool:
        if (
            op.name in ("arith.mulf", "arith.negf", *_ALL_SUMS)
            or (op.name == "arith.select" and number)
            or (op.name == "arith.divf" and not number)
        ):
            return self._matters(op.results[0])
        if op.name == "tile.yield":
            kinds = op.parent.opview.kinds()
            at = number - (len(op.operands) - len(kinds))
            return is_real(op.operands[number]) if at < 0 else kinds[at] != "sum"
        return op.name != "arith.truncf"

    def free(self, value: ir.Value) -> bool:
        """Whether a multiple of `value` costs no more per element than `value`, which nothing but one op needs then."""
        if self.cheap(value):
            return True
        if self.whole(value):
            return False
        op = maker(value, "arith.mulf", "arith.divf", "arith.negf", "arith.select", *_ALL_SUMS) if used_once(value) else None
        if op is None:
            return False
        operands = [self.free(operand) for operand in op.operands]
        match op.name:
            case "arith.divf" | "arith.negf":
                return operands[0]
            case "arith.select":
                return all(operands[1:])
            case "math.fma":
                return operands[2] and any(operands[:2])
        return any(operands)

    def scaled(self, value: ir.Value, c: float, root: bool = False) -> ir.Value:
        """`c` times `value`, whatever it costs. `root`: `value` may be used elsewhere, too."""
        if self.cheap(value):
            known = number(value)
            return arith.mulf(value, constant(c, value.type)) if known is None else _constant_multiple(known, c, value.type)
        op = maker(value, "arith.mulf", "arith.divf", "arith.negf", "arith.select", *_ALL_SUMS)
        if op is None or not (root or used_once(value)) or self.whole(value):
            return arith.mulf(value, constant(c, value.type))
        a, b, *rest = [*op.operands, value][:3]
        match op.name:
            case "arith.negf":
                return self.scaled(a, -c)
            case "arith.divf" if self.free(a):
                return arith.divf(self.scaled(a, c), b)
            case "arith.select" if self.free(b) and self.free(rest[0]):
                return arith.select(a, self.scaled(b, c), self.scaled(rest[0], c))
            case "arith.mulf":
                return arith.mulf(*self.product(a, b, c))
            case "arith.addf" | "arith.subf" | "math.fma":
                return TermSum(self, value, c).emit()
        return arith.mulf(value, constant(c, value.type))

    def product(self, a: ir.Value, b: ir.Value, c: float) -> tuple[ir.Value, ir.Value]:
        """Factors of c a b: the constant goes to the one that takes it for free."""
        if c == 1.0:
            return a, b
        first = self.cheap(a) or (self.free(a) and not self.cheap(b))
        if first or not self.free(b):
            return (self.scaled(a, c), b) if first else (arith.mulf(a, b), constant(c, a.type))
        return a, self.scaled(b, c)

    def bound(self, value: ir.Value, c: float) -> ir.Value:
        """A sum of cheap terms that were scaled by up to `c`, kept finite."""
        if not self._bounded or c <= 1.0 or number(value) is not None:
            return value
        return arith.minimumf(value, constant(_largest(value.type), value.type))


class TermSum:
    """A sum of terms that are computed for every element, mostly products, and of cheap ones, collected by what they depend on."""

    def __init__(self, scaler: Scaler, value: ir.Value, c: float) -> None:
        """c times `value`."""
        self._scaler, self._type = scaler, value.type
        self.full: list[tuple[ir.Value, ir.Value]] = []
        """Products that are computed for every element."""
        self._cheap: dict[frozenset[int], list[ir.Value]] = {}
        self._largest = 0.0
        self._add(value, c, root=True)

    def _add(self, value: ir.Value, c: float, root: bool = False) -> None:
        scaler = self._scaler
        if scaler.cheap(value):
            self._largest = max(self._largest, abs(c))
            scaled = value if c == 1.0 else arith.negf(value) if c == -1.0 else scaler.scaled(value, c)
            self._cheap.setdefault(scaler.depends(value), []).append(scaled)
            return
        op = maker(value, "arith.mulf", "arith.negf", *_ALL_SUMS)
        if op is None or not (root or used_once(value)) or scaler.whole(value):
            self.full.append((value, constant(c, value.type)))
            return
        a, b = [*op.operands, value][:2]
        match op.name:
            case "arith.negf":
                self._add(a, -c)
            case "arith.mulf":
                self._product(a, b, c)
            case "math.fma":
                self._product(a, b, c)
                self._add(op.operands[2], c)
            case _:
                self._add(a, c)
                self._add(b, -c if op.name == "arith.subf" else c)

    def _product(self, a: ir.Value, b: ir.Value, c: float) -> None:
        """Adds c a b; u (s + t) is taken apart where u is cheap, and s or t, too."""
        scaler = self._scaler
        on = scaler.depends(a) | scaler.depends(b)
        if scaler.partial(on):
            self._cheap.setdefault(on, []).append(arith.mulf(*scaler.product(a, b, c)))
            return
        for u, total in ((a, b), (b, a)):
            op = maker(total, *_SUMS)
            if (
                op is None
                or not scaler.cheap(u)
                or scaler.cheap(total)
                or not used_once(total)
                or number(u) is not None
                or scaler.whole(total)
            ):
                continue
            terms = [(op.operands[0], c), (op.operands[1], -c if op.name == "arith.subf" else c)]
            if any(scaler.cheap(term) for term, _ in terms):
                for term, sign in terms:
                    on = scaler.depends(u) | scaler.depends(term)
                    found = None if scaler.cheap(term) else factor(term)
                    if found is not None and used_once(term):
                        term, sign = found[0], sign * found[1]
                    factors = scaler.product(u, term, sign)
                    if on == scaler.depends(total):
                        self.full.append(factors)
                    else:
                        self._cheap.setdefault(on, []).append(arith.mulf(*factors))
                return
        self.full.append(scaler.product(a, b, c))

    def taken(self, on: frozenset[int]) -> list[ir.Value]:
        """Takes the terms that depend on exactly these indices out of the sum."""
        return self._cheap.pop(on, [])

    def emit(self) -> ir.Value:
        """The sum: one multiply-add for each term of the first kind, one addition between the kinds of cheap ones.

        What depends on the row comes first, as there are fewer rows than columns in the hands of a thread.
        """
        groups = dict(sorted(self._cheap.items(), key=lambda item: sorted(item[0])))
        uniform = groups.pop(frozenset(), [])
        if uniform and groups:
            next(iter(groups.values())).extend(uniform)
        elif uniform:
            groups[frozenset()] = uniform
        total: ir.Value | None = None
        for terms in groups.values():
            group, lone = terms[0], maker(terms[0], "arith.mulf") if len(terms) == 1 and total is not None else None
            if lone is not None:
                total = math_ops.fma(*lone.operands, total)
                continue
            for term in terms[1:]:
                group = arith.addf(group, term)
            group = self._scaler.bound(group, self._largest)
            total = group if total is None else arith.addf(total, group)
        for x, y in self.full:
            total = arith.mulf(x, y) if total is None else math_ops.fma(x, y, total)
        return constant(0.0, self._type) if total is None else total


def _largest(type_: ir.Type) -> float:
    return float(np.finfo(np.float32 if isinstance(type_, ir.F32Type) else np.float64).max)


def _constant_multiple(value: float, c: float, type_: ir.Type) -> ir.Value:
    """A constant c times `value`, finite where `value` is."""
    scaled = max(-_largest(type_), min(_largest(type_), value * c)) if math.isfinite(value) else value * c
    return constant(scaled, type_)
