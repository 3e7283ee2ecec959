"""attn-tune, the ranks it prints, and its plot; the spaces of schedules of every backend, for chips that are not there."""

import dataclasses
import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir import attention
from attn_mlir.api.attention import Attention
from attn_mlir.backends import fields
from attn_mlir.backends.amd.target import MI250, MI300X
from attn_mlir.backends.amd.tuning.model import cost
from attn_mlir.backends.amd.tuning.program import compile_job
from attn_mlir.backends.tuning.agreement import agree
from attn_mlir.backends.tuning.facts import KernelFacts
from attn_mlir.backends.tuning.ranking import best_within, spearman
from attn_mlir.backends.tuning.space import Workload, left_out, predicted_ms, ranked
from attn_mlir.driver import tuner_of
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.reference.inputs import Sizes
from attn_mlir.testing.rewriting import Rewriting
from attn_mlir.tools import attn_tune
from attn_mlir.tools.plot import scatter
from attn_mlir.tools.problems import TuneProblem, columns_of, ready_made

FORWARD = KernelFacts("rows", "bf16", (128,), (128,), (), 1.0, 5.0, False)

# ---- ranks


def test_rank_correlation() -> None:
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    # Ties share the mean of their places: what scipy.stats.spearmanr gives.
    assert spearman([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(0.9486832980505138)
    assert math.isnan(spearman([1, 1], [1, 2]))
    with pytest.raises(ValueError, match="2 and 3"):
        spearman([1, 2], [1, 2, 3])


def test_how_good_the_first_of_a_model_are() -> None:
    assert best_within([1, 2, 3, 4], [2.0, 3.0, 1.0, 4.0], 3) == 1.0
    assert best_within([1, 2, 3, 4], [2.0, 3.0, 1.0, 4.0], 2) == 2.0


def test_results_agree_up_to_rounding() -> None:
    wanted = torch.tensor([1.0, -2.0, math.inf])
    assert agree([wanted + 1e-6], [wanted], 1e-4)
    for other in (wanted + 1e-2, -wanted, wanted[:2], torch.tensor([1.0, math.nan, math.inf]), torch.tensor([1.0, -2.0, -math.inf])):
        assert not agree([other], [wanted], 1e-4)


def test_the_plot_is_a_picture_of_the_points() -> None:
    picture = ElementTree.fromstring(scatter({"a<b": [(1.0, 2.0), (0.0, 1.0), (3.0, math.inf)], "c": [(5.0, 4.0)]}, "x", "y"))
    circles = [each for each in picture.iter() if each.tag.endswith("circle")]
    assert len(circles) == 2 and all(70 <= float(each.get("cx", "0")) <= 490 for each in circles)
    assert {"a<b", "c", "x", "y"} <= {each.text for each in picture.iter()}
    ElementTree.fromstring(scatter({}, "x", "y"))


# ---- spaces of all backends, by one interface


@pytest.mark.parametrize(
    ("device", "slow", "fast"), [("cuda", "sm_80", "sm_90a"), ("hip-emulated", "gfx90a", "gfx942"), ("cpu", "avx2", "avx512")]
)
@pytest.mark.parametrize("function", ["attention", "attention_bwd"])
@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_every_backend_ranks_for_chips_that_are_not_there(device: str, slow: str, fast: str, function: str, name: str) -> None:
    text, tuner = ready_made(name, "bf16", 64, 64, False), tuner_of(device)
    problem = TuneProblem(text, Sizes(4, 32, 32, 4096, 4096), device)
    spaces = {}
    for arch in (slow, fast):
        for kernel in tuner.kernels(text, problem.job(function), problem.shapes(columns_of(text)), arch)[1]:
            space = kernel.space
            order = ranked(space)
            assert order and all(not each.cost.problem and each.cost.bound for each in order)
            assert len(order) + sum(left_out(space).values()) == len(space.candidates())
            assert not space.cost(space.whole(space.untuned())).problem
            spaces[arch] = predicted_ms(space, order[0].choices)
    assert 0 < spaces[fast] < spaces[slow]
    assert {slow, fast} <= set(tuner.archs())
    with pytest.raises(UnsupportedError, match="'none'"):
        tuner.kernels(text, problem.job(function), problem.shapes(columns_of(text)), "none")


def test_schedules_for_amd_fit_what_the_code_generator_needs() -> None:
    """The estimate of shared memory is that of the printed kernels; what does not fit is left out by it, not by the code generator."""
    for dim, function in ((64, "attention"), (64, "attention_bwd")):
        text = ready_made("softmax", "bf16", dim, dim, False)
        problem, tuner = TuneProblem(text, Sizes(1, 2, 2, 512, 512), "hip-emulated"), tuner_of("hip-emulated")
        job = problem.job(function)
        (kernel,) = tuner.kernels(text, job, problem.shapes(columns_of(text)), "")[1]
        order = ranked(kernel.space)
        assert 2 <= len(order) <= 7
        for candidate in (order[0], order[-1]):
            made = compile_job(tuner.write(text, {kernel.name: candidate.choices}), job).units[kernel.name]
            assert made.kernel.block_q == candidate.choices["block_q"]
            assert candidate.cost.shared == made.code.shared_bytes


def test_the_model_for_amd_knows_what_cannot_be() -> None:
    def problem(**choices: int | str) -> str:
        return cost(FORWARD, choices, MI250, Workload()).problem

    assert problem(block_q=64).startswith("rows: 64, but four waves have 128")
    assert problem(block_kv=48).startswith("keys: 48")
    assert problem(block_kv=160).startswith("shared memory: 81920 bytes")
    assert not problem(block_kv=64)
    wide = dataclasses.replace(FORWARD, scores=(256,) * 2, sums=(256,) * 2)
    assert "registers" in cost(wide, {"block_kv": 32}, dataclasses.replace(MI250, lds_bytes=1 << 20, registers=256), Workload()).problem
    assert cost(FORWARD, {}, MI300X, Workload()).cycles < cost(FORWARD, {}, MI250, Workload()).cycles
    assert cost(FORWARD, {}, MI250, Workload(8192, 8192, 64)).cycles > 3.5 * cost(FORWARD, {}, MI250, Workload()).cycles


def test_choices_for_amd_reach_the_kernel() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 70, 64, generator=generator).half() for _ in range(3))
    tuned = Attention(device="hip-emulated")
    tuned._tuning = Rewriting(lambda text: fields.with_tuned(text, {"attention": {"block_kv": 32}}, "amd.tuned"))  # type: ignore[assignment]
    torch.testing.assert_close(tuned(q, k, v), attention(q, k, v, device="hip-emulated"), atol=2e-3, rtol=2e-3)
    assert "block_kv = 32" in tuned.stages()["traced"]


# ---- the command


def run(*argv: str) -> int:
    return attn_tune.main(list(argv))


def test_a_dry_run_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("softmax", "--causal", "--dry-run", "--show", "3", "--device", "cuda", "--arch", "sm_90a", "--dim", "128") == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "attention: 48 of 80 schedules fit"
    assert told[1] == "left out: 22 shared memory, 10 registers"
    assert told[2].split() == ["rank", "predicted", "ms", "bound", "by", "candidate"]
    assert told[3].split()[0] == "1" and "block_q=" in told[3] and told[6] == "     ... 45 more"


def test_what_is_measured_is_printed_kept_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, plot = tmp_path / "tuned.json", tmp_path / "plot.svg"
    sizes = ("--q-len", "40", "--kv-len", "50", "--heads", "2", "--kv-heads", "1", "--dim", "16", "--threads", "1", "--top", "3")
    before = torch.get_num_threads()
    try:
        assert run("softmax", *sizes, "--tune-file", str(file), "--plot", str(plot)) == 0
        told = capsys.readouterr().out
        assert "rank correlation (Spearman): " in told and "(untuned)" in told and "of the untuned" in told and "measured ms" in told
        ElementTree.parse(plot)
        (entry,) = json.loads(file.read_text())["entries"].values()
        assert entry["kernel"] == "attention" and entry["length"] == 64
        assert run("softmax", *sizes, "--tune-file", str(file)) == 0
        assert "from the tune file: " in capsys.readouterr().out
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["nothing"], "there is no file 'nothing', and no attention of that name; known are softmax, softmax1"),
        (
            ["softmax", "--device", "abacus"],
            "--device is one of cpu, cuda, cuda-emulated, cuda-emulated-sm80, hip, hip-emulated, hip-emulated-gfx942, hip-interpreted, "
            "hip-interpreted-gfx942, got 'abacus'",
        ),
        (["softmax", "--dtype", "fp3"], "--dtype is one of f16, bf16, f32, f64, got 'fp3'"),
        (["softmax", "--function", "bwd"], "--function is one of attention, attention_fwd, attention_bwd, got 'bwd'"),
        (["softmax", "--top", "0"], "--top must be positive, got 0"),
        (["softmax", "--kv-heads", "3"], "--heads must be a multiple of --kv-heads, got 8 and 3"),
        (["softmax", "--seed", "-1"], "--seed must not be negative, got -1"),
        (["softmax", "--arch", "avx2"], "--arch avx2 ranks for a chip by its description, which measures nothing: add --dry-run"),
        (["softmax", "--arch", "H100", "--dry-run"], "--arch H100 is a GPU of another kind than --device cpu: give --device cuda"),
        (["softmax", "--arch", "z80", "--dry-run"], "no CPU is known as 'z80': one of avx512, avx2"),
        (["softmax", "--plot", "x.png"], "--plot writes SVG: give a name that ends in .svg, got 'x.png'"),
        (["softmax", "--plot", "x.svg", "--dry-run"], "--plot draws measured times, which --dry-run does not take"),
        (["softmax", "--device", "cuda-emulated"], "nothing can be measured: 'cuda-emulated' runs kernels on the CPU"),
        (["softmax", "--device", "hip-emulated"], "nothing can be measured: 'hip-emulated' runs kernels on the CPU"),
        (["linear", "--causal"], "--causal is for rows: linear is causal as it is"),
        (["linear", "--q-len", "8", "--kv-len", "9"], "--kv-len: a linear attention has one length, got 8 and 9"),
        (["softmax", "--device", "cuda", "--dtype", "f32", "--dry-run"], "kernels for NVIDIA GPUs take 16-bit inputs"),
    ],
)
def test_mistakes_name_the_option(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == 1
    error = capsys.readouterr().err
    assert told in error and error.startswith("attn-tune: error: ") and "Traceback" not in error


@pytest.mark.parametrize(("device", "arch"), [("cuda", "RTX4090"), ("cuda", "H200"), ("hip", "MI300X")])
def test_descriptions_of_gpus_are_ranked_for(device: str, arch: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("softmax", "--device", device, "--arch", arch, "--dry-run", "--dim", "128") == 0
    told = capsys.readouterr().out
    assert "schedules fit" in told and ("emitter=hopper" in told) == (arch == "H200")


def test_unknown_arguments_of_derivatives_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("softmax", "--wrt", "q+x", "--function", "attention_bwd", "--dry-run") == 1
    assert "'x' is no floating tensor among the arguments, which are q, k, v" in capsys.readouterr().err


def test_a_program_says_its_types_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.mlir"
    path.write_text(ready_made("softmax", "f16", 32, 32, False))
    assert run(str(path), "--dim", "64", "--dry-run") == 1
    assert "--dim is for attentions known by name: the program says it itself" in capsys.readouterr().err
    assert run(str(path), "--device", "cuda", "--dry-run") == 0
    assert "schedules fit" in capsys.readouterr().out
    path.write_text("module { nonsense }")
    assert run(str(path), "--dry-run") == 1
    assert f"{path}:1:" in capsys.readouterr().err


def test_names_that_are_none_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no attention of that name"):
        ready_made("detach", "f32", 16, 16, False)


def test_problems_for_a_backward_pass_have_all_it_reads() -> None:
    text = ready_made("sigmoid", "f32", 16, 16, True)
    problem = TuneProblem(text, Sizes(1, 2, 1, 20, 30), "cpu")
    inputs: list[Any] = problem.inputs("attention_bwd")
    assert [tuple(each.shape) for each in inputs[:3]] == [(1, 2, 20, 16), (1, 1, 30, 16), (1, 1, 30, 16)]
    tuner_of("cpu").compile(text, problem.job("attention_bwd")).run(inputs, "bhsd")
