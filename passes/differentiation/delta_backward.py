"""Writes the gradients of a delta rule: the scans of its plan, the gradient of the decays, and the chain rule of the mods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attn_mlir.dialects.attn import build
from attn_mlir.dialects.attn.linear_erase import eraser, output_of, removes_another, writer
from attn_mlir.dialects.attn.linear_recurrence import with_all_heads
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.derivation.expr import Expr
from attn_mlir.passes.differentiation.delta_plan import DeltaScanPlan, delta_plan
from attn_mlir.passes.differentiation.linear_backward import BackwardBody
from attn_mlir.passes.differentiation.linear_model import SWAPPED, LinearPrimal, Shares
from attn_mlir.passes.differentiation.linear_products import ProductGradients
from attn_mlir.passes.regions import clone_op, pieces


def refused_delta(primal: LinearPrimal) -> str | None:
    """Why a delta rule is of a form that is not differentiated."""
    linear = primal.attention
    if writer(linear) is not None or output_of(linear) not in ("after", "decayed"):
        return "differentiates what is read 'after' or 'decayed', of one writer"
    if primal.choice("direction") != "forward" or with_all_heads(linear) != primal.operands["v"]:
        return "differentiates the delta rule towards later positions, where v has all heads"
    erase = eraser(linear)
    if erase is None:
        return "differentiates what is read 'decayed' where something is erased"
    return None if erase.attributes["reads"].value == "decayed" else "differentiates what erases where the state is 'decayed'"  # pyright: ignore


def places_of(linear: ir.Operation) -> tuple[bool, str]:
    """Whether another key is removed than k, and where q reads: what the plan depends on."""
    return removes_another(linear), output_of(linear)


@dataclass(eq=False)
class DeltaBackward(BackwardBody):
    """The body of the backward function of a delta rule, while it is built. All its tensors are of scores."""

    whole: dict[str, ir.Value] = field(default_factory=dict)
    """What scans take: q, k, v, e and r after their mods, do, dx, and what is written, u or z."""

    def gradients(self) -> list[ir.Value]:
        """The gradients of `wrt`."""
        of, host = self.of, self.host
        self.removed, output = places_of(of.primal.attention)
        plan = self._plan(output)
        wanted = self._wanted(plan)
        self.whole["do"] = self._scores(host.tensors["do"])
        for role in ("q", "k"):
            self.whole[role] = self._changed(role)
        self.whole["z" if self.removed else "u"] = self._written()
        if self.removed:
            self.whole |= {"v": self._changed("v"), "r": self._scores(self._piece_operand(1))}
        scanned: dict[str, ir.Operation] = {}
        for role, made in plan.items():
            if role not in wanted:
                continue
            if role == "x" and "e" not in self.whole:
                self.whole["e"] = self._erase_key(scanned["q"].results[0])
            scanned[role] = self._delta(role, made)
            if role == "x":
                self.whole["dx"] = scanned[role].results[0]
        if of.decay_wanted():
            self._decays(scanned)
        self._pull_all(scanned)
        initial = of.primal.operands.get("initial_state")
        if initial in of.chosen:
            self.add(initial, scanned["x"].results[1])
        arguments = list(of.primal.entry.arguments)
        return [self._total(arguments[i]) for i in of.wrt]

    def _plan(self, output: str) -> dict[str, DeltaScanPlan]:
        """The scans, where q reads the state as `output` tells."""
        return delta_plan(self.removed, output)

    def _wanted(self, plan: Mapping[str, DeltaScanPlan]) -> set[str]:
        """The scans that are needed. That for q comes first: its o tells the shape of erase keys with all heads."""
        decays = self.of.decay_wanted()
        found = {role for role in plan if decays or self._is_wanted(role)}
        return found | {"q", "x"}

    def _is_wanted(self, role: str) -> bool:
        of = self.of
        match role:
            case "x":
                return True
            case "e":
                return self._piece_argument(0) in of.chosen or bool(self._shares_of_erase().reads)
            case "r":
                return self._piece_argument(1) in of.chosen
        return of.wanted(role)

    def _piece_argument(self, number: int) -> ir.Value:
        erase = eraser(self.of.primal.attention)
        assert erase is not None
        return erase.operands[number]

    def _piece_operand(self, number: int) -> ir.Value:
        return self.host.mapping[self._piece_argument(number)]

    def _shares_of_erase(self) -> Shares:
        assert self.of.erase is not None
        return self.of.shares("erase", self.of.erase[1])

    # Tensors of scores

    def _like(self, tensor: ir.Value) -> ir.Type:
        """The type of what scans take and make, shaped like a tensor."""
        return self.host.like(tensor)

    def _scores(self, tensor: ir.Value) -> ir.Value:
        """A tensor in the type that scans take."""
        return self._cast(tensor, self._like(tensor))

    def _cast(self, tensor: ir.Value, type_: ir.Type) -> ir.Value:
        """A tensor as one of another element type; itself where it has that."""
        if ir.RankedTensorType(tensor.type).element_type == ir.RankedTensorType(type_).element_type:
            return tensor
        return build.collect(build.elements(tensor, lambda *indices: [self.host.read(tensor, indices)]), 0, type_)

    def _changed(self, role: str) -> ir.Value:
        """q, k or v after its mod."""
        tensor = self.host.tensors[role]
        if role not in self.of.mods.of:
            return self._scores(tensor)
        x, result = self.of.mods.of[role]
        made = build.elements(tensor, lambda *indices: self.emit([result], indices, {x: self.host.read(tensor, indices)}))
        with ir.Location.name(role, ir.Location.current):
            return build.collect(made, 0, self._like(tensor))

    def _erase_key(self, like: ir.Value) -> ir.Value:
        """The erase keys after their mod, shaped like a tensor with all heads."""
        assert self.of.erase is not None
        (x, result), tensor = self.of.erase, self._piece_operand(0)
        group = self.group(like, tensor)

        def body(*indices: ir.Value) -> list[ir.Value]:
            return self.emit([result], indices, {x: self.of_group(tensor, group, indices)})

        with ir.Location.name("erase", ir.Location.current):
            return build.collect(build.elements(like, body), 0, self._like(like))

    # Scans

    def _written(self) -> ir.Value:
        """What k writes, or what the removed key does: the primal once more, for its values."""
        outputs, types, interval = self._kept()
        op = self._values(outputs, types, interval)
        self._keep("u", op, outputs)
        return op.results[0]

    def _values(self, outputs: list[str], types: Sequence[ir.Type], interval: int | None) -> ir.Operation:
        """The primal for the values that are written, and for these results besides."""
        linear, host = self.of.primal.attention, self.host
        operands = [self.operand(name) for name in ("q", "k", "v", "decay", "initial_state")] + [None, self.operand("offsets")]
        results = [self._like(self.of.primal.operands["v"]), *types]
        with ir.Location.name("z" if places_of(linear)[0] else "u", ir.Location.current):
            channels = self.of.primal.choice("channels")
            op, block = build.linear_attention(operands, results, outputs, 2, "forward", channels, "kv", interval=interval)
        op.attributes["output"] = ir.StringAttr.get("values")
        with ir.InsertionPoint(block):
            for name in ("attn.key", "attn.value", "attn.decay", "attn.erase"):
                for found in pieces(linear, name):
                    clone_op(found, dict(host.mapping))
        return op

    def _kept(self) -> tuple[list[str], list[ir.Type], int | None]:
        """Results of the scans that solve systems from which other scans start, their types, and the interval of states."""
        return [], [], None

    def _keep(self, name: str, op: ir.Operation, outputs: Sequence[str]) -> None:
        """Knows such results of the scan that makes u or dx."""

    def _start(self, role: str, made: DeltaScanPlan) -> ir.Value | None:
        """The state from which the scan of a role starts."""
        return self.operand("initial_state") if made.initial == "initial_state" else self.host.tensors.get(made.initial)

    def _cut(self, op: ir.Operation, role: str) -> None:
        """Cuts the scan of a role into segments, where it starts from the states of each."""

    def _delta(self, role: str, made: DeltaScanPlan) -> ir.Operation:
        """One scan of the plan."""
        host, primal, of = self.host, self.of.primal, self.of
        tensors = [self.whole[name] for name in made.operands]
        direction, channels, state = "forward" if made.same_direction else "backward", primal.choice("channels"), "kv"
        if made.swapped:
            channels, state = SWAPPED[channels], SWAPPED[state]
        initial = self._start(role, made)
        counts = of.decay_wanted() and made.swapped
        outputs, types, interval = [], [], of.interval
        if counts:
            outputs, types = self._counted(role)
        elif role == "x":
            if primal.operands.get("initial_state") in of.chosen:
                outputs, types = ["final_state"], [primal.operands["initial_state"].type]
            kept, more, interval = self._kept()
            outputs, types = [*outputs, *kept], [*types, *more]
        width = ir.RankedTensorType(tensors[2].type).shape[3]
        element = self._element(role, tensors[2])
        o = ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()] * 3 + [width], element)
        every = [*tensors, self.operand("decay"), initial, self._factor(role) if counts else None, self.operand("offsets")]
        with ir.Location.name(f"d{role}", ir.Location.current):
            op, block = build.linear_attention(
                every, [o, *types], outputs, made.heads, direction, channels, state, interval=interval if "states" in outputs else None
            )
        if role == "x":
            self._keep(role, op, outputs)
        self._cut(op, role)
        if made.output != "after":
            op.attributes["output"] = ir.StringAttr.get(made.output)
        if counts and of.crossing:
            op.attributes["crossing"] = ir.UnitAttr.get()
        with ir.InsertionPoint(block):
            if made.second is not None:
                build.write(*(self.whole[name] for name in made.second))
            if made.erase is not None:
                key, removed = (self.whole[name] for name in made.erase)
                build.erase(key, lambda x, *_: [x], host.score, removed, made.reads)
            self._add_mods(role)
            host.clone_piece("attn.decay")
        return op

    def _add_mods(self, role: str) -> None:
        """Adds mods to the scan of a role."""

    def _element(self, role: str, v: ir.Value) -> ir.Type:
        """The element type of what the scan of a role makes, from v's place on."""
        return ir.RankedTensorType(self._like(v)).element_type

    def _factor(self, role: str) -> ir.Value:
        """What the o of a role's scan is multiplied by for the gradient of the decays."""
        return self.whole[role]

    def _counted(self, role: str) -> tuple[list[str], list[ir.Type]]:
        """What a scan of a role makes besides for the gradient of the decays, and the types of that."""
        return ["products", "states"], [self._products_type(), self._states_type()]

    def _decays(self, scanned: Mapping[str, ir.Operation]) -> None:
        """The gradient of the log decays, of all that reads the state and all that writes it."""
        sums = {role: scanned[role].opview.products for role in ("q", "e", "k", "r") if role in scanned}
        a = self._added(sums["q"], sums["e"])
        b = self._added(sums["k"], sums["r"]) if self.removed else sums["k"]
        ProductGradients(self.of, self.host, self.found).of_decays([a, b], [scanned["q"].opview.states, scanned["k"].opview.states])

    def _added(self, x: ir.Value, y: ir.Value) -> ir.Value:
        made = build.elements(x, lambda *indices: [arith.addf(self.host.read(x, indices), self.host.read(y, indices))])
        return build.collect(made, 0, x.type)

    # The chain rule of the mods

    def _pull_all(self, scanned: Mapping[str, ir.Operation]) -> None:
        of = self.of
        for role in ("q", "k"):
            if of.wanted(role):
                self._pull_role(role, scanned[role].results[0], 1.0)
        if of.wanted("v"):  # dv = -dx where k is what is removed
            self._pull_role("v", scanned["v" if self.removed else "x"].results[0], 1.0 if self.removed else -1.0)
        if self._is_wanted("e"):
            assert of.erase is not None
            gradient = scanned["e"].results[0]
            self._pull_shares(self._piece_argument(0), self._shares_of_erase(), of.erase[0], gradient, 1.0)
        if self.removed and self._is_wanted("r"):
            self._pull_shares(self._piece_argument(1), None, None, scanned["r"].results[0], 1.0)

    def _pull_role(self, role: str, gradient: ir.Value, sign: float) -> None:
        """Adds what the gradient of q, k or v after its mod makes; mods of shared heads get the sum of theirs."""
        argument, mod = self.of.primal.operands[role], self.of.mods.of.get(role)
        shares = None if mod is None else self.of.shares_of_mod(role)
        if shares is not None and role != self.of.counted:
            with ir.Location.name(f"d{role}", ir.Location.current):
                gradient = build.head_sum(gradient, self.host.tensors[role])
        self._pull_shares(argument, shares, None if mod is None else mod[0], gradient, sign)

    def _pull_shares(
        self, argument: ir.Value, shares: Shares | None, x: Expr | None, gradient: ir.Value, sign: float, further: Sequence[ir.Value] = ()
    ) -> None:
        """Adds the gradient of an input and of what its mod reads, of `sign` times that after the mod, and `further` ones."""
        host, tensor = self.host, self.host.mapping[argument]
        chosen = argument in self.of.chosen
        reads = {} if shares is None else shares.reads
        if not chosen and not reads:
            return
        shared = argument != self.of.primal.operands["v"]
        elements = [ir.RankedTensorType(value.type).element_type for value in (argument, gradient)]
        plain = shares is None and sign == 1.0 and elements[0] == elements[1]
        if plain:
            self.add(argument, build.head_sum(gradient, tensor) if shared else gradient)
            return
        group = self.group(gradient, tensor) if shared else None

        def body(*indices: ir.Value) -> list[ir.Value]:
            value = host.read(gradient, indices)
            value = value if sign == 1.0 else arith.negf(value)
            if shares is None or x is None:
                return [value]
            known = {shares.adjoint: value, x: host.read(tensor, indices) if group is None else self.of_group(tensor, group, indices)}
            own = [shares.of.get(x, self.of.program.graph.const(0.0))] if chosen else []
            values = self.emit([*own, *(shares.of[n] for n in reads)], indices, known)
            for each in further:
                values[0] = arith.addf(values[0], host.read(each, indices))
            return values

        made = build.elements(gradient, body)
        if chosen:
            whole = build.collect(made, 0, self._collected(argument, gradient))
            whole = build.head_sum(whole, tensor) if shared else whole
            self.add(argument, self._narrow(whole, argument))
        self.scatter(reads, made, int(chosen), 4)

    def _collected(self, argument: ir.Value, gradient: ir.Value) -> ir.Type:
        """The type of an input's gradient before it is summed up over heads that share the input."""
        return self.host.like(gradient)

    def _narrow(self, gradient: ir.Value, argument: ir.Value) -> ir.Value:
        """A gradient in the type of what it belongs to: that of q, k and v, scores otherwise."""
        same = argument in [self.of.primal.operands[name] for name in ("q", "k", "v")]
        return self._cast(gradient, argument.type) if same else gradient
