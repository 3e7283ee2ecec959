"""Attention inside torch.compile: the part that dynamo traces.

The user's functions run here on tensors of one element that stand for scores and positions, as dynamo traces everything. What
they capture becomes an input of the graph. When the graph is compiled, `api.graphs` reads the functions from it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._higher_order_ops.wrap import dynamo_bypassing_wrapper
from torch.autograd import forward_ad
from torch.nn.attention.flex_attention import BlockMask as FlexBlockMask

from attn_mlir import driver
from attn_mlir.api.block_mask import BlockMask
from attn_mlir.api.call import attend
from attn_mlir.api.dropout import dropout_of, seed_in_graph
from attn_mlir.api.given_masks import check_sizes, function_of, sizes_of
from attn_mlir.api.graphs import element, run_graph, symbol, traced
from attn_mlir.api.inputs import LAYOUTS, device_type, layout_of
from attn_mlir.api.key_lists import lists_in_graph, unfold
from attn_mlir.api.options import Options
from attn_mlir.api.results import named_results
from attn_mlir.backends import tensors_of
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.frontend import randomness
from attn_mlir.frontend.report import failure
from attn_mlir.frontend.scores import numbered
from attn_mlir.runtime.orders import all_in_order, heads_first, input_order, output_order

_POSITION = ("b", "h", "q_idx")
_MODS = (("query", "q_idx"), ("key", "kv_idx"), ("value", "kv_idx"))


def attention_in_graph(
    qkv: tuple[torch.Tensor, ...], options: tuple[Any, ...], dropout: tuple[Any, Any] = (0.0, None), extra: Sequence[torch.Tensor] = (),
    packed: Sequence[torch.Tensor] = (), lists: tuple[Any, Any] = (None, None), ring: str = "", run: Callable[..., Any] = run_graph,
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
    score = torch.float64 if q.dtype == torch.float64 else torch.float32
    score_mod, mask_mod, row = functions[3:]
    if isinstance(mask_mod, (BlockMask, FlexBlockMask)):
        mask_mod = _mask_function(mask_mod, q, k, layout)
    if row is None:
        raise ArgumentError("row must be a function from a row of scores to its weights, got None")

    products = len(extra) // 2 + 1

    def body(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *further: torch.Tensor) -> tuple[Any, int, tuple[str, ...]]:
        extra, packed = further[: 2 * (products - 1)], further[2 * (products - 1) :]

        def index(name: str) -> torch.Tensor:
            return symbol(name, torch.int64, q.device)

        pieces, names, drawn = [], [], draws()
        for (name, position), mod in zip(_MODS, functions[:3], strict=True):
            if mod is not None:
                made = _call(mod, [element(f"{name}.x", score, [q, k, v])], [index(f"{name}.{i}") for i in ("b", "h", position, "d")])
                pieces.append(as_tensor(made, score))
                names.append(name)
        if score_mod is not None:
            indices = [index(f"score.{i}") for i in (*_POSITION, "kv_idx")]
            scores = [element(f"score.{name}", score, [q, k, v, *extra]) for name in numbered("score", products)]
            if products == 1 or arity(score_mod, (5, products + 4)) == 5:
                made = tuple([score_mod(each, *indices) for each in scores])
            else:
                made = score_mod(*scores, *indices)
                made = made if isinstance(made, tuple) else (made,)
            pieces += [as_tensor(each, score) for each in made]
            names += ["score"] * len(made)
        if mask_mod is not None:
            pieces.append(as_tensor(mask_mod(*[index(f"mask.{i}") for i in (*_POSITION, "kv_idx")]), torch.bool))
            names.append("mask")
        keys = k.shape[2] or 1
        count = names.count("score") or products
        given = [element(f"row.{name}", score, [q, k, v, *extra], keys) for name in numbered("s", count)]
        given += [index(f"row.{i}") for i in _POSITION]
        given.append(symbol("row.kv_idx", torch.int64, q.device, keys))
        made = row(*given[: arity(row, (count, count + 3, count + 4))])
        weights: list[Any] = list(made) if isinstance(made, tuple) else [made]
        told: dict[str, Any] = weights.pop() if isinstance(weights[-1], dict) else {}
        pieces += [as_tensor(each, score) for each in (*weights, *told.values())]
        names.append("row")
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
    return peek_interpreter_stack() is not None or forward_ad._current_level >= 0


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


def _call(function: Callable[..., Any], first: Sequence[Any], indices: Sequence[Any]) -> Any:
    """Calls a function that takes `first` alone, or `first` and `indices`."""
    arguments = [*first, *indices]
    return function(*arguments[: arity(function, (len(first), len(arguments)))])


def as_tensor(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """What a function returned, as a tensor; it may be a Python number."""
    return value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=dtype)
