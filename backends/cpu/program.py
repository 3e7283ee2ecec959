"""Derivative programs: several kernels, called in the order of a host function, on torch tensors."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir.backends.cpu import cache, pipeline
from attn_mlir.backends.cpu.jit import Worker, load_workers
from attn_mlir.backends.cpu.launch import launch_grid, readable
from attn_mlir.backends.cpu.slots import allocate, choose_grid
from attn_mlir.backends.cpu.steps import Argument, Host, Kernel, Result, Step, from_json, read_host, read_kernel, to_json
from attn_mlir.backends.cpu.target import host
from attn_mlir.dialects import load_all
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry

DTYPES = {
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
    "i1": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
}  # fmt: skip
_PROGRAMS: dict[tuple[str, str, str], "CpuProgram"] = {}


class CpuProgram:
    """A function compiled for the CPU that takes tensors and numbers and returns tensors. See `driver.Program`."""

    def __init__(self, source: str, prepare: str, function: Host, kernels: dict[str, Kernel], workers: dict[str, Worker]) -> None:
        self._source = source
        self._prepare = prepare
        self._host = function
        self._kernels = kernels
        self._workers = workers
        self._last_use = _last_uses(function)

    def results(self, inputs: Sequence[Any]) -> list[tuple[torch.Size, torch.dtype]]:
        """See `driver.Program.results`."""
        shapes: list[Any] = [value.shape if isinstance(value, torch.Tensor) else () for value in inputs]
        dtypes: list[Any] = [None] * len(shapes)
        sizes = _sizes(shapes)
        for step in self._host.steps:
            shapes += [_shape(result, step, shapes, sizes) for result in step.results]
            dtypes += [DTYPES[result.type.element] for result in step.results]
        return [(shapes[i], dtypes[i]) for i in self._host.returns]

    def run(self, inputs: Sequence[Any], layout: str = "bhsd") -> list[torch.Tensor]:
        """See `driver.Program.run`."""
        values: list[Any] = [
            self._input(i, value, type_) for i, (value, type_) in enumerate(zip(inputs, self._host.arguments, strict=True))
        ]
        shapes = [value.shape if isinstance(value, torch.Tensor) else () for value in values]
        sizes = _sizes(shapes)
        empty = any(0 in role[:3] for role in sizes.values())
        size = sum(value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor))
        for number, step in enumerate(self._host.steps):
            operands = [values[i] for i in step.operands]
            made = [torch.Size(_shape(result, step, shapes, sizes)) for result in step.results]
            shapes += made
            dtypes = [DTYPES[result.type.element] for result in step.results]
            if empty:
                values += [torch.zeros(shape, dtype=dtype, device="cpu") for shape, dtype in zip(made, dtypes, strict=True)]
            else:
                values += self._run(step, operands, made, dtypes, size, layout)
            for last in self._last_use[number]:
                values[last] = None
        return [values[i] for i in self._host.returns]

    def _input(self, position: int, value: Any, type_: Argument) -> Any:
        if type_.shape is None:
            return value
        fits = isinstance(value, torch.Tensor) and value.dim() == len(type_.shape)
        fits = fits and all(size in (-1, given) for size, given in zip(type_.shape, value.shape, strict=True))
        # Unsigned bytes arrive as i8.
        if not fits or (value.dtype != DTYPES[type_.element] and (type_.element, value.dtype) != ("i8", torch.uint8)):
            given = f"{list(value.shape)} of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise ArgumentError(f"argument {position} of this program is {list(type_.shape)} of {type_.element}, got {given}")
        # Tensors with a fixed number of columns are read by tiles.
        return readable(value, bool(type_.shape) and type_.shape[-1] != -1)

    def _run(
        self, step: Step, operands: list[Any], shapes: list[torch.Size], dtypes: list[torch.dtype], size: int, layout: str
    ) -> list[torch.Tensor]:
        if not step.kernel:
            return [operands[0] + operands[1]]
        kernel = self._kernels[step.kernel]
        width = max((dtype.itemsize for dtype in dtypes), default=4)
        grid = choose_grid(kernel, operands[kernel.over].shape, shapes, width, size)
        transposed = [layout == "bshd" and len(shapes[i]) == 4 and _is_head(result) for i, result in enumerate(step.results)]
        memory = [allocate(kernel, i, grid, shapes[i], dtypes[i], transposed[i]) for i in range(len(shapes))]
        arguments = [
            (value, "tensor" if isinstance(value, torch.Tensor) else self._kind(number))
            for value, number in zip(operands, step.operands, strict=True)
        ]
        launch_grid(self._workers[step.kernel], grid, arguments, [each.seen for each in memory], kernel.grid == "pairs")
        return [each.result() for each in memory]

    def _kind(self, number: int) -> str:
        return self._host.arguments[number].element

    def stages(self) -> dict[str, str]:
        """See `driver.Kernel.stages`; the host function is part of the first ones, up to "attn-outline"."""
        stages = {"traced": self._source}
        with ir.Context() as context:
            load_all(context)
            module = ir.Module.parse(self._source)

            def record(step: Any, operation: ir.Operation, seconds: float) -> None:
                name = step.name if step.name not in stages else f"{step.name}-{sum(n.startswith(step.name) for n in stages) + 1}"
                stages[name] = operation.get_asm(use_name_loc_as_prefix=True)

            Pipeline.parse(self._prepare, registry()).run(module, after=[record])
            _keep_kernels(module, self._host)
            Pipeline.parse(pipeline.ALL, registry()).run(module, after=[record])
        return stages


def _sizes(shapes: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    """The first dimensions of results by role, from the shapes of q and k."""
    rows = tuple(shapes[0][:3])
    return {"query": rows, "row": rows, "key": tuple(shapes[1][:3])}


def _shape(result: Result, step: Step, shapes: Sequence[Any], sizes: dict[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    known = result.type.shape or ()
    if result.role.startswith("like:"):
        return tuple(shapes[step.operands[int(result.role[5:])]][: len(known)])
    return (*sizes[result.role], *known[3:])


def _is_head(result: Result) -> bool:
    """Whether the result is shaped like q, k, v or o, and not like a captured tensor, of which no size is fixed."""
    return bool(result.type.shape) and result.type.shape[-1] != -1


def _last_uses(function: Host) -> list[list[int]]:
    """For each step, the values that nothing needs after it."""
    last: dict[int, int] = {}
    made = len(function.arguments)
    for number, step in enumerate(function.steps):
        last.update({operand: number for operand in step.operands})
        last.update({made + i: number for i in range(len(step.results))})
        made += len(step.results)
    kept = set(function.returns)
    return [[value for value, use in last.items() if use == number and value not in kept] for number in range(len(function.steps))]


def compile_derivative(source: str, function: str, wrt: Sequence[str]) -> CpuProgram:
    """Compiles a derivative of the program `@attention`; see `driver.compile_derivative`."""
    if function == "written-fwd":
        return compile_program(source, "attention")
    if function == "written-bwd":
        return compile_program(
            source, "attention_bwd", f"attn-simplify,attn-written-backward{{wrt={'+'.join(wrt)}}},attn-simplify,attn-outline"
        )
    options = f"functions={function} wrt={'+'.join(wrt)} only=true"
    differentiate = f"attn-simplify,attn-dense-rows,attn-differentiate{{{options}}}"
    return compile_program(source, f"attention_{function}", f"{differentiate},attn-simplify,attn-outline")


def compile_program(source: str, name: str, prepare: str = "attn-simplify,attn-outline") -> CpuProgram:
    """Compiles function `name` of what the pipeline `prepare` makes of a module, or finds it in memory or on disk."""
    key = (source, name, prepare)
    if key not in _PROGRAMS:
        _PROGRAMS[key] = _compile(*key)
    return _PROGRAMS[key]


def _compile(source: str, name: str, prepare: str) -> CpuProgram:
    parts = [source, name, prepare, pipeline.KERNEL, pipeline.LLVM, host().name, cache.version()]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    found = cache.load(key)
    with ir.Context() as context:
        load_all(context)
        if found is not None:
            function, kernels = from_json(found[1])
            module = ir.Module.parse(found[0])
        else:
            module, function, kernels = _lower(source, name, prepare)
            cache.save(key, module, to_json(function, kernels))
        return CpuProgram(source, prepare, function, kernels, load_workers(module, kernels))


def _lower(source: str, name: str, prepare: str) -> tuple[ir.Module, Host, dict[str, Kernel]]:
    try:
        module = ir.Module.parse(source)
        Pipeline.parse(prepare, registry()).run(module)
        function = read_host(_function(module, name))
        _keep_kernels(module, function)
        Pipeline.parse(pipeline.KERNEL, registry()).run(module)
        called = [step for step in function.steps if step.kernel]
        kernels = {step.kernel: read_kernel(_function(module, step.kernel), len(step.results)) for step in called}
        Pipeline.parse(pipeline.LLVM, registry()).run(module)
    except (UnsupportedError, CompileError):
        raise
    except Exception as error:
        raise CompileError(str(error)) from error
    return module, function, kernels


def _keep_kernels(module: ir.Module, function: Host) -> None:
    """Erases the functions that are no kernels of `function`; kernels have other arguments than their calls from here on."""
    kept = {step.kernel for step in function.steps}
    for op in [view.operation for view in module.body.operations]:
        if op.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value not in kept:
            op.erase()


def _function(module: ir.Module, name: str) -> ir.Operation:
    for view in module.body.operations:
        if view.operation.name == "func.func" and ir.StringAttr(view.operation.attributes["sym_name"]).value == name:
            return view.operation
    raise CompileError(f"the module holds no function @{name}")
