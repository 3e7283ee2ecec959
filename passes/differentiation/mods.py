"""Elementwise changes of q, k and v: before their derivatives are taken they are applied, as ops of their own."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import ir
from attn_mlir.passes.derivation.expr import Node
from attn_mlir.passes.differentiation.host import Expressions, Host, scatter_to_read
from attn_mlir.passes.differentiation.model import Program
from attn_mlir.passes.differentiation.propagate import adjoints, tangent
from attn_mlir.passes.differentiation.read import read_element
from attn_mlir.passes.regions import piece

PIECES = {"q": "attn.query", "k": "attn.key", "v": "attn.value"}
_SIDES = {"q": "query", "k": "key", "v": "key"}
_NAMES = ("b", "h", "i", "d")


@dataclass(eq=False)
class Mods:
    """The mods of one attention: `of` maps q, k and v to (argument, result) where they have one."""

    program: Program
    of: dict[str, tuple[Node, Node]] = field(default_factory=dict)

    @classmethod
    def read(cls, program: Program, attention: ir.Operation) -> "Mods":
        found = {role: piece(attention, name) for role, name in PIECES.items()}
        return cls(program, {role: read_element(program, mod) for role, mod in found.items() if mod is not None})

    def apply(self, host: Host) -> dict[str, ir.Value]:
        """Replaces q, k and v among the host's tensors by the changed ones; returns the original ones."""
        originals = {}
        for role, (x, result) in self.of.items():
            originals[role] = tensor = host.tensors[role]
            host.tensors[role] = self._elements(host, role, tensor, {x: tensor}, result)
        return originals

    def tangent(self, host: Host, role: str, original: ir.Value, moved: ir.Value | None, reads: Mapping[Node, Node]) -> ir.Value | None:
        """The tangent of the changed tensor, where that of the original one is `moved`, and captured ones have theirs."""
        x, result = self.of[role]
        dot = self.program.graph.node("element", attr=f"dot_{role}")
        of_leaves = dict(reads) | ({x: dot} if moved is not None else {})
        found = tangent(self.program.graph, result, of_leaves)
        if found is None:
            return None
        tensors = {x: original} | ({dot: moved} if moved is not None else {})
        return self._elements(host, role, original, tensors, found)

    def pull(self, host: Host, role: str, original: ir.Value, adjoint: ir.Value) -> tuple[ir.Value, list[tuple[Node, ir.Value]]]:
        """The adjoint of the original tensor, and (parameter, tensor) for captured ones that the mod reads."""
        x, result = self.of[role]
        d = self.program.graph.node("element", attr=f"adjoint_{role}")
        found = adjoints(self.program.graph, [(result, d)])
        reads = [n for n in found if n.op == "param" and self.program.param(n).read is not None]
        weights = [found.get(x, self.program.graph.const(0.0)), *[found[n] for n in reads]]

        def body(*indices: ir.Value) -> list[ir.Value]:
            expressions = self._expressions(host, role, indices, {x: original, d: adjoint})
            return [expressions.emit(w) for w in weights]

        made = build.elements(original, body, host.sequences(_SIDES[role]))
        scattered = [(n, scatter_to_read(host, self.program, n, made, i + 1, _NAMES)) for i, n in enumerate(reads)]
        return build.collect(made, 0, host.like(original)), scattered

    def _elements(self, host: Host, role: str, like: ir.Value, tensors: Mapping[Node, ir.Value], value: Node) -> ir.Value:
        def body(*indices: ir.Value) -> list[ir.Value]:
            return [self._expressions(host, role, indices, tensors).emit(value)]

        return build.collect(build.elements(like, body, host.sequences(_SIDES[role])), 0, like.type)

    def _expressions(self, host: Host, role: str, indices: tuple[ir.Value, ...], tensors: Mapping[Node, ir.Value]) -> Expressions:
        leaves = {leaf: host.read_at(_SIDES[role], tensor, indices) for leaf, tensor in tensors.items()}
        return Expressions(host, self.program, indices, leaves)
