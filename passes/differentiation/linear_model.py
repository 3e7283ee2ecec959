"""A linear attention that is differentiated: its operands, and its mods as expressions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from attn_mlir.dialects.attn.linear_erase import eraser, is_delta
from attn_mlir.dialects.attn.rows import multiplies_rows
from attn_mlir.mlir import ir
from attn_mlir.passes.chunk_rewrite import score_type
from attn_mlir.passes.derivation.expr import Expr, Graph, leaves
from attn_mlir.passes.differentiation.host import Primal
from attn_mlir.passes.differentiation.model import ROW, RowModel
from attn_mlir.passes.differentiation.mods import PIECES, Mods
from attn_mlir.passes.differentiation.propagate import adjoints
from attn_mlir.passes.differentiation.read import PieceReader, read_element
from attn_mlir.passes.linear_scale import movable_scale, scale_of
from attn_mlir.passes.regions import block_of, piece

OPERANDS = ("q", "k", "v", "decay", "initial_state", "factor", "offsets")


SWAPPED = {"forward": "backward", "backward": "forward", "none": "none", "key": "value", "value": "key", "kv": "vk", "vk": "kv"}
"""Directions, whose channels have decays, and forms of the state, of a scan in which values take the place of keys."""


@dataclass(frozen=True)
class LinearScanPlan:
    """A gradient as a linear attention: what it takes for q, k and v, and which of them has all heads."""

    operands: tuple[str, str, str]
    heads: int
    same_direction: bool
    swapped: bool
    """Whether its keys and values are values and keys of the primal."""
    initial: str
    scaled: str
    """The mod that a scale of q becomes: states that q goes into take it along, the gradient of the last state does not have it."""
    rows: tuple[str, ...] = ()
    """The inputs x of which its products are x_t . dx_t at every position t: k and v with their gradients have the same."""


GRADIENTS = {
    "q": LinearScanPlan(("do", "v", "k"), 0, True, True, "initial_state", "attn.query", ("q",)),
    "k": LinearScanPlan(("v", "do", "q"), 1, False, True, "d_final_state", "attn.key", ("k", "v")),
    "v": LinearScanPlan(("k", "q", "do"), 2, False, False, "d_final_state", "attn.key"),
}


@dataclass(frozen=True)
class Shares:
    """The `adjoint` of a piece's result, and those of leaves that it is made of; `reads` are those with a gradient, and their tensors."""

    adjoint: Expr
    of: dict[Expr, Expr]
    reads: dict[Expr, ir.Value]


def source_of(role: str) -> str:
    """The gradient whose scan makes the products x_t . dx_t of an input x."""
    return next(name for name, made in GRADIENTS.items() if role in made.rows)


class LinearPrimal(Primal):
    """The function that is differentiated, and its linear attention."""

    @property
    def score(self) -> ir.Type:
        return score_type(self.attention)

    @property
    def operands(self) -> dict[str, ir.Value]:
        """The operands that are there, by name."""
        present = [size > 0 for size in ir.DenseI32ArrayAttr(self.attention.attributes["operandSegmentSizes"])]
        return dict(zip([name for name, there in zip(OPERANDS, present, strict=True) if there], self.attention.operands, strict=True))

    def choice(self, name: str) -> str:
        """The attribute `direction`, `channels` or `state`."""
        return ir.StringAttr(self.attention.attributes[name]).value


@dataclass(eq=False)
class LinearModel:
    """A linear attention with its mods as expressions, and the arguments `wrt` (positions) that have a gradient."""

    primal: LinearPrimal
    wrt: Sequence[int]
    interval: int
    """Positions between the states that the gradient of the decays is taken from."""
    crossing: bool
    """Whether it is summed up without differences."""
    keep: bool = False
    """Whether the forward function gives what is written and states, and the backward one takes them."""

    @property
    def is_delta(self) -> bool:
        """Whether something is erased, or q reads elsewhere than after the update."""
        return is_delta(self.primal.attention)

    @cached_property
    def erase(self) -> tuple[Expr, Expr] | None:
        """`attn.erase` as (its argument, its result)."""
        found = eraser(self.primal.attention)
        if found is None:
            return None
        x, result = read_element(self.program, found)
        return x, result

    @cached_property
    def program(self) -> RowModel:
        """Holds what the mods read; there are no pairs of weights."""
        return RowModel(Graph(), [], [], [], [])

    @cached_property
    def mods(self) -> Mods:
        """The changes of q, k and v that gradients are taken through; a scale of q is not one of them."""
        found = Mods.read(self.program, self.primal.attention)
        if self.scale is not None:
            del found.of["q"]
        return found

    @cached_property
    def scale(self) -> ir.Value | None:
        """The number that q is multiplied by: the scans do so, too, and need no tensor of such products."""
        return None if self.is_delta else scale_of(self.primal.attention, "attn.query")

    @cached_property
    def scale_of_key(self) -> ir.Value | None:
        """The scale of q that k has instead in dv's scan, so that states which f16 must not round to nothing begin and end without it.

        Of a q that decays by exp(-10), scaled by K^-0.5, f16 has few digits left, and the gradient of the initial state may be made of
        nothing else. None for other types and scales, and where the scan has its states together with that of dk. Scalars from outside are
        looked at when they are known.
        """
        wanted = self.primal.operands.get("initial_state") in self.chosen
        usual = self._is_f16 and not self.crossing and not self.is_delta
        return movable_scale(self.primal.attention) if usual and wanted else None

    @property
    def _is_f16(self) -> bool:
        return isinstance(ir.RankedTensorType(self.primal.operands["q"].type).element_type, ir.F16Type)

    @cached_property
    def kept(self) -> dict[str, ir.Operation]:
        """The mods that multiply rows: scans do so, too, and need no tensor of such products.

        Not those of q and k where `crossing` products are made of what they make, nor where products make gradients of decays in f16:
        weighted pairs, rounded, are the same numbers in the scans for dq and dk only where all that multiplies them is.
        """
        linear = self.primal.attention
        if self.primal.choice("channels") != "none" or self.is_delta:
            return {}
        roles = ["v"] if (self.crossing or self._is_f16) and self.decay_wanted() else list(self.mods.of)
        found = {role: piece(linear, PIECES[role]) for role in roles if role in self.mods.of}
        return {role: mod for role, mod in found.items() if mod is not None and multiplies_rows(mod)}

    @property
    def applied(self) -> Mods:
        """The mods that are applied before the scans."""
        return Mods(self.program, {role: mod for role, mod in self.mods.of.items() if role not in self.kept})

    @cached_property
    def decay(self) -> tuple[Expr, Expr] | None:
        """`attn.decay` as (its argument, its result)."""
        found = piece(self.primal.attention, "attn.decay")
        if found is None:
            return None
        x, result = read_element(self.program, found)
        return x, result

    @cached_property
    def skip(self) -> Expr | None:
        """The factor of what `attn.skip` adds to o; None for 0."""
        found = piece(self.primal.attention, "attn.skip")
        return None if found is None else PieceReader(self.program, block_of(found), {}, ROW).results()[0]

    @cached_property
    def chosen(self) -> set[ir.Value]:
        """The arguments that have a gradient."""
        arguments = list(self.primal.entry.arguments)
        return {arguments[i] for i in self.wrt}

    def reads(self, result: Expr) -> dict[Expr, ir.Value]:
        """What an expression reads of captured tensors that have a gradient, and these tensors."""
        params = sorted(n for n in leaves(result) if n.op == "param")
        found = {n: read.tensor for n in params if (read := self.program.param(n).read) is not None}
        return {n: tensor for n, tensor in found.items() if tensor in self.chosen}

    @property
    def counted(self) -> str:
        """The input that has all heads of o."""
        return OPERANDS[ir.IntegerAttr(self.primal.attention.attributes["heads"]).value]

    @cached_property
    def by_products(self) -> bool:
        """Whether gradients of what factors of rows read are made of products, not of dq, dk and dv, which have been rounded to bf16.

        Their sums over a sequence may nearly cancel. v's factor stands after the sums that make dv.
        """
        plain = self.primal.choice("channels") == "none" and not self.crossing and self.counted == "v"
        return plain and isinstance(ir.RankedTensorType(self.primal.operands["q"].type).element_type, ir.BF16Type)

    @property
    def makes_dv(self) -> bool:
        """Whether the scan for the gradient of v after its mod makes that of v."""
        return "v" not in self.mods.of or ("v" in self.kept and self.by_products)

    @cached_property
    def row_reads(self) -> dict[str, dict[Expr, ir.Value]]:
        """What factors of rows read whose gradients are made of products, by input."""
        found = {role: self.shares_of_mod(role).reads for role in (self.kept if self.by_products else ())}
        return {role: reads for role, reads in found.items() if reads}

    def shares_of_mod(self, role: str) -> Shares:
        """`shares` of what the mod of q, k or v makes."""
        return self.shares(role, self.mods.of[role][1])

    def shares(self, name: str, result: Expr) -> Shares:
        """How the adjoint of a piece's result, `name` tells it from others, goes on to what it is made of."""
        graph = self.program.graph
        adjoint = graph.node("element", attr=f"adjoint_{name}")
        found = adjoints(graph, [(result, adjoint)])
        return Shares(adjoint, found, {n: tensor for n, tensor in self.reads(result).items() if n in found})

    def rows_wanted(self, role: str) -> bool:
        """Whether the scan for the gradient of q, k or v makes products for those of factors of rows."""
        return any(name in self.row_reads for name in GRADIENTS[role].rows)

    def is_whole(self, role: str) -> bool:
        """Whether the gradient of q, k or v after its mod is not rounded: sums over it are the gradients of what the mod reads.

        Where products are not `crossing`, those of factors of rows are made of these, and kernels of other chips round all that they store.
        """
        return self.crossing and role in self.mods.of and bool(self.reads(self.mods.of[role][1]))

    def wanted(self, role: str) -> bool:
        """Whether the gradient of q, k or v after its mod is needed for its own sake or its mod's."""
        mod = self.mods.of.get(role)
        of_mod = mod is not None and role not in self.row_reads and bool(self.reads(mod[1]))
        return self.primal.operands[role] in self.chosen or of_mod

    def decay_wanted(self) -> bool:
        of_operand = self.primal.operands.get("decay") in self.chosen
        return of_operand or (self.decay is not None and bool(self.reads(self.decay[1])))
