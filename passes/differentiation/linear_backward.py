"""Writes the gradients of a linear attention: up to three sweeps, the gradient of the decays, and the chain rule of the mods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_mlir.dialects.attn import build
from attn_mlir.dialects.attn.linear import state_shape
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.derivation.expr import Node
from attn_mlir.passes.differentiation.functions import zero_capture
from attn_mlir.passes.differentiation.host import Expressions, Host
from attn_mlir.passes.differentiation.linear_model import GRADIENTS, SWAPPED, LinearModel
from attn_mlir.passes.differentiation.mods import PIECES
from attn_mlir.passes.differentiation.propagate import adjoints
from attn_mlir.passes.linear_scale import read_scale, scaling
from attn_mlir.passes.regions import block_of, clone_as
from attn_mlir.passes.tiling.scalars import cast_float, constant_index


@dataclass(eq=False)
class Backward:
    """The body of the backward function, while it is built."""

    of: LinearModel
    host: Host

    def gradients(self) -> list[ir.Value]:
        """The gradients of `wrt`."""
        of, host = self.of, self.host
        originals = of.applied.apply(host)
        found: dict[ir.Value, list[ir.Value]] = {}
        decays = of.decay_wanted()
        swept: dict[str, ir.Operation] = {}
        for role in ("q", "k", "v"):
            needed = of.wanted(role) or (decays and role != "v")
            if needed or (role == "v" and of.primal.operands.get("initial_state") in of.chosen):
                swept[role] = self._sweep(role, decays)
        if decays:
            self._decay(swept, found)
        for role in ("q", "k", "v"):
            if of.wanted(role):
                self._pull(role, originals, swept[role].results[0], found)
        initial = of.primal.operands.get("initial_state")
        if initial in of.chosen:
            gradient, scale = swept["v"].results[1], of.scale_of_key
            found[initial] = [gradient if scale is None else self._times(gradient, scale)]
        arguments = list(of.primal.entry.arguments)
        return [self._total(arguments[i], found) for i in of.wrt]

    def _total(self, argument: ir.Value, found: Mapping[ir.Value, list[ir.Value]]) -> ir.Value:
        values = found.get(argument)
        if not values:
            return zero_capture(self.host, self.host.mapping[argument])
        total = values[0]
        for value in values[1:]:
            total = arith.addf(total, value)
        return total

    def _operand(self, name: str) -> ir.Value | None:
        value = self.of.primal.operands.get(name)
        return None if value is None else self.host.mapping[value]

    def _sweep(self, role: str, decays: bool) -> ir.Operation:
        """The linear attention that makes dq, dk or dv, with all heads; for decays its products and states, too."""
        host, primal = self.host, self.of.primal
        made = GRADIENTS[role]
        moved = self.of.scale_of_key if role == "v" else None
        tensors = host.tensors if moved is None else self._with_scale_of_key(moved)
        operands = [tensors[name] for name in made.operands]
        direction, channels, state = (primal.choice(name) for name in ("direction", "channels", "state"))
        if not made.same_direction:
            direction = SWAPPED[direction]
        if made.swapped:
            channels, state = SWAPPED[channels], SWAPPED[state]
        initial = self._operand("initial_state") if made.initial == "initial_state" else tensors.get(made.initial)
        of_decay = decays and role != "v"
        outputs = ["products", "states"] if of_decay else []
        if role == "v" and primal.operands.get("initial_state") in self.of.chosen:
            outputs = ["final_state"]
        types = {"products": self._products_type(), "states": self._states_type()}
        if "final_state" in outputs:
            types["final_state"] = primal.operands["initial_state"].type
        results = [self._all_heads(operands[2].type), *(types[name] for name in outputs)]
        factor = host.tensors[role] if of_decay else None
        with ir.Location.name(f"d{role}", ir.Location.current):
            every = [*operands, self._operand("decay"), initial, factor, self._operand("offsets")]
            interval = self.of.interval if of_decay else None
            op, block = build.linear_attention(every, results, outputs, made.heads, direction, channels, state, interval)
        if of_decay and self.of.crossing:
            op.attributes["crossing"] = ir.UnitAttr.get()
        with ir.InsertionPoint(block):
            mods = {name: taken for name, taken in zip(PIECES.values(), made.operands, strict=True) if taken in self.of.kept}
            if self.of.scale is not None:
                name = made.scaled if moved is None else "attn.query"
                self._scale(name, self.of.kept.get(mods.pop(name, "")))
            for name, taken in mods.items():
                clone_as(name, self.of.kept[taken], host.mapping)
            host.clone_piece("attn.decay")
        return op

    def _scale(self, name: str, mod: ir.Operation | None) -> None:
        """Builds the mod of this name that multiplies by the scale of q, what `mod` makes where there is one."""
        scale, host = self.of.scale, self.host
        assert scale is not None
        if mod is None:
            scaling(name, scale, host.score, host.mapping)
            return
        last = list(block_of(clone_as(name, mod, host.mapping)).operations)[-1].operation
        with ir.InsertionPoint(last):
            last.operands[0] = arith.mulf(last.operands[0], read_scale(scale, host.mapping))

    def _with_scale_of_key(self, scale: float) -> dict[str, ir.Value]:
        """The tensors of dv's sweep, where k has the scale of q: by a factor of the sweep, or itself where channels have decays."""
        tensors = self.host.tensors | {"q": self.host.mapping[self.of.primal.operands["q"]]}
        if self.of.scale is None:
            tensors["k"] = self._times(tensors["k"], scale)
        if "d_final_state" in tensors:
            tensors["d_final_state"] = self._times(tensors["d_final_state"], 1 / scale)
        return tensors

    def _times(self, value: ir.Value, factor: float) -> ir.Value:
        """A tensor times a number."""
        made = build.elements(value, lambda *indices: [arith.mulf(self._read(value, indices), self.host.constant(factor))])
        return build.collect(made, 0, value.type)

    def _all_heads(self, type_: ir.Type) -> ir.Type:
        dynamic, shaped = ir.ShapedType.get_dynamic_size(), ir.RankedTensorType(type_)
        return ir.RankedTensorType.get([dynamic] * 3 + [shaped.shape[3]], shaped.element_type)

    def _products_type(self) -> ir.Type:
        """[B, H, T], or [B, H, T, K] where key channels have decays."""
        dynamic, width = ir.ShapedType.get_dynamic_size(), ir.RankedTensorType(self.of.primal.operands["k"].type).shape[3]
        channels = [] if self.of.primal.choice("channels") == "none" else [width]
        return ir.RankedTensorType.get([dynamic] * 3 + channels, self.host.score)

    def _states_type(self) -> ir.Type:
        _, columns = state_shape(self.of.primal.attention)
        return ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()] * 3 + [columns], self.host.score)

    def _decay(self, swept: Mapping[str, ir.Operation], found: dict[ir.Value, list[ir.Value]]) -> None:
        """Adds the gradient of the log decays, and of what `attn.decay` makes them of."""
        primal, rows = self.of.primal, state_shape(self.of.primal.attention)[0]
        towards, against = ("q", "k") if primal.choice("direction") == "forward" else ("k", "q")
        (a, s), (b, e) = ((self._times_rows(role, swept[role].results[1]), swept[role].results[2]) for role in (towards, against))
        with ir.Location.name("d_log_decay", ir.Location.current):
            gradient = build.decay_gradient([a, b, s, e], self._operand("offsets"), self.of.interval, rows, self.of.crossing)
        operand = primal.operands.get("decay")
        if self.of.decay is None:
            if operand is not None:
                found.setdefault(operand, []).append(self._fewer_heads(gradient, self.host.mapping[operand]))
            return
        x, result = self.of.decay
        adjoint = self.of.program.graph.node("element", attr="adjoint_decay")
        shares = adjoints(self.of.program.graph, [(result, adjoint)])
        reads = [n for n in self.of.reads(result) if n in shares]
        of_operand = operand is not None and operand in self.of.chosen
        weights = ([shares.get(x, self.of.program.graph.const(0.0))] if of_operand else []) + [shares[n] for n in reads]
        if not weights:
            return

        group = None if operand is None else self._group(gradient, self.host.mapping[operand])

        def body(*indices: ir.Value) -> list[ir.Value]:
            known = {adjoint: self._read(gradient, indices)}
            if operand is None or group is None:
                known[x] = self.host.constant(0.0)
            else:
                head = arith.floordivsi(indices[1], group)
                known[x] = self._read(self.host.mapping[operand], [indices[0], head, *indices[2:]])
            expressions = Expressions(self.host, self.of.program, _padded(indices), known)
            return [expressions.emit(w) for w in weights]

        made = build.elements(gradient, body)
        if of_operand and operand is not None:
            given = self.host.mapping[operand]
            with ir.Location.name("d_decay", ir.Location.current):
                whole = build.collect(made, 0, gradient.type)
            found.setdefault(operand, []).append(self._fewer_heads(whole, given))
        for number, n in enumerate(reads, int(of_operand)):
            self._scatter(n, made, number, ir.RankedTensorType(gradient.type).rank, found)

    def _times_rows(self, role: str, products: ir.Value) -> ir.Value:
        """The products of q or k after its mod, where the sweep made those of what it multiplies."""
        if role not in self.of.kept:
            return products
        group = self._group(products, self.host.tensors[role])
        x, result = self.of.mods.of[role]

        def body(*indices: ir.Value) -> list[ir.Value]:
            head = arith.floordivsi(indices[1], group)
            places = _padded([indices[0], head, *indices[2:]])
            factor = Expressions(self.host, self.of.program, places, {x: self.host.constant(1.0)}).emit(result)
            return [arith.mulf(self._read(products, indices), factor)]

        return build.collect(build.elements(products, body), 0, products.type)

    def _group(self, whole: ir.Value, shared: ir.Value) -> ir.Value:
        """How many heads of o share one of another tensor."""
        one = constant_index(1)
        heads, given = (tensor.dim(x, one) for x in (whole, shared))
        return arith.floordivsi(heads, given)

    def _read(self, source: ir.Value, indices: Sequence[ir.Value]) -> ir.Value:
        element = ir.RankedTensorType(source.type).element_type
        read = ir.Operation.create("tensor.extract", results=[element], operands=[source, *indices]).result
        return cast_float(read, self.host.score)

    def _fewer_heads(self, value: ir.Value, like: ir.Value) -> ir.Value:
        return build.head_sum(value, like)

    def _pull(self, role: str, originals: Mapping[str, ir.Value], gradient: ir.Value, found: dict[ir.Value, list[ir.Value]]) -> None:
        """Adds what the gradient of q, k or v after its mod makes: that of the input, and of what the mod reads."""
        argument = self.of.primal.operands[role]
        given = originals.get(role, self.host.tensors[role])
        counted = ("q", "k", "v", "decay")[ir.IntegerAttr(self.of.primal.attention.attributes["heads"]).value]
        if role != counted:
            with ir.Location.name(f"d{role}", ir.Location.current):
                gradient = self._fewer_heads(gradient, given)
        if role not in self.of.mods.of:
            found[argument] = [gradient]
            return
        x, result = self.of.mods.of[role]
        graph = self.of.program.graph
        adjoint = graph.node("element", attr=f"adjoint_{role}")
        shares = adjoints(graph, [(result, adjoint)])
        reads = [n for n in self.of.reads(result) if n in shares]
        of_input = argument in self.of.chosen
        weights = ([shares.get(x, graph.const(0.0))] if of_input else []) + [shares[n] for n in reads]

        def body(*indices: ir.Value) -> list[ir.Value]:
            known = {x: self._read(given, indices), adjoint: self._read(gradient, indices)}
            expressions = Expressions(self.host, self.of.program, indices, known)
            return [expressions.emit(w) for w in weights]

        made = build.elements(given, body)
        if of_input:
            with ir.Location.name(f"d{role}", ir.Location.current):
                found[argument] = [build.collect(made, 0, argument.type)]
        for number, n in enumerate(reads, int(of_input)):
            self._scatter(n, made, number, 4, found)

    def _scatter(self, leaf: Node, of: ir.Value, weight: int, rank: int, found: dict[ir.Value, list[ir.Value]]) -> None:
        """Adds a weight to where a parameter reads its captured tensor."""
        param = self.of.program.param(leaf)
        if param.read is None:
            raise ValueError("only reads of captured tensors are scattered to")
        read, into = param.read, self.host.mapping[param.read.tensor]

        def index(*positions: ir.Value) -> list[ir.Value]:
            expressions = Expressions(self.host, self.of.program, _padded(positions), {})
            return [expressions.copy(i, param.block) for i in read.indices]

        with ir.Location.name(f"d{param.name}", ir.Location.current):
            made = build.scatter(of, into, weight, self.host.like(into), ("b", "h", "t", "d")[:rank], index)
        found.setdefault(read.tensor, []).append(made)


def _padded(indices: Sequence[ir.Value]) -> list[ir.Value]:
    """The indices b, h, t and d; d is 0 where there are no channels."""
    return [*indices] if len(indices) == 4 else [*indices, constant_index(0)]
