"""Partial results: attention to some of the keys, to be merged with others before its end: `attention(..., return_partial=True)`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attn_mlir.api.autocast import cast
from attn_mlir.api.given_masks import is_block_mask
from attn_mlir.api.inputs import check_inputs
from attn_mlir.api.options import Options
from attn_mlir.api.partial_form import PartialForm, form_of
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.frontend.given import POSITIONS
from attn_mlir.runtime.call import Call, Problem
from attn_mlir.runtime.dispatch import dispatch, is_seen, needing_gradient, refuse_transformed
from attn_mlir.runtime.orders import heads_first, in_order, input_order, output_order
from attn_mlir.runtime.row_values import column_like, row_indices, score_of, value_like

_WIDE = {torch.float16, torch.bfloat16}


@dataclasses.dataclass(frozen=True)
class Shape:
    """Where a tensor's sizes are read from where the tensor itself is not kept."""

    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Partial:
    """Attention to some of the keys: what the row's one pass carries, before its end.

    `accumulators` are [B, Hq, Sq, Dv], `states` [B, Hq, Sq] by name, both in float32 (float64 for inputs of float64) and in this order
    of dimensions whatever the layout of the inputs. `merge` merges it with others; `finalize()` gives o, in the inputs' dtype and layout.
    All of it is differentiable.
    """

    accumulators: tuple[Tensor, ...]
    states: dict[str, Tensor]
    form: PartialForm
    captures: tuple[Any, ...]
    """What q, k and v were, as far as their sizes matter, and the captured values of the call; copies of tensors that the end reads."""
    dtype: torch.dtype
    order: str = "bhsd"
    """That of the dimensions of o."""
    places: tuple[Tensor, Tensor] | None = None
    """Of packed sequences, whose o is [Tq, Hq, Dv]: the sequence of each row and its position in that, both [Tq]."""
    moved: bool = False
    """Whether `apply` changed the order of the rows."""

    def finalize(self) -> Tensor:
        """o: the attention to all keys that were merged."""
        o = in_order(self._ended(0).expand(self.accumulators[0].shape).to(self.dtype), self.order)
        o = o.contiguous()
        return o if self.places is None else o.squeeze(0)

    @property
    def lse(self) -> Tensor:
        """The logarithm of the sum of exp(score), [B, Hq, Sq], where `return_lse=True` asked for it, or the row's own "lse"."""
        return self.row_output("lse")

    def row_output(self, name: str) -> Tensor:
        """A row output over all keys that were merged: "lse", or a state that the row returns under `return_states=True`."""
        if name not in self.form.outputs:
            known = ", ".join(self.form.outputs) or "none"
            asked = "return_lse=True" if name == "lse" else "return_states=True"
            raise ArgumentError(f"this partial result has no row output {name!r}, it has {known}: pass {asked} to attention")
        row = self._ended(1 + self.form.outputs.index(name)).expand(*self.accumulators[0].shape[:3], 1).squeeze(-1)
        return row if self.places is None else row.squeeze(0)

    def apply(self, function: Callable[[Tensor], Tensor], moves: bool = True) -> "Partial":
        """The same with a function applied to every tensor: `p.apply(lambda x: x.transpose(0, 2))`.

        The function must treat batch, heads and queries, the first three dimensions of each, alike. `moves`: whether rows change places.
        """
        accumulators = tuple(function(x) for x in self.accumulators)
        states = {name: function(x) for name, x in self.states.items()}
        for x in states.values():
            if x.shape != accumulators[0].shape[:3]:
                raise ArgumentError(f"the function gives states of shape {list(x.shape)} and accumulators {list(accumulators[0].shape)}")
        return dataclasses.replace(self, accumulators=accumulators, states=states, moved=self.moved or moves)

    def _ended(self, number: int) -> Tensor:
        """Result `number` of the derived end of the row, [B, Hq, Sq, 1] or [B, Hq, Sq, Dv]."""
        code = self.form.finalize
        if self.moved and code.reads_positions:
            raise UnsupportedError(
                "the end of this row reads b, h or q_idx, and `apply` has moved its rows: pass moves=False where it has not, or merge "
                "behind a partial result whose rows lie as attention made them, as in merge(own, prefix.apply(...))"
            )
        first = self.accumulators[0]
        indices = [x.unsqueeze(-1) for x in _indices(first.shape[:3], self.places, first.device)]
        states = [x.unsqueeze(-1) for x in self.states.values()]
        return value_like(code(self.captures, [*self.accumulators, *indices, *states], first.dtype)[number], first)


def merge(*partials: Partial) -> Partial:
    """Merges partial results of one row over disjoint sets of keys, in any order and grouping: the derived `attn.merge`.

    They agree in shape and row; masks and score functions may differ. What the end of the row reads of captured values and positions is
    that of the first one.
    """
    if not partials or not all(isinstance(p, Partial) for p in partials):
        kinds = ", ".join(type(p).__name__ for p in partials) or "nothing"
        raise ArgumentError(f"merge takes one or more partial results, as attention(..., return_partial=True) gives them; got {kinds}")
    first = partials[0]
    for number, p in enumerate(partials[1:], 2):
        if not p.form.merges_with(first.form):
            raise ArgumentError(f"partial result {number} is of another row than the first one, with other states: they do not merge")
        shapes = [tuple(p.accumulators[0].shape), tuple(first.accumulators[0].shape)]
        if shapes[0] != shapes[1]:
            raise ArgumentError(f"partial result {number} has shape {list(shapes[0])}, the first one {list(shapes[1])}: see Partial.apply")
        devices = [p.accumulators[0].device, first.accumulators[0].device]
        if devices[0] != devices[1]:
            raise ArgumentError(
                f"partial result {number} is on {devices[0]}, the first one on {devices[1]}: move it, as in"
                f" p.apply(lambda x: x.to({str(devices[1])!r}), moves=False)"
            )
    accumulators, states = first.accumulators, list(first.states.values())
    for p in partials[1:]:
        accumulators, states = _merged(first, accumulators, states, p)
    return dataclasses.replace(first, accumulators=accumulators, states=dict(zip(first.states, states, strict=True)))


def _merged(
    first: Partial, accumulators: tuple[Tensor, ...], states: list[Tensor], other: Partial
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    like = accumulators[0]
    made = first.form.merge(first.captures, [*states, *other.states.values()], like.dtype)
    count = len(accumulators)
    scales = [column_like(x, like) for x in made[len(states) :]]
    sides = zip(accumulators, scales[:count], other.accumulators, scales[count:], strict=True)
    rows = like.shape[:3]
    return tuple(x * by + y * times for x, by, y, times in sides), [value_like(x, like).expand(rows) for x in made[: len(states)]]


def positions(q_offset: Any, kv_offset: Any, q_len: Any, kv_len: Any, sizes: Mapping[str, int], packed: bool = False) -> dict[str, int]:
    """What a program on parts takes of its positions, by name. Raises ArgumentError."""
    given = {"q_offset": q_offset, "kv_offset": kv_offset, "q_len": q_len, "kv_len": kv_len}
    for name, value in given.items():
        if value is None and name.endswith("len"):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            shown = value if isinstance(value, int) else type(value).__name__
            raise ArgumentError(f"{name} must be an integer of 0 or more, got {shown}")
    if packed:
        return dict(zip(POSITIONS, (q_offset, kv_offset, 0, 0), strict=True))
    ends = {"q_len": q_offset + sizes["Sq"], "kv_len": kv_offset + sizes["Skv"]}
    for name, end in ends.items():
        if given[name] is not None and given[name] < end:
            raise ArgumentError(f"{name} is {given[name]}, but the part that is given ends at {end}")
    totals = [end if given[name] is None else given[name] for name, end in ends.items()]
    return dict(zip(POSITIONS, (q_offset, kv_offset, *totals), strict=True))


@dataclasses.dataclass(frozen=True)
class PartialRequest:
    """A call for a partial result: what `attention` is asked for, and where the given part lies."""

    options: Options
    positions: tuple[Any, Any, Any, Any]
    """q_offset, kv_offset, q_len and kv_len."""
    order: str = "bhsd"
    packed: Mapping[str, Tensor] | None = None
    """Of packed tensors, those of `frontend.given.SEQUENCES` by name."""

    def run(self, problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> Partial:
        """The partial result of q, k and v, [B, H, S, D]."""
        if torch.compiler.is_dynamo_compiling():
            return outside(lambda: self._run(problem, q, k, v))
        return self._run(problem, q, k, v)

    def _run(self, problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> Partial:
        if self.packed is not None and not len(self.packed["q_lengths"]):
            raise ArgumentError("cu_seqlens_q holds no sequence, which has no partial result")
        places = positions(*self.positions, problem.sizes, self.packed is not None)
        dtype, call = q.dtype, self._call(problem, (q, k, v), problem.inputs.element, places)
        if call.device != "cpu":
            refuse_transformed(call.values, f"of torch.func, partial results on {call.device} take", 'with device="cpu"')
            if dtype == torch.float16 and needing_gradient(call.values):
                raise UnsupportedError(
                    f"gradients of partial results of float16 are too small or too large for float16 on {call.device}, as sums before the "
                    "end of a row have other sizes than o: pass bfloat16, or compute them on the CPU"
                )
        elif dtype in _WIDE and is_seen(call.values):
            # Gradients of sums before the end are of another size than those of o: too small for f16, where rows are long.
            call = self._call(problem, (q.float(), k.float(), v.float()), "f32", places)
        traced = call.entry.traced
        if traced.weights > 1:
            raise UnsupportedError(
                f"partial results have one output, but the row gives {traced.weights} weights: write a row for each, and call it by itself"
            )
        return self._partial(form_of(traced), call, dtype)

    def _call(self, problem: Problem, qkv: Sequence[Tensor], element: str, places: Mapping[str, int]) -> Call:
        inputs = dataclasses.replace(problem.inputs, element=element, parts=True, packed=self.packed is not None)
        return self.options.call(dataclasses.replace(problem, inputs=inputs, layout="bhsd"), qkv, given={**places, **(self.packed or {})})

    def _partial(self, form: PartialForm, call: Call, dtype: torch.dtype) -> Partial:
        q, k, v, *captures = call.values
        score = score_of(q)
        rows = (*q.shape[:3],)
        outer = (*(Shape(tuple(x.shape)) for x in (q, k, v)), *captures)
        later = form.merge.contents | form.finalize.contents  # of this call, whatever becomes of the captured tensors before the end
        outer = tuple([x.clone() if place in later and isinstance(x, Tensor) else x for place, x in enumerate(outer)])
        places = None if self.packed is None else _places(self.packed["q_begins"], self.packed["q_lengths"], rows[2])
        like = q.new_zeros((), dtype=score)
        initial = [value_like(x, like).expand(rows) for x in form.init(outer, _indices(rows, places, q.device), score)]
        if call.problem.is_empty:
            zeros = [q.new_zeros((*rows, v.shape[3]), dtype=score) for _ in form.entries]
            results = [[zeros[0], *initial], *([x] for x in zeros[1:])]
        else:
            results = _results(form, call)
        states = results[0][1:]
        if self.packed is not None:
            states = _without_rows(states, initial, int(self.packed["q_lengths"].sum()))
        if not form.derived and is_seen(call.values):
            raise UnsupportedError(
                "partial results of a row that detaches something else than all its reductions have no gradients: call attention on all "
                "keys, or return_partial under torch.no_grad()"
            )
        named = {name: x.detach() if form.detached else x for name, x in zip(form.states, states, strict=True)}
        return Partial(tuple(made[0] for made in results), named, form, outer, dtype, self.order, places)


def _results(form: PartialForm, call: Call) -> list[list[Tensor]]:
    """What the entries of a form give; on GPUs gradients of accumulators are rounded to the type of v, as those of o are."""
    if call.device == "cpu" or not needing_gradient(call.values):
        return [list(dispatch(call._replace(entry=each))) for each in form.entries]
    with torch.no_grad():
        wide = [dispatch(call._replace(entry=each))[0] for each in form.entries]
    rounded = [dispatch(call._replace(entry=each)) for each in form.rounded]
    return [[_Unrounded.apply(x, made[0]), *made[1:]] for x, made in zip(wide, rounded, strict=True)]  # type: ignore[no-untyped-call]


class _Unrounded(torch.autograd.Function):
    """A result as it was before it was rounded; its gradient is that of the rounded one."""

    @staticmethod
    def forward(ctx: Any, wide: Tensor, rounded: Tensor) -> Tensor:
        ctx.dtype = rounded.dtype
        return wide

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, grads[0].to(ctx.dtype)


def _indices(rows: Sequence[int], places: tuple[Tensor, Tensor] | None, device: torch.device) -> list[Tensor]:
    """b, h and q_idx of the rows [B, H, S], as functions see them, each of three dimensions."""
    indices = row_indices(rows, device)
    if places is not None:
        indices[0], indices[2] = (x.reshape(1, 1, -1) for x in places)
    return indices


def _places(begins: Tensor, lengths: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The sequence of each of `count` rows, and its position there; rows after the last sequence count as its first row."""
    device = lengths.device
    sequence = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths.long())
    position = torch.arange(len(sequence), device=device) - begins.long()[sequence]
    behind = torch.zeros(count - len(sequence), dtype=torch.long, device=device)
    return torch.cat([sequence, behind + max(len(lengths) - 1, 0)]), torch.cat([position, behind])


def _without_rows(states: Sequence[Tensor], initial: Sequence[Tensor], end: int) -> list[Tensor]:
    """The states of packed sequences, as without keys for the rows after the last sequence."""
    if not states or end == states[0].shape[2]:
        return list(states)
    belongs = torch.arange(states[0].shape[2], device=states[0].device) < end
    return [torch.where(belongs, x, start) for x, start in zip(states, initial, strict=True)]


@torch._dynamo.disable(reason="partial results are computed outside of the graph")
def outside(compute: Callable[[], Partial]) -> Partial:
    """What is computed, between two graphs."""
    return compute()


def of_attention(qkv: tuple[Any, Any, Any], options: Options, places: tuple[Any, ...], refused: tuple[Any, Any]) -> Partial:
    """What `attention` gives with return_partial; `refused` is dropout_p and extra_qk."""
    dropout_p, extra = refused
    if dropout_p:
        raise UnsupportedError("partial results have no dropout: leave dropout_p out")
    if extra is not None:
        raise UnsupportedError("partial results have one product of q and k: leave extra_qk out")
    if is_block_mask(options.functions[4]):
        raise ArgumentError("mask_mod is a block mask, which is for whole sequences: pass its mask function")
    qkv = cast(*qkv)
    problem = check_inputs(*qkv, options.layout)
    request = PartialRequest(options, places, output_order(problem.layout))
    return request.run(problem, *[heads_first(x, input_order(problem.layout)) for x in qkv])


def of_varlen(
    problem: Problem, qkv: tuple[Tensor, Tensor, Tensor], options: Options, places: tuple[Any, Any], sequences: Mapping[str, Tensor]
) -> Partial:
    """What `attention_varlen` gives with return_partial, of q, k and v [T, H, D]."""
    request = PartialRequest(options, (*places, None, None), "bshd", sequences)
    return request.run(problem, *[x.unsqueeze(0).transpose(1, 2) for x in qkv])
