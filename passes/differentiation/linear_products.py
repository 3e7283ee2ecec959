"""What becomes of the products of the scans for dq and dk: the gradients of the decays, and of what factors of rows read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_mlir.dialects.attn import build
from attn_mlir.dialects.attn.linear_recurrence import state_shape
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.differentiation.linear_model import source_of
from attn_mlir.passes.differentiation.linear_writer import GradientWriter
from attn_mlir.passes.linear_scale import split


@dataclass(eq=False)
class ProductGradients(GradientWriter):
    """Adds gradients that are made of products, which are sums in the type of scores."""

    _groups: dict[str, ir.Value] = field(default_factory=dict)

    def decay(self, scanned: Mapping[str, ir.Operation]) -> None:
        """The gradient of the log decays, and of what `attn.decay` makes them of."""
        forward = self.of.primal.choice("direction") == "forward"
        scans = [(role, scanned[role].opview) for role in (("q", "k") if forward else ("k", "q"))]
        a, b = (self._after_mods(role, scan.products) for role, scan in scans)
        s, e = (scan.states for _, scan in scans)
        self.of_decays([a, b], [s, e])

    def of_decays(self, products: Sequence[ir.Value], states: Sequence[ir.Value]) -> None:
        """The same, of products and states of the scans in both directions; of two in each, four products and three states."""
        primal, rows, scans = self.of.primal, state_shape(self.of.primal.attention)[0], [*products, *states]
        with ir.Location.name("d_log_decay", ir.Location.current):
            if len(products) > 2:
                gradient = build.decay_gradient_sum(scans, self.of.interval, rows)
            else:
                gradient = build.decay_gradient(scans, self.operand("offsets"), self.of.interval, rows, self.of.crossing)
        operand = primal.operands.get("decay")
        if self.of.decay is None:
            if operand is not None:
                self.add(operand, build.head_sum(gradient, self.host.mapping[operand]))
            return
        x, result = self.of.decay
        shares = self.of.shares("decay", result)
        of_operand = operand is not None and operand in self.of.chosen
        weights = ([shares.of.get(x, self.of.program.graph.const(0.0))] if of_operand else []) + [shares.of[n] for n in shares.reads]
        if not weights:
            return

        group = None if operand is None else self.group(gradient, self.host.mapping[operand])

        def body(*indices: ir.Value) -> list[ir.Value]:
            known = {shares.adjoint: self.host.read(gradient, indices)}
            if operand is None or group is None:
                known[x] = self.host.constant(0.0)
            else:
                known[x] = self.of_group(self.host.mapping[operand], group, indices)
            return self.emit(weights, indices, known)

        made = build.elements(gradient, body)
        if of_operand and operand is not None:
            given = self.host.mapping[operand]
            with ir.Location.name("d_decay", ir.Location.current):
                whole = build.collect(made, 0, gradient.type)
            self.add(operand, build.head_sum(whole, given))
        self.scatter(shares.reads, made, int(of_operand), ir.RankedTensorType(gradient.type).rank)

    def rows(self, scanned: Mapping[str, ir.Operation]) -> None:
        """The gradients of what factors of rows read: x_t . dx_t of every input is a product of a scan, its own term included."""
        for role in self.of.row_reads:
            self._rows_of(role, scanned[source_of(role)].opview)

    def _rows_of(self, role: str, scan: Any) -> None:
        """Those of one input: from the scan for its gradient, that for dk where it is v."""
        self._know("k" if role == "v" else role, scan.products)

        def total(indices: Sequence[ir.Value]) -> ir.Value:
            value = arith.addf(self.host.read(scan.products, indices), self.host.read(scan.diagonal, indices))
            if role == "v":
                value = arith.divf(value, split(self._factor("v", indices))[0])
                return arith.mulf(value, self._factor("k", indices)) if "k" in self.of.kept else value
            return self._behind(role, value, indices)

        like, summed = scan.products, None
        if role != "v":
            with ir.Location.name(f"{role}_d{role}", ir.Location.current):
                whole = build.collect(build.elements(like, lambda *indices: [total(indices)]), 0, like.type)
                like = summed = build.head_sum(whole, self.host.tensors[role])
        (x, _), shares = self.of.mods.of[role], self.of.shares_of_mod(role)

        def body(*indices: ir.Value) -> list[ir.Value]:
            known = {x: self.host.constant(1.0), shares.adjoint: total(indices) if summed is None else self.host.read(summed, indices)}
            return self.emit([shares.of[n] for n in shares.reads], indices, known)

        self.scatter(shares.reads, build.elements(like, body), 0, 3)

    def _after_mods(self, role: str, products: ir.Value) -> ir.Value:
        """The products of q or k with its gradient after all mods, where the scan made those of what they multiply."""
        if role not in self.of.kept and not self._is_split(role):
            return products
        self._know(role, products)

        def body(*indices: ir.Value) -> list[ir.Value]:
            value = self.host.read(products, indices)
            if role in self.of.kept:
                value = arith.mulf(value, self._factor(role, indices))
            return [self._behind(role, value, indices)]

        return build.collect(build.elements(products, body), 0, products.type)

    def _is_split(self, role: str) -> bool:
        """Whether products of the scan for the gradient of q or k lack a part of the factor of v."""
        return role == "k" and "v" in self.of.row_reads

    def _behind(self, role: str, value: ir.Value, indices: Sequence[ir.Value]) -> ir.Value:
        """A product times the part of v's factor that it lacks."""
        return arith.mulf(value, split(self._factor("v", indices))[1]) if self._is_split(role) else value

    def _know(self, role: str, products: ir.Value) -> None:
        """Finds out how many heads of o share one of an input, outside of what is computed for each element."""
        if role in self.of.kept and role != self.of.counted and role not in self._groups:
            self._groups[role] = self.group(products, self.host.tensors[role])

    def _factor(self, role: str, indices: Sequence[ir.Value]) -> ir.Value:
        """What the mod of an input multiplies its rows by, at a position of o."""
        x, result = self.of.mods.of[role]
        head = indices[1] if role == self.of.counted else arith.floordivsi(indices[1], self._groups[role])
        (factor,) = self.emit([result], [indices[0], head, *indices[2:]], {x: self.host.constant(1.0)})
        return factor
