"""Key lists for GPUs whose kernels read keys in pages: each block of queries is a sequence, and the blocks that it lists are its pages.

So kernels load what is listed through a table, and nothing else: the sorted lists are `block_table`, and functions get the true positions.
Short blocks of queries are what decoding is: heads of a group are rows, and a single query sees its keys in parts.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir import driver
from attn_mlir.api.dropout import Dropout
from attn_mlir.api.key_numbers import check_numbers
from attn_mlir.api.makers import MADE
from attn_mlir.api.masks import causal
from attn_mlir.api.options import Options
from attn_mlir.api.varlen_inputs import problem_of
from attn_mlir.backends.prepared import ListShapes, PreparedLists, WantedLists
from attn_mlir.backends.work import keep_work
from attn_mlir.dialects import loaded
from attn_mlir.frontend import sizes as frontend_sizes
from attn_mlir.frontend.dropout import LISTED
from attn_mlir.frontend.given import PAGES, SEQUENCES
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk
from attn_mlir.performance import told
from attn_mlir.runtime.call import Call, Problem
from attn_mlir.runtime.checked import is_checked
from attn_mlir.runtime.dispatch import dispatch, needing_gradient, program_on
from attn_mlir.runtime.kept import kept_by_sizes
from attn_mlir.runtime.key_lists import ListForm
from attn_mlir.runtime.orders import heads_first, in_order, input_order, output_order
from attn_mlir.runtime.prepared_lists import prepare
from attn_mlir.runtime.varlen import largest

PAGE_ROWS = 16
"""Keys of a block are a multiple of so many where kernels copy pages."""
BLOCK_ROWS = 128
"""Rows of a kernel's block, which queries of several heads that share a list fill where a list has fewer."""
_COPIED = (
    "key_index: k and v are copied at every call, since blocks of one head are not pages there: give heads first (bhsd), a multiple of {} "
    "keys, or one list for all heads"
)
Tensor = torch.Tensor
Lists = tuple[Tensor, ListForm, Problem]


@dataclass(frozen=True)
class _Sequences:
    """Sequences of (batch entry, head of the lists, block of queries), in this order: how many heads and blocks there are."""

    batch: int
    heads: int
    blocks: int
    queries: int
    """Of all blocks."""
    group: int
    """Query heads of one head here."""
    fold: int
    """How many of these are rows of a sequence, side by side: each query is so many rows, and kernels see group / fold heads."""
    key_group: int
    """Heads here of one key head."""
    key_heads: int
    """Key heads that a sequence sees."""
    all_key_heads: int

    @property
    def apart(self) -> int:
        """Heads of one key head that kernels see. Query head h of a head here is (key head, row, one of these)."""
        return self.group // self.fold // self.key_heads


@dataclass(frozen=True)
class PagedCall:
    """A call on packed sequences of queries with pages of keys, and how its results become those of the whole."""

    call: Call
    most: tuple[int, int]
    """Rows and keys of the longest sequence."""
    made: _Sequences
    lists: PreparedLists
    index: Tensor
    """What they were made of, numbers of so many `blocks` of so many `keys`."""
    blocks: int
    keys: int
    folded: bool
    """Whether rows lie as those of q with the heads of a group as rows."""
    order: str
    """Of o."""

    def results(self, found: Sequence[Tensor]) -> list[Tensor]:
        """o and values of rows, [B, Hq, Sq], of those of sequences; what else has the shape of o stays [B, Hq, Sq, D]."""
        weights = self.call.entry.traced.weights
        turned = output_order(self.call.layout) == "bhsd"
        found = [x.transpose(1, 2) if turned and x.dim() == 4 else x for x in found]
        return [_back(x.squeeze(0), self.made, self.order if number < weights else "bhsd") for number, x in enumerate(found)]

    def check(self) -> None:
        """Waits until the lists are known to be right; other kernels may have started, which read nothing outside. Raises ArgumentError."""
        if self.lists.wrong is not None and self.lists.wrong():
            check_numbers(self.index, self.blocks, self.keys)

    def saved(self, wrt: str) -> list[Tensor]:
        """The results of a forward pass that keeps what its backward reads; `wrt` names arguments that need a gradient, "": all."""
        call = self.call
        program = program_on(call)
        q, k, v, *captures = call.heads_first()
        with largest(*self.most):
            program.check(captures, program.sizes(q, k, v), q.device)
            order = output_order(call.layout)
            made = program.derivative(q.device.type, "fwd", wrt).run([q, k, v, *captures], order)
        if self.folded:
            rows = self.made.batch, self.made.heads, -1
            return [x.reshape(*rows, x.shape[-1]) if x.dim() == 4 else x.view(rows) for x in made]
        return self.results([in_order(x, order) if x.dim() == 4 else x for x in made])


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
    with largest(*found.most):
        results = found.results(dispatch(found.call))
    found.check()
    return (options.named(results, found.call.entry),)


def paged_call(
    qkv: tuple[Tensor, Tensor, Tensor], options: Options, dropout: Dropout, lists: Lists, decoded: bool = True, folded: Tensor | None = None
) -> PagedCall | None:
    """The call of kernels that read these lists as pages; None where there are none.

    Single queries are `decoded`, or heads are their rows. `folded`: q with the heads of a group as rows, where there is such.
    """
    index, form, problem = lists
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
    heads = 1 if whole else max(index.shape[1], sizes["Hkv"])
    rows, key_heads = min(form.queries, sizes["Sq"]), sizes["Hkv"] if whole else 1
    group = sizes["Hq"] // heads
    fold = 1 if drops else _fold(rows, group // key_heads, decoded)
    key_group = 1 if whole else heads // sizes["Hkv"]
    made = _Sequences(sizes["B"], heads, index.shape[2], sizes["Sq"], group, fold, key_group, key_heads, sizes["Hkv"])
    k_pages, v_pages = (_pages(x, made, blocks) for x in (k, v))
    by_heads = q.unflatten(1, (heads, key_heads, fold, made.apart))
    shared = folded is not None and (heads, fold, key_heads) == (sizes["Hkv"], group, 1)
    packed = folded.detach().flatten(0, 2).unsqueeze(1) if shared else _joined(by_heads.permute(0, 1, 5, 3, 2, 4, 6))
    if missing or any(x.data_ptr() != page.data_ptr() for x, page in ((k, k_pages), (v, v_pages))):
        told(_COPIED.format(form.listed), "docs/key-lists.md")
    shift, moded = _causal_shift(options.functions[4], sizes), any(function is not None for function in options.functions[:4])
    moded = moded or (options.functions[4] is not None and shift is None)
    shapes = ListShapes(
        *index.shape, blocks, form.listed, sizes["Skv"], form.queries, sizes["Sq"], shift, heads // index.shape[1], key_group,
        sizes["Hkv"] // key_heads,
    )  # fmt: skip
    wanted = WantedLists(moded and form.listed == 1, drops or (moded and form.listed > 1), shift is not None and rows > 1, not decoded)
    prepared = prepare(index, shapes, wanted, options.target(problem))
    if prepared.wrong is None or is_checked():
        check_numbers(index, blocks, form.listed)
    functions = _wrapped(options.functions, form, made, prepared, (sizes["Sq"], sizes["Skv"], sizes["Hq"]))
    if shift is not None:
        functions = (*functions[:4], None if prepared.seen is None else _mask_of(prepared.seen, fold), functions[5])
    asked = Options(functions, options.scale, "bshd", options.lse, options.states, options.device)
    places = _places(made, form.queries, index.device)
    pages = {"k_lengths": prepared.used, PAGES: prepared.pages}
    most = rows * fold, index.shape[3] * form.listed
    sequences = {name: places.get(name, pages.get(name)) for name in (*SEQUENCES, PAGES)}
    if dropout.form is not None:
        dropout = Dropout((*dropout.form, str(form.listed)), {**dropout.values, **_places_of_dropout(made, form, prepared.shifts)})
    of_pages = problem_of(packed, k_pages, v_pages, True)
    if output_order(problem.layout) == "bhsd" and fold == made.batch * heads == 1:
        of_pages = dataclasses.replace(of_pages, layout="bshd->bhsd")  # o needs no copy
    call = asked.call(of_pages, (packed.unsqueeze(0), k_pages, v_pages), dropout, sequences)
    text = call.entry.traced.text
    if not _looks_at_scores_alone(text) or (small and not _gathers(text, options.target(problem))):
        return None
    return PagedCall(call, most, made, prepared, index, blocks, form.listed, shared, output_order(problem.layout))


def _fold(rows: int, group: int, decoded: bool) -> int:
    """How many heads of a group, a divisor of it, fill a block with `rows` queries of each. Decoding packs those of single queries."""
    return 1 if rows == 1 and decoded else max(n for n in range(1, group + 1) if group % n == 0 and (n == 1 or n * rows <= BLOCK_ROWS))


def _joined(x: Tensor) -> Tensor:
    """[B, heads, queries, rows, key heads, heads, D] as [sequences' rows, heads, D], a view where strides allow."""
    shape, strides = x.shape, x.stride()
    for joined in ((0, 1, 2, 3), (4, 5)):
        dims = [dim for dim in joined if shape[dim] > 1]
        if any(strides[a] != shape[b] * strides[b] for a, b in itertools.pairwise(dims)):
            x = _dense(x)
            break
    return x.flatten(4, 5).flatten(0, 3)


def _dense(x: Tensor) -> Tensor:
    """`x` without gaps in memory; a copy moves words of 8 bytes where rows have such."""
    if x.is_contiguous():
        return x
    words = 8 // x.element_size()
    if x.stride(-1) != 1 or any(n % words for n in (x.shape[-1], x.storage_offset(), *x.stride()[:-1])):
        return x.contiguous()
    return x.view(torch.int64).contiguous().view(x.dtype)


def _mask_of(seen: Tensor, fold: int) -> Callable[..., Any]:
    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return kv < seen[b, q if fold == 1 else q // fold]

    return mask


def _pages(x: Tensor, made: _Sequences, blocks: int) -> Tensor:
    """[B, H, S, D] as pages [B blocks, keys, H, D], or of single heads [B H blocks, keys, 1, D]."""
    cut = x.unflatten(2, (blocks, -1))
    if made.key_heads > 1 or x.shape[1] == 1:
        return cut.permute(0, 2, 3, 1, 4).flatten(0, 1)
    return cut.flatten(0, 2).unsqueeze(2)


def _causal_shift(mask: Any, sizes: Mapping[str, Any]) -> int | None:
    """Of `masks.causal`, query i sees the keys up to i and so many more; None for other masks.

    Lists are in order, so that a query sees the first keys of its list, and no function has to tell.
    """
    make, args, kwargs = getattr(mask, MADE, (None, (), {}))
    if make is not causal or hasattr(mask, "__wrapped__"):  # functools.wraps gives its attributes to another function
        return None
    return sizes["Skv"] - sizes["Sq"] if (*args, *kwargs.values()) == ("bottom_right",) else 0


def _places(made: _Sequences, queries: int, device: torch.device) -> dict[str, Tensor]:
    """Where the queries of sequences are."""

    def make() -> dict[str, Tensor]:
        own = torch.arange(0, made.queries, queries, device=device)
        lengths = (made.queries - own).clamp(max=queries).repeat(made.batch * made.heads) * made.fold
        places = {"q_begins": lengths.cumsum(0) - lengths, "q_lengths": lengths, "k_begins": torch.zeros_like(lengths)}
        found = {name: value.to(torch.int32) for name, value in places.items()}
        keep_work(found["q_lengths"])
        return found

    return kept_by_sizes((made, queries, device), make)


def _places_of_dropout(made: _Sequences, form: ListForm, shifts: Tensor) -> dict[str, Tensor]:
    """Where sequences are in the whole, for random numbers, which are those of true places."""
    count, device = made.batch * made.heads * made.blocks, shifts.device

    def make() -> dict[str, Tensor]:
        number = torch.arange(count, device=device)
        rows = number[:, None] // made.blocks * made.group + torch.arange(made.group, device=device)
        return {"rows": rows.to(torch.int32), "queries": (number % made.blocks * form.queries).to(torch.int32)}

    kept = kept_by_sizes(("dropout", made, form.queries, device), make)
    return dict(zip(LISTED, (kept["rows"], kept["queries"], shifts), strict=True))


@functools.lru_cache(256)
def _looks_at_scores_alone(text: str) -> bool:
    """Whether the row of a program does not ask which batch entry, head or query it is, nor for lengths, which are those of a sequence."""
    with loaded():
        module = ir.Module.parse(text)
        for row in find_all(module.operation, "attn.row"):
            places = [value for value in row.regions[0].blocks[0].arguments if isinstance(value.type, ir.IndexType)]
            if any(list(value.uses) for value in places) or any(op.name == "tensor.dim" for op in walk(row)):
                return False
    return True


def _gathers(text: str, device: str) -> bool:
    """Whether a device has kernels of a program that see single queries' keys in pages of any size."""
    return getattr(driver.compile_derivative(text, device, "", []), "gathers", lambda: False)()


def _back(x: Tensor, made: _Sequences, order: str) -> Tensor:
    """o of all sequences, [rows, heads of one, D], in the order of a layout, and row outputs as [B, Hq, Sq]."""
    rows, heads = (made.batch, made.heads, made.queries, made.fold), (made.key_heads, made.apart)
    if x.dim() == 2:
        return x.unflatten(1, rows).unflatten(0, heads).permute(2, 3, 0, 5, 1, 4).flatten(1, 4)
    apart = x.unflatten(1, heads).unflatten(0, rows)
    if order == "bhsd":
        return _dense(apart.permute(0, 1, 4, 3, 5, 2, 6)).flatten(1, 4)
    if order == "bshd":
        return _dense(apart.permute(0, 2, 1, 4, 3, 5, 6)).flatten(2, 5)
    return _dense(apart.permute(2, 0, 1, 4, 3, 5, 6)).flatten(2, 5)


def _wrapped(
    functions: tuple[Any, ...], form: ListForm, made: _Sequences, lists: PreparedLists, lengths: tuple[int, int, int]
) -> tuple[Any, ...]:
    """The functions of true places, as functions of a sequence, a head of it, and positions in it."""
    query_mod, key_mod, value_mod, score_mod, mask_mod, row = functions
    heads, blocks, group, of_key, key_heads = made.heads, made.blocks, made.group, made.key_group, made.key_heads
    queries, keys, fold, apart = form.queries, form.listed, made.fold, made.apart
    q_len, kv_len, num_heads = lengths

    def entry(b: Any) -> Any:
        return b // (heads * blocks)

    def head(b: Any, h: Any, q: Any) -> Any:
        own = h if key_heads == 1 or fold == 1 else h // apart * (fold * apart) + h % apart
        return (b // blocks) % heads * group + (own if fold == 1 else own + q % fold * apart)

    def query(b: Any, q: Any) -> Any:
        return (b % blocks * queries + (q if fold == 1 else q // fold)).clamp(max=q_len - 1)  # rows past the end are computed, too

    listed = lists.listed if keys == 1 else lists.shifts

    def key(b: Any, kv: Any) -> Any:
        assert listed is not None
        return listed[b, kv] if keys == 1 else (kv + listed[b, kv // keys]).clamp(0, kv_len - 1)  # blocks that are none are somewhere else

    def with_sizes() -> Any:
        return frontend_sizes.given(q_len=q_len, kv_len=kv_len, num_heads=num_heads)

    def of_score(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        with with_sizes():
            return score_mod(score, entry(b), head(b, h, q), query(b, q), key(b, kv))

    def of_mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        with with_sizes():
            return mask_mod(entry(b), head(b, h, q), query(b, q), key(b, kv))

    def of_query(x: Any, b: Any, h: Any, q: Any, d: Any) -> Any:
        with with_sizes():
            return query_mod(x, entry(b), head(b, h, q), query(b, q), d)

    def of_keys(mod: Callable[..., Any]) -> Callable[..., Any]:
        def moded(x: Any, b: Any, h: Any, kv: Any, d: Any) -> Any:
            with with_sizes():
                return mod(x, entry(b), h if key_heads > 1 else (b // blocks) % heads // of_key, key(b, kv), d)

        return moded

    return (
        None if query_mod is None else of_query,
        None if key_mod is None else of_keys(key_mod),
        None if value_mod is None else of_keys(value_mod),
        None if score_mod is None else of_score,
        None if mask_mod is None else of_mask,
        row,
    )
