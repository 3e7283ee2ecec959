"""Problems that a kernel is tuned on: a module, one of its functions, and what that is run on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from attn_mlir import driver
from attn_mlir.api import rows
from attn_mlir.api.attention import Attention
from attn_mlir.api.masks import causal
from attn_mlir.api.options import RecurrenceForm
from attn_mlir.backends import tensors_of
from attn_mlir.backends.program import DTYPES
from attn_mlir.backends.tuning.worker import Job
from attn_mlir.diagnostics import DiagnosticError, at
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.inputs import InputMaker, Sizes
from attn_mlir.tools import source
from attn_mlir.tools.source import Source

FUNCTIONS = {"attention": "", "attention_fwd": "fwd", "attention_bwd": "bwd"}
"""What can be tuned: the attention, and with derivatives its forward pass, which saves rows, and its backward pass."""
_ROWS = ("softmax", "softmax1", "sigmoid", "approximate-sigmoid", "relu", "relu-squared", "relu-normalized", "identity", "retention")
LINEAR = {"linear": "step", "linear-channels": "step channel"}
"""Ready-made linear attentions, by the decays that they have."""


@dataclass(frozen=True)
class TuneProblem:
    """A module's text, and the sizes of the tensors that it is to be fast on."""

    text: str
    sizes: Sizes
    device: str
    seed: int = 0
    wrt: tuple[str, ...] = ("q", "k", "v")
    made: dict[str, list[Any]] = field(default_factory=dict, compare=False)

    def job(self, function: str) -> Job:
        """The job of one of `FUNCTIONS`."""
        kind = FUNCTIONS[function]
        return Job(self.device, kind, self.wrt if kind else ())

    def shapes(self, columns: Sequence[int]) -> list[tuple[int, ...]]:
        """Those of q, k and v, whose columns are given."""
        s = self.sizes
        leading = [(s.batch, s.heads, s.q_len), (s.batch, s.kv_heads, s.kv_len), (s.batch, s.kv_heads, s.kv_len)]
        return [(*each, size) for each, size in zip(leading, columns, strict=True)]

    def inputs(self, function: str) -> list[Any]:
        """What a function of the module is run on: q, k, v and the captures; for a backward pass, also what the forward pass gives."""
        if "attention" not in self.made:
            self.made["attention"] = self._draw()
        values = self.made["attention"]
        if FUNCTIONS[function] != "bwd":
            return values
        if function not in self.made:
            results = driver.compile_derivative(self.text, self.device, "fwd", self.wrt).run(values)
            gradients = [torch.randn_like(result) for result in results[: _results(self.text)]]
            self.made[function] = [*values, *results, *gradients]
        return self.made[function]

    def _draw(self) -> list[Any]:
        target = tensors_of(self.device)
        generator = torch.Generator().manual_seed(self.seed)
        with ir.Context() as context:
            _load(context)
            module = ir.Module.parse(self.text)
            types = _arguments(module)
            if not all(isinstance(type_, ir.RankedTensorType) for type_ in types) or len(types) > 3:
                drawn = InputMaker(self.sizes, self.seed).make(module)
                return [
                    value.item() if not isinstance(type_, ir.ShapedType) else _tensor(value, str(type_.element_type), target)
                    for type_, value in zip(types, drawn, strict=True)
                ]
            shapes = self.shapes([ir.RankedTensorType(type_).shape[3] for type_ in types])
            dtypes = [DTYPES[str(ir.RankedTensorType(type_).element_type)] for type_ in types]
        return [torch.randn(shape, generator=generator).to(target, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]


def columns_of(text: str) -> list[int]:
    """The columns of q, k and v of a module's @attention. Raises ArgumentError where it has none."""
    with ir.Context() as context:
        _load(context)
        types = _arguments(ir.Module.parse(text))[:3]
        if len(types) < 3 or not all(isinstance(type_, ir.RankedTensorType) and type_.rank == 4 for type_ in types):
            raise ArgumentError("@attention must take q, k and v first, tensors [B, H, S, D]")
        return [ir.RankedTensorType(type_).shape[3] for type_ in types]


def module_of(given: Source) -> str:
    """The text of a program as the compiler writes it. Raises DiagnosticError where it is none."""
    with ir.Context() as context:
        _load(context)
        module = source.parse(given)
        if not _is_plain(module):
            raise DiagnosticError(
                [at(module.operation.location, "error", "the module has attributes of its own, which a tuner would replace")]
            )
        return module.operation.get_asm(use_name_loc_as_prefix=False)


def _is_plain(module: ir.Module) -> bool:
    return all(item.name.endswith(".tuned") for item in module.operation.attributes)


def ready_made(name: str, element: str, head_dim: int, value_dim: int, is_causal: bool) -> str:
    """The module of an attention that is known by name: a row function of `attn_mlir.rows`, or one of `LINEAR`."""
    if name in LINEAR:
        if is_causal:
            raise ArgumentError(f"--causal is for rows: {name} is causal as it is")
        entry, _ = RecurrenceForm(element, head_dim, value_dim, 1.0, LINEAR[name]).find((None,) * 6, None)
        return entry.traced.text
    if name not in _ROWS:
        raise ArgumentError(f"there is no file '{name}', and no attention of that name; known are {', '.join(names())}")
    row = getattr(rows, name.replace("-", "_"))
    attention = Attention(row=row, mask_mod=causal() if is_causal else None, scale=head_dim**-0.5)
    return attention._entry(Inputs(element, head_dim, value_dim))[0].traced.text


def names() -> list[str]:
    """The attentions that are known by name."""
    return [*_ROWS, *LINEAR]


def _load(context: ir.Context) -> None:
    from attn_mlir.dialects import load_all

    load_all(context)


def _function(module: ir.Module) -> ir.Operation:
    for function in find_all(module.operation, "func.func"):
        if ir.StringAttr(function.attributes["sym_name"]).value == "attention":
            return function
    raise ArgumentError("the module holds no function @attention")


def _arguments(module: ir.Module) -> list[ir.Type]:
    return [argument.type for argument in _function(module).regions[0].blocks[0].arguments]


def _results(text: str) -> int:
    with ir.Context() as context:
        _load(context)
        function = _function(ir.Module.parse(text))
        return len(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results)


def _tensor(value: Any, element: str, target: str) -> torch.Tensor:
    return torch.from_numpy(value).to(target, DTYPES[element])
