"""The short way of single queries that see their keys in parts: launches of an earlier call, at the addresses of another."""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from attn_mlir.backends.nvidia import cuda
from attn_mlir.backends.nvidia.launch import LIMIT, CudaLauncher, MovedLaunch, PackedLaunch
from attn_mlir.backends.nvidia.workspace import Workspace
from attn_mlir.backends.work import leaves_rows

_Started = tuple[CudaLauncher, list[Any], tuple[int, ...]]
_STARTED: "ContextVar[list[_Started] | None]" = ContextVar("started", default=None)
_CONSTANT = 0
"""In the key of a call, what addresses that never change are behind."""


@contextlib.contextmanager
def started() -> Iterator[list[_Started]]:
    """The launches within it: kernels, their arguments, and which of these were copied."""
    made = list[_Started]()
    token = _STARTED.set(made)
    try:
        yield made
    finally:
        _STARTED.reset(token)


def tell_started(launcher: CudaLauncher, arguments: list[Any], copied: tuple[int, ...]) -> None:
    """What `started` remembers."""
    known = _STARTED.get()
    if known is not None:
        known.append((launcher, arguments, copied))


class RepeatedDecode:
    """Kernels on inputs of known shapes and strides, memory of their own, and results."""

    def __init__(
        self,
        results: Sequence[torch.Tensor],
        launches: Sequence[MovedLaunch],
        kept: Sequence[torch.Tensor],
        size: int,
        form: tuple[int, int],
    ) -> None:
        """`launches` are those at the key of a call.

        `kept`: tensors that no call has of its own. `size`: bytes of own memory. `form`: the input with the lengths of queries, the stream.
        """
        self.launcher = launches[0].launcher
        self.counts = any(each.launcher.counts for each in launches)
        self._launches, (self._lengths, self._stream) = tuple(launches), form
        self._forms = [(tuple(x.shape), tuple(x.stride()), x.dtype) for x in results]
        self._sizes = [x.nbytes for x in results]
        self._kept = tuple(kept)
        self._memory = ((max(1, size),), (1,), torch.uint8)
        self._packed: dict[tuple[int, ...], list[tuple[CudaLauncher, PackedLaunch]]] = {}

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor] | None:
        """The results; None on another stream than before. The device of the launchers must be the current one."""
        index = self.launcher.index
        stream = cuda.current_stream(index)
        if stream != self._stream:
            return None
        results = [cuda.empty(size, strides, dtype) for size, strides, dtype in self._forms]
        memory = cuda.empty(*self._memory)
        tensors = [x for x in (*results, *inputs) if isinstance(x, torch.Tensor)]
        key = (_CONSTANT, memory.data_ptr(), *[x.data_ptr() for x in tensors])
        packed = self._packed.get(key)
        if packed is None:
            if len(self._packed) >= LIMIT:
                self._packed.clear()
            packed = [each.at(key) for each in self._launches]
            self._packed[key] = packed
        if leaves_rows(inputs[self._lengths]):  # rows of no sequence become 0
            for place, size in enumerate(self._sizes):
                cuda.clear(key[2 + place], size, stream, index)
        for launcher, each in packed:
            launcher.start(each)
        return results


def repeated_decode(
    inputs: Sequence[Any], results: Sequence[torch.Tensor], made: Sequence[_Started], lengths: int
) -> RepeatedDecode | None:
    """The short way for inputs of which a call made these launches: on inputs, memory of their own, results, and a list, in this order.

    None where something was copied, or has to be packed.
    """
    if not 1 <= len(made) <= 2 or any(copied for *_, copied in made):
        return None
    index = made[0][0].index
    stream, workspace = cuda.current_stream(index), Workspace()
    places = {x.data_ptr(): (2 + place, x.data_ptr()) for place, x in enumerate(results)}
    numbers, first = dict[int, int](), 2 + len(results)
    for number, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            numbers[number] = first + len(numbers)
    parts = dict[int, int]()
    launches = []
    for launcher, arguments, _ in made:
        form = launcher.form(arguments, stream)
        if form is None:
            return None
        sources = []
        for number, address in form.places(arguments):
            if number in numbers:
                sources.append((numbers[number], address - inputs[number].data_ptr()))
            elif number == len(arguments) - 1:
                sources.append((_CONSTANT, address))  # the list, which is kept
            elif address in places:
                sources.append((places[address][0], 0))
            else:
                if address not in parts:
                    parts[address] = workspace.take(arguments[number].shape, arguments[number].dtype).offset
                sources.append((1, parts[address]))
        launches.append(MovedLaunch(launcher, form, sources))
    kept = [arguments[-1] for _, arguments, _ in made]
    for work in kept:
        if work.is_cuda:  # may be freed while kernels read it, on another stream than it was made on
            work.record_stream(torch.cuda.current_stream(index))
    return RepeatedDecode(results, launches, kept, workspace.size, (lengths, stream))
