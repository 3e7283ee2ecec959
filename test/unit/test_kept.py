"""Tensors that follow from sizes alone: what a CUDA graph took outlives all caches, and other streams see finished contents."""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attn_mlir import attention
from attn_mlir.api import key_pages
from attn_mlir.backends import graph_capture, kept
from attn_mlir.backends.gpu.split import list_of_whole, lists_for
from attn_mlir.backends.graph_capture import is_captured, is_capturing

CPU = torch.device("cpu")
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has caches of its own."""
    for module, name, empty in ((kept, "_KEPT", {}), (kept, "_CAPTURED", {}), (key_pages, "_TEMPLATES", {})):
        monkeypatch.setattr(module, name, empty)


def captured(call: Callable[[], Any]) -> Any:
    """What a call returns while a graph is captured, as far as `kept` knows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "is_captured", lambda device: True)
        return call()


def alive(tensors: Sequence[Tensor]) -> list[weakref.ref[Tensor]]:
    return [weakref.ref(x) for x in tensors]


@pytest.mark.parametrize("made", [lambda n: lists_for(n, 4, (3, 256), 64, CPU), lambda n: [list_of_whole(n, 4, 64, CPU)]])
def test_lists_of_decoding_that_a_graph_reads_stay(made: Callable[[int], Sequence[Tensor]]) -> None:
    """Two graphs of other sizes are kept; what no graph took makes room."""
    for n in (1, 2, 3):
        made(n)
    graphs = [reference for n in (1, 2) for reference in captured(lambda n=n: alive(made(n)))]
    eager = alive(made(3))
    for n in range(4, 4 + kept._MOST):
        made(n)
    assert all(reference() is not None for reference in graphs) and not any(reference() is not None for reference in eager)


def test_places_of_a_later_call_on_lists_of_keys_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call with such shapes is made by a template, whose tensors a graph reads."""
    q, k, v = (torch.randn(1, heads, length, 64).half() for heads, length in ((4, 32), (2, 256), (2, 256)))
    index = torch.tensor([0, 2], dtype=torch.int32).expand(1, 1, 2, 2).contiguous()
    given: list[weakref.ref[Tensor]] = []
    attended = key_pages.PagedCall.attended

    def seen(self: key_pages.PagedCall) -> list[Tensor]:
        ours = {id(x) for tensors in kept._KEPT.values() for x in tensors.values()}
        given.extend(alive([x for x in self.call.values[3:] if id(x) in ours]))
        return attended(self)

    def run() -> Tensor:
        return attention(q, k, v, key_index=index, key_block=(16, 64), device="hip-emulated")

    first = run()
    monkeypatch.setattr(key_pages.PagedCall, "attended", seen)
    assert torch.equal(captured(run), first) and len(key_pages._TEMPLATES) == 1
    key_pages._TEMPLATES.clear()
    kept._KEPT.clear()
    assert len(given) == 3 and all(reference() is not None for reference in given)


def test_the_first_use_waits_for_the_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls on other streams read them; under capture nothing is kept, nor waited for."""
    waits: list[Any] = []
    capturing = [True]
    device = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(graph_capture, "_current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda of: SimpleNamespace(synchronize=lambda: waits.append(of)))
    make = lambda: {"x": torch.zeros(1)}  # noqa: E731
    assert kept.kept_by_sizes((1, device), make) is not kept.kept_by_sizes((1, device), make) and not waits
    capturing[0] = False
    assert kept.kept_by_sizes((1, device), make) is kept.kept_by_sizes((1, device), make) and waits == [device]


@pytest.mark.parametrize("current", [0, 1])
def test_a_capture_is_that_of_the_device_asked_about(current: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch tells of its current device alone; here the stream of device 1 is captured."""
    entered = [current]

    @contextlib.contextmanager
    def inside(device: Any) -> Iterator[None]:
        entered.append(torch.device(device).index if isinstance(device, torch.device) else device)
        yield
        entered.pop()

    monkeypatch.setattr(torch.cuda, "device", inside)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: entered[-1])
    monkeypatch.setattr(graph_capture, "_current_device", lambda: entered[-1])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: entered[-1] == 1)
    for index in (0, 1):
        assert is_captured(torch.device("cuda", index)) == is_capturing(index) == (index == 1)
    assert is_captured(torch.device("cuda")) == (current == 1) and not is_captured(CPU)
    assert entered == [current]
