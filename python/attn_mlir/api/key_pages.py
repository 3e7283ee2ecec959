"""Key lists for GPUs whose kernels read keys in pages: each block of queries is a sequence, and the blocks that it lists are its pages.

So kernels load what is listed through a table, and nothing else: the sorted lists are `block_table`, and functions get the true positions.
Short blocks of queries are what decoding is: heads of a group are rows, and a single query sees its keys in parts.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir import driver
from attn_mlir.api.dropout import Dropout
from attn_mlir.api.key_numbers import check_at_call, check_prepared
from attn_mlir.api.key_sequences import (
    SequenceForm,
    causal_shift,
    in_whole,
    looks_at_scores_alone,
    packed_rows,
    places_of,
    ready_made_shift,
    sequences_of_lists,
    shapes_of,
    wanted_of,
    wrapped,
)
from attn_mlir.api.options import Options
from attn_mlir.api.varlen_inputs import problem_of
from attn_mlir.backends.kept import kept_by_sizes
from attn_mlir.backends.prepared import ListShapes, PreparedLists, WantedLists
from attn_mlir.frontend.dropout import LISTED
from attn_mlir.frontend.given import PAGES, SEQUENCES
from attn_mlir.performance import told
from attn_mlir.runtime.call import Call, Problem
from attn_mlir.runtime.dispatch import dispatch, needing_gradient, program_on
from attn_mlir.runtime.key_lists import ListForm
from attn_mlir.runtime.orders import all_in_order, heads_first, in_order, input_order, output_order
from attn_mlir.runtime.prepared_lists import prepare
from attn_mlir.runtime.varlen import largest

PAGE_ROWS = 16
"""Keys of a block are a multiple of so many where kernels copy pages."""
_COPIED = (
    "key_index: k and v are copied at every call, since blocks of one head are not pages there: give heads first (bhsd), a multiple of {} "
    "keys, or one list for all heads"
)
Tensor = torch.Tensor
Lists = tuple[Tensor, ListForm, Problem]
_PROBLEMS: dict[tuple[Any, ...], Problem] = {}
_TEMPLATES: "dict[tuple[Any, ...], PagedTemplate]" = {}
_KERNEL, _SEEN, _PLAIN = "kernel", "seen", (Tensor, torch.nn.Parameter)
_MOST = 256
"""Shapes whose problems and templates are kept."""


@dataclass(frozen=True)
class PagedCall:
    """A call on packed sequences of queries with pages of keys, and how its results become those of the whole."""

    call: Call
    most: tuple[int, int]
    """Rows and keys of the longest sequence."""
    made: SequenceForm
    lists: PreparedLists
    index: Tensor
    """What they were made of."""
    shapes: ListShapes
    folded: bool
    """Whether rows lie as those of q with the heads of a group as rows."""
    order: str
    """Of o."""
    runs: dict[str, Any] | None = None
    """Of calls with a template, of which nothing is left to check: the kernel, and, by what a backward is for, what keeps what it reads."""

    def results(self, found: Sequence[Tensor]) -> list[Tensor]:
        """o and values of rows, [B, Hq, Sq], of those of sequences; what else has the shape of o stays [B, Hq, Sq, D]."""
        weights = self.call.entry.traced.weights
        turned = output_order(self.call.layout) == "bhsd"
        found = [x.transpose(1, 2) if turned and x.dim() == 4 else x for x in found]
        return [in_whole(x.squeeze(0), self.made, self.order if number < weights else "bhsd") for number, x in enumerate(found)]

    def check(self) -> None:
        """See `check_prepared`. Raises ArgumentError."""
        check_prepared(self.lists, self.index, self.shapes)

    def attended(self) -> list[Tensor]:
        """o and values of rows."""
        call, runs = self.call, self.runs
        with largest(*self.most):
            if runs is None:
                return self._made(self.results(dispatch(call)))
            if _KERNEL not in runs:
                runs[_KERNEL] = program_on(call).kernel(call.problem.device_type)
                return self._made(self.results(dispatch(call)))
            q, k, v, *captures = call.heads_first()
            made = runs[_KERNEL].run(q, k, v, captures, output_order(call.layout))
        return self._made(self.results(all_in_order(made, output_order(call.layout), call.entry.traced.weights)))

    def _made(self, results: list[Tensor]) -> list[Tensor]:
        """The results, of lists that somebody has made. Raises RuntimeError."""
        if self.lists.pending is not None and not self.lists.pending.is_made:
            raise RuntimeError("kernels have read lists of keys that were not made; please report this")
        return results

    def saved(self, wrt: str) -> tuple[list[Tensor], Sequence[Tensor]]:
        """The results of a forward pass that keeps what its backward reads, and the same as they are for sequences, with heads first.

        `wrt` names arguments that need a gradient, "": all.
        """
        call, order = self.call, output_order(self.call.layout)
        if self.lists.pending is not None:
            self.lists.pending.start()
        inputs = call.heads_first()
        run = self.runs.get(wrt) if self.runs is not None else None
        with largest(*self.most):
            if run is None:
                program = program_on(call)
                program.check(inputs[3:], program.sizes(*inputs[:3]), inputs[0].device)
                run = program.derivative(inputs[0].device.type, "fwd", wrt)
                if self.runs is not None:
                    self.runs[wrt] = run
            made = run.run(inputs, order)
        if self.folded:
            rows = self.made.batch, self.made.heads, -1
            return [x.reshape(*rows, x.shape[-1]) if x.dim() == 4 else x.view(rows) for x in made], made
        return self.results([in_order(x, order) if x.dim() == 4 else x for x in made]), made


def attention_in_pages(qkv: tuple[Tensor, Tensor, Tensor], options: Options, dropout: Dropout, lists: Lists) -> tuple[Any] | None:
    """What `attention` returns with these lists, as the only element; None where pages do not do, and a table of blocks has to.

    They do without gradients, for blocks of a multiple of 16 keys, and rows that look at nothing but their scores; for other blocks where
    single queries have lists and a device copies single rows.
    """
    if needing_gradient(qkv):
        return None
    found = paged_call(qkv, options, dropout, lists)
    if found is None or needing_gradient(found.call.values):
        return None
    results = found.attended()
    found.check()
    return (options.named(results, found.call.entry),)


def paged_call(
    qkv: tuple[Tensor, Tensor, Tensor], options: Options, dropout: Dropout, lists: Lists, decoded: bool = True, folded: Tensor | None = None
) -> PagedCall | None:
    """The call of kernels that read these lists as pages; None where there are none.

    Single queries are `decoded`, or heads are their rows. `folded`: q with the heads of a group as rows, where there is such.
    """
    index, form, problem = lists
    key = _key_of(qkv, options, dropout, lists, (decoded, folded is None))
    known = _TEMPLATES.get(key) if key is not None else None
    if known is not None:
        return known.call(qkv, lists, folded)
    small, drops = form.listed % PAGE_ROWS != 0, dropout.form is not None
    if not index.numel() or problem.is_empty or (small and (drops or min(form.queries, problem.sizes["Sq"]) > 1)):
        return None
    sizes, order = problem.sizes, input_order(problem.layout)
    q, k, v = (heads_first(x, order) for x in qkv)
    blocks = -(-sizes["Skv"] // form.listed)
    missing = blocks * form.listed - sizes["Skv"]
    if missing:
        k, v = (torch.nn.functional.pad(x, (0, 0, 0, missing)) for x in (k, v))
    whole = index.shape[1] == 1 and (k.stride(1) < k.stride(2) or sizes["Hkv"] == 1)
    made = sequences_of_lists(problem, form, index.shape[1], whole, (decoded, drops))
    k_pages, v_pages = (pages_of(x, made, blocks) for x in (k, v))
    shared = folded is not None and (made.heads, made.fold, made.key_heads) == (sizes["Hkv"], made.group, 1)
    packed = folded.detach().flatten(0, 2).unsqueeze(1) if folded is not None and shared else packed_rows(q, made)
    copied = any([x.data_ptr() != page.data_ptr() for x, page in ((k, k_pages), (v, v_pages))])
    if missing or copied:
        told(_COPIED.format(form.listed), "docs/key-lists.md")
    shapes = shapes_of(made, index, form, sizes["Skv"], causal_shift(options.functions[4], sizes))
    wanted = wanted_of(options.functions, shapes, drops, not decoded)
    single = decoded and min(form.queries, sizes["Sq"]) == 1
    wanted = wanted._replace(later=single and not any(wanted))
    prepared = _checked(index, shapes, wanted, options.target(problem), (k_pages, v_pages))
    functions = wrapped(options.functions, shapes, made, prepared)
    asked = Options(functions, options.scale, "bshd", options.lse, options.states, options.device)
    places = places_of(made, form.queries, index.device)
    pages = {"k_lengths": prepared.used, PAGES: prepared.pages}
    most = min(form.queries, sizes["Sq"]) * made.fold, index.shape[3] * form.listed
    sequences = {name: places.get(name, pages.get(name)) for name in (*SEQUENCES, PAGES)}
    if dropout.form is not None:
        assert prepared.shifts is not None
        dropout = Dropout((*dropout.form, str(form.listed)), {**dropout.values, **_places_of_dropout(made, form, prepared.shifts)})
    turned = output_order(problem.layout) == "bhsd" and made.fold == made.batch * made.heads == 1
    of_pages = _problem_of(packed, k_pages, v_pages, turned)
    call = asked.call(of_pages, (packed.unsqueeze(0), k_pages, v_pages), dropout, sequences)
    text = call.entry.traced.text
    if not looks_at_scores_alone(text) or (small and not has_gathers(text, options.target(problem))):
        return None
    common = {"most": most, "made": made, "shapes": shapes, "folded": shared, "order": output_order(problem.layout)}
    found = PagedCall(call=call, lists=prepared, index=index, **common)
    varying = {id(value): name for name, value in (*sequences.items(), (_SEEN, prepared.seen)) if value is not None}
    if key is not None and not missing and not copied and len(varying.keys() & set(map(id, call.values[3:]))) == len(varying):
        if len(_TEMPLATES) == _MOST:
            _TEMPLATES.clear()
        values = tuple([(varying.get(id(value), ""), value if id(value) not in varying else None) for value in call.values[3:]])
        _TEMPLATES[key] = PagedTemplate(call._replace(values=()), {**common, "runs": {}}, wanted, values)
    return found


@dataclass(frozen=True, eq=False)
class PagedTemplate:
    """What a call with such shapes and ready-made functions, which capture nothing, has in common with the next one: no tensor."""

    without_values: Call
    common: dict[str, Any]
    """Fields of its `PagedCall`."""
    wanted: WantedLists
    values: tuple[tuple[str, Any], ...]
    """Names of what each call makes, or values that stay."""

    def call(self, qkv: tuple[Tensor, Tensor, Tensor], lists: Lists, folded: Tensor | None) -> PagedCall:
        """The call for tensors of the same shapes and strides."""
        made, shapes, (index, form, problem) = self.common["made"], self.common["shapes"], lists
        q, k, v = (heads_first(x, input_order(problem.layout)) for x in qkv)
        shared = folded is not None and self.common["folded"]
        packed = folded.detach().flatten(0, 2)[None, :, None] if folded is not None and shared else packed_rows(q, made).unsqueeze(0)
        pages = [pages_of(x, made, shapes.blocks) for x in (k, v)]
        prepared = _checked(index, shapes, self.wanted, self.without_values.device, pages)
        places = places_of(made, form.queries, index.device)
        varying = {**places, "k_lengths": prepared.used, PAGES: prepared.pages, _SEEN: prepared.seen}
        captures = [varying[name] if name else value for name, value in self.values]
        values = (packed, *pages, *captures)
        return PagedCall(call=self.without_values._replace(values=values), lists=prepared, index=index, **self.common)


def _key_of(
    qkv: tuple[Tensor, Tensor, Tensor], options: Options, dropout: Dropout, lists: Lists, how: tuple[bool, bool]
) -> tuple[Any, ...] | None:
    """That of the template of a call; None where functions are the caller's own."""
    (_, k, v), (index, form, problem) = qkv, lists
    shift = ready_made_shift(options.functions, problem.sizes)
    asked = options.by_value(problem.layout)
    if asked is None or shift is None or dropout.form is not None or not all([type(x) in _PLAIN for x in (*qkv, index)]):
        return None
    sizes = tuple(problem.sizes.values())
    return shift, asked, problem.inputs, sizes, form, index.shape, index.device, k.stride(), v.stride(), how


def _checked(index: Tensor, shapes: ListShapes, wanted: WantedLists, device: str, pages: Sequence[Tensor]) -> PreparedLists:
    """The prepared lists, whose numbers were checked, or will be by `PagedCall.check`; kernels read these pages next."""
    prepared = prepare(index, shapes, wanted, device, None, pages)
    check_at_call(prepared, index, shapes.blocks, shapes.keys)
    return prepared


def _problem_of(packed: Tensor, k_pages: Tensor, v_pages: Tensor, turned: bool) -> Problem:
    """What shapes say of a call on pages; `turned`: o comes with heads first, so that it needs no copy."""
    key = (packed.shape, k_pages.shape, v_pages.shape, packed.dtype, k_pages.dtype, v_pages.dtype, packed.device, turned)
    found = _PROBLEMS.get(key)
    if found is None:
        found = problem_of(packed, k_pages, v_pages, True)
        found = dataclasses.replace(found, layout="bshd->bhsd") if turned else found
        if len(_PROBLEMS) == _MOST:
            _PROBLEMS.clear()
        _PROBLEMS[key] = found
    return found


def pages_of(x: Tensor, made: SequenceForm, blocks: int) -> Tensor:
    """[B, H, S, D] as pages [B blocks, keys, H, D], or of single heads [B H blocks, keys, 1, D]."""
    cut = x.unflatten(2, (blocks, -1))
    if made.key_heads > 1 or x.shape[1] == 1:
        return cut.permute(0, 2, 3, 1, 4).flatten(0, 1)
    return cut.flatten(0, 2).unsqueeze(2)


def _places_of_dropout(made: SequenceForm, form: ListForm, shifts: Tensor) -> dict[str, Tensor]:
    """Where sequences are in the whole, for random numbers, which are those of true places."""
    count, device = made.batch * made.heads * made.blocks, shifts.device

    def make() -> dict[str, Tensor]:
        number = torch.arange(count, device=device)
        rows = number[:, None] // made.blocks * made.group + torch.arange(made.group, device=device)
        return {"rows": rows.to(torch.int32), "queries": (number % made.blocks * form.queries).to(torch.int32)}

    kept = kept_by_sizes(("dropout", made, form.queries, device), make)
    return dict(zip(LISTED, (kept["rows"], kept["queries"], shifts), strict=True))


def has_gathers(text: str, device: str) -> bool:
    """Whether a device has kernels of a program that see single queries' keys in pages of any size."""
    return getattr(driver.compile_derivative(text, device, "", []), "gathers", lambda: False)()
