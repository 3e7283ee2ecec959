"""Launches a kernel on torch tensors, on torch's current stream, without waiting for anything.

What a launch needs (parameters, descriptions of tensors for the copy engine, the grid) is packed once for tensors of the same addresses,
shapes and strides, and found again: torch's allocator gives the same addresses in the same order.
"""

import ctypes
import functools
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from attn_mlir.backends.gpu.kernel import FEW, KernelCode, KernelParameter
from attn_mlir.backends.gpu.packed import Ragged, extents_of, tensor_of
from attn_mlir.backends.gpu.packing import aligned_copy, grid_of, is_aligned, value_of
from attn_mlir.backends.host import KernelGrid
from attn_mlir.backends.nvidia import cuda
from attn_mlir.backends.nvidia.compile import Cubin
from attn_mlir.errors import ArgumentError, UnsupportedError

LIMIT = 256
_PROGRAM_LIMIT = (1 << 31) - (1 << 16)
"""Of persistent kernels, which number what they run in 32 bits, and count a little further."""
_MAPPED = ("descriptor", "ragged", "packed")
"""Parameters that are descriptions for the copy engine of tensors that it must be able to read."""
_WINDOW = "window"
"""Those that are zeros where it cannot."""
_MAPS: dict[Any, bytes] = {}
_COUNTERS: dict[tuple[int, int], torch.Tensor] = {}
"""By device and stream: launches on one stream never overlap, those on several may."""
_ADDRESS = struct.Struct("=Q")
_OF_THREADS = 2
"""CUDA's handle of the default stream of whichever thread asks: one handle for several streams."""
COUNTER_WORDS = 512
"""Of a stream: a counter, and flags of kernels whose thread blocks tell each other what is done."""
_SPARE: dict[int, list[torch.Tensor]] = {}
"""By device, counters that CUDA graphs take."""
_SPARES = 4096
"""How many of them are made at a time."""
_NEVER_FREED: list[torch.Tensor] = []
"""Their memory."""


@functools.cache
def _layout(forms: tuple[str, ...]) -> tuple[struct.Struct, tuple[int, ...]]:
    """Parameters of these formats of `struct`, or "map", in one piece of memory, and where each begins."""
    offsets, end, text = [], 0, "="
    for form in forms:
        size = cuda.MAP_BYTES if form == "map" else struct.calcsize(form)
        gap = -end % (cuda.MAP_ALIGNMENT if form == "map" else min(size, 8))
        text += f"{gap}x{cuda.MAP_BYTES}s" if form == "map" else f"{gap}x{form}"
        offsets.append(end + gap)
        end += gap + size
    return struct.Struct(text), tuple(offsets)


class PackedLaunch:
    """The configuration and the parameters of one launch, in memory of their own."""

    __slots__ = ("_buffer", "_config", "_pointers", "config", "parameters")

    def __init__(self, values: Sequence[tuple[str, Any]], config: cuda.Config) -> None:
        """`values` are formats of `struct` with numbers, or "map" with its bytes."""
        layout, offsets = _layout(tuple([form for form, _ in values]))
        self._fill(layout.pack(*[value for _, value in values]), offsets, config)

    @classmethod
    def of(cls, data: bytes, offsets: Sequence[int], config: cuda.Config, addresses: Sequence[tuple[int, int | bytes]]) -> "PackedLaunch":
        """That of packed parameters, but for addresses, or bytes of structures, at some of their offsets."""
        made = cls.__new__(cls)
        start = made._fill(data, offsets, config)
        for offset, address in addresses:
            if isinstance(address, int):
                _ADDRESS.pack_into(made._buffer, start + offset, address)
            else:
                made._buffer[start + offset : start + offset + len(address)] = bytes(address)
        return made

    def _fill(self, data: bytes, offsets: Sequence[int], config: cuda.Config) -> int:
        """Copies parameters to memory of its own; returns where in it they begin."""
        self._buffer = (ctypes.c_char * (len(data) + cuda.MAP_ALIGNMENT))()
        start = ctypes.addressof(self._buffer)
        shift = -start % cuda.MAP_ALIGNMENT
        start += shift
        ctypes.memmove(start, data, len(data))
        self._pointers = (ctypes.c_void_p * max(1, len(offsets)))(*[start + offset for offset in offsets])
        self._config = config
        self.parameters = ctypes.addressof(self._pointers)
        self.config = ctypes.addressof(config)
        return shift


class LaunchForm:
    """What launches on tensors of the same shapes and strides have in common: all but where these lie."""

    __slots__ = ("_bytes", "_config", "_offsets", "_places")

    def __init__(self, values: Sequence[tuple[str, Any]], config: cuda.Config, places: Sequence[tuple[int, int, bool, bool]]) -> None:
        """`places`: the number of a parameter that begins with an address, of which argument, whether that of its memory, where a ragged
        view begins in front of it, and whether 16 bytes must divide it.
        """
        layout, self._offsets = _layout(tuple([form for form, _ in values]))
        self._bytes, self._config = layout.pack(*[value for _, value in values]), config
        self._places = tuple([(self._offsets[number], *rest) for number, *rest in places])

    def at(self, arguments: Sequence[Any], index: int) -> "PackedLaunch | None":
        """The launch on these tensors; None where one is on another device, has no memory, or lies where the kernel does not read it."""
        found, lowest = list[int | bytes](), 0
        for _, number, of_memory, divided in self._places:
            tensor = arguments[number]
            if isinstance(tensor, bytes):
                found.append(tensor)
                continue
            memory = tensor_of(tensor)
            address = (memory if of_memory else tensor).data_ptr()
            if not address or cuda.index_of(memory) != index:
                return None
            if divided:
                lowest |= address
            found.append(address)
        return None if lowest % 16 else self.placed(found)

    def placed(self, addresses: Sequence[int | bytes]) -> "PackedLaunch":
        """The launch on tensors at these addresses, and with these structures, one for each of `places`."""
        found = [(offset, address) for (offset, *_), address in zip(self._places, addresses, strict=True)]
        return PackedLaunch.of(self._bytes, self._offsets, self._config, found)

    def places(self, arguments: Sequence[Any]) -> list[tuple[int, int]]:
        """Of each address that it has, the number of an argument, and where it is now."""
        return [
            (number, (tensor_of(arguments[number]) if of_memory else arguments[number]).data_ptr())
            for _, number, of_memory, _ in self._places
        ]


class MovedLaunch(NamedTuple):
    """A launch wherever its tensors lie: of each address, where in the key of a call that of its memory is, and how far behind."""

    launcher: "CudaLauncher"
    form: LaunchForm
    places: list[tuple[int, int]]

    def at(self, key: Sequence[int]) -> tuple["CudaLauncher", PackedLaunch]:
        """The launch on the memory of this key."""
        return self.launcher, self.form.placed([key[place] + more for place, more in self.places])


class CudaLauncher:
    """A kernel, loaded on one device."""

    def __init__(self, kernel: KernelGrid, code: KernelCode, binary: Cubin, device: torch.device, index: int) -> None:
        """`index` is the number of the device."""
        self._code = code
        self._kernel, self._over, self._rows = kernel, kernel.over, kernel.block_q
        self._scans = kernel if kernel.grid == "chunks" else None
        self.index = index
        self._device = device
        self._function = cuda.load_function(binary.code, code.entry, code.shared_bytes, index)
        self._launch = cuda.launcher()
        numbers = {p.argument for p in code.parameters if p.kind in ("scalar", "bytes")}
        self._numbers = tuple(sorted(numbers))
        self._tensors = tuple(
            sorted({p.argument for p in code.parameters if p.argument >= 0} - numbers | {kernel.over} | ({kernel.sequences} - {-1}))
        )
        self.tiled = frozenset(p.argument for p in code.parameters if p.kind in _MAPPED)
        """The arguments that the copy engine reads or writes."""
        self._aligned = {p.argument: p.align for p in code.parameters if p.kind == "pointer" and p.align}
        self._words = max([max(1, p.box[0]) for p in code.parameters if p.kind == "counter"], default=0)
        self.counts = self._words > 0
        """Whether the kernel has a counter, which a CUDA graph must not share with other launches."""
        self._packed: dict[Any, PackedLaunch | tuple[int, ...]] = {}
        self._forms: dict[Any, LaunchForm] = {}
        self.active_clusters = functools.cache(functools.partial(self._active_clusters, (code.threads, code.shared_bytes)))
        """How many clusters of so many thread blocks the device runs at a time."""

    def __call__(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        """Launches the kernel on the arguments of its tile function: tensors and numbers, outputs, for "pairs" the keys of a chunk.

        Returns which ones it copied.
        """
        stream = cuda.current_stream(self.index)
        if self.counts and cuda.is_capturing(self.index):
            return self._capture(arguments, stream)
        seen = self._seen(arguments, stream)
        for i in self._tensors:
            tensor = arguments[i]
            seen += (tensor.data_ptr(), tensor.shape, tensor.stride())
        key = tuple(seen)
        packed = self._packed.get(key)
        if packed is None:
            packed = self._moved(arguments, stream) or self.copied(arguments) or self.pack(arguments, stream)
            self._packed[key] = packed
            if len(self._packed) > LIMIT:
                self._packed = {key: packed}
        if isinstance(packed, tuple):
            self(_copies(arguments, packed))
            return packed
        self.start(packed)
        return ()

    def start(self, packed: PackedLaunch) -> None:
        """Launches with what `pack` made."""
        result = self._launch(packed.config, self._function, packed.parameters, None)
        if result:
            cuda.launch_again(result, packed.config, self._function, packed.parameters, self.index)

    def _capture(self, arguments: Sequence[Any], stream: int) -> tuple[int, ...]:
        """Launches in a CUDA graph with a counter of its own. Returns what it copied.

        Kernels leave it at zero, so that it is one that an earlier launch has made; where there is none, or the kernel needs more than one
        number, the graph makes it, and sets it to zero in each run.
        """
        copied = self.copied(arguments)
        arguments = _copies(arguments, copied)
        try:
            counter = None if self._words > 1 else _SPARE[self.index].pop()
        except LookupError:
            counter = None
        if counter is None:
            counter = torch.zeros(self._words, dtype=torch.int32, device=self._device)
        self.start(self.pack(arguments, stream, counter))
        return copied

    def _active_clusters(self, block: tuple[int, int], parts: int) -> int:
        return cuda.active_clusters(self._function, cuda.config((parts, 1, 1), *block, 0, parts), self.index)

    def alignment(self, argument: int, element: torch.dtype) -> int:
        """Of how many elements the address and the strides of an argument must be multiples."""
        return 16 // element.itemsize if argument in self.tiled else self._aligned.get(argument, 1)

    def copied(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        """The arguments that must be copied, as the kernel cannot read them where they are. Raises ArgumentError for other devices."""
        for i in self._tensors:
            _check_place(i, arguments[i], self.index)
        unread = {i for i in self.tiled if not is_tiled(arguments[i])}
        unread |= {i for i, elements in self._aligned.items() if not is_aligned(arguments[i], elements)}
        return tuple(sorted(unread))

    def pack(self, arguments: Sequence[Any], stream: int, counter: torch.Tensor | None = None) -> PackedLaunch:
        """What a launch on these arguments and this stream needs; it keeps no tensor alive but the stream's counter."""
        moved = self._moved(arguments, stream) if counter is None else None
        if moved is not None:
            return moved
        own = counter is None
        grid, blocks = (arguments[-1].grid, 1) if self._code.grid == FEW else self._grid(self._extents(arguments))
        code = self._code
        if self.counts and counter is None:
            counter = _counter(self.index, stream, self._device)
            if not _SPARE.get(self.index):
                _SPARE[self.index] = spare_counters(self._device)
        address = 0 if counter is None else counter.data_ptr()
        values = [
            ("map", _map(arguments[p.argument], p)) if p.kind in (*_MAPPED, _WINDOW) else value_of(p, arguments, blocks, address)
            for p in code.parameters
        ]
        cluster = arguments[-1].parts if code.grid == FEW else code.cluster
        config = cuda.config(grid, code.threads, code.shared_bytes, stream, cluster, code.early)
        if own:
            self._keep(arguments, stream, values, config)
        return PackedLaunch(values, config)

    def _form_of(self, arguments: Sequence[Any], stream: int) -> tuple[Any, ...]:
        """What decides about a launch but for addresses."""
        seen = self._seen(arguments, stream)
        if self._code.grid == FEW:  # the structure has addresses
            seen[-1] = (arguments[-1].grid, arguments[-1].parts)
        for i in self._tensors:
            tensor = arguments[i]
            seen += (tensor.shape, tensor.stride(), tensor.dtype)
        return tuple(seen)

    def _seen(self, arguments: Sequence[Any], stream: int) -> list[Any]:
        """What decides about a launch beside tensors; 0.0 == -0.0, by which functions may divide."""
        return [stream, *[arguments[i] or repr(arguments[i]) for i in self._numbers]]

    def form(self, arguments: Sequence[Any], stream: int) -> LaunchForm | None:
        """What launches on tensors of these shapes, which were packed before, have in common; None where that is not known."""
        return self._forms.get(self._form_of(arguments, stream))

    def _moved(self, arguments: Sequence[Any], stream: int) -> PackedLaunch | None:
        """The launch on tensors that lie elsewhere than others of the same shapes, which were packed before; None where none were."""
        form = self._forms.get(self._form_of(arguments, stream)) if self._forms else None
        return None if form is None else form.at(arguments, self.index)

    def _keep(self, arguments: Sequence[Any], stream: int, values: Sequence[tuple[str, Any]], config: cuda.Config) -> None:
        """Keeps what launches on tensors of these shapes have in common, where kernels read them in place."""
        places = []
        for number, (parameter, (_, value)) in enumerate(zip(self._code.parameters, values, strict=True)):
            if parameter.kind == "bytes":
                places.append((number, parameter.argument, False, False))
            elif parameter.kind == "pointer":
                places.append((number, parameter.argument, False, parameter.argument in self._aligned))
            elif parameter.kind in (*_MAPPED, _WINDOW):
                if _ADDRESS.unpack_from(value)[0] != tensor_of(arguments[parameter.argument]).data_ptr() or not cuda.maps_move():
                    return  # also a window that is zeros
                places.append((number, parameter.argument, True, True))
        if any(divided and arguments[number].data_ptr() % 16 for _, number, _, divided in places):
            return
        if len(self._forms) >= LIMIT:
            self._forms.clear()
        self._forms[self._form_of(arguments, stream)] = LaunchForm(values, config, places)

    def _extents(self, arguments: Sequence[Any]) -> Sequence[int]:
        """Batch, heads, and rows or, for chunk scans, as many rows as their blocks have together."""
        if self._scans is None:
            return extents_of(self._kernel, arguments)
        over = arguments[self._over].shape
        return self._scans.sequences_of(arguments), over[1], self._scans.blocks * self._rows

    def _grid(self, over: Sequence[int]) -> tuple[tuple[int, int, int], int]:
        """Thread blocks, and how many blocks of rows there are."""
        if self._code.grid != "persistent":
            return grid_of(self._code, self._rows, over)
        batch, heads, length = over[:3]
        blocks, cluster = -(-length // self._rows), self._code.cluster
        if blocks * heads * batch > _PROGRAM_LIMIT:
            raise ArgumentError(
                f"a batch of {batch} with {heads} heads of {length} rows does not fit into one launch, which runs up to "
                f"{_PROGRAM_LIMIT} blocks of {self._rows} rows: call it for parts of the batch"
            )
        room = cuda.device(self.index).multiprocessors * self._code.occupancy
        whole = min(room // cluster, blocks * heads * batch)
        return (max(1, whole) * cluster, 1, 1), blocks


def is_tiled(tensor: torch.Tensor | Ragged) -> bool:
    """Whether the copy engine can read the tensor: dense columns; the address and the other strides are multiples of 16 bytes."""
    return is_aligned(tensor, 16 // tensor.element_size())


def tiled_copy(tensor: Any) -> Any:
    """A copy that the copy engine can read."""
    return aligned_copy(tensor, 16 // tensor.element_size())


def _check_place(position: int, tensor: torch.Tensor | Ragged, index: int) -> None:
    own = tensor_of(tensor)
    if cuda.index_of(own) != index:
        raise ArgumentError(f"argument {position} of this kernel is on {own.device}, but the others are on cuda:{index}: move it there")
    if not own.data_ptr() and own.numel():
        raise ArgumentError(f"a tensor of shape {list(tensor.shape)} holds no elements in the memory of the GPU")


def _map(tensor: Any, parameter: KernelParameter) -> bytes:
    if parameter.kind == _WINDOW:
        if not tensor.numel() or parameter.box[0] * tensor.element_size() != parameter.swizzle or not is_tiled(tensor):
            return bytes(cuda.MAP_BYTES)
        while tensor.dim() > 4:
            tensor = tensor[0]
        order = [n for n in range(-tensor.dim(), -1) if n != parameter.dim]
        tensor = tensor.permute(*order, parameter.dim, -1)[(None,) * (4 - tensor.dim())]
    if tensor.dim() == 5:  # sums of all chunks in one slot
        tensor = tensor.first_slot() if isinstance(tensor, Ragged) else tensor[0]
    box = parameter.box
    if parameter.kind == "packed":
        heads = parameter.dim
        if tensor.shape[1] % heads:
            raise ArgumentError(f"a kernel for packs of {heads} heads takes no tensor of {tensor.shape[1]} heads")
        tensor, box = tensor.transpose(1, 2), (box[0], heads, box[1] // heads)
    address = tensor_of(tensor).data_ptr()  # that of a view is in front of its tensor
    key = (parameter.kind, address, tensor.dtype, tensor.shape, tensor.stride(), box, parameter.swizzle)
    found = _MAPS.get(key)
    if found is None:
        if len(_MAPS) >= 8 * LIMIT:
            _MAPS.clear()
        describe = cuda.ragged_map if parameter.kind == "ragged" else cuda.tensor_map
        found = describe(*key[1:])
        if parameter.kind == _WINDOW and not any(found[:8]):  # what kernels look at
            found = bytes(cuda.MAP_BYTES)
        _MAPS[key] = found
    return found


def _copies(arguments: Sequence[Any], which: Sequence[int]) -> list[Any]:
    return [tiled_copy(argument) if i in which else argument for i, argument in enumerate(arguments)]


def _counter(index: int, stream: int, device: torch.device) -> torch.Tensor:
    """Numbers (int32) that are zero whenever a kernel starts on a stream. Raises UnsupportedError where a handle stands for several."""
    found = _COUNTERS.get((index, stream))
    if found is None:
        if stream == _OF_THREADS:
            raise UnsupportedError(
                "kernels whose thread blocks draw from a counter do not run on the default streams of threads, which share one handle: "
                "call it under torch.cuda.stream(torch.cuda.Stream())"
            )
        # Threads may meet here: all take the one that stays.
        found = _COUNTERS.setdefault((index, stream), torch.zeros(COUNTER_WORDS, dtype=torch.int32, device=device))
    return found


def spare_counters(device: torch.device) -> list[torch.Tensor]:
    """Counters that CUDA graphs take later, which are zero when a graph first runs on whatever stream."""
    made = torch.zeros(_SPARES, dtype=torch.int32, device=device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    _NEVER_FREED.append(made)
    return list(made.split(1))
