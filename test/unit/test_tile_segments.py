"""Programs whose sequences are cut into segments, kernel by kernel as the evaluator runs them, against the recurrence."""

from typing import Any

import numpy as np
import pytest
import torch

from attn_mlir.backends.host import HostStep, read_host, read_kernel
from attn_mlir.backends.program import LaunchPlan, ResultShapes, RunPlan, function_named, keep_kernels, prepare_derivative
from attn_mlir.backends.segments import DeviceModel
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.reference import evaluate
from attn_mlir.reference.tiles import run_kernel
from attn_mlir.registry import registry
from contexts import loaded_context
from delta_reference import delta_reference, unit
from linear_programs import Linear, error, inputs, recurrence
from programs import text_of

SEGMENT, CHUNK = 16, 4


class Evaluated(LaunchPlan):
    """Tiled kernels, run by the evaluator; those that scatter as they were before they were tiled."""

    def __init__(
        self, text: str, columns: int, derivative: str = "", wrt: tuple[str, ...] = (), rounding: bool = False, segment: int = SEGMENT
    ) -> None:
        """Programs of scans work on `columns` columns of v; 0: on all. With `rounding`, 16 bits are 16 bits. `segment` 0: none."""
        module = ir.Module.parse(text)
        name, pipeline = prepare_derivative(derivative, wrt, segment=segment)
        Pipeline.parse(pipeline, registry()).run(module)
        host = read_host(function_named(module, name))
        keep_kernels(module, host)
        self.outlined = ir.Module.parse(str(module))
        Pipeline.parse(f"attn-chunk-rewrite{{chunk={CHUNK}}}", registry()).run(module)
        for chunk in find_all(module, "attn.chunk") if columns else []:
            assert chunk.parent is not None
            chunk.parent.attributes["tile.blocks"] = ir.DenseI64ArrayAttr.get([16, columns])
        Pipeline.parse("attn-tile,canonicalize,cse", registry()).run(module)
        self.module, self.rounding = module, rounding
        super().__init__(host, {s.kernel: read_kernel(function_named(module, s.kernel), len(s.results)) for s in host.steps if s.kernel})

    def machine(self) -> DeviceModel:
        return DeviceModel(1)

    @staticmethod
    def readable(tensor: torch.Tensor, by_columns: bool) -> torch.Tensor:
        return tensor

    def launch(self, step: HostStep, operands: list[Any], made: ResultShapes, plan: RunPlan, layout: str) -> list[torch.Tensor]:
        kernel = self.kernels[step.kernel]
        if "scatter" in kernel.outputs:
            return [torch.from_numpy(np.asarray(x)) for x in evaluate(self.outlined, [x.double().numpy() for x in operands], step.kernel)]
        slots = [(kernel.blocks,) if kind == "accumulate" else () for kind in kernel.outputs]
        results = [np.full((*slot, *shape), np.nan) for slot, shape in zip(slots, made.shapes, strict=True)]
        run_kernel(
            function_named(self.module, step.kernel),
            [*((x.double() if x.dtype == torch.bfloat16 else x).numpy() for x in operands), *results],
            self.rounding,
        )
        summed = [torch.from_numpy(x.sum(axis=0) if slot else x) for slot, x in zip(slots, results, strict=True)]
        return [x.to(dtype).double() for x, dtype in zip(summed, made.dtypes, strict=True)] if self.rounding else summed


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("channels", "state", "columns"), [("none", "kv", 0), ("none", "vk", 2), ("key", "kv", 2), ("value", "vk", 0)])
def test_everything(direction: str, channels: str, state: str, columns: int) -> None:
    program = Linear(
        4, 6, 0, direction, channels, state, initial=True, final=True, factor=channels == "none", interval=8, mods=True,
        element="f64", score="f64",
    )  # fmt: skip
    check(program, 2, {"q": 2, "k": 1, "v": 2, "decay": 1}, 41, columns)


@pytest.mark.parametrize(("heads", "counts"), [(0, {"q": 4, "k": 1, "v": 2, "decay": 4}), (1, {"q": 1, "k": 4, "v": 2})])
@pytest.mark.parametrize("state", ["kv", "vk"])
def test_heads_of_another_operand(heads: int, counts: dict[str, int], state: str) -> None:
    program = Linear(4, 2, 0, state=state, decay="decay" in counts, heads=heads, element="f64", score="f64")
    check(program, 1, counts, 50)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 64])
def test_lengths(length: int) -> None:
    check(Linear(4, 2, 0, final=True, element="f64", score="f64"), 3, {"q": 1, "k": 1, "v": 1}, length)


def check(program: Linear, batch: int, heads: dict[str, int], length: int, columns: int = 0) -> None:
    given = inputs(program, batch, heads, length)
    given |= {"table": given["table"].astype(np.float32)} if program.mods else {}
    wanted = recurrence(program, given)
    with loaded_context():
        made = Evaluated(program.text(), columns).run([torch.from_numpy(x) for x in given.values()])
    for name, value in zip(("o", *program.outputs), made, strict=True):
        assert error(value.numpy(), wanted[name]) < 1e-12, name


def test_a_delta_rule_and_its_gradients() -> None:
    """What erases multiplies states by matrices, whose 16 columns are in two tensors; the gradient of the state has such of its own."""
    text = text_of("linear/gated-delta").replace("f32", "f64")
    with loaded_context():
        forward = Evaluated(text, 4, segment=32)
        backward = Evaluated(text, 0, "bwd", ("q", "k", "v", "arg3", "arg4", "arg5"), segment=32)
        for length in (1, 33, 70):
            made = {"q": torch.randn(1, 2, length, 16), "k": unit(torch.randn(1, 2, length, 16)), "v": torch.randn(1, 2, length, 8)}
            made |= {"g": -0.02 * torch.rand(1, 2, length), "state": torch.randn(1, 2, 16, 8), "beta": 2 * torch.rand(1, 2, length)}
            x = {name: value.double().requires_grad_() for name, value in made.items()}
            beta = x["beta"].unsqueeze(3)
            wanted = delta_reference(x["q"], x["k"], beta * x["v"], x["g"], beta * x["k"], None, x["state"], 0.25)
            grads, given = [torch.randn_like(value) for value in wanted], [value.detach() for value in x.values()]
            found = forward.run(given) + backward.run([*given, *(value.detach() for value in wanted), *grads])
            for value, known in zip(found, [*wanted, *torch.autograd.grad(wanted, list(x.values()), grads)], strict=True):
                assert error(value.numpy(), known.detach().numpy()) < 1e-12, length
