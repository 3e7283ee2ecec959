"""Warm calls of GPUs on a machine without one, for `host_calls.py --launches`: tensors on the CPU count as on GPU 0, launches do nothing.

All else is as on a GPU, but for torch's own operations, which the CPU does: so inputs are small. What kernels write is whatever was there.
"""

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

import torch

_DEVICE = "cuda"


class _Driver:
    """libcuda: every function succeeds."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*_: Any) -> int:
            return 0

        return call


class _Event:
    """Of a stream that has nothing to do."""

    def record(self, *_: Any) -> None:
        """Does nothing."""

    def synchronize(self) -> None:
        """Does nothing."""


def _described(address: int, *_: Any) -> bytes:
    """What stands for a description of a tensor, which begins with its address."""
    return address.to_bytes(8, "little") + bytes(120)


def pretend() -> None:
    """From here on there is a Hopper GPU that does nothing."""
    from attn_mlir import backends, driver
    from attn_mlir.api import varlen as api_varlen
    from attn_mlir.backends import disk_cache
    from attn_mlir.backends.nvidia import cuda, lists, offsets, own_kernel, program
    from attn_mlir.backends.nvidia.compile import Cubin
    from attn_mlir.runtime import varlen

    library, device = _Driver(), cuda.Device(0, "none", (9, 0), 132, 232448)
    nothing: Callable[..., Any] = contextlib.nullcontext
    patches: dict[Any, dict[str, Any]] = {
        cuda: {
            "library": lambda: library, "launcher": lambda: lambda *_: 0, "index_of": lambda _: 0, "current_device": lambda: 0,
            "current_stream": lambda _: 7, "is_capturing": lambda _: False, "device": lambda _: device, "using": nothing,
            "load_function": lambda *_: 1, "clear": lambda *_: None, "_map": _described, "maps_move": lambda: True,
            "empty": lambda size, strides, dtype: torch.empty_strided(size, strides, dtype=dtype),
        },
        torch.Tensor: {"get_device": lambda _: 0, "is_cuda": property(lambda _: True), "pin_memory": lambda x: x},
        torch.cuda: {
            "device": nothing, "Event": _Event, "current_stream": lambda *_: _Event(), "get_device_capability": lambda *_: (9, 0),
        },
        program: {"compile_all": lambda codes: [Cubin(b"")] * len(codes)},
        own_kernel: {"compile_code": lambda code: Cubin(b"")},
        driver: {"list_maker": lambda _: lists.prepare_lists, "offset_maker": lambda _: _offsets(offsets.cut_offsets)},
        disk_cache: {"save": lambda *_: None, "find": lambda *_: None},
        api_varlen: {"check_largest": lambda *_: None},
    }  # fmt: skip
    for owner, named in patches.items():
        for name, value in named.items():
            setattr(owner, name, value)
    backends.load_backends()["nvidia"].tensors[_DEVICE] = "cpu"  # type: ignore[index]
    check = varlen.VarlenProgram.check

    def unwaited(self: Any, captures: Any, sizes: Any, place: Any) -> None:
        """Lengths are not looked at, as where the largest ones are known."""
        if varlen._LARGEST.get() is None:
            check(self, captures, sizes, place)

    varlen.VarlenProgram.check = unwaited  # type: ignore[method-assign]
    varlen.leaves_rows = lambda _: False  # type: ignore[attr-defined]


def _offsets(cut: Callable[..., Any]) -> Callable[..., Any]:
    """Where sequences lie, as the kernel that does nothing here would tell."""

    def made(of_q: torch.Tensor, of_k: torch.Tensor | None, *rest: Any) -> Any:
        found, keys = cut(of_q, of_k, *rest), of_q if of_k is None else of_k
        for one, told in zip(found, (of_q[:-1], of_q.diff(), keys[:-1], keys.diff()), strict=True):
            one.copy_(told)
        return found

    return made


def calls() -> dict[str, Callable[[], Any]]:
    """The warm calls that are measured; only what a checkout of 27 November 2026 has."""
    pretend()
    attn_mlir: Any = importlib.import_module("attn_mlir")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    causal = attn_mlir.masks.causal()

    def random(*shape: int) -> Any:
        return torch.randn(shape).bfloat16().requires_grad_()

    def made(call: Callable[[], Any], inputs: list[Any], name: str) -> dict[str, Callable[[], Any]]:
        def forward() -> Any:
            with torch.no_grad():
                return call()

        def both() -> Any:
            o = call()
            return torch.autograd.grad(o, inputs, o.detach())

        return {name: forward, f"{name}, both passes": both}

    q, k, v = dense = [random(1, 4, 64, 64) for _ in range(3)]
    found = made(lambda: attn_mlir.attention(q, k, v, mask_mod=causal, device=_DEVICE), dense, "attention")
    packed, cu = [random(64, 4, 64) for _ in range(3)], torch.tensor([0, 16, 24, 48, 64], dtype=torch.int32)
    most: dict[str, Any] = {"max_q": 2000, "max_k": 2000, "device": _DEVICE}
    found |= made(lambda: attn_mlir.attention_varlen(*packed, cu, mask_mod=causal, **most), packed, "packed")
    one = torch.arange(5, dtype=torch.int32)
    cache: Any = [random(4, 4, 128).detach(), *[random(256, 1, 128).detach() for _ in range(2)]]
    found["decoding"] = lambda: attn_mlir.attention_varlen(*cache, one, one * 64, max_q=1, max_k=64, device=_DEVICE)
    for queries, block in ((8, 1), (64, 64)):
        listed = [random(1, 4, queries, 128), *[random(1, 1, 1024, 128) for _ in range(2)]]
        index = torch.stack([torch.randperm(16)[:4] for _ in range(queries // block)]).int()[None, None]
        options = {"key_index": index, "key_block": (block, 64), "device": _DEVICE}
        found |= made(lambda x=listed, o=options: attn_mlir.attention(*x, **o), listed, f"lists, blocks of {block}")
    return found
