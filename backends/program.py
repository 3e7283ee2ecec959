"""What programs of every backend have in common: how derivatives are prepared, the order of steps, shapes, checks of arguments.

A program is a host function (see `backends.host`) whose kernels run one after another on torch tensors.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir.backends.copies import Copies
from attn_mlir.backends.host import Argument, Host, HostStep, KernelGrid, StepResult
from attn_mlir.backends.segments import SHORTEST, DeviceModel, choose_segment
from attn_mlir.backends.sizes import has_positions, shape_of
from attn_mlir.dialects import loaded
from attn_mlir.dialects.elements import ELEMENTS
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry

DTYPES = {
    **{name: getattr(torch, element.torch) for name, element in ELEMENTS.items()},
    "i1": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
}  # fmt: skip
OUTLINE = "attn-simplify,attn-apply-mods,attn-outline"
_LIMIT = 512


@dataclass(frozen=True)
class ResultShapes:
    """What a step makes: for each result its shape, dtype, and whether it is shaped like q, k, v or o."""

    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]
    heads: tuple[bool, ...]


@dataclass(frozen=True)
class RunPlan:
    """What a run on tensors of given shapes makes, step by step."""

    steps: tuple[ResultShapes, ...]
    empty: bool
    """Whether there are no rows or no keys (or no heads of a linear attention), so that everything is zero."""
    size: int
    """The bytes of all tensors that go in."""


class LaunchPlan(ABC):
    """A compiled host function, which takes tensors and numbers and returns tensors. See `driver.CompiledFunction`."""

    def __init__(self, host: Host, kernels: Mapping[str, KernelGrid]) -> None:
        self.host = host
        self.kernels = kernels
        self._last_use = _last_uses(host)
        self._used = frozenset(host.returns).union(*(step.operands for step in host.steps))
        self._plans: dict[Any, RunPlan] = {}
        self._copies = Copies()

    @abstractmethod
    def launch(self, step: HostStep, operands: list[Any], made: ResultShapes, plan: RunPlan, layout: str) -> list[torch.Tensor]:
        """Runs the kernel of a step; returns its results."""

    @staticmethod
    @abstractmethod
    def readable(tensor: torch.Tensor, by_columns: bool) -> torch.Tensor:
        """The tensor itself where kernels can read it, else a copy; `by_columns` ones have a fixed number of columns."""

    @abstractmethod
    def machine(self) -> DeviceModel:
        """What it runs on, for the choice of segments."""

    def segment_for(self, inputs: Sequence[Any]) -> int:
        """See `driver.CompiledFunction.segment_for`."""
        batch, heads, length, _ = inputs[2].shape
        return 0 if length < SHORTEST else choose_segment(self.kernels, batch, heads, length, self.machine())

    def segment_for_delta(self, inputs: Sequence[Any]) -> int:
        """See `driver.CompiledFunction.segment_for_delta`."""
        return 0

    def results(self, inputs: Sequence[Any]) -> list[tuple[torch.Size, torch.dtype]]:
        """See `driver.CompiledFunction.results`."""
        shapes: list[Any] = [value.shape if isinstance(value, torch.Tensor) else () for value in inputs]
        dtypes: list[Any] = [None] * len(shapes)
        for made in self._steps(shapes):
            shapes += made.shapes
            dtypes += made.dtypes
        return [(shapes[i], dtypes[i]) for i in self.host.returns]

    def run(self, inputs: Sequence[Any], layout: str = "bhsd") -> list[torch.Tensor]:
        """See `driver.CompiledFunction.run`."""
        plan = self.plan(inputs)
        values: list[Any] = [
            # Tensors with a fixed number of columns are read by tiles.
            self.readable(value, bool(type_.shape) and type_.shape[-1] != -1) if type_.shape is not None and i in self._used else value
            for i, (value, type_) in enumerate(zip(inputs, self.host.arguments, strict=True))
        ]
        if len(inputs) > 2 and not (values[0] is inputs[0] and values[1] is inputs[1] and values[2] is inputs[2]):
            self._copies.compare(inputs, values)
        for step, made, last_uses in zip(self.host.steps, plan.steps, self._last_use, strict=True):
            operands = [values[i] for i in step.operands]
            if plan.empty:
                device = inputs[0].device
                values += [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in zip(made.shapes, made.dtypes, strict=True)]
            elif not step.kernel:
                values.append(operands[0] + operands[1])
            elif step.same >= 0 and made.shapes[0] == operands[step.same].shape:
                values.append(operands[step.same])
            else:
                values += self.launch(step, operands, made, plan, layout)
            for last in last_uses:
                values[last] = None
        return [values[i] for i in self.host.returns]

    @property
    def copies(self) -> dict[str, str]:
        """Why some of q, k and v were copied, by their names."""
        return self._copies.notes

    def tell_copied(self, step: HostStep, operands: Sequence[Any], copied: Iterable[int]) -> None:
        """Tells of the operands that a step's kernel could not read where they are, given by their numbers."""
        for number in copied:
            if number < len(operands) and step.operands[number] < 3:
                self._copies.tell(step.operands[number], operands[number])

    def plan(self, inputs: Sequence[Any]) -> RunPlan:
        """The plan of a run on these inputs. Raises ArgumentError for other inputs than the program takes."""
        key = tuple([(x.shape, x.dtype) if isinstance(x, torch.Tensor) else None for x in inputs])
        return self._plans.get(key) or self._plan(key, inputs)

    def _plan(self, key: Any, inputs: Sequence[Any]) -> RunPlan:
        for position, (value, type_) in enumerate(zip(inputs, self.host.arguments, strict=True)):
            if type_.shape is not None:
                _check(position, value, type_, type_.shape)
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        shapes = [value.shape if isinstance(value, torch.Tensor) else () for value in inputs]
        # A linear attention without positions hands its state on.
        states = not all(has_positions(result.sizes) for step in self.host.steps for result in step.results)
        empty = any(0 in shape[: 2 if states else 3] for shape in shapes[:2])
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if len(self._plans) >= _LIMIT:
            self._plans.clear()
        plan = self._plans[key] = RunPlan(tuple(self._steps(shapes)), empty, size)
        return plan

    def _steps(self, inputs: Sequence[Any]) -> Iterator[ResultShapes]:
        """What each step makes, for inputs of these shapes (those of numbers are empty)."""
        shapes = list(inputs)
        for step in self.host.steps:
            operands = [shapes[i] for i in step.operands]
            new = tuple(torch.Size(shape_of(result.sizes, operands)) for result in step.results)
            shapes += new
            yield ResultShapes(new, tuple(DTYPES[result.type.element] for result in step.results), tuple(map(_is_head, step.results)))


def _check(position: int, value: Any, type_: Argument, shape: tuple[int, ...]) -> None:
    fits = isinstance(value, torch.Tensor) and value.dim() == len(shape)
    fits = fits and all(size in (-1, given) for size, given in zip(shape, value.shape, strict=True))
    # Unsigned bytes arrive as i8.
    if not fits or (value.dtype != DTYPES[type_.element] and (type_.element, value.dtype) != ("i8", torch.uint8)):
        given = f"{list(value.shape)} of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise ArgumentError(f"argument {position} of this program is {list(shape)} of {type_.element}, got {given}")


def _is_head(result: StepResult) -> bool:
    """Whether the result is shaped like q, k, v or o, and not like a captured tensor, of which no size is fixed."""
    return bool(result.type.shape) and len(result.type.shape) == 4 and result.type.shape[-1] != -1 and has_positions(result.sizes)


def _last_uses(host: Host) -> list[list[int]]:
    """For each step, the values that nothing needs after it."""
    last: dict[int, int] = {}
    made = len(host.arguments)
    for number, step in enumerate(host.steps):
        last.update({operand: number for operand in step.operands})
        last.update({made + i: number for i in range(len(step.results))})
        made += len(step.results)
    kept = set(host.returns)
    return [[value for value, use in last.items() if use == number and value not in kept] for number in range(len(host.steps))]


def prepare_derivative(
    function: str, wrt: Sequence[str], outline: str = OUTLINE, segment: int = 0, residual: bool = False, options: str = ""
) -> tuple[str, str]:
    """The name of a derivative of the program `@attention`, and the pipeline that makes it; see `driver.compile_derivative`.

    `outline`: the passes that make kernels of the differentiated program. `segment` > 0: scans are cut into segments of so many positions.
    `residual`: see `attn-differentiate`; `options`: further ones of it. "given": `@attention` is a function of derivatives already.
    """
    names = "+".join(wrt)
    split = f"attn-split-sequences{{segment={segment}}},func.func(cse)," if segment else ""
    outline = split + outline
    if function in ("", "written-fwd"):
        return "attention", split + OUTLINE
    if function == "given":
        return "attention", outline
    if function == "written-bwd":
        return "attention_bwd", f"attn-simplify,attn-custom-vjp{{wrt={names}}},{outline}"
    options = f"functions={function} wrt={names} only=true{' residual=true' if residual else ''} {options}"
    differentiate = f"attn-simplify,attn-recover-rows,attn-differentiate{{{options.strip()}}}"
    return f"attention_{function}", f"{differentiate},{outline}"


def may_be_wide(prepare: str, module: ir.Module) -> bool:
    """Whether a pipeline of `prepare_derivative` makes what there is for heads of more than 256 columns on GPUs that have such kernels.

    That is an attention and its derivatives, but for those of lists of keys.
    """
    made = any(f"attn-differentiate{{functions={name} " in prepare for name in ("fwd", "bwd", "jvp", "bwd2"))
    return prepare == OUTLINE or (made and not find_all(module.operation, "attn.key_lists"))


@contextmanager
def reported() -> Iterator[None]:
    """Makes a CompileError of whatever a pass or the parser raises."""
    try:
        yield
    except (UnsupportedError, CompileError):
        raise
    except Exception as error:
        raise CompileError(str(error)) from error


def keep_kernels(module: ir.Module, host: Host) -> None:
    """Erases the functions that are no kernels of `host`; kernels have other arguments than their calls from here on."""
    kept = {step.kernel for step in host.steps}
    for op in [view.operation for view in module.body.operations]:
        if op.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value not in kept:
            op.erase()


def function_named(module: ir.Module, name: str) -> ir.Operation:
    """The function of that name. Raises CompileError where there is none."""
    for view in module.body.operations:
        if view.operation.name == "func.func" and ir.StringAttr(view.operation.attributes["sym_name"]).value == name:
            return view.operation
    raise CompileError(f"the module holds no function @{name}")


def products_of(function: ir.Operation) -> tuple[tuple[int, int], ...]:
    """Which captures the `attn.product` pieces of a function multiply: the places of tensors of queries and of keys behind q, k and v."""
    arguments = list(function.regions[0].blocks[0].arguments)[3:]
    found = [[arguments.index(operand) for operand in product.operands] for product in find_all(function, "attn.product")]
    return tuple((query, key) for query, key in found)


def stages_of(source: str, *steps: str | Callable[[ir.Module], None]) -> dict[str, str]:
    """The program after each pass, by the pass's name (a second run of a pass gets the suffix -2), "traced" first.

    `steps` are pipelines as text, and changes of the module between them.
    """
    stages = {"traced": source}

    def record(step: Any, operation: ir.Operation, seconds: float) -> None:
        name = step.name if step.name not in stages else f"{step.name}-{sum(n.startswith(step.name) for n in stages) + 1}"
        stages[name] = operation.get_asm(use_name_loc_as_prefix=True)

    with loaded():
        apply_steps(ir.Module.parse(source), steps, [record])
    return stages


def apply_steps(module: ir.Module, steps: Iterable[str | Callable[[ir.Module], None]], after: Sequence[Any] = ()) -> None:
    """Runs pipelines as text, `after` being called after each pass, and changes of the module between them."""
    for step in steps:
        if isinstance(step, str):
            Pipeline.parse(step, registry()).run(module, after=after)
        else:
            step(module)
