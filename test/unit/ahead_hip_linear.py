"""Linear attentions and engines as libraries for AMD GPUs, in a process that has a libamdhip64 whose launches are interpreted."""

from pathlib import Path
from typing import Any

import torch

import attn_mlir
from ahead_hip_calls import OnHip, filled, interpreted, memory

rates = torch.nn.Parameter(torch.tensor([0.5, 0.25]))
INTERPRETED = "hip-interpreted"
Linear, Spec = attn_mlir.LinearAttention, attn_mlir.LinearSpec


def faded(g: Any, b: Any, h: Any, t: Any) -> Any:
    return g * rates[h]


def _engine(kind: Any, shapes: Any, **more: Any) -> Any:
    return kind(tuple(attn_mlir.meta_tensor(*shape, dtype=torch.float16) for shape in shapes), device=INTERPRETED, **more)


CASES: dict[str, tuple[Any, Any, list[str] | None]] = {
    "states": (Linear(decay_mod=faded, output_final_state=True, device=INTERPRETED), Spec(torch.float16, 32, 16, initial_state=True), None),
    "packed": (
        Linear(scale=0.25, output_final_state=True, layout="bshd", device=INTERPRETED),
        Spec(torch.bfloat16, 16, decay="head", cu_seqlens=torch.int32), None,
    ),
    "engine": (
        _engine(
            attn_mlir.LinearAttentionEngine, ((1, 2, 40, 16),) * 3,
            decay_mod=lambda g, custom_io: g * custom_io.input_tensors["rate"], custom_io=attn_mlir.CustomIO({"rate": (1, "heads")}),
        ),
        None, ["q", "rate"],
    ),
    "softmax": (
        _engine(
            attn_mlir.AttentionEngine, ((1, 2, 24, 16),) * 3, mask_mod=attn_mlir.masks.causal(),
            score_mod=lambda score, custom_fwd_inputs, b, h, q_idx, kv_idx: score * 0.25 + custom_fwd_inputs.input_tensors["bias"],
            custom_fwd_inputs=attn_mlir.CustomIO({"bias": (1, "heads", "seq_len", "seq_len_kv")}), online_func=attn_mlir.OnlineSoftmax(),
        ),
        None, ["q", "bias"],
    ),
}  # fmt: skip
"""The attention, what `compile_ahead` is told of its inputs, and `wrt`."""


def inputs(name: str) -> list[torch.Tensor]:
    """What calls from Python take, in the order of the library."""
    if name == "states":
        heads = [torch.randn(1, n, 70, d).half() for n, d in ((2, 32), (1, 32), (2, 16))]
        return [*heads, -torch.rand(1, 2, 70), torch.randn(1, 2, 32, 16)]
    if name == "packed":
        return [*[torch.randn(1, 45, 2, 16).bfloat16() for _ in range(3)], -torch.rand(2), torch.tensor([0, 17, 17, 45], dtype=torch.int32)]
    if name == "engine":
        return [*[torch.randn(1, 2, 40, 16).half() for _ in range(3)], -torch.rand(1, 2, 40), torch.rand(1, 2)]
    return [*[torch.randn(1, 24, 2, 16).half() for _ in range(3)], torch.randn(1, 2, 24, 24)]


def compared(path: Path, name: str) -> dict[str, tuple[list[Any], list[Any]]]:
    """What each function gives, and what Python gives, which interprets the same kernels."""
    library, (_, _, wrt) = OnHip(path, name), CASES[name]
    given = inputs(name)
    # Python's backward pass is the one of these gradients, too.
    asked = [0, len(given) - 1] if wrt else [i for i, x in enumerate(given) if x.is_floating_point()]
    leaves = [x.requires_grad_(i in asked) for i, x in enumerate(given)]
    results = _called(name, leaves)
    grads: list[Any] = [torch.randn_like(x) if x.requires_grad else None for x in results]
    wanted = [*[leaves[i] for i in asked], *([rates] if name == "states" else [])]
    gradients = list(torch.autograd.grad(results[: sum(x is not None for x in grads)], wanted, [x for x in grads if x is not None]))
    plain = [x.detach() for x in (*given, *([rates] if name == "states" else []))]
    need = library.sizes_of(*plain)
    read = {f"input {i}": x for i, x in enumerate(plain)}
    saved, training = memory(need.saved), name == "softmax"
    work, made = memory(need.training_workspace if training else need.forward_workspace), [filled(x) for x in results]
    written = {"workspace": work, "saved": saved, **{f"result {i}": x for i, x in enumerate(made)}}
    kept = library.pointer(saved) if training else []
    function = "training_forward" if training else "forward"
    interpreted(lambda: library.call(function, [*plain, *made, *kept], workspace=work), read, written)
    back, targets = memory(need.backward_workspace), [filled(x) for x in gradients]
    read |= {"saved": saved, **{f"result {i}": x for i, x in enumerate([*made, *grads])}}
    written = {"workspace": back, **{f"gradient {i}": x for i, x in enumerate(targets)}}
    arguments = [*plain, *(made if training else []), *kept, *grads, *targets]
    interpreted(lambda: library.call("backward", arguments, workspace=back), read, written)
    return {function: (made, [x.detach() for x in results]), "backward": (targets, gradients)}


def _called(name: str, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """o, and the state or the row outputs, which need no gradient."""
    attention = CASES[name][0]
    if name == "softmax":
        with torch.no_grad():
            _, rows = attention(*leaves, return_rowscales=True)
        return [attention(*leaves), *rows.values()]
    if name == "engine":
        return [attention(*leaves)]
    more = {"initial_state" if name == "states" else "cu_seqlens": leaves[4]}
    return list(attention(*leaves[:4], **more))
