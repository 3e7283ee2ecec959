"""Compiles programs for the CPU and runs them on torch tensors."""

import ctypes
import hashlib
import struct
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from attn_mlir.backends.cpu import cache, pipeline
from attn_mlir.backends.cpu.jit import Worker
from attn_mlir.backends.cpu.target import host
from attn_mlir.dialects import load_all
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry

_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
_KERNELS: dict[str, "CpuKernel"] = {}
_COMPILED = {"count": 0}


def compile_count() -> int:
    """How many programs this process has compiled or loaded from the disk cache (not found in memory)."""
    return _COMPILED["count"]


@dataclass(frozen=True)
class Signature:
    """What a caller must know of a compiled worker; kept beside it in the disk cache."""

    block_q: int
    row_outputs: int
    scalars: tuple[str, ...]
    dims: tuple[int, int]
    element: str


class CpuKernel:
    """A program compiled for the CPU."""

    def __init__(self, source: str, worker: Worker, signature: Signature) -> None:
        self._source = source
        self._worker = worker
        self._signature = signature

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, captures: Sequence[Any], layout: str = "bhsd") -> list[torch.Tensor]:
        """See `driver.Kernel.run`."""
        batch, heads, q_len, columns = q.shape[0], q.shape[1], q.shape[2], v.shape[3]
        if (q.shape[3], columns) != self._signature.dims or q.dtype != _DTYPES[self._signature.element]:
            raise ArgumentError(
                f"this kernel is for head dimensions {self._signature.dims} and {self._signature.element}, "
                f"got {(q.shape[3], columns)} and {q.dtype}"
            )
        if layout == "bshd":
            o = torch.empty((batch, q_len, heads, columns), dtype=q.dtype, device="cpu").transpose(1, 2)
        else:
            o = torch.empty((batch, heads, q_len, columns), dtype=q.dtype, device="cpu")
        score = torch.float64 if q.dtype == torch.float64 else torch.float32
        rows = [torch.empty((batch, heads, q_len), dtype=score, device="cpu") for _ in range(self._signature.row_outputs)]
        blocks = -(-q_len // self._signature.block_q)
        programs = batch * heads * blocks
        if programs:
            # Columns are read as contiguous; other strides are free.
            inputs = [t if (t.stride(3) == 1 or t.shape[3] == 1) and not t.is_neg() else t.resolve_neg().contiguous() for t in (q, k, v)]
            captures = [c.resolve_neg() if isinstance(c, torch.Tensor) and c.is_neg() else c for c in captures]
            words = array("q", (0, programs, blocks, heads))
            for tensor in inputs:
                _append(words, tensor)
            for capture, kind in zip(captures, self._signature.scalars, strict=True):
                if kind == "tensor":
                    _append(words, capture)
                elif kind == "index":
                    words.append(_in_range(capture))
                else:
                    words.frombytes(struct.pack("<d", capture) if kind == "f64" else bytes(ctypes.c_float(capture)) + bytes(4))
            for tensor in (o, *rows):
                _append(words, tensor)
            self._worker.run((ctypes.c_int64 * len(words)).from_buffer(words), programs, torch.get_num_threads())
        return [o, *rows]

    def stages(self) -> dict[str, str]:
        """See `driver.Kernel.stages`."""
        return {"traced": self._source, **stages_of(self._source)}


def _in_range(number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise ArgumentError(f"a captured integer must fit into 64 bits, got {number}")
    return number


def _append(words: array, tensor: torch.Tensor) -> None:
    """Adds the address, sizes and strides of a tensor, which the caller keeps alive."""
    try:
        address = tensor.data_ptr()
    except RuntimeError:
        address = 0
    if not address and tensor.numel():
        raise ArgumentError(
            f"a tensor of shape {list(tensor.shape)} holds no elements in the memory of the CPU: q, k, v and captured tensors "
            "must be dense, and not on meta, fake, or of a torch.func transform"
        )
    words.append(address)
    words.extend(tensor.shape)
    words.extend(tensor.stride())


def compile_module(source: str) -> CpuKernel:
    """Compiles a module given as text, or finds it in memory or on disk. Raises CompileError."""
    kernel = _KERNELS.get(source)
    if kernel is None:
        _COMPILED["count"] += 1
        kernel = _KERNELS[source] = _compile(source)
    return kernel


def _compile(source: str) -> CpuKernel:
    key = hashlib.sha256("\0".join([source, pipeline.KERNEL, pipeline.LLVM, host().name, cache.version()]).encode()).hexdigest()
    found = cache.load(key)
    with ir.Context() as context:
        load_all(context)
        if found is not None:
            text, fields = found
            dims = (fields["dims"][0], fields["dims"][1])
            signature = Signature(fields["block_q"], fields["row_outputs"], tuple(fields["scalars"]), dims, fields["element"])
            module = ir.Module.parse(text)
        else:
            module, signature = _lower(source)
            cache.save(key, module, asdict(signature))
        return CpuKernel(source, Worker(module, "attention"), signature)


def _lower(source: str) -> tuple[ir.Module, Signature]:
    try:
        module = ir.Module.parse(source)
        q, _, v, *arguments = [argument.type for argument in _function(module).arguments]
        scalars = tuple("tensor" if isinstance(type_, ir.RankedTensorType) else str(type_) for type_ in arguments)
        row_outputs = len(ir.FunctionType(ir.TypeAttr(_function(module).attributes["function_type"]).value).results) - 1
        Pipeline.parse(pipeline.KERNEL, registry()).run(module)
        sizes = ir.DictAttr(_function(module).attributes["tile.kernel"])
        signature = Signature(ir.IntegerAttr(sizes["block_q"]).value, row_outputs, scalars, (q.shape[3], v.shape[3]), str(q.element_type))
        Pipeline.parse(pipeline.LLVM, registry()).run(module)
    except (UnsupportedError, CompileError):
        raise
    except Exception as error:
        raise CompileError(str(error)) from error
    return module, signature


def _function(module: ir.Module) -> Any:
    return next(op for op in module.body.operations if op.operation.name == "func.func")


def stages_of(source: str) -> dict[str, str]:
    """The program after each pass, by the pass's name (a second run of a pass gets the suffix -2)."""
    stages: dict[str, str] = {}
    with ir.Context() as context:
        load_all(context)
        module = ir.Module.parse(source)

        def record(step: Any, operation: ir.Operation, seconds: float) -> None:
            name = step.name if step.name not in stages else f"{step.name}-{sum(n.startswith(step.name) for n in stages) + 1}"
            stages[name] = operation.get_asm(use_name_loc_as_prefix=True)

        for text in (pipeline.KERNEL, pipeline.LLVM):
            Pipeline.parse(text, registry()).run(module, after=[record])
    return stages
