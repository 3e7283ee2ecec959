"""Linear attention through the AMD backend: results against the recurrence in float64, and the source of kernels."""

from typing import Any

import numpy as np
import torch

from attn_mlir.backends.amd import driver, pipeline, translate
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from contexts import loaded_context
from linear_programs import Linear, error, inputs, recurrence

EMULATED = "hip-emulated"
GROUPED = {"q": 1, "k": 1, "v": 2, "decay": 2}
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def check(
    program: Linear,
    length: int,
    heads: dict[str, int] | None = None,
    device: str = EMULATED,
    bar: float = 0.004,
    segment: int = 0,
    **more: Any,
) -> dict[str, torch.Tensor]:
    """Compares all results with the recurrence on the inputs as they are rounded. `segment`: positions that are swept at a time."""
    kinds: dict[str, str] = dict.fromkeys(("q", "k", "v", "factor"), program.element)
    given = inputs(program, 1, heads or GROUPED, length, **more)
    tensors = {n: torch.tensor(x) if n == "offsets" else torch.tensor(x).to(DTYPES[kinds.get(n, "f32")]) for n, x in given.items()}
    exact = {n: x.numpy() if n == "offsets" else x.double().numpy() for n, x in tensors.items()}
    name, prepare = prepare_derivative("", (), pipeline.OUTLINE, segment)
    got = driver.compile_program(program.text(), name, prepare, device=device).run(list(tensors.values()))
    wanted = recurrence(program, exact)
    for (name, want), result in zip(wanted.items(), got, strict=True):
        found = result.double().numpy()
        found = np.where(want == 0, 0, found) if program.offsets and name == "states" else found  # rows of no sequence are not written
        assert error(found, want) < bar, (name, error(found, want))
    return dict(zip(wanted, got, strict=True))


def codes(program: Linear, arch: str) -> list[Any]:
    """The kernels of a program."""
    with loaded_context():
        module = ir.Module.parse(program.text())
        for function in find_all(module.operation, "func.func"):
            function.attributes[attributes.CHOICES] = attributes.write({"arch": arch})
        return translate.codes_of(module)
