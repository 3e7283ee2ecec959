"""Backward passes in a fixed order while other kernels have multiprocessors: alone, on two streams at once, in CUDA graphs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from attn_mlir import attention, attention_varlen, masks
from attn_mlir.backends.nvidia import launch
from gpu_cases import GPU
from held_multiprocessors import held, multiprocessors, until

pytestmark = GPU
SECONDS = 10
"""A backward pass here takes a few milliseconds."""
Tensor = torch.Tensor


def leaves(heads: int, keys: int, length: int, columns: int) -> list[Tensor]:
    return [torch.randn(1, count, length, columns, device="cuda").half().requires_grad_() for count in (heads, keys, keys)]


def dense(columns: int, length: int = 3000, **options: Any) -> tuple[list[Tensor], Callable[..., Tensor]]:
    return leaves(8, 4, length, columns), lambda q, k, v: attention(q, k, v, deterministic=True, **options)


def packed() -> tuple[list[Tensor], Callable[..., Tensor]]:
    lengths = torch.tensor([0, 1700, 1700, 1701, 3400, 3900], dtype=torch.int32, device="cuda")
    q, k, v = (x.detach()[0].transpose(0, 1).contiguous().requires_grad_() for x in leaves(8, 4, 3900, 64))
    options: dict[str, Any] = {"mask_mod": masks.causal(), "max_q": 1700, "max_k": 1700, "deterministic": True}
    return [q, k, v], lambda q, k, v: attention_varlen(q, k, v, lengths, lengths.clone(), **options)


def listed() -> tuple[list[Tensor], Callable[..., Tensor]]:
    index = torch.rand(1, 4, 47, 24, device="cuda").topk(9, dim=-1).indices.int()
    return dense(64, 3000, mask_mod=masks.causal(), key_index=index, key_block=(64, 128))


KINDS: dict[str, Callable[[], tuple[list[Tensor], Callable[..., Tensor]]]] = {
    "causal": lambda: dense(64, mask_mod=masks.causal()),
    "causal, 128 columns": lambda: dense(128, mask_mod=masks.causal()),
    "no mask": lambda: dense(128),
    "window": lambda: dense(64, mask_mod=lambda b, h, i, j: (i >= j) & (i - j <= 700)),
    "packed": packed,
    "lists": listed,
}


@dataclass
class Backward:
    """A backward pass on a stream of its own; `wanted`: its gradients when nothing else ran."""

    inputs: Sequence[Tensor]
    o: Tensor
    do: Tensor
    stream: torch.cuda.Stream
    wanted: list[Tensor]

    @staticmethod
    def of(kind: str, priority: int = 0) -> "Backward":
        """Compiled and run twice."""
        inputs, run = KINDS[kind]()
        stream = torch.cuda.Stream(priority=priority)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            o = run(*inputs)
            do = torch.randn_like(o)
            made = Backward(inputs, o, do, stream, [])
            made.wanted = made.start()
            made.start()
        torch.cuda.synchronize()
        return made

    def start(self) -> list[Tensor]:
        """The gradients, when the stream has made them."""
        with torch.cuda.stream(self.stream):
            return list(torch.autograd.grad(self.o, self.inputs, self.do, retain_graph=True))

    def ends(self) -> bool:
        """Whether the stream does all that it has to."""
        event = torch.cuda.Event()
        event.record(self.stream)
        return until(event.query, SECONDS)

    def is_right(self, made: Sequence[Tensor]) -> bool:
        return all(torch.equal(a, b) for a, b in zip(made, self.wanted, strict=True))


@pytest.fixture(autouse=True)
def counters() -> Iterator[None]:
    """Kernels leave them zero."""
    yield
    torch.cuda.synchronize()
    assert not any(each.any() for each in [*launch._COUNTERS.values(), *launch._NEVER_FREED])


@pytest.mark.parametrize("kind", KINDS)
def test_with_few_multiprocessors(kind: str) -> None:
    """With one, a thread block runs all programs; with others as many as there are, most of the kernel's never begin beside them."""
    backward = Backward.of(kind)
    for left in (1, 40):
        with held(multiprocessors() - left):
            made = backward.start()
            assert backward.ends(), f"with {left} multiprocessors it takes more than {SECONDS} seconds"
        assert backward.is_right(made)


@pytest.mark.parametrize("first", ["causal", "packed"])
def test_two_streams_at_once(first: str) -> None:
    """Launches of one kernel and of several, of which those on the second stream get multiprocessors first."""
    both = [Backward.of(first), Backward.of("causal", -1)]
    for taken in (0, multiprocessors() // 2):
        for _ in range(4):
            with held(taken or 1):
                made = [(each, each.start()) for _ in range(12) for each in both]
                assert all(each.ends() for each in both)
            assert all(each.is_right(found) for each, found in made)


def test_graphs_at_once() -> None:
    both = [Backward.of("causal"), Backward.of("causal", -1)]
    graphs = []
    for each in both:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=each.stream):
            made = [each.start() for _ in range(2)]
        graphs.append((graph, each, made))
    with held(multiprocessors() // 2):
        for _ in range(10):
            for graph, each, _ in graphs:
                with torch.cuda.stream(each.stream):
                    graph.replay()
        assert all(each.ends() for each in both)
    assert all(each.is_right(found) for _, each, made in graphs for found in made)
