"""The part of the CUDA driver API that launching kernels needs, through ctypes. Importing it needs no GPU and no driver.

Functions raise CudaError with the driver's own name and words for what went wrong. Contexts are torch's: the primary context of a device.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from attn_mlir.backends.allocation import empty_strided, poisoned
from attn_mlir.backends.gpu.kernel import RAGGED_ROWS
from attn_mlir.backends.graph_capture import is_capturing as is_capturing
from attn_mlir.errors import AttnError, UnsupportedError

_SUCCESS, _INVALID_CONTEXT = 0, 201
_MULTIPROCESSORS, _SHARED_BYTES, _MAJOR, _MINOR = 16, 97, 75, 76
_MAX_DYNAMIC_SHARED, _CLUSTER, _SERIALISED_BY_PROGRAMS = 8, 4, 6
_RELAXED = 2
MAP_BYTES, MAP_ALIGNMENT = 128, 128
DATA_TYPES = {torch.float8_e4m3fn: 0, torch.float8_e5m2: 0, torch.float16: 6, torch.float32: 7, torch.float64: 8, torch.bfloat16: 9}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_PROMOTE_256 = 3
_ADVICE = {
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the kernel was compiled for another GPU than this one",
    "CUDA_ERROR_INVALID_IMAGE": "the compiled kernel is damaged: remove it from the cache directory ($ATTN_MLIR_CACHE)",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "the compiler is newer than the driver: use a release of CUDA that the driver supports",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "the kernel needs more registers or shared memory than the GPU has",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "a kernel that ran before this call read or wrote outside of its tensors; the process must be restarted",
}


class CudaError(AttnError, RuntimeError):
    """A call of the CUDA driver failed."""


@dataclass(frozen=True)
class Device:
    """A GPU. `capability` is its compute capability, `shared_bytes` the shared memory that a thread block may have."""

    index: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int


class _Dim(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class _AttributeValue(ctypes.Union):
    _fields_ = (("pad", ctypes.c_char * 64), ("cluster", _Dim), ("allowed", ctypes.c_int))


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", _AttributeValue))


class Config(ctypes.Structure):
    """`CUlaunchConfig`, made by `config`."""

    _fields_ = (
        ("grid", _Dim), ("block", _Dim), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip
    keep: Any


@cache
def library() -> Any:
    """libcuda. Raises UnsupportedError where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise UnsupportedError(
            "this machine has no NVIDIA driver (libcuda.so.1): install one, or move the tensors to the CPU with .cpu()"
        ) from None


def check(result: int, what: str) -> None:
    """Raises CudaError unless `result`, of a call that did `what`, is success."""
    if result == _SUCCESS:
        return
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    library().cuGetErrorName(result, ctypes.byref(name))
    library().cuGetErrorString(result, ctypes.byref(text))
    known = (name.value or b"an unknown error").decode()
    advice = _ADVICE.get(known)
    raise CudaError(f"{what}: {known} ({result}): {(text.value or b'').decode()}" + (f"; {advice}" if advice else ""))


def _empty_strided(size: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return empty_strided(size, strides, dtype=dtype, device="cuda")


def _without_cuda(*_: Any) -> Any:
    raise UnsupportedError("this torch was built without CUDA: install one with it, or move the tensors to the CPU")


# Called at every launch, so without functions of ours around them.
index_of: Callable[[torch.Tensor], int] = torch.Tensor.get_device
"""The number of the GPU that a tensor is on; negative where it is on none."""
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", _without_cuda)
"""The number of torch's current device, once torch uses GPUs."""
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _without_cuda)
"""The handle of torch's current stream on a device."""
_fastest = getattr(getattr(torch._C._dynamo, "guards", None), "_empty_strided_cuda", None)
empty: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] = poisoned(_fastest) if _fastest else _empty_strided
"""A new tensor of a size and strides on the current device."""


@cache
def device(index: int) -> Device:
    """The facts about a device."""
    handle = _handle(index)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        check(library().cuDeviceGetAttribute(ctypes.byref(value), number, handle), "asking for an attribute of the device")
        return value.value

    name = ctypes.create_string_buffer(256)
    check(library().cuDeviceGetName(name, 256, handle), "asking for the name of the device")
    capability = (attribute(_MAJOR), attribute(_MINOR))
    return Device(index, name.value.decode(), capability, attribute(_MULTIPROCESSORS), attribute(_SHARED_BYTES))


@cache
def _handle(index: int) -> int:
    """The driver's handle of torch's device `index`; both count what CUDA_VISIBLE_DEVICES leaves."""
    check(library().cuInit(0), "starting the CUDA driver")
    handle = ctypes.c_int()
    check(library().cuDeviceGet(ctypes.byref(handle), index), f"looking for device {index}")
    return handle.value


@cache
def _context(index: int) -> int:
    context = ctypes.c_void_p()
    check(library().cuDevicePrimaryCtxRetain(ctypes.byref(context), _handle(index)), f"taking the context of device {index}")
    return context.value or 0


def enter_context(index: int) -> None:
    """Makes torch's context of a device the one of this thread."""
    check(library().cuCtxSetCurrent(ctypes.c_void_p(_context(index))), f"entering the context of device {index}")


@contextmanager
def inside_context(index: int) -> Iterator[None]:
    """Within it, the context of a device is the one of this thread; afterwards the former is, if there was one."""
    former = ctypes.c_void_p()
    check(library().cuCtxGetCurrent(ctypes.byref(former)), "asking for the context of this thread")
    enter_context(index)
    try:
        yield
    finally:
        if former.value:  # torch's current device is that of the context
            check(library().cuCtxSetCurrent(former), "going back to the former context")


def using(index: int) -> AbstractContextManager[Any]:
    """Within it, a device is torch's current one."""
    return nullcontext() if current_device() == index else torch.cuda.device(index)


@contextmanager
def relaxed() -> Iterator[None]:
    """Allows calls that a CUDA graph under capture would forbid, such as loading code."""
    mode = ctypes.c_int(_RELAXED)
    check(library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)), "relaxing the capture of a graph")
    try:
        yield
    finally:
        library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def load_function(binary: bytes, entry: str, shared_bytes: int, index: int) -> int:
    """Loads code on a device; returns the handle of its kernel `entry`, which may use that much dynamic shared memory."""
    available = device(index).shared_bytes
    if shared_bytes > available:
        raise UnsupportedError(
            f"the kernel {entry} needs {shared_bytes} bytes of shared memory, but a thread block may have {available} on a "
            f"{device(index).name}: it was compiled for another GPU"
        )
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with inside_context(index), relaxed():
        check(library().cuModuleLoadData(ctypes.byref(module), binary), f"loading the kernel {entry}")
        check(library().cuModuleGetFunction(ctypes.byref(function), module, entry.encode()), f"looking for the kernel {entry}")
        if shared_bytes:
            result = library().cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared_bytes)
            check(result, f"giving the kernel {entry} {shared_bytes} bytes of shared memory")
    return function.value or 0


def config(grid: tuple[int, int, int], threads: int, shared_bytes: int, stream: int, cluster: int = 1, early: bool = False) -> Config:
    """How to launch a kernel: thread blocks along x, y and z, clusters of `cluster` of them along x; `early`: beside the one before it."""
    made = Config(_Dim(*grid), _Dim(threads, 1, 1), shared_bytes, stream)
    found = [(_CLUSTER, _AttributeValue(cluster=_Dim(cluster, 1, 1)))] * (cluster > 1)
    found += [(_SERIALISED_BY_PROGRAMS, _AttributeValue(allowed=1))] * early
    if found:
        made.keep = (_Attribute * len(found))(*(_Attribute(number, b"", value) for number, value in found))
        made.attributes, made.count = ctypes.addressof(made.keep), len(found)
    return made


def active_clusters(function: int, config: Config, index: int) -> int:
    """How many clusters of a kernel, as `config` launches it, a device runs at a time; thread blocks where these have no clusters."""
    found = ctypes.c_int()
    with inside_context(index), relaxed():
        if config.count:
            arguments = ctypes.byref(found), ctypes.c_void_p(function), ctypes.byref(config)
            check(library().cuOccupancyMaxActiveClusters(*arguments), "asking how many clusters run at a time")
            return found.value
        threads, memory = ctypes.c_int(config.block.x), ctypes.c_size_t(config.shared_bytes)
        blocks = library().cuOccupancyMaxActiveBlocksPerMultiprocessor(ctypes.byref(found), ctypes.c_void_p(function), threads, memory)
        check(blocks, "asking how many thread blocks run at a time")
    return found.value * device(index).multiprocessors


@cache
def launcher() -> Any:
    """`cuLaunchKernelEx` of the addresses of a `Config` and of an array of pointers to parameters, the function between them."""
    start = library().cuLaunchKernelEx
    start.argtypes = [ctypes.c_void_p] * 4
    start.restype = ctypes.c_int
    return start


def launch_again(result: int, config: int, function: int, parameters: int, index: int) -> None:
    """After a launch that gave `result`: launches once more in a thread that had not used CUDA yet. Raises CudaError otherwise."""
    if result == _INVALID_CONTEXT:
        enter_context(index)
        result = launcher()(config, function, parameters, None)
    check(result, "launching a kernel")


def clear(address: int, size: int, stream: int, index: int) -> None:
    """Writes so many zero bytes on a stream of a device."""
    call = _clearing()
    result = call(address, 0, size, stream)
    if result == _INVALID_CONTEXT:
        enter_context(index)
        result = call(address, 0, size, stream)
    check(result, "clearing memory")


@cache
def _clearing() -> Any:
    call = library().cuMemsetD8Async
    call.argtypes = [ctypes.c_void_p, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
    call.restype = ctypes.c_int
    return call


_SCRATCH = threading.local()


def ragged_map(address: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], box: tuple[int, ...], swizzle: int) -> bytes:
    """A `CUtensorMap` of a ragged view [E, H, T, D] of the tensor at an address, see `KernelParameter`; otherwise as `tensor_map`.

    Addresses are counted in 64 bits and wrap: RAGGED_ROWS times the first stride takes off RAGGED_ROWS rows.
    """
    entries, heads, _, columns = shape
    back = (1 << 34) - strides[2] * dtype.itemsize  # 2^30 times 2^34 is 0
    extents = (RAGGED_ROWS + 1, entries, heads, RAGGED_ROWS, columns)
    steps = (back // dtype.itemsize, strides[0], strides[1], strides[2], 1)
    return _map(address, dtype, extents, steps, (*box, 1, 1, 1), swizzle)


def tensor_map(address: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], box: tuple[int, ...], swizzle: int) -> bytes:
    """A `CUtensorMap` of a tensor [B, H, S, D] with these strides in elements; boxes have `box` columns, rows, and heads, one without.

    The last stride must be 1, the others multiples of 16 bytes, and so must the address; zeros are read outside of the tensor.
    """
    return _map(address, dtype, shape, strides, (*box, 1, 1)[:4], swizzle)


@cache
def maps_move() -> bool:
    """Whether descriptions of tensors of one shape differ in their first eight bytes alone, which are the address of the tensor.

    The driver documents no such thing, so that it is asked for some.
    """
    try:
        with inside_context(current_device()):  # a thread may have none yet
            for shape, strides, swizzle in (((3, 2, 77, 64), (9856, 64, 128, 1), 128), ((1, 1, 5, 8), (40, 40, 8, 1), 0)):
                first = tensor_map(1 << 33, torch.bfloat16, shape, strides, (8, 4), swizzle)
                for address in ((1 << 33) + 16, (1 << 33) + (1 << 21), (1 << 46) + 0x12345670):
                    made = tensor_map(address, torch.bfloat16, shape, strides, (8, 4), swizzle)
                    if made[8:] != first[8:] or int.from_bytes(made[:8], "little") != address:
                        return False
    except CudaError:
        return False
    return True


def _map(address: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], box: tuple[int, ...], swizzle: int) -> bytes:
    """A `CUtensorMap` of a tensor, sizes and strides as torch has them; boxes begin with columns."""
    buffer = getattr(_SCRATCH, "buffer", None)
    if buffer is None:
        buffer = _SCRATCH.buffer = (ctypes.c_char * (MAP_BYTES + MAP_ALIGNMENT))()
    start = -ctypes.addressof(buffer) % MAP_ALIGNMENT
    size = dtype.itemsize
    steps = [16 if extent == 1 else stride * size for extent, stride in zip(shape, strides, strict=True)]
    rank = len(shape)
    result = library().cuTensorMapEncodeTiled(
        ctypes.c_void_p(ctypes.addressof(buffer) + start), DATA_TYPES[dtype], rank, ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*shape[::-1]), (ctypes.c_uint64 * (rank - 1))(*steps[-2::-1]),
        (ctypes.c_uint32 * rank)(*box), (ctypes.c_uint32 * rank)(*[1] * rank), 0, _SWIZZLES[swizzle], _PROMOTE_256, 0,
    )  # fmt: skip
    check(
        result, f"describing a tensor of shape {list(shape)} and strides {list(strides)} with boxes of {box[:2]} to the GPU's copy engine"
    )
    return bytes(buffer[start : start + MAP_BYTES])
