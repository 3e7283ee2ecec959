"""Linear attention inside torch.compile: the part that dynamo traces; see `api.compiled`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._higher_order_ops.wrap import dynamo_bypassing_wrapper

from attn_mlir.api.compiled import arity, as_tensor, draws, emulation_in_graph, in_transform, outside, refuse_draws
from attn_mlir.api.graphs import element, symbol
from attn_mlir.api.linear_call import LinearOptions, attend_linear
from attn_mlir.api.linear_graphs import run_linear_graph, traced_linear
from attn_mlir.api.linear_inputs import check_segment
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.linear import INPUTS

_NAMES = ("query", "key", "value")
_COUNTS = (1, 4, 5)
"""How many arguments a mod may take."""


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
    score = torch.float64 if q.dtype == torch.float64 else torch.float32
    if layout == "bshd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        moved = [name not in ("initial_state", "cu_seqlens") for name in INPUTS]
        others = [x.transpose(1, 2) if x is not None and m and x.dim() >= 3 else x for x, m in zip(others, moved, strict=True)]
    further, given = [], []
    for name, tensor in zip(INPUTS, others, strict=True):
        if tensor is not None:
            # Integers stay what they are, for the check of `check_linear`, and keys have the dtype of k.
            further.append(tensor.to(score) if tensor.is_floating_point() and not name.endswith("_key") else tensor)
            given.append(name)
    if read_before:
        given.append("read before")
    count = 1 + final

    def body(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *further: torch.Tensor) -> tuple[Any, ...]:
        pieces, names, drawn = [], [], draws()
        for name, mod in zip(_NAMES, mods[:3], strict=True):
            if mod is not None:
                pieces.append(as_tensor(_call(mod, _arguments(name, "x", score, [q, k, v, *further])), score))
                names.append(name)
        decay_mod, skip_mod, erase_mod = mods[3:]
        if decay_mod is not None:
            arguments = _arguments("decay", "g", score, [q, k, v, *further])
            pieces.append(as_tensor(_call(decay_mod, arguments), score))
            names.append("channel" if arity(decay_mod, _COUNTS) == len(arguments) else "decay")
        if skip_mod is not None:
            pieces.append(as_tensor(skip_mod(*_places("skip", "bht", q.device)), score))
            names.append("skip")
        if erase_mod is not None:
            arguments = _arguments("erase", "share", score, [q, k, v, *further])
            short = arity(erase_mod, (3, *_COUNTS)) == 3
            pieces.append(as_tensor(erase_mod(*arguments[1:4]) if short else _call(erase_mod, arguments), score))
            names.append("erase")
        refuse_draws(drawn)
        lines = ["\n".join(words) for words in (given, names)]
        results = traced_linear(q, k, v, list(further), lines[0], pieces, lines[1], scale, final, layout, segment, emulation)
        return tuple([results[i] for i in range(count)])

    results = dynamo_bypassing_wrapper(run_linear_graph, body, q, k, v, *further)
    o = results[0].transpose(1, 2) if layout == "bshd" else results[0]
    return (o, results[1]) if final else o


def _arguments(name: str, first: str, dtype: torch.dtype, like: list[torch.Tensor]) -> list[torch.Tensor]:
    """What stands for the arguments of a mod."""
    return [element(f"{name}.{first}", dtype, like), *_places(name, "bhtd", like[0].device)]


def _places(name: str, indices: str, device: torch.device) -> list[torch.Tensor]:
    return [symbol(f"{name}.{i}", torch.int64, device) for i in indices]


def _call(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    return function(*arguments[: arity(function, _COUNTS)])
