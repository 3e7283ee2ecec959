"""`key_index=` and `key_block=` of `attention`: which blocks of keys each block of queries sees."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor

from attn_mlir.api.call import attend
from attn_mlir.api.dropout import Dropout
from attn_mlir.api.eight_bit import refuse_derivatives, refuse_eight_bit
from attn_mlir.api.extra_qk import extra_pairs, with_dims
from attn_mlir.api.given_masks import check_sizes, is_block_mask, sizes_of, with_function
from attn_mlir.api.inputs import check_device, check_inputs
from attn_mlir.api.kept_calls import Dense
from attn_mlir.api.kernel_choice import is_transformed, reads_pages
from attn_mlir.api.key_gathered import attention_gathered
from attn_mlir.api.key_gradients import attention_listed_with_gradients
from attn_mlir.api.key_numbers import check_numbers
from attn_mlir.api.key_pages import PAGE_ROWS, attention_in_pages
from attn_mlir.api.options import Options
from attn_mlir.backends.kept import kept_by_sizes
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.frontend.given import LISTS
from attn_mlir.performance import told
from attn_mlir.runtime.call import Problem
from attn_mlir.runtime.dispatch import dispatch, needing_gradient
from attn_mlir.runtime.key_lists import ListForm, fold, form_of, lists_of, unfold
from attn_mlir.runtime.orders import all_heads_first, all_in_order, input_order, output_order

_SINGLE = "cuda"
"""The device whose kernels copy single rows of pages, too."""
_TABLE = "table"
MAX_KEY_BLOCK = 1 << 20
FEW_QUERIES = 16
"""Blocks of fewer queries do not fill the rows of a kernel's block."""


def attention_listed(
    qkv: tuple[Any, Any, Any], options: Options, dropout: Dropout, extra: Sequence[torch.Tensor], lists: tuple[Any, Any]
) -> Any:
    """What `attention` returns with `lists`, its key_index and key_block."""
    problem = check_inputs(*qkv, options.layout)
    layout, sizes, functions, index = problem.layout, problem.sizes, options.functions, lists[0]
    if is_block_mask(functions[4]):
        check_sizes(sizes_of(functions[4]), sizes)
        functions = with_function(functions)
    form = check_key_lists(*lists, sizes, problem.device)
    if options.target(problem) != "cpu":
        pages = _in_pages(qkv, options._replace(functions=functions), dropout, extra, (index, form, problem))
        if pages is not None:
            return pages[0]
        return attend(qkv, _as_table(options, functions, (index, form, problem)), dropout, extra, problem=problem)[0]
    if extra:
        refuse_eight_bit(qkv, "extra_qk")
    pairs = extra_pairs(extra, qkv[0], problem, layout)
    group = group_of(form, index, sizes, dropout.form is not None)
    given = {**pairs.values, **dict.fromkeys(LISTS)}
    if group > 1:
        q, *others = all_heads_first(qkv, input_order(layout), 3)
        qkv = fold(q, group), *others
        given |= {name: fold(value, group) for name, value in pairs.values.items() if name.startswith("q")}
        form = dataclasses.replace(form, queries=form.queries * group)
        problem = check_inputs(*qkv, "bhsd")
    problem = with_dims(problem, pairs)
    problem = dataclasses.replace(problem, inputs=dataclasses.replace(problem.inputs, lists=form.sizes, group=group))
    options = options._replace(functions=functions)
    call = options.call(problem, qkv, dropout, given)
    refuse_derivatives(call)
    made = make_lists(index, sizes, form, bool(needing_gradient(call.values)))
    results = dispatch(call._replace(values=(*qkv, *made, *call.values[3 + len(LISTS) :])))
    if group > 1:
        unfolded = all_in_order([unfold(result, group) for result in results], output_order(layout), call.entry.traced.weights)
        results = [result.contiguous() for result in unfolded]
    return options.named(results, call.entry)


def _in_pages(
    qkv: tuple[Any, Any, Any],
    options: Options,
    dropout: Dropout,
    extra: Sequence[torch.Tensor],
    lists: tuple[torch.Tensor, ListForm, Problem],
) -> tuple[Any] | None:
    """The result, of kernels that load what is listed, where a device has such for this call."""
    index, form, problem = lists
    if extra or is_transformed() or not reads_pages(options.target(problem), index):
        return None
    small = form.listed % PAGE_ROWS and options.target(problem) != _SINGLE
    made = None if small else attention_in_pages(qkv, options, dropout, lists)
    if made is not None or not torch.is_grad_enabled():
        return made

    def dense() -> Dense:
        return _traced_table(qkv, options, dropout, lists)

    group = group_of(form, index, problem.sizes, dropout.form is not None)
    made = attention_listed_with_gradients(qkv, options, dropout, lists, group, dense)
    if made is None and dropout.form is None:
        made = attention_gathered(qkv, options, lists, dense)
    return made


def _traced_table(qkv: tuple[Any, Any, Any], options: Options, dropout: Dropout, lists: tuple[torch.Tensor, ListForm, Problem]) -> Dense:
    """The call with a mask that reads a table, whose functions are traced now; the table is made later, of lists."""
    index, form, problem = lists
    kept = kept_by_sizes((_TABLE, index.device), lambda: {_TABLE: torch.zeros((1, 1, 1, 1), dtype=torch.bool, device=index.device)})
    stand_in = kept[_TABLE]
    mask = _mask_by(stand_in, problem.sizes["Hq"] // index.shape[1], form, options.functions[4])
    call = options._replace(functions=(*options.functions[:4], mask, options.functions[5])).call(problem, qkv, dropout)
    return call, {_TABLE: stand_in}, lambda numbers: {_TABLE: _table_of(numbers, problem.sizes, form)}


def _as_table(options: Options, functions: tuple[Any, ...], lists: tuple[torch.Tensor, ListForm, Problem]) -> Options:
    """The same with a mask that reads a table of the lists."""
    index, form, problem = lists
    return options._replace(functions=(*functions[:4], mask_of(index, problem.sizes, form, functions[4]), functions[5]))


def check_key_lists(index: Any, block: Any, sizes: Mapping[str, Any], device: torch.device) -> ListForm:
    """The form of lists for q, k and v of these sizes. Raises ArgumentError naming what is wrong."""
    if block is None:
        raise ArgumentError("key_index needs key_block=(queries, keys), the sizes of the blocks that it counts in")
    sized = isinstance(block, (tuple, list)) and len(block) == 2 and all([type(n) is int and 1 <= n <= MAX_KEY_BLOCK for n in block])
    if not sized:
        raise ArgumentError(f"key_block must be two positive integers, queries and keys of a block, got {block!r}")
    if not isinstance(index, torch.Tensor) or index.dtype != torch.int32:
        given = f"a tensor of {index.dtype}: use key_index.to(torch.int32)" if isinstance(index, torch.Tensor) else type(index).__name__
        raise ArgumentError(f"key_index must be an int32 tensor, got {given}")
    if index.layout != torch.strided:
        raise ArgumentError(f"key_index must be dense, got layout {index.layout}: use key_index.to_dense()")
    queries, keys = block
    wanted = "[batch, 1 or heads of k or of q, blocks of queries, entries]"
    if index.dim() != 4:
        raise ArgumentError(f"key_index must be {wanted}, got shape {list(index.shape)}")
    check_device("key_index", index, device)
    blocks = -(-sizes["Sq"] // queries)
    if index.shape[0] != sizes["B"] or index.shape[2] != blocks:
        raise ArgumentError(
            f"key_index must be {wanted}, here [{sizes['B']}, ..., {blocks}, ...] for {sizes['Sq']} queries in blocks of {queries}, "
            f"got shape {list(index.shape)}"
        )
    if index.shape[1] not in (1, sizes["Hkv"], sizes["Hq"]):
        raise ArgumentError(
            f"key_index has {index.shape[1]} heads: give 1 for all, {sizes['Hkv']} for those of k, or {sizes['Hq']} for those of q"
        )
    return form_of(queries, keys)


def group_of(form: ListForm, index: torch.Tensor, sizes: Mapping[str, Any], dropout: bool) -> int:
    """How many query heads become rows of their key head, so that they read the keys of a short block of queries once; 1: none.

    They must share their lists. Dropout's random numbers are made for rows that follow each other.
    """
    shared = index.shape[1] in (1, sizes["Hkv"])
    return sizes["Hq"] // max(1, sizes["Hkv"]) or 1 if shared and form.queries < FEW_QUERIES and not dropout else 1


def make_lists(index: torch.Tensor, sizes: Mapping[str, Any], form: ListForm, inverse: bool) -> list[torch.Tensor]:
    """The tensors of the lists; see `runtime.key_lists`. In graphs without data, an operator stands for them."""
    if is_functorch_wrapped_tensor(index):
        raise UnsupportedError("key_index is batched by torch.vmap: put its batches into the dimension of q's batch instead")
    if isinstance(index, FakeTensor) or torch.compiler.is_dynamo_compiling() or torch._C._len_torch_dispatch_stack():
        return torch.ops.attn_mlir.key_lists(index, sizes["Skv"], form.listed, inverse)
    with temporarily_clear_interpreter_stack():  # inside of torch.func's transforms, which hide the memory of tensors
        return lists_of(index, sizes["Skv"], form, inverse)


def mask_of(index: torch.Tensor, sizes: Mapping[str, int], form: ListForm, mask_mod: Callable[..., Any] | None) -> Callable[..., Any]:
    """The lists as a mask that reads a table of all blocks, for devices whose kernels take no lists."""
    return _mask_by(_table_of(index, sizes, form), sizes["Hq"] // max(1, index.shape[1]), form, mask_mod)


def _table_of(index: torch.Tensor, sizes: Mapping[str, int], form: ListForm) -> torch.Tensor:
    """Which blocks are listed, [B, heads of lists, lists, blocks]."""
    blocks = -(-sizes["Skv"] // form.listed)
    if form.keys == 1:
        told(f"key_index lists blocks of {form.listed} keys, which this device reads as a mask of all keys", "docs/key-lists.md")
    check_numbers(index, blocks, form.listed)
    # One column more takes what is no block.
    table = torch.zeros((*index.shape[:3], blocks + 1), dtype=torch.bool, device=index.device)
    table.scatter_(3, torch.where(index < 0, blocks, index).long(), True)
    return table[..., :blocks].contiguous()


def _mask_by(table: torch.Tensor, group: int, form: ListForm, mask_mod: Callable[..., Any] | None) -> Callable[..., Any]:
    """The mask of a table whose heads are those of a `group` each."""
    queries, keys = form.queries, form.listed

    def listed(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        present = table[b, h // group, q_idx // queries, kv_idx // keys]
        return present if mask_mod is None else present & mask_mod(b, h, q_idx, kv_idx)

    return listed


def lists_in_graph(
    q: torch.Tensor, k: torch.Tensor, extra: Sequence[torch.Tensor], lists: tuple[Any, Any], dropout: bool
) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor], tuple[int, ...]]:
    """q and the additional tensors with heads as rows, the tensors of the lists, and their blocks and group, inside of torch.compile."""
    sizes: dict[str, Any] = {"B": q.shape[0], "Hq": q.shape[1], "Sq": q.shape[2], "Hkv": k.shape[1], "Skv": k.shape[2]}
    index: torch.Tensor = lists[0]
    form = check_key_lists(*lists, sizes, q.device)
    if q.device.type != "cpu":
        raise UnsupportedError("key_index inside of torch.compile runs on the CPU: call it uncompiled, or move the tensors")
    group = group_of(form, index, sizes, dropout)
    grad = torch.is_grad_enabled()
    made = torch.ops.attn_mlir.key_lists(index, sizes["Skv"], form.listed, grad)
    if group > 1:
        q, extra = fold(q, group), [x if i % 2 else fold(x, group) for i, x in enumerate(extra)]
    return q, list(extra), made, (form.queries * group, form.keys, form.tile, group)
