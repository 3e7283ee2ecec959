"""Gradients of a delta rule by scans of 16-bit tensors with one writer each: all but that for dx erase nothing.

Such scans are those of linear attention, which matrix instructions multiply at their full rate. What is written, dx and erase keys are
rounded to the type of q, the same in all scans, so that the products which the gradient of the decays is made of belong to the same pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from attn_mlir.dialects.attn import build
from attn_mlir.dialects.attn.linear_erase import eraser, output_of
from attn_mlir.dialects.attn.rows import multiplies_rows
from attn_mlir.dialects.numbers import i64
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.differentiation.delta_backward import DeltaBackward
from attn_mlir.passes.differentiation.delta_plan import DeltaScanPlan, apart
from attn_mlir.passes.differentiation.linear_products import ProductGradients

_SEGMENT = 512
"""Positions whose gradients' scans are programs of their own: they start from states that the scans with a system have kept."""
_SCALED = {"x": "remove", "w": "key"}
"""The mods by which scans multiply k in place of erase keys, by role: what is removed, and dx where it is a key."""


@dataclass(eq=False)
class DeltaApart(DeltaBackward):
    """The body of such a backward function, where k is what is removed."""

    starts: dict[str, ir.Value] = field(default_factory=dict)
    """States of "u" and "x" on the way into each segment."""

    def residuals(self) -> dict[str, ir.Type]:
        """What the forward function gives besides, by name: what is written, and states on the way into each segment."""
        return {"kept_values": self._like(self.of.primal.operands["v"]), "kept_states": self._states_type()}

    def forward(self) -> list[ir.Value]:
        """The body of the forward function: what is written and states by a scan that erases, o of these by one that does not."""
        linear, host = self.of.primal.attention, self.host
        names = self.of.primal.outputs
        final = [result.type for result in list(linear.results)[1:]]
        values = self._values([*names, "states"], [*final, self._states_type()], _SEGMENT)
        values.attributes["entering"] = ir.UnitAttr.get()
        u, *rest = values.results
        operands = [self.operand("q"), self.operand("k"), u, self.operand("decay"), rest[-1]]
        op, block = build.linear_attention(operands, [linear.results[0].type], [], 2, "forward", self.of.primal.choice("channels"), "kv")
        op.attributes["segment"] = i64(_SEGMENT)
        op.attributes["starts"] = ir.UnitAttr.get()
        if (place := output_of(linear)) != "after":
            op.attributes["output"] = ir.StringAttr.get(place)
        with ir.InsertionPoint(block):
            for name in ("attn.query", "attn.key", "attn.decay"):
                host.clone_piece(name)
        return [op.results[0], *rest[:-1], u, rest[-1]]

    def _written(self) -> ir.Value:
        if not self.of.keep:
            return super()._written()
        self.starts["u"] = self.host.tensors["kept_states"]
        return self.host.tensors["kept_values"]

    def _kept(self) -> tuple[list[str], list[ir.Type], int | None]:
        if self.operand("offsets") is not None:
            return super()._kept()
        return ["states"], [self._states_type()], _SEGMENT

    def _keep(self, name: str, op: ir.Operation, outputs: Sequence[str]) -> None:
        if "states" in outputs:
            op.attributes["entering"] = ir.UnitAttr.get()
            self.starts[name] = op.opview.states

    def _start(self, role: str, made: DeltaScanPlan) -> ir.Value | None:
        states = self.starts.get({"q": "u", "e": "u", "k": "x"}.get(role, ""))
        return super()._start(role, made) if states is None else states

    def _cut(self, op: ir.Operation, role: str) -> None:
        # What e dx^T writes before a segment is in the state that the scan of q do^T starts from.
        if self.starts and role != "x":
            op.attributes["segment"] = i64(_SEGMENT)
            if role != "w":
                op.attributes["starts"] = ir.UnitAttr.get()

    def _plan(self, output: str) -> dict[str, DeltaScanPlan]:
        return apart(output)

    @property
    def _by_rows(self) -> bool:
        """Whether erase keys are k times a number of each row, so that scans read k, and multiply by these numbers what they make of it.

        Mods of channels' decays are changes of tiles, which cost more than reading erase keys does.
        """
        primal = self.of.primal
        erase = eraser(primal.attention)
        assert erase is not None
        plain = "k" not in self.of.mods.of and self._piece_argument(0) == primal.operands["k"]
        return plain and primal.choice("channels") == "none" and multiplies_rows(erase)

    def _erase_key(self, like: ir.Value) -> ir.Value:
        return self.whole["k"] if self._by_rows else super()._erase_key(like)

    def _add_mods(self, role: str) -> None:
        # e dx^T is k (beta dx)^T.
        if role in _SCALED and self._by_rows:
            build.of_rows(_SCALED[role], lambda x, *indices: [self._shared(x, indices)], self.host.score)

    def _shared(self, x: ir.Value, indices: Sequence[ir.Value]) -> ir.Value:
        """x after the mod of erase keys."""
        assert self.of.erase is not None
        (leaf, result) = self.of.erase
        return self.emit([result], indices, {leaf: x})[0]

    def _like(self, tensor: ir.Value) -> ir.Type:
        element = ir.RankedTensorType(self.of.primal.operands["q"].type).element_type
        return ir.RankedTensorType.get(ir.RankedTensorType(tensor.type).shape, element)

    def _element(self, role: str, v: ir.Value) -> ir.Type:
        """Sums that go on are scores where channels have decays: one more rounding is what there would be too much. dq goes nowhere if q
        has no mod.
        """
        goes_on = role != "x" and (role != "q" or "q" in self.of.mods.of)
        wide = goes_on and self.of.primal.choice("channels") != "none"
        return self.host.score if wide else super()._element(role, v)

    def _is_wanted(self, role: str) -> bool:
        return self.of.wanted("k") if role == "w" else super()._is_wanted(role)

    def _factor(self, role: str) -> ir.Value:
        return self.whole["k" if role == "w" else role]

    def _counted(self, role: str) -> tuple[list[str], list[ir.Type]]:
        outputs, types = super()._counted(role)
        return (outputs[:1], types[:1]) if role == "e" else (outputs, types)  # the states of e's scan are those of q's

    def _collected(self, argument: ir.Value, gradient: ir.Value) -> ir.Type:
        same = argument in [self.of.primal.operands[name] for name in ("q", "k", "v")]
        return self._like(gradient) if same else super()._collected(argument, gradient)

    def _decays(self, scanned: Mapping[str, ir.Operation]) -> None:
        products = [scanned[role].opview.products for role in ("q", "e", "k", "w")]
        if self._by_rows:
            products[1] = self._of_keys(products[1])
        states = [scanned[role].opview.states for role in ("q", "k", "w")]
        gradients = ProductGradients(self.of, self.host, self.found)
        if self.operand("offsets") is None:
            gradients.of_decays(products, states)
            return
        a, b = self._added(*products[:2]), self._added(*products[2:])
        gradients.of_decays([a, b], [states[0], self._added(*states[1:])])

    def _of_keys(self, products: ir.Value) -> ir.Value:
        """The products of e's scan. It was given k in place of e, so they are the gradient of the numbers that k is multiplied by, too."""
        assert self.of.erase is not None
        (leaf, _), shares = self.of.erase, self._shares_of_erase()

        def body(*indices: ir.Value) -> list[ir.Value]:
            product = self.host.read(products, indices)
            known = {shares.adjoint: product, leaf: self.host.constant(1.0)}
            return [self._shared(product, indices), *self.emit([shares.of[read] for read in shares.reads], indices, known)]

        made = build.elements(products, body)
        self.scatter(shares.reads, made, 1, ir.RankedTensorType(products.type).rank)
        return build.collect(made, 0, products.type)

    def _pull_all(self, scanned: Mapping[str, ir.Operation]) -> None:
        of = self.of
        if of.wanted("q"):
            self._pull_role("q", scanned["q"].results[0], 1.0)
        if of.wanted("v"):
            self._pull_role("v", scanned["x"].results[0], -1.0)
        of_k = [scanned[role].results[0] for role in ("k", "w")] if of.wanted("k") else []
        together = of_k and "k" not in of.mods.of and self._piece_argument(0) == of.primal.operands["k"]
        if of_k and not together:
            self._pull_role("k", self._added(*of_k), 1.0)
        if self._is_wanted("e"):
            assert of.erase is not None
            argument, shares = self._piece_argument(0), self._shares_of_erase()
            if self._by_rows and of.decay_wanted():  # `_of_keys` has what their mod reads
                shares = replace(shares, reads={})
            self._pull_shares(argument, shares, of.erase[0], scanned["e"].results[0], 1.0, of_k if together else [])
        elif together:
            self._pull_role("k", self._added(*of_k), 1.0)

    def _added(self, x: ir.Value, y: ir.Value) -> ir.Value:
        def body(*indices: ir.Value) -> list[ir.Value]:
            return [arith.addf(self.host.read(x, indices), self.host.read(y, indices))]

        return build.collect(build.elements(x, body), 0, x.type)
