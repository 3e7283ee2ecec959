"""Windows of captured tensors in kernels of the `warp` dialect (`warp-stage-windows`): float64 on the emulated Hopper chip, and races."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from attn_mlir import Attention, attention, masks
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.reference import Sizes
from attn_mlir.runtime.programs import program_of
from warp_forming import Program, check, formed, missed

DEVICE = "cuda-emulated"
COPY = '"warp.copy_window_async"'
ELEMENTS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
    """A causal one whose rows 3 and 20 to 29 see nothing."""
    return (i >= j) & (i != 3) & ((i < 20) | (i > 29))


def biased(bias: torch.Tensor) -> Any:
    """Adds a bias [S, S], [H, S, S], [B, H, S, S], or [1, H, S, S], which is that of all batch entries."""

    def plane(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + bias[i, j]

    def heads(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + bias[h, i, j]

    def entries(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + bias[b, h, i, j]

    def shared(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + bias[0, h, i, j]

    return {2: plane, 3: heads, 4: shared if bias.dim() == 4 and len(bias) == 1 else entries}[bias.dim()]


def cuda_of(call: Attention) -> str:
    """What its kernels are printed as. `stages` would run all passes again, print each one's result and verify it."""
    entry, device = call._compiled()
    program: Any = program_of(entry).kernel(device)
    return "".join(unit.code.source for unit in program.program.units.values())


def compare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, **options: Any) -> None:
    """Compares with float64 on the CPU; the kernel copies windows."""
    call = Attention(score_mod=biased(bias), device=DEVICE, **options)
    o = call(q, k, v)
    assert "copy_window<" in cuda_of(call)
    wanted = attention(q.double(), k.double(), v.double(), score_mod=biased(bias.double()), device="cpu", **options)
    atol = (2e-2 if q.dtype == torch.bfloat16 else 4e-3) * max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(o.double(), wanted, rtol=0, atol=atol)


@pytest.mark.parametrize(("columns", "element"), [(64, "f32"), (64, "f16"), (128, "bf16"), (128, "f32")])
@pytest.mark.parametrize("lengths", [(1, 1), (17, 17), (127, 127), (70, 300)], ids=str)
def test_odd_lengths_groups_and_fully_masked_rows(columns: int, element: str, lengths: tuple[int, int]) -> None:
    queries, keys = lengths
    q, k, v = (torch.randn(2, heads, length, columns).half() for heads, length in ((4, queries), (2, keys), (2, keys)))
    compare(q, k, v, torch.randn(1, 4, queries, keys).to(ELEMENTS[element]), mask_mod=mask)


@pytest.mark.parametrize("shape", [(150, 150), (2, 150, 150), (2, 2, 150, 150)], ids=str)
def test_biases_of_two_to_four_dimensions_without_a_mask(shape: tuple[int, ...]) -> None:
    q, k, v = (torch.randn(2, 2, 150, 64).to(torch.bfloat16) for _ in range(3))
    compare(q, k, v, torch.randn(shape))


@pytest.mark.parametrize("element", ELEMENTS)
def test_what_lies_around_a_smaller_problem_takes_part_in_nothing(element: str) -> None:
    """A bias that is larger than the scores, NaN in all that they do not need, and large where they do."""
    q, k, v = (torch.randn(1, 2, length, 64).half() for length in (70, 100, 100))
    bias = torch.full((2, 200, 333), float("nan"))
    bias[:, :70, :100] = 30 * torch.randn(2, 70, 100)
    compare(q, k, v, bias.to(ELEMENTS[element]))


def test_positions_further_on_and_two_windows_of_one_tensor() -> None:
    bias = torch.randn(2, 140, 140)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + bias[h, i + 3, j + 5] * bias[1 - h, i, j]

    q, k, v = (torch.randn(1, 2, 130, 64).half() for _ in range(3))
    call = Attention(score_mod=score, mask_mod=masks.causal(), device=DEVICE)
    o = call(q, k, v)
    bias = bias.double()  # which the score reads from now on
    wanted = attention(q.double(), k.double(), v.double(), score_mod=score, mask_mod=masks.causal(), device="cpu")
    torch.testing.assert_close(o.double(), wanted, rtol=0, atol=6e-3)


def test_a_clamped_position_is_no_window() -> None:
    """Rows that repeat one before the end: a box of the copy engine's has others there."""
    bias = torch.randn(2, 130, 130)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + bias[h, i.minimum(40) if hasattr(i, "minimum") else i.min(40), j]

    q, k, v = (torch.randn(1, 2, 130, 64).half() for _ in range(3))
    call = Attention(score_mod=score, device=DEVICE)
    o = call(q, k, v)
    assert "copy_window<" not in cuda_of(call)
    s = q.double() @ k.double().transpose(-1, -2) / 8 + bias.double()[:, torch.arange(130).clamp(max=40)]
    torch.testing.assert_close(o.double(), s.softmax(-1) @ v.double(), rtol=0, atol=4e-3)


# ---- orders of what happens at the same time


@dataclass(frozen=True)
class Planes(Program):
    """The program with a bias [S, S], of all heads."""

    def text(self) -> str:
        """Its stage 0."""
        text = super().text().replace("%bias[%b, %h, %q_idx, %kv_idx]", "%bias[%q_idx, %kv_idx]")
        return text.replace("tensor<?x?x?x?xf32>", "tensor<?x?xf32>")


WHOLE = Planes("bias")
SEVERAL = pipeline.SCHEDULE.replace("warp-join-loops,", "")


@pytest.mark.parametrize("passes", [pipeline.SCHEDULE, SEVERAL], ids=["joined loops", "loops apart"])
def test_adversarial_orders(passes: str) -> None:
    assert COPY in str(formed(WHOLE, passes))
    check(WHOLE, passes, Sizes(2, 2, 1, 200, 330))


@pytest.mark.parametrize("change", ["not waited for", "early", "kept"])
def test_a_window_that_is_not_waited_for_or_given_back_early_is_found(change: str) -> None:
    """Of one stage: with two, a map has read its window when values of two blocks later are copied, which come before."""
    text = str(formed(WHOLE, pipeline.SCHEDULE.replace("warp-stage-windows", "warp-stage-windows{stages=1}")))
    lines = text.splitlines()
    waits = [n for n, line in enumerate(lines) if '"warp.wait"' in line and ", 32 : i64>" in line]  # for lanes that copy
    frees = [n for n, line in enumerate(lines) if '"warp.arrive"' in line and ", 4 : i64>" in line]  # of a warpgroup
    assert len(waits) == len(frees) == 2
    lines[waits[1]], lines[frees[1]] = {
        "not waited for": ("", lines[frees[1]]),
        "early": (f"{lines[waits[1]]}\n{lines[frees[1]]}", ""),
        "kept": (lines[waits[1]], ""),
    }[change]
    assert missed("\n".join(lines), WHOLE, Sizes(1, 1, 1, 320, 700))
