"""Elementwise changes of q, k and v: before their derivatives are taken they are applied, as ops of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attn_mlir.dialects.attn import build
from attn_mlir.dialects.attn.partners import Partner, partner_of
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.derivation.expr import Expr
from attn_mlir.passes.differentiation.host import HostBuilder, HostExpressions, scatter_to_read
from attn_mlir.passes.differentiation.model import RowModel
from attn_mlir.passes.differentiation.propagate import adjoints, tangent
from attn_mlir.passes.differentiation.read import read_element
from attn_mlir.passes.regions import piece

PIECES = {"q": "attn.query", "k": "attn.key", "v": "attn.value"}
_SIDES = {"q": "query", "k": "key", "v": "key"}
_NAMES = ("b", "h", "i", "d")


@dataclass(eq=False)
class Mods:
    """The mods of one attention: `of` maps q, k and v to (argument, result) where they have one.

    `partners` has the element of the other channel that a mod reads, too. Pairs of channels are each other's partners, so that what flows
    back from the other channel is the mod's derivative there: it is computed at that channel, and nothing is scattered.
    """

    program: RowModel
    of: dict[str, tuple[Expr, Expr]] = field(default_factory=dict)
    partners: dict[str, tuple[Expr, Partner]] = field(default_factory=dict)

    @classmethod
    def read(cls, program: RowModel, attention: ir.Operation) -> "Mods":
        mods = cls(program)
        for role, name in PIECES.items():
            mod = piece(attention, name)
            if mod is None:
                continue
            x, *other, result = read_element(program, mod)
            mods.of[role] = x, result
            kind = partner_of(mod)
            if kind is not None:
                mods.partners[role] = other[0], kind
        return mods

    def apply(self, host: HostBuilder) -> dict[str, ir.Value]:
        """Replaces q, k and v among the host's tensors by the changed ones; returns the original ones."""
        originals = {}
        for role, (x, result) in self.of.items():
            originals[role] = tensor = host.tensors[role]
            host.tensors[role] = self._elements(host, role, {x: tensor}, result)
        return originals

    def tangent(
        self, host: HostBuilder, role: str, original: ir.Value, moved: ir.Value | None, reads: Mapping[Expr, Expr]
    ) -> ir.Value | None:
        """The tangent of the changed tensor, where that of the original one is `moved`, and captured ones have theirs."""
        x, result = self.of[role]
        dot = self.program.graph.node("element", attr=f"dot_{role}")
        of_leaves = dict(reads) | ({x: dot} if moved is not None else {})
        tensors = {x: original} | ({dot: moved} if moved is not None else {})
        if role in self.partners and moved is not None:
            other, _ = self.partners[role]
            of_leaves[other] = self.program.graph.node("element", attr=f"dot_{role}.partner")
        found = tangent(self.program.graph, result, of_leaves)
        return None if found is None else self._elements(host, role, tensors, found)

    def pull(
        self, host: HostBuilder, role: str, original: ir.Value, adjoint: ir.Value, wanted: frozenset[Expr]
    ) -> tuple[ir.Value, list[tuple[Expr, ir.Value]]]:
        """The adjoint of the original tensor, and (parameter, tensor) for those `wanted` of the captured ones that the mod reads."""
        x, result = self.of[role]
        graph = self.program.graph
        d, zero = graph.node("element", attr=f"adjoint_{role}"), graph.const(0.0)
        found = adjoints(graph, [(result, d)])
        reads = [n for n in found if n in wanted]
        tensors = {x: original, d: adjoint}

        def body(*indices: ir.Value) -> list[ir.Value]:
            expressions = self._expressions(host, role, indices, tensors)
            own, *scattered = [expressions.emit(w) for w in [found.get(x, zero), *[found[n] for n in reads]]]
            if role in self.partners and self.partners[role][0] in found:
                there = self._expressions(host, role, [*indices[:3], self._other(role, original, indices[3])], tensors)
                own = arith.addf(own, there.emit(found[self.partners[role][0]]))
            return [own, *scattered]

        made = build.elements(original, body, host.sequences(_SIDES[role]))
        scattered = [(n, scatter_to_read(host, self.program, n, made, i + 1, _NAMES)) for i, n in enumerate(reads)]
        return build.collect(made, 0, host.like(original)), scattered

    def _other(self, role: str, tensor: ir.Value, channel: ir.Value) -> ir.Value:
        return self.partners[role][1].index(channel, ir.RankedTensorType(tensor.type).shape[3])

    def _elements(self, host: HostBuilder, role: str, tensors: Mapping[Expr, ir.Value], value: Expr) -> ir.Value:
        """A tensor of the role's type, of `value` at every element; `tensors` are the leaves, the original tensor first."""

        def body(*indices: ir.Value) -> list[ir.Value]:
            return [self._expressions(host, role, indices, tensors).emit(value)]

        like = next(iter(tensors.values()))
        weights = build.elements(like, body, host.sequences(_SIDES[role]))
        return build.collect(weights, 0, like.type)

    def _expressions(self, host: HostBuilder, role: str, indices: Sequence[ir.Value], tensors: Mapping[Expr, ir.Value]) -> HostExpressions:
        """Expressions at the positions `indices`; leaves are elements of `tensors`, and of the same ones in the other channel."""
        leaves = {leaf: host.read_at(_SIDES[role], tensor, indices) for leaf, tensor in tensors.items()}
        if role in self.partners:
            tensor = next(iter(tensors.values()))
            there = [*indices[:3], self._other(role, tensor, indices[3])]
            leaves[self.partners[role][0]] = host.read_at(_SIDES[role], tensor, there)
            dot = self.program.graph.node("element", attr=f"dot_{role}")
            if dot in tensors:
                leaves[self.program.graph.node("element", attr=f"dot_{role}.partner")] = host.read_at(_SIDES[role], tensors[dot], there)
        return HostExpressions(host, self.program, indices, leaves)
