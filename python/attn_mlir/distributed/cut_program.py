"""The programs that a ring runs on pairs of shards: partial forward passes, and parts of the backward pass, of one traced attention."""

import bisect
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attn_mlir import driver
from attn_mlir.api.partial import Shape
from attn_mlir.api.partial_form import WIDE_RESULTS, PartialForm, form_of
from attn_mlir.backends.program import function_named, reported
from attn_mlir.capture_kinds import CaptureKind
from attn_mlir.dialects import loaded
from attn_mlir.errors import CompileError, UnsupportedError
from attn_mlir.frontend.emit import texts_of
from attn_mlir.frontend.given import DOCUMENT, POSITION
from attn_mlir.frontend.program import Traced
from attn_mlir.frontend.scope import Captured
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import block_of, find_all, piece
from attn_mlir.registry import registry
from attn_mlir.runtime.row_values import column_like, row_indices, score_of, value_like
from attn_mlir.runtime.scalar_code import ScalarCode, code_of

_DERIVED = "attn-simplify,attn-recover-rows,attn-differentiate{{functions={function} wrt={wrt} only=true}}"
_BOUNDS = "attn-simplify,attn-resolve-masks"
_FREE_REFERENCE = "attn.free_reference"
"""The attribute of a module in which a running maximum may be any number near it."""
PASS = "pass"
"""The source of captured values that an earlier pass over keys has given, [B, Hq, Sq]."""
_SPLIT = "attn-simplify,attn-split-passes{{part={part}}}"
_LIMIT = 256
_KNOWN: dict[Any, "CutProgram"] = {}


@dataclasses.dataclass(frozen=True)
class BackwardPart:
    """A function of the backward pass: its program, and which of the gradients it gives."""

    program: Any
    results: tuple[int, ...]


@dataclasses.dataclass(eq=False)
class CutProgram:
    """A traced attention for one device and one set of inputs with gradients."""

    traced: Traced
    device: str
    wrt: str
    """Names of the inputs with gradients, joined by "+", in the order of the arguments; see `runtime.programs.Program.argument`."""
    deterministic: bool
    plans: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """What was planned for calls, by all that it depends on."""

    @functools.cached_property
    def form(self) -> PartialForm:
        """Partial results of the forward pass, whose row outputs are those of the attention, then what the backward reads.

        Raises UnsupportedError where the row takes more than one pass over keys, or has no merge.
        """
        if not self.wrt:
            return form_of(self.traced)
        made, located = self._derived("fwd")
        with LOCK, loaded():
            module = ir.Module.parse(made)
            attention = find_all(module.operation, "attn.attention")[0]
            outputs = tuple(ir.StringAttr(name).value for name in attention.attributes["outputs"])
        return form_of(dataclasses.replace(self.traced, text=made, located=located, outputs=outputs))

    @functools.cached_property
    def merges(self) -> bool:
        """Whether partial results of it have a merge."""
        try:
            _ = self.form
        except UnsupportedError:
            return False
        return True

    @functools.cached_property
    def passes(self) -> tuple[Traced, Traced]:
        """See `passes_of`. Where keys are passed over once, raises what `form` does."""
        if self.traced.weights > 1:
            raise UnsupportedError(
                f"a row that gives {self.traced.weights} weights and takes several passes over keys has no ring: "
                'strategy="all_gather" computes it'
            )
        try:
            return passes_of(self.traced)
        except CompileError:
            _ = self.form
            raise

    @functools.cached_property
    def kernels(self) -> tuple[Any, ...]:
        """The forward kernels, one for each accumulator; the first gives the row states, too."""
        first = f"{WIDE_RESULTS}, {_FREE_REFERENCE}" if self._is_free else WIDE_RESULTS
        texts = [entry.traced.text.replace(WIDE_RESULTS, first, 1) for entry in self.form.entries]
        return tuple(driver.compile(text, self.device) for text in texts)

    @property
    def _is_free(self) -> bool:
        """Whether a running maximum only scales what else is carried, so that partial results may have any number near it in its place.

        Then o and row outputs stay the same when the number is raised by a merge with a partial result without keys that has a larger one.
        """
        form, rows = self.form, (4,)
        tensors = [captured.kind == "tensor" for captured in self.traced.captures]
        reads = {place for code in (form.init, form.merge, form.finalize) for place in code.contents}
        if len(form.entries) != 1 or any(tensors[place - 3] for place in reads if place >= 3):
            return False
        random = torch.Generator().manual_seed(0)
        captures = [Shape((1, 1, 1, 1))] * 3 + [1.0 if captured.kind == "float" else 1 for captured in self.traced.captures]
        indices = [torch.zeros(rows, dtype=torch.int64, device="cpu")] * 3
        score = torch.float64
        start = [torch.as_tensor(x, dtype=score, device="cpu").expand(rows) for x in form.init(captures, indices, score)]
        states = [torch.rand(rows, generator=random, dtype=score, device="cpu") + 0.5 for _ in start]
        before = form.finalize(captures, [torch.ones(rows, dtype=score, device="cpu"), *indices, *states], score)
        raised = 0
        for place, state in enumerate(states):
            other = [state + 2.0 if n == place else x for n, x in enumerate(start)]
            made = form.merge(captures, [*states, *other], score)
            if torch.equal(torch.as_tensor(made[place], device="cpu").expand(rows), state + 2.0):
                raised += 1
                scale = torch.as_tensor(made[len(states)], dtype=score, device="cpu")
                after = form.finalize(captures, [scale.expand(rows), *indices, *made[: len(states)]], score)
                if not all(
                    torch.allclose(torch.as_tensor(x, device="cpu"), torch.as_tensor(y, device="cpu"), rtol=1e-9)
                    for x, y in zip(before, after, strict=True)
                ):
                    return False
        return raised == 1

    @functools.cached_property
    def sums(self) -> tuple[BackwardPart, ...]:
        """What the backward pass sums over keys before it goes over pairs, stage by stage."""
        first = self._part("sums", 0)
        if first is None:
            return ()
        others = [self._part("sums", stage) for stage in range(1, self._stages)]
        return (first, *(part for part in others if part is not None))

    @functools.cached_property
    def pairs(self) -> BackwardPart:
        """The gradients, as far as they are sums over pairs."""
        part = self._part("pairs")
        return part if part is not None else BackwardPart(None, ())

    @functools.cached_property
    def rows(self) -> BackwardPart | None:
        """Their summands that count once however many shards there are."""
        return self._part("rows")

    @functools.cached_property
    def bounds(self) -> ScalarCode | None:
        """Code for the keys that a block of queries may see; None without a mask, or where that depends on elements of tensors."""
        with LOCK, loaded(), reported():
            module = ir.Module.parse(self.traced.text)
            Pipeline.parse(_BOUNDS, registry()).run(module)
            attention = find_all(module.operation, "attn.attention")[0]
            found = piece(attention, "attn.bounds")
            if found is None:
                return None
            try:
                code = code_of(block_of(found), function_named(module, "attention"))
            except UnsupportedError:
                return None
        tensors = {3 + number for number, captured in enumerate(self.traced.captures) if captured.kind == "tensor"}
        return None if code.contents & tensors else code

    def moved(
        self, captures: Sequence[Any], q_offset: int, kv_offset: int, rows: slice = slice(None), documents: Sequence[int] = ()
    ) -> list[Any]:
        """The captured values for shards that begin at these positions; `rows` are the places of the queries, for values of each row.

        documents: where packed documents begin, and the last one ends: of these the shards are parts of one.
        """
        places: dict[Any, Any] = {"q_offset": q_offset, "kv_offset": kv_offset}
        if documents:
            number = document_of(documents, q_offset)
            begin, end = documents[number : number + 2]
            places = {"q_offset": q_offset - begin, "kv_offset": kv_offset - begin, DOCUMENT: number}
            places |= dict.fromkeys(("q_total", "kv_total"), end - begin)
        found = []
        for captured, value in zip(self.traced.captures, captures, strict=True):
            kind, name = captured.source[0], captured.source[1] if len(captured.source) > 1 else None
            found.append(places.get(name, value) if kind == POSITION else value[:, :, rows] if kind == PASS else value)
        return found

    @property
    def of_rows(self) -> frozenset[str]:
        """The names of inputs that have values of each row, those of an earlier pass."""
        return frozenset(f"arg{3 + n}" for n, captured in enumerate(self.traced.captures) if captured.source[0] == PASS)

    def partial(self, q: Tensor, k: Tensor, v: Tensor, captures: Sequence[Any]) -> tuple[list[Tensor], list[Tensor]]:
        """The accumulators and row states of one pair of shards."""
        results = [kernel.run(q, k, v, list(captures), "bhsd") for kernel in self.kernels]
        return [made[0] for made in results], list(results[0][1:])

    def merge(
        self, captures: Sequence[Any], one: tuple[list[Tensor], list[Tensor]], other: tuple[list[Tensor], list[Tensor]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The derived merge of two partial results; the accumulators of the first are changed in place."""
        accumulators, states = one
        score, rows = accumulators[0].dtype, accumulators[0].shape[:3]
        made = self.form.merge(captures, [*states, *other[1]], score)
        count, scales = len(accumulators), made[len(states) :]
        for x, by, y, times in zip(accumulators, scales[:count], other[0], scales[count:], strict=True):
            if not _is_one(by):
                x.mul_(column_like(by, x))
            x.add_(y) if _is_one(times) else x.addcmul_(y, column_like(times, x))
        return accumulators, [value_like(x, states[0]).expand(rows) for x in made[: len(states)]] if states else []

    def empty(self, q: Tensor, captures: Sequence[Any], value_dim: int) -> tuple[list[Tensor], list[Tensor]]:
        """The partial result of rows that see no key."""
        score = score_of(q)
        rows = q.shape[:3]
        states = self.form.init(captures, row_indices(rows, q.device), score)
        zeros = [torch.zeros((*rows, value_dim), dtype=score, device=q.device) for _ in self.form.entries]
        return zeros, [value_like(x, zeros[0]).expand(rows) for x in states]

    def finalize(self, captures: Sequence[Any], partial: tuple[list[Tensor], list[Tensor]], every: Sequence[Tensor]) -> list[Tensor]:
        """Writes each o, and gives the row outputs and what the backward reads. An o is linear in the accumulators, by factors of rows."""
        accumulators, states = partial
        rows, score, device = accumulators[0].shape[:3], accumulators[0].dtype, accumulators[0].device
        given = [*(x.unsqueeze(-1) for x in row_indices(rows, device)), *(x.unsqueeze(-1) for x in states)]
        units = torch.eye(len(accumulators), dtype=score, device=device)
        made = [self.form.finalize(captures, [*unit, *given], score) for unit in units]
        for output, o in enumerate(every):
            factors = [value_like(results[output], units).expand(*rows, 1) for results in made]
            torch.mul(accumulators[0], factors[0], out=o)
            for x, factor in zip(accumulators[1:], factors[1:], strict=True):
                o.addcmul_(x, factor) if o.dtype == score else o.copy_(o.to(score).addcmul_(x, factor))
        return [*(value_like(x, units).expand(*rows, 1).squeeze(-1) for x in made[0][len(every) :])]

    def shapes(self, q: Tensor, k: Tensor, v: Tensor, captures: Sequence[Any]) -> list[Any]:
        """The arguments of a function, of which pieces read the captured values and only the sizes of q, k and v."""
        return [*(Shape(tuple(x.shape)) for x in (q, k, v)), *captures]

    def _derived(self, function: str) -> tuple[str, str]:
        """`@attention_<function>` as `@attention`."""
        with LOCK, loaded(), reported():
            module = ir.Module.parse(self.traced.text)
            Pipeline.parse(_DERIVED.format(function=function, wrt=self.wrt), registry()).run(module)
            _rename(module, f"attention_{function}")
            return texts_of(module)

    def _part(self, part: str, stage: int = 0) -> BackwardPart | None:
        """A part of the backward pass; None where it gives nothing."""
        with LOCK, loaded(), reported():
            module = ir.Module.parse(self._backward)
            Pipeline.parse(f"attn-cut-backward{{part={part} stage={stage}}}", registry()).run(module)
            function = function_named(module, "attention")
            results = tuple(ir.DenseI64ArrayAttr(function.attributes["attn.results"]))
            self._stages = ir.IntegerAttr(function.attributes["attn.stages"]).value
            for name in ("attn.results", "attn.stages"):
                del function.attributes[name]
            text = texts_of(module)[0]
        if not results:
            return None
        return BackwardPart(driver.compile_derivative(with_wide_results(text), self.device, "given", (), self.deterministic), results)

    @functools.cached_property
    def _backward(self) -> str:
        return self._derived("bwd")[0]


def document_of(documents: Sequence[int], position: int) -> int:
    """The number of the document, of those that begin at `documents` (and the end of the last one), that holds a position."""
    return max(min(bisect.bisect_right(documents, position) - 1, len(documents) - 2), 0)


def cut_program(traced: Traced, device: str, wrt: str, deterministic: bool) -> CutProgram:
    """The programs of a traced attention, made once."""
    key = (traced.text, device, wrt, deterministic)
    if key not in _KNOWN:
        if len(_KNOWN) >= _LIMIT:
            _KNOWN.clear()
        _KNOWN[key] = CutProgram(traced, device, wrt, deterministic)
    return _KNOWN[key]


def passes_of(traced: Traced) -> tuple[Traced, Traced]:
    """The first pass over keys of an attention that takes several, and what is after it. Raises CompileError where it takes one."""
    made: list[tuple[str, str, tuple[str, ...]]] = []
    with LOCK, loaded(), reported():
        for part in ("first", "last"):
            module = ir.Module.parse(traced.located)
            Pipeline.parse(_SPLIT.format(part=part), registry()).run(module)
            outputs = find_all(module.operation, "attn.attention")[0].attributes["outputs"]
            made.append((*texts_of(module), tuple(ir.StringAttr(name).value for name in outputs)))
    (text, located, names), (last, located_last, _) = made
    more = tuple(Captured((PASS, name), name, CaptureKind.TENSOR, "f64" if "xf64>" in last else "f32", 3) for name in names)
    first = dataclasses.replace(traced, text=text, located=located, outputs=names)
    return first, dataclasses.replace(traced, text=last, located=located_last, captures=(*traced.captures, *more))


def with_wide_results(text: str) -> str:
    """A module whose results are parts of sums."""
    return text.replace("module {", f"module attributes {{{WIDE_RESULTS}}} {{", 1)


def _rename(module: ir.Module, name: str) -> None:
    function_named(module, name).attributes["sym_name"] = ir.StringAttr.get("attention")


def _is_one(scale: Any) -> bool:
    """Whether a scale is the constant 1, as where sums need no rescaling."""
    return not (isinstance(scale, Tensor) and (scale.dim() or scale.is_cuda)) and float(scale) == 1.0
