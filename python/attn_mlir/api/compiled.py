"""Attention and linear attention inside torch.compile: the part that dynamo traces.

The user's functions run here on tensors of one element that stand for scores and positions, as dynamo traces everything. What
they capture becomes an input of the graph. When the graph is compiled, `api.graphs` reads the functions from it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._higher_order_ops.wrap import dynamo_bypassing_wrapper
from torch.nn.attention.flex_attention import BlockMask as FlexBlockMask

from attn_mlir import driver
from attn_mlir.api.block_mask import BlockMask
from attn_mlir.api.call import attend, attend_linear
from attn_mlir.api.dropout import dropout_of, seed_in_graph
from attn_mlir.api.given_masks import check_sizes, function_of, sizes_of
from attn_mlir.api.graph_indices import begin_functions, end_functions
from attn_mlir.api.graph_pieces import element, symbol
from attn_mlir.api.graphs import run_graph, run_linear_graph, traced, traced_linear
from attn_mlir.api.inputs import LAYOUTS, device_type, layout_of
from attn_mlir.api.kernel_choice import is_differentiated
from attn_mlir.api.key_lists import lists_in_graph, unfold
from attn_mlir.api.linear_inputs import check_segment
from attn_mlir.api.options import LinearOptions, Options, named_results
from attn_mlir.backends import tensors_of
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.frontend import randomness
from attn_mlir.frontend.linear import INPUTS
from attn_mlir.frontend.report import failure
from attn_mlir.frontend.scores import numbered
from attn_mlir.runtime.orders import all_in_order, heads_first, in_order, input_order, output_order
from attn_mlir.runtime.row_values import score_of

_PAIR = ("b", "h", "q_idx", "kv_idx")
_MODS = (("query", "q_idx"), ("key", "kv_idx"), ("value", "kv_idx"))
_COUNTS = (1, 4, 5)
"""How many arguments a mod of linear attention may take."""


def attention_in_graph(
    qkv: tuple[torch.Tensor, ...], options: tuple[Any, ...], dropout: tuple[Any, Any] = (0.0, None), extra: Sequence[torch.Tensor] = (),
    *, packed: Sequence[torch.Tensor] = (), lists: tuple[Any, Any] = (None, None), ring: str = "", run: Callable[..., Any] = run_graph,
) -> Any:  # fmt: skip
    """What `attention` returns; `dropout` is its probability and seed, `extra` is q2, k2, q3...

    `options` are the first fields of `Options`, as a plain tuple where they are made in the graph: dynamo looks into functions that a
    named tuple is made of, and compiles again for each number they hold.
    `packed` are those of `frontend.given.SEQUENCES`, where q, k and v are packed; `lists` are key_index and key_block. `ring` tells of
    other processes, and `run` of what computes the graph's `traced` with these.
    """
    q, k, v = qkv
    functions, scale, asked_layout, lse, states, device, deterministic = options[:7]
    layout, (dropout_p, dropout_seed) = layout_of(asked_layout), dropout
    emulation = emulation_in_graph(None if device is None else str(device), q)
    if in_transform():
        if packed:
            raise UnsupportedError("attention_varlen inside a transform of torch.func is no part of a graph: call it uncompiled")
        if lists[0] is not None:
            raise UnsupportedError("key_index inside a transform of torch.func is no part of a graph: call it uncompiled")
        return outside(lambda: attend(qkv, Options(*options), dropout_of(dropout_p, dropout_seed, q), extra)[0])
    seed = seed_in_graph(dropout_p, dropout_seed, q)
    score = score_of(q)
    score_mod, mask_mod, row = functions[3:]
    if isinstance(mask_mod, (BlockMask, FlexBlockMask)):
        mask_mod = _mask_function(mask_mod, q, k, layout)
    if row is None:
        raise ArgumentError("row must be a function from a row of scores to its weights, got None")

    products = len(extra) // 2 + 1

    def body(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *further: torch.Tensor) -> tuple[Any, int, tuple[str, ...]]:
        extra, packed = further[: 2 * (products - 1)], further[2 * (products - 1) :]
        pieces, names, drawn = [], [], draws()
        begin_functions()
        for (name, position), mod in zip(_MODS, functions[:3], strict=True):
            if mod is not None:
                arguments = [element(f"{name}.x", score, [q, k, v]), *_places(name, ("b", "h", position, "d"), q.device)]
                pieces.append(as_tensor(_call(mod, arguments, (1, 5)), score))
                names.append(name)
        if score_mod is not None:
            indices = _places("score", _PAIR, q.device)
            scores = [element(f"score.{name}", score, [q, k, v, *extra]) for name in numbered("score", products)]
            if products == 1 or arity(score_mod, (5, products + 4)) == 5:
                made = tuple([score_mod(each, *indices) for each in scores])
            else:
                made = score_mod(*scores, *indices)
                made = made if isinstance(made, tuple) else (made,)
            pieces += [as_tensor(each, score) for each in made]
            names += ["score"] * len(made)
        if mask_mod is not None:
            pieces.append(as_tensor(mask_mod(*_places("mask", _PAIR, q.device)), torch.bool))
            names.append("mask")
        keys = k.shape[2] or 1
        count = names.count("score") or products
        given = [element(f"row.{name}", score, [q, k, v, *extra], keys) for name in numbered("s", count)]
        given += _places("row", _PAIR[:3], q.device)
        given.append(symbol("row.kv_idx", torch.int64, q.device, keys))
        made = row(*given[: arity(row, (count, count + 3, count + 4))])
        weights: list[Any] = list(made) if isinstance(made, tuple) else [made]
        told: dict[str, Any] = weights.pop() if isinstance(weights[-1], dict) else {}
        pieces += [as_tensor(each, score) for each in (*weights, *told.values())]
        names.append("row")
        end_functions()
        refuse_draws(drawn)
        outputs = [name for name in told if states or (lse and name == "lse")]
        if lse and "lse" not in outputs:
            outputs.append("lse")
        lines = ["\n".join(words) for words in (names, told, outputs)]
        asked = (scale, layout, lse, states, deterministic, emulation, seed, dropout_p)
        results = traced(q, k, v, list(extra), list(packed), pieces, *lines, *asked, list(shape), ring)
        return tuple(results), len(weights), tuple(outputs)

    order, wanted = input_order(layout), layout
    q, k, v, *extra = [heads_first(x, order) for x in (q, k, v, *extra)]
    shape: tuple[int, ...] = ()
    if lists[0] is not None:
        q, extra, packed, shape = lists_in_graph(q, k, extra, lists, bool(seed))
        layout = layout if shape[-1] == 1 else "bhsd"
    results, weights, outputs = dynamo_bypassing_wrapper(run, body, q, k, v, *extra, *packed)
    if shape and shape[-1] > 1:
        results = [unfold(result, shape[-1]) for result in results]
        results = [result.contiguous() for result in all_in_order(results, output_order(wanted), weights)]
    else:
        results = all_in_order(results, output_order(layout), weights)
    return named_results(results, weights, outputs, lse, states)


def linear_in_graph(inputs: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    """What `linear_attention` returns; `inputs` are q, k, v and those of `INPUTS`."""
    scale, final, layout, device, segment, mods, read_before = options
    emulation = emulation_in_graph(None if device is None else str(device), inputs[0])
    if layout not in ("bhsd", "bshd"):
        raise ArgumentError(f'layout is "bhsd" or "bshd", got {layout!r}')
    check_segment(segment)
    if in_transform():
        return outside(lambda: attend_linear(inputs, LinearOptions(*options))[0])
    q, k, v, *others = inputs
    score = score_of(q)
    q, k, v = [heads_first(x, layout) for x in (q, k, v)]
    further, given = [], []
    for name, tensor in zip(INPUTS, others, strict=True):
        if tensor is not None:
            if name not in ("initial_state", "cu_seqlens") and tensor.dim() >= 3:
                tensor = heads_first(tensor, layout)
            # Integers stay what they are, for the check of `check_linear`, and keys have the dtype of k.
            further.append(tensor.to(score) if tensor.is_floating_point() and not name.endswith("_key") else tensor)
            given.append(name)
    if read_before:
        given.append("read before")
    count = 1 + final

    def body(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *further: torch.Tensor) -> tuple[Any, ...]:
        pieces, names, drawn = [], [], draws()
        begin_functions()
        for (name, _), mod in zip(_MODS, mods[:3], strict=True):
            if mod is not None:
                pieces.append(as_tensor(_call(mod, _arguments(name, "x", score, [q, k, v, *further]), _COUNTS), score))
                names.append(name)
        decay_mod, skip_mod, erase_mod = mods[3:]
        if decay_mod is not None:
            arguments = _arguments("decay", "g", score, [q, k, v, *further])
            pieces.append(as_tensor(_call(decay_mod, arguments, _COUNTS), score))
            names.append("channel" if arity(decay_mod, _COUNTS) == len(arguments) else "decay")
        if skip_mod is not None:
            pieces.append(as_tensor(skip_mod(*_places("skip", "bht", q.device)), score))
            names.append("skip")
        if erase_mod is not None:
            arguments = _arguments("erase", "share", score, [q, k, v, *further])
            short = arity(erase_mod, (3, *_COUNTS)) == 3
            pieces.append(as_tensor(erase_mod(*arguments[1:4]) if short else _call(erase_mod, arguments, _COUNTS), score))
            names.append("erase")
        end_functions()
        refuse_draws(drawn)
        lines = ["\n".join(words) for words in (given, names)]
        results = traced_linear(q, k, v, list(further), lines[0], pieces, lines[1], scale, final, layout, segment, emulation)
        return tuple([results[i] for i in range(count)])

    results = dynamo_bypassing_wrapper(run_linear_graph, body, q, k, v, *further)
    o = in_order(results[0], layout)
    return (o, results[1]) if final else o


def _arguments(name: str, first: str, dtype: torch.dtype, like: list[torch.Tensor]) -> list[torch.Tensor]:
    """What stands for the arguments of a mod."""
    return [element(f"{name}.{first}", dtype, like), *_places(name, "bhtd", like[0].device)]


def _mask_function(mask: Any, q: torch.Tensor, k: torch.Tensor, layout: str) -> Callable[..., Any]:
    """The mask function of a block mask, which must be for tensors of these sizes."""
    batch, heads, length, _ = LAYOUTS[input_order(layout)]
    check_sizes(sizes_of(mask), {"B": q.shape[batch], "Hq": q.shape[heads], "Sq": q.shape[length], "Skv": k.shape[length]})
    if isinstance(mask, FlexBlockMask) and not getattr(mask, "symbolic", False):
        _compare_blocks(mask)
    return mask.mask_mod


@torch._dynamo.assume_constant_result
def _compare_blocks(mask: FlexBlockMask) -> bool:
    if not hasattr(mask, "mask_mod"):
        raise UnsupportedError(
            "this BlockMask is made inside of torch.compile, where nobody can compare its blocks with its mask_mod: "
            "pass the mask function as mask_mod, or make the BlockMask outside"
        )
    function_of(mask)
    return True


def emulation_in_graph(device: str | None, q: torch.Tensor) -> str:
    """The name of the device that was asked for where it takes tensors of another type, as emulations do; else nothing.

    Raises ArgumentError where q is not on the device.
    """
    if device is None:
        return ""
    tensors = _tensors_of(device)
    if tensors != q.device.type:
        taken = f"device={device!r} was asked for" if tensors == device else f"device={device!r} takes tensors on {tensors!r}"
        raise ArgumentError(f"q is on {q.device.type}, but {taken}: move q, k and v with .to({tensors!r})")
    return "" if tensors == device.partition(":")[0] else device


@torch._dynamo.assume_constant_result
def _tensors_of(device: str) -> str:
    """The torch device type of the tensors that a device takes; the name may have a number."""
    name = device_type(device) or ""
    driver.compiler_for(name)
    return tensors_of(name)


@torch._dynamo.assume_constant_result
def in_transform() -> bool:
    """Whether dynamo is inside of a transform of torch.func, or where tensors have tangents: there a graph has no place for attention."""
    return is_differentiated()


@torch._dynamo.assume_constant_result
def draws() -> int:
    """How many draws from Python's generator dynamo has found; it makes an input of the graph of each, which no longer says so."""
    return len(InstructionTranslator.current_tx().output.random_calls)


@torch._dynamo.assume_constant_result
def refuse_draws(before: int) -> None:
    """Raises TraceError where there were more draws since there were `before`."""
    found = InstructionTranslator.current_tx().output.random_calls[before:]
    if found:
        raise failure("a function of the attention", *randomness.of_torch(f"random.{found[0][0].__name__}"))


@torch._dynamo.disable(reason="attention inside a transform of torch.func, or of tensors with tangents, is no part of a graph")
def outside(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The function's result, computed outside of the graph."""
    return function(*arguments, **options)


def arity(function: Callable[..., Any], choices: Sequence[int]) -> int:
    """How many arguments a function gets: the first of `choices` that it takes, as outside of torch.compile."""
    given = 0
    if isinstance(function, functools.partial):
        given, function = len(function.args), function.func
    if isinstance(function, torch.nn.Module):
        function, given = type(function).forward, given + 1
    elif not hasattr(function, "__code__"):
        function, given = type(function).__call__, given + 1
    elif hasattr(function, "__self__"):
        given += 1
    code = getattr(function, "__code__", None)
    if code is None:  # a function of torch's own
        return choices[0]
    most = code.co_argcount - given
    fitting = [count for count in choices if count <= most]
    if len(fitting) < 2:  # dynamo does not know the defaults of torch's own functions
        return choices[0]
    least = most - len(function.__defaults__ or ())
    return next((count for count in fitting if count >= least), choices[-1])


def _places(name: str, indices: Sequence[str], device: torch.device) -> list[torch.Tensor]:
    """What stands for the indices that a function gets."""
    return [symbol(f"{name}.{i}", torch.int64, device) for i in indices]


def _call(function: Callable[..., Any], arguments: Sequence[Any], counts: Sequence[int]) -> Any:
    """Calls a function with as many of the arguments as it takes, one of `counts`."""
    return function(*arguments[: arity(function, counts)])


def as_tensor(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """What a function returned, as a tensor; it may be a Python number."""
    return value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=dtype, device="cpu")
