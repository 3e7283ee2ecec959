"""The derivative functions of one attention: what they take, what they return, and how they are put together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from attn_mlir.dialects.attn import build
from attn_mlir.dialects.attn.pairs import residual_factor
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.derivation.expr import Expr
from attn_mlir.passes.differentiation.check import Certificate, GradientChecker
from attn_mlir.passes.differentiation.errors import DifferentiationError
from attn_mlir.passes.differentiation.expansion import reversed_program
from attn_mlir.passes.differentiation.forward import DOT, TangentBuilder, readable
from attn_mlir.passes.differentiation.gradients import Gradients
from attn_mlir.passes.differentiation.host import HostBuilder, Primal, residual_name
from attn_mlir.passes.differentiation.kv_pass import write_attention, write_kv_pass
from attn_mlir.passes.differentiation.model import ModelReduction, RowModel, Scatter
from attn_mlir.passes.differentiation.mods import PIECES, Mods
from attn_mlir.passes.differentiation.poles import has_pole
from attn_mlir.passes.differentiation.read import read_attention
from attn_mlir.passes.differentiation.reverse import Reverse, Seeds
from attn_mlir.passes.differentiation.rounded_weights import SIGNIFICANT, RoundedWeights
from attn_mlir.passes.regions import block_of, clone_op, pieces


@dataclass(eq=False)
class Derivatives:
    """Derivatives of the attention of one function, by the arguments `wrt` (positions)."""

    primal: Primal
    wrt: Sequence[int]
    residual: bool = False
    """Whether the forward pass returns the residual of o, too, for products with o in the backward."""
    certificates: dict[str, Certificate] = field(default_factory=dict)

    @cached_property
    def program(self) -> RowModel:
        """The attention as it was written; with a count of the keys where rows may be empty and that matters."""
        program = read_attention(self.primal.attention)
        if self._needs_count(program) and not any(_is_count(r, program) for r in program.reductions):
            one = program.graph.const(1.0)
            program.reductions.append(ModelReduction("sum", one, "count", "saved"))
        return program

    def _needs_count(self, program: RowModel) -> bool:
        """Whether something is formed for each row, where its formulas need not be finite for a fully masked row."""
        if not self._may_be_empty:
            return False
        return bool(program.rows) or any(not program.is_pair(s.weight) for s in Reverse(program, self._seeds(program)).run().scatters)

    @property
    def _may_be_empty(self) -> bool:
        """Whether rows may be fully masked, which those of a sequence without keys and of an empty list are, too."""
        return any(pieces(self.primal.attention, name) for name in ("attn.mask", "attn.sequences", "attn.key_lists"))

    @cached_property
    def mods(self) -> Mods:
        return Mods.read(self.program, self.primal.attention)

    @cached_property
    def saved(self) -> list[int]:
        """The reductions whose final values the forward pass returns."""
        program = self.program
        roots = [w for s in program.sums for w, _ in s.terms] + [r.value for r in program.rows]
        counts = {i for i, r in enumerate(program.reductions) if r.name == "count" and r.origin is None}
        return sorted(program.reductions_of(*roots) | counts)

    @cached_property
    def saved_tensors(self) -> list[tuple[str, ir.Type]]:
        """What else the forward pass returns: residuals of outputs of 16 bits with which a gradient by `wrt` takes products."""
        o = self.primal.attention.results[0].type
        if not self.residual or residual_factor(ir.RankedTensorType(o).element_type) is None:
            return []
        program, names = self.reverse.result, {self._names()[i] for i in self.wrt}
        if names - self._tensors() or self.mods.of:
            weights = [w for s in program.sums for w, _ in s.terms] + [s.weight for s in program.scatters]
        else:
            weights = [w for s in program.sums if s.name in names for w, _ in s.terms]
        read = [program.reductions[i].given for i in program.reductions_of(*weights)]
        multiplied = {given[2] for given in read if isinstance(given, tuple)}
        return [(residual_name(name), o) for name in self.primal.sums if name in multiplied]

    @staticmethod
    def _seeds(program: RowModel) -> Seeds:
        sums = [s.name for s in program.sums]
        known = frozenset[str]() if has_pole(program) else frozenset(sums)
        return Seeds({name: f"d{name}" for name in sums}, {r.name: f"d_{r.name}" for r in program.rows}, None, known)

    @cached_property
    def reverse(self) -> Reverse:
        """The derived reverse mode, with its steps."""
        reverse = reversed_program(self.program, self._seeds(self.program))
        bits = SIGNIFICANT.get(str(ir.RankedTensorType(self.primal.attention.results[0].type).element_type))
        if bits is not None:
            reverse.kv_pass(RoundedWeights(reverse, bits).lost())
        self.certificates["backward"] = self.checker.check_reverse(reverse.result)
        return reverse

    @cached_property
    def checker(self) -> GradientChecker:
        """Differences of the attention as it was written; every derived program must agree with them."""
        return GradientChecker(self.program, self._seeds(self.program))

    def _count(self, program: RowModel) -> Expr | None:
        found = next((i for i, r in enumerate(program.reductions) if _is_count(r, program)), None)
        return program.red(found) if self._may_be_empty and found is not None and found in self.saved else None

    def _names(self) -> list[str]:
        return self.primal.input_names

    def _tensors(self) -> set[str]:
        """The inputs that are multiplied and summed; others are captured."""
        return set(self.primal.roles.values())

    def _passed(self) -> list[tuple[str, ir.Type]]:
        """What the backward functions take after the inputs: results of the forward pass, then adjoints of the outputs and the rows."""
        host = HostBuilder(self.primal)
        row = host.row_type()
        o = self.primal.attention.results[0].type
        rows = [r.name for r in self.program.rows]
        saved = [self.program.reductions[i].name for i in self.saved]
        out = [*[(n, o) for n in self.primal.sums], *[(f"row_{n}", row) for n in rows], *[(f"saved_{n}", row) for n in saved]]
        return [*out, *self.saved_tensors, *[(f"d{n}", o) for n in self.primal.sums], *[(f"d_{n}", row) for n in rows]]

    def _like_inputs(self) -> list[ir.Type]:
        host = HostBuilder(self.primal)
        arguments = list(self.primal.entry.arguments)
        return [host.like(arguments[i]) for i in self.wrt]

    def forward(self) -> None:
        """`@f_fwd`: the outputs, the row outputs, the saved reductions as further ones, then the saved tensors."""
        _ = self.reverse  # What has no derivative is to be told before anything is computed.
        host, attention, sums = HostBuilder(self.primal), self.primal.attention, self.primal.sums
        reductions = [self.program.reductions[i] for i in self.saved]
        types = [r.type for r in attention.results] + [host.row_type()] * len(reductions)

        def body() -> list[ir.Value]:
            operands = [host.mapping[v] for v in attention.operands]
            names = [*self.primal.outputs, *(f"saved_{r.name}" for r in reductions)]
            op, block = build.attention(operands[0], operands[1], operands[2], types, names)
            with ir.InsertionPoint(block):
                for view in block_of(attention).operations:
                    clone = clone_op(view.operation, dict(host.mapping))
                    if view.operation.name == "attn.row":
                        _yield_also(view.operation, clone, reductions)
            o, *rows = op.results
            more = [build.output(o, number, o.type) for number in range(1, len(sums))]
            kept = [name for name, _ in self.saved_tensors]
            residuals = [build.residual(o, number) for number, name in enumerate(sums) if residual_name(name) in kept]
            return [o, *more, *rows, *residuals]

        host.build("fwd", [], [*[types[0]] * len(sums), *types[1:], *(type_ for _, type_ in self.saved_tensors)], body)

    def backward(self) -> None:
        """`@f_bwd`: the gradients of the arguments `wrt`."""
        host = HostBuilder(self.primal)

        def body() -> list[ir.Value]:
            originals = self.mods.apply(host)
            program = self.reverse.result
            return self._gradients(host, program, originals)

        host.build("bwd", self._passed(), self._like_inputs(), body)

    def _gradients(self, host: HostBuilder, program: RowModel, originals: dict[str, ir.Value], second: bool = False) -> list[ir.Value]:
        names, modded = self._names(), set(self.mods.of)
        tensors = self._tensors()
        roles = {names[i] for i in self.wrt} & tensors
        captured = {names[i] for i in self.wrt} - tensors
        # A mod that reads a captured tensor needs the adjoint of what it makes.
        wanted = roles | {role for role in modded if any(self._reads(n) in captured for n in self._mod_reads(role))}
        adjoints = [f"d{name}" for name in self.primal.sums] if second else []
        wanted |= set(adjoints)
        sums = [s for s in program.sums if s.name in wanted and s.side == _side(s.name)]
        scatters = [s for s in program.scatters if self._reads(s.param) in captured]
        rows = {r.name: r.value for r in program.rows}
        row_names = [f"d_{r.name}" for r in self.program.rows] if second else []
        zero = program.graph.const(0.0)
        writer = Gradients(host, program, sums, scatters, [rows.get(n, zero) for n in row_names], self._count(program))
        made_sums, made_scatters, made_rows = writer.write()
        found = {s.name: value for s, value in zip(sums, made_sums, strict=True)}
        parts: dict[str, list[ir.Value]] = {}
        for s, value in zip(scatters, made_scatters, strict=True):
            parts.setdefault(self._reads(s.param), []).append(value)
        for role, original in originals.items():
            if role not in wanted or role not in found:
                continue
            reads = [n for n in self._mod_reads(role) if self._reads(n) in captured]
            found[role], scattered = self.mods.pull(host, role, original, found[role], frozenset(reads))
            for leaf, value in scattered:
                parts.setdefault(self._reads(leaf), []).append(value)
        results = [self._result(host, names[i], found, parts) for i in self.wrt]
        if second:
            results += [found[n] if n in found else host.zeros(host.tensors[n]) for n in adjoints]
            results += made_rows
        return results

    def _result(self, host: HostBuilder, name: str, found: dict[str, ir.Value], parts: dict[str, list[ir.Value]]) -> ir.Value:
        if name in self._tensors():
            return found[name] if name in found else host.zeros(host.mapping[self.primal.entry.arguments[self._names().index(name)]])
        values = parts.get(name)
        tensor = host.tensors[f"captured:{name}"]
        if not values:
            return zero_capture(host, tensor)
        total = values[0]
        for value in values[1:]:
            total = arith.addf(total, value)
        return total

    def _reads(self, leaf: Expr) -> str:
        read = self.program.param(leaf).read
        return "" if read is None else self._names()[ir.BlockArgument(read.tensor).arg_number]

    def _mod_reads(self, role: str) -> list[Expr]:
        leaves: list[Expr] = []
        todo = [self.mods.of[role][1]]
        while todo:
            n = todo.pop()
            todo.extend(n.args)
            if n.op == "param" and self.program.param(n).read is not None:
                leaves.append(n)
        return leaves

    @cached_property
    def tangent(self) -> TangentBuilder:
        """The derived forward mode for tangents of the arguments `wrt`."""
        mods, names = self.mods, self._names()  # mods first: what they read is among the parameters
        chosen = {names[i] for i in self.wrt}
        reads = frozenset(
            leaf
            for leaf in (self.program.graph.leaf("param", i) for i in range(len(self.program.params)))
            if self._reads(leaf) in chosen - self._tensors()
        )
        tensors = frozenset(self._tensors())
        moved = {role for role in tensors if role in chosen or (role in mods.of and any(n in reads for n in self._mod_reads(role)))}
        everything = TangentBuilder(self.program, tensors, frozenset(readable(self.program)), frozenset(self.reverse.dropped))
        self.certificates["tangent"] = self.checker.check_forward(everything.run())
        forward = TangentBuilder(self.program, frozenset(moved), reads, frozenset(self.reverse.dropped))
        forward.run()
        return forward

    def jvp(self) -> None:
        """`@f_jvp`: each output and its tangent, the row outputs, their tangents, for tangents of the arguments `wrt`."""
        host, names = HostBuilder(self.primal), self._names()
        arguments = list(self.primal.entry.arguments)
        further = [(DOT + names[i], arguments[i].type) for i in self.wrt]
        o = self.primal.attention.results[0].type
        rows = [host.row_type()] * len(self.program.rows)

        def body() -> list[ir.Value]:
            forward = self.tangent
            reads = {n: self.program.adjoint_read(n, DOT) for n in forward.reads}
            for role, original in self.mods.apply(host).items():
                moved = self.mods.tangent(host, role, original, host.tensors.get(DOT + role), reads)
                if moved is not None:
                    host.tensors[DOT + role] = moved
            return self._tangent_body(host, forward)

        host.build("jvp", further, [*[o, o] * len(self.primal.sums), *rows, *rows], body)

    def _tangent_body(self, host: HostBuilder, forward: TangentBuilder) -> list[ir.Value]:
        program, known = forward.result, dict[Expr, ir.Value]()
        for stage in forward.stages():
            known |= write_kv_pass(host, program, stage, known)
        terms = [(w, tensor, number) for number, s in enumerate(program.sums) for w, tensor in s.terms]
        values = [(r.name, r.value) for r in program.rows]
        computed = [i for i in program.computed() if program.red(i) not in known]
        return write_attention(host, program, terms, values, known, computed)

    def second(self) -> None:
        """`@f_bwd2`: the gradients of <dd, gradients of the backward function>, by the arguments and the adjoints of outputs and rows."""
        if self.mods.of:
            which = ", ".join(f"{role} by '{PIECES[role]}'" for role in self.mods.of)
            message = f"second derivatives of an attention that changes {which} are not derived: change the tensors before the call"
            raise DifferentiationError(message, self.primal.attention.location)
        host, names = HostBuilder(self.primal), self._names()
        arguments = list(self.primal.entry.arguments)
        further = [*self._passed(), *[(f"dd_{names[i]}", arguments[i].type) for i in self.wrt]]
        like_o = [host.like(self.primal.attention.results[0])] * len(self.primal.sums)
        results = [*self._like_inputs(), *like_o, *[host.row_type()] * len(self.program.rows)]
        chosen = {names[i] for i in self.wrt}

        def body() -> list[ir.Value]:
            first = self.reverse.result
            lists = list(first.products), list(first.scores), list(first.reductions)
            kept = RowModel(first.graph, *lists, first.params, first.tolerance, first.near, first.given, first.large)
            kept.sums = [s for s in first.sums if s.name in chosen and s.side == _side(s.name)]
            kept.scatters = [Scatter(s.param, self._guard_second(first, s)) for s in first.scatters if self._reads(s.param) in chosen]
            seeds = Seeds({s.name: f"dd_{s.name}" for s in kept.sums}, {}, "dd_")
            second = reversed_program(kept, seeds).result
            self.certificates["second backward"] = GradientChecker(kept, seeds, self.program).check_reverse(second, "second backward")
            return self._gradients(host, second, {}, second=True)

        host.build("bwd2", further, results, body)

    def _guard_second(self, program: RowModel, scatter: Scatter) -> Expr:
        count = self._count(program)
        if count is None or program.is_pair(scatter.weight):
            return scatter.weight
        return program.where_keys(count, scatter.weight)


def _side(name: str) -> str:
    """Whether a tensor has rows for queries or for keys."""
    return "query" if name.startswith(("q", "do")) else "key"


def _is_count(reduction: ModelReduction, program: RowModel) -> bool:
    return reduction.kind == "sum" and reduction.value.is_const and float(reduction.value.attr) > 0 and reduction.given == "saved"  # type: ignore[arg-type]


def _yield_also(row: ir.Operation, clone: ir.Operation, reductions: Sequence[ModelReduction]) -> None:
    """Adds reductions to what a copy of `attn.row` yields."""
    source, target = list(block_of(row).operations), list(block_of(clone).operations)
    values: list[ir.Value] = []
    last = target[-1].operation
    with last.location, ir.InsertionPoint(last):
        for reduction in reductions:
            if reduction.origin is None:
                one = arith.constant(block_of(clone).arguments[0].type, 1.0)
                values.append(build.reduce(one, "sum"))
                continue
            position = source.index(reduction.origin.owner)  # type: ignore[arg-type]
            values.append(target[position].operation.results[0])
        build.yield_([*last.operands, *values])
    last.erase()


def zero_capture(host: HostBuilder, tensor: ir.Value) -> ir.Value:
    """Zeros shaped like a captured tensor of any rank."""
    type_ = ir.RankedTensorType(tensor.type)
    rank = type_.rank
    if rank == 3 or (rank == 4 and not type_.is_dynamic_dim(3)):  # tiles have a fixed number of columns
        return host.zeros(tensor)
    q = host.tensors["q"]
    rows = build.row_dot(q, q, host.row_type())
    weights = build.elements(rows, lambda *_: [host.constant(0.0)])
    index = lambda *_: [arith.constant(ir.IndexType.get(), 0)] * rank  # noqa: E731
    return build.scatter(weights, tensor, 0, host.like(tensor), ("b", "h", "i"), index)
