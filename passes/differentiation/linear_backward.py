"""Writes the gradients of a linear attention: up to three scans, the gradient of the decays, and the chain rule of the mods."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from attn_mlir.dialects.attn import build
from attn_mlir.dialects.attn.linear_recurrence import state_shape
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.derivation.expr import Expr
from attn_mlir.passes.differentiation.functions import zero_capture
from attn_mlir.passes.differentiation.linear_model import GRADIENTS, SWAPPED
from attn_mlir.passes.differentiation.linear_products import ProductGradients
from attn_mlir.passes.differentiation.linear_writer import GradientWriter
from attn_mlir.passes.differentiation.mods import PIECES
from attn_mlir.passes.linear_scale import is_small, multiplying, read_scale, scaling, split
from attn_mlir.passes.regions import block_of, clone_as, inline, maker


@dataclass(frozen=True)
class _Scales:
    """Numbers that k and q (None: 1) are multiplied by in dv's scan, and 1 / that of k, which the gradient of the last state is."""

    of_key: ir.Value
    of_query: ir.Value | None
    inverse: ir.Value


@dataclass(eq=False)
class BackwardBody(GradientWriter):
    """The body of the backward function, while it is built."""

    def gradients(self) -> list[ir.Value]:
        """The gradients of `wrt`."""
        of, host = self.of, self.host
        originals = of.applied.apply(host)
        decays, products = of.decay_wanted(), ProductGradients(of, host, self.found)
        swept: dict[str, ir.Operation] = {}
        for role in ("q", "k", "v"):
            needed = of.wanted(role) or of.rows_wanted(role) or (decays and role != "v")
            if needed or (role == "v" and of.primal.operands.get("initial_state") in of.chosen):
                swept[role] = self._scan(role, decays)
        if decays:
            products.decay(swept)
        products.rows(swept)
        if of.skip is not None:
            self._skip(of.skip)
        for role in ("q", "k", "v"):
            if of.wanted(role):
                self._pull(role, originals, swept[role].results[0])
        initial = of.primal.operands.get("initial_state")
        if initial in of.chosen:
            gradient = swept["v"].results[1]
            self.add(initial, gradient if self._moved is None else self._times(gradient, self._moved.of_key))
        arguments = list(of.primal.entry.arguments)
        return [self._total(arguments[i]) for i in of.wrt]

    def _total(self, argument: ir.Value) -> ir.Value:
        values = self.found.get(argument)
        if not values:
            return zero_capture(self.host, self.host.mapping[argument])
        total = values[0]
        for value in values[1:]:
            total = arith.addf(total, value)
        return total

    def _scan(self, role: str, decays: bool) -> ir.Operation:
        """The linear attention that makes dq, dk or dv, with all heads; for decays its products and states, too."""
        host, primal, made = self.host, self.of.primal, GRADIENTS[role]
        moved = self._moved if role == "v" else None
        tensors = host.tensors if moved is None else self._with_scale_of_key(moved)
        operands = [tensors[name] for name in made.operands]
        direction, channels, state = (primal.choice(name) for name in ("direction", "channels", "state"))
        if not made.same_direction:
            direction = SWAPPED[direction]
        if made.swapped:
            channels, state = SWAPPED[channels], SWAPPED[state]
        initial = self.operand("initial_state") if made.initial == "initial_state" else tensors.get(made.initial)
        of_decay, of_rows = decays and role != "v", self.of.rows_wanted(role)
        outputs = ["products"] * (of_decay or of_rows) + ["states"] * of_decay + ["diagonal"] * of_rows
        if role == "v" and primal.operands.get("initial_state") in self.of.chosen:
            outputs = ["final_state"]
        types = {"products": self._products_type(), "states": self._states_type(), "diagonal": host.row_type()}
        if "final_state" in outputs:
            types["final_state"] = primal.operands["initial_state"].type
        results = [self._all_heads(operands[2].type, self.of.is_whole(role)), *(types[name] for name in outputs)]
        factor = host.tensors[role] if "products" in outputs else None
        with ir.Location.name(f"d{role}", ir.Location.current):
            every = [*operands, self.operand("decay"), initial, factor, self.operand("offsets")]
            interval = self.of.interval if of_decay else None
            op, block = build.linear_attention(every, results, outputs, made.heads, direction, channels, state, interval=interval)
        if of_decay and self.of.crossing:
            op.attributes["crossing"] = ir.UnitAttr.get()
        with ir.InsertionPoint(block):
            self._pieces(role, moved)
        return op

    def _pieces(self, role: str, moved: _Scales | None) -> None:
        """The pieces of a scan: factors of rows where those stand that have them, the scale, the skip and the decay."""
        host, made = self.host, GRADIENTS[role]
        mods = {name: taken for name, taken in zip(PIECES.values(), made.operands, strict=True) if taken in self.of.kept}
        if role == "v" and self.of.makes_dv:
            mods |= {"attn.result": role} if role in self.of.kept else {}
            host.clone_piece("attn.skip")
        if role == "k" and "v" in self.of.row_reads:
            del mods["attn.query"]
            self._split("attn.query", "attn.result", self.of.kept["v"])
        if self.of.scale is not None:
            scales = {made.scaled: self.of.scale} if moved is None else {"attn.query": moved.of_key, "attn.key": moved.of_query}
            for name, scale in scales.items():
                if scale is not None:
                    self._scale(name, self.of.kept.get(mods.pop(name, "")), scale)
        for name, taken in mods.items():
            clone_as(name, self.of.kept[taken], host.mapping)
        host.clone_piece("attn.decay")

    def _split(self, first: str, second: str, mod: ir.Operation) -> None:
        """Builds a mod that multiplies rows as two (see `split`).

        Products that have the first factor in pairs, as the other scan has it with k or v, are rounded alike: what rounding takes cancels.
        """
        host = self.host
        for name, number in ((first, 0), (second, 1)):

            def part(*places: ir.Value, number: int = number) -> ir.Value:
                (factor,) = inline(block_of(mod), [host.constant(1.0), *places], dict(host.mapping))
                return split(factor)[number]

            multiplying(name, host.score, part)

    def _scale(self, name: str, mod: ir.Operation | None, scale: ir.Value) -> None:
        """Builds the mod of this name that multiplies by a scale, what `mod` makes where there is one."""
        host = self.host
        if mod is None:
            scaling(name, scale, host.score, host.mapping)
            return
        last = block_of(clone_as(name, mod, host.mapping)).operations[-1].operation
        with ir.InsertionPoint(last):
            last.operands[0] = arith.mulf(last.operands[0], read_scale(scale, host.mapping))

    @cached_property
    def _moved(self) -> _Scales | None:
        """The scales of k and q in dv's scan, where it is k that has the scale of q."""
        scale, host = self.of.scale_of_key, self.host
        if scale is None:
            return None
        constant = maker(scale, "arith.constant")
        if constant is not None:
            value = ir.FloatAttr(constant.attributes["value"]).value
            return _Scales(host.constant(value), None, host.constant(1 / value))
        given, one = host.mapping[scale], host.constant(1.0)
        small = is_small(given)
        of_key = arith.select(small, given, one)
        return _Scales(of_key, arith.select(small, one, given), arith.divf(one, of_key))

    def _with_scale_of_key(self, scales: _Scales) -> dict[str, ir.Value]:
        """The tensors of dv's scan, where k has the scale of q: by a factor of the scan, or itself where channels have decays."""
        tensors = self.host.tensors | {"q": self.host.mapping[self.of.primal.operands["q"]]}
        if self.of.scale is None:
            tensors["k"] = self._times(tensors["k"], scales.of_key)
            if scales.of_query is not None:
                tensors["q"] = self._times(tensors["q"], scales.of_query)
        if "d_final_state" in tensors:
            tensors["d_final_state"] = self._times(tensors["d_final_state"], scales.inverse)
        return tensors

    def _times(self, value: ir.Value, factor: ir.Value) -> ir.Value:
        """A tensor times a number."""
        made = build.elements(value, lambda *indices: [arith.mulf(self.host.read(value, indices), read_scale(factor))])
        return build.collect(made, 0, value.type)

    def _all_heads(self, type_: ir.Type, whole: bool) -> ir.Type:
        """[B, H, T, D] of the same element type, or of scores where it is `whole`."""
        dynamic, shaped = ir.ShapedType.get_dynamic_size(), ir.RankedTensorType(type_)
        return ir.RankedTensorType.get([dynamic] * 3 + [shaped.shape[3]], self.host.score if whole else shaped.element_type)

    def _products_type(self) -> ir.Type:
        """[B, H, T], or [B, H, T, K] where key channels have decays."""
        dynamic, width = ir.ShapedType.get_dynamic_size(), ir.RankedTensorType(self.of.primal.operands["k"].type).shape[3]
        channels = [] if self.of.primal.choice("channels") == "none" else [width]
        return ir.RankedTensorType.get([dynamic] * 3 + channels, self.host.score)

    def _states_type(self) -> ir.Type:
        _, columns = state_shape(self.of.primal.attention)
        return ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()] * 3 + [columns], self.host.score)

    def _skip(self, factor: Expr) -> None:
        """Adds the gradients of what `attn.skip` reads: its factor has the sums over d of do v."""
        shares, do, v = self.of.shares("skip", factor), self.host.tensors["do"], self.operand("v")
        if not shares.reads or v is None:
            return

        def body(*indices: ir.Value) -> list[ir.Value]:
            known = {shares.adjoint: arith.mulf(self.host.read(do, indices), self.host.read(v, indices))}
            return self.emit([shares.of[n] for n in shares.reads], indices, known)

        self.scatter(shares.reads, build.elements(do, body), 0, 4)

    def _pull(self, role: str, originals: Mapping[str, ir.Value], gradient: ir.Value) -> None:
        """Adds what the gradient of q, k or v after its mod makes: that of the input, and of what the mod reads."""
        argument = self.of.primal.operands[role]
        given = originals.get(role, self.host.tensors[role])
        if role != self.of.counted:
            with ir.Location.name(f"d{role}", ir.Location.current):
                gradient = build.head_sum(gradient, given)
        if role not in self.of.mods.of or (role == "v" and self.of.makes_dv):
            self.add(argument, gradient)
            return
        x, _ = self.of.mods.of[role]
        shares = self.of.shares_of_mod(role)
        reads = {} if role in self.of.row_reads else shares.reads
        of_input = argument in self.of.chosen
        weights = ([shares.of.get(x, self.of.program.graph.const(0.0))] if of_input else []) + [shares.of[n] for n in reads]
        skip = [self.of.skip] if of_input and role == "v" and self.of.skip is not None else []

        def body(*indices: ir.Value) -> list[ir.Value]:
            known = {x: self.host.read(given, indices), shares.adjoint: self.host.read(gradient, indices)}
            values = self.emit([*weights, *skip], indices, known)
            if skip:
                own = arith.mulf(values.pop(), self.host.read(self.host.tensors["do"], indices))
                values[0] = arith.addf(values[0], own)
            return values

        made = build.elements(given, body)
        if of_input:
            with ir.Location.name(f"d{role}", ir.Location.current):
                self.add(argument, build.collect(made, 0, argument.type))
        self.scatter(reads, made, int(of_input), 4)
