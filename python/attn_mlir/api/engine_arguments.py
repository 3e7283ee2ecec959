"""Arguments of engines: their checks, what they stand for, and what the author of an OnlineFunc wrote for the backward pass."""

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from attn_mlir import driver, testing
from attn_mlir.api.arch import device_for
from attn_mlir.api.custom_io import CustomIO
from attn_mlir.api.given_masks import function_of, is_block_mask
from attn_mlir.api.inputs import Problem, device_type
from attn_mlir.api.makers import dtypes_of_state
from attn_mlir.api.mask_strings import parse
from attn_mlir.api.online_func import OnlineFunc, writes_backward
from attn_mlir.backends import tensors_of
from attn_mlir.errors import ArgumentError, CompileError, TraceError, UnsupportedError
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.captures import Scan

Function = Callable[..., Any]


def has_backward(online_func: OnlineFunc) -> bool:
    """The same as `writes_backward`; what is incomplete is refused when it is needed."""
    try:
        return writes_backward(online_func)
    except ArgumentError:
        return False


def compare_written(online_func: OnlineFunc, custom: CustomIO) -> None:
    """Warns where a custom VJP or combine differs from what follows from the online function, or where nothing does."""
    written = {"backward": writes_backward(online_func), "combine": type(online_func).combine is not OnlineFunc.combine}
    comparisons = {"backward": testing.compare_backward, "combine": testing.compare_combine}
    for method in [method for method, exists in written.items() if exists]:
        try:
            found = comparisons[method](online_func, custom)
        except CompileError as error:
            warnings.warn(f"{type(online_func).__name__}.{method} cannot be compared: {error}", stacklevel=3)
        else:
            if not found.agrees:
                warnings.warn(str(found), stacklevel=3)


class _Refused(torch.autograd.Function):
    """Gives finished results, and raises an error in place of a backward pass, when a gradient is asked for."""

    generate_vmap_rule = True

    @staticmethod
    def forward(error: Exception, results: Sequence[torch.Tensor], *inputs: Any) -> tuple[torch.Tensor, ...]:
        return tuple(results)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.error = inputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise ctx.error


def without_backward(results: Sequence[torch.Tensor], inputs: Sequence[Any], error: Exception) -> list[torch.Tensor]:
    """`results`, computed without gradients, as depending on `inputs`: their gradient raises `error`."""
    return list(_Refused.apply(error, results, *inputs))  # type: ignore[no-untyped-call]


def custom_of(given: Any, name: str) -> CustomIO:
    """The custom inputs that the argument `name` declares, as they are now: what is changed of it later has no effect. None for None."""
    if given is None or isinstance(given, CustomIO):
        return CustomIO({} if given is None else {name: tensor.dims for name, tensor in given.input_tensors.items()})
    raise ArgumentError(f"{name} must be a CustomIO, got {type(given).__name__}: write CustomIO({{...}})")


def working_dtypes(count: int, trace: Callable[[tuple[torch.dtype, ...]], Any]) -> tuple[torch.dtype, ...]:
    """Dtypes of `count` custom inputs, which no call has told yet, with which `trace` succeeds.

    Raises the TraceError of the first attempt where all combinations were tried in vain. Of copies they are known.
    """
    known = dtypes_of_state()
    if known is not None:
        return tuple(known[:count]) if len(known) >= count else (torch.float32,) * count
    found: TraceError | None = None
    for dtypes in itertools.islice(itertools.product((torch.float32, torch.int64, torch.bool), repeat=count), 27):
        try:
            trace(dtypes)
        except TraceError as error:
            found = found or error
        else:
            return dtypes
    if found is not None and count <= 3:  # with more, not all combinations were tried
        raise found
    return (torch.float32,) * count


def captures_with(
    custom: Mapping[str, torch.Tensor], entry: Entry, scan: Scan, dropout: Mapping[str, Any] = MappingProxyType({})
) -> list[Any]:
    """The values that a program captures, its custom inputs and those of dropout among them."""
    captures = entry.captures(scan, 0.0, dropout)
    for position, captured in enumerate(entry.traced.captures):
        if captured.source[0] == "custom":
            given = captures[position] = custom[captured.source[1]]
            if given.dim() != captured.rank:  # a function reads it as the CustomIO of another engine declares it
                name = captured.source[1]
                raise ArgumentError(f"a function reads `{name}` with {captured.rank} dimensions, but the engine declares {given.dim()}")
    return captures


def target_of(engine: str, device: "EngineDevice", problem: Problem) -> str:
    """What computes a call of an engine: the device that it was made for, or that of the tensors, which must fit each other."""
    if device.name is None:
        return problem.device_type
    if device.tensors != problem.device_type:
        takes = "" if device.tensors == device.name else f", which takes tensors on {device.tensors!r}"
        raise ArgumentError(f"q is on {problem.device}, but this {engine} was made with device={device.name!r}{takes}")
    return device.name


def check_external(online_func: OnlineFunc, custom: CustomIO) -> None:
    """Checks that the tensors that an online function names are custom inputs."""
    for name, tensor in online_func.external_fwd_tensors.input_tensors.items():
        known = custom.input_tensors.get(name)
        if known is None or known.dims != tensor.dims:
            declared = "is not in custom_fwd_inputs" if known is None else f"has the dimensions {known.dims} in custom_fwd_inputs"
            raise ArgumentError(
                f"{type(online_func).__name__} takes the tensor `{name}` with the dimensions {tensor.dims}, which {declared}"
            )


def check_backend(backend: Any) -> None:
    """Refuses what is no code generator of AttentionEngine. Which one is named makes no difference: the tensors' device has its own."""
    if backend not in (None, "tl", "cute", "cute_v2"):
        raise UnsupportedError(
            f'backend={backend!r} is unknown: use "tl" or "cute", or leave it out; what computes is decided by the device of the tensors'
        )


@dataclasses.dataclass(frozen=True)
class EngineDevice:
    """The device that an engine was made for; without a name, that of the tensors of a call."""

    name: str | None
    tensors: str | None
    """The torch device type of the tensors that it takes."""

    @property
    def emulation(self) -> str:
        """Its name where it takes tensors of another device type than its own, else nothing."""
        return self.name if self.name is not None and self.tensors != self.name else ""


def device_of(device: Any) -> EngineDevice:
    """The type of a device that a backend serves; an `Arch` names none."""
    name = device_type(device_for(device))
    if name is None:
        return EngineDevice(None, None)
    driver.compiler_for(name)
    return EngineDevice(name, tensors_of(name))


def mask_of(mask_mod: Any, block_mask: Any) -> Function | None:
    """The mask function, under whichever name it came; a tensor of blocks is none."""
    mask_mod, block_mask = (parse(mask) if isinstance(mask, str) else mask for mask in (mask_mod, block_mask))
    if is_block_mask(mask_mod):
        mask_mod = function_of(mask_mod)
    if isinstance(block_mask, torch.Tensor):
        return mask_mod
    function = function_of(block_mask) if is_block_mask(block_mask) else block_mask
    if mask_mod is not None and function is not None and function is not mask_mod:
        raise ArgumentError("mask_mod and block_mask are two masks: give one, or combine them with attn_mlir.masks.and_(f, g)")
    return function if mask_mod is None else mask_mod
