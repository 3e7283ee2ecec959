"""Memory that was not written: everything allocated comes full of NaN in these tests, and what nothing writes is caught."""

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir.backends import allocation, memory
from attn_mlir.backends.cpu import program as cpu_program
from attn_mlir.backends.nvidia.workspace import Workspace

PACKAGE = Path(attn_mlir.__file__).parent
_UNWRITTEN = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "_empty_strided_cuda", "ndarray"}
_MODULES = {"torch", "np", "numpy"}


def allocations(path: Path) -> list[str]:
    """Calls in a file of functions of torch and numpy that return memory without content, but for tensors that have none (meta)."""
    found = []
    for call in [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]:
        name = call.func
        if not isinstance(name, ast.Attribute) or name.attr not in _UNWRITTEN:
            continue
        of_module = isinstance(name.value, ast.Name) and name.value.id in _MODULES
        meta = any(keyword.arg == "device" and getattr(keyword.value, "value", "") == "meta" for keyword in call.keywords)
        if (of_module or name.attr.startswith("new_")) and not meta:
            found.append(f"{path.name}:{call.lineno}")
    return found


def test_everything_is_allocated_in_one_place() -> None:
    folders = [PACKAGE / name for name in ("backends", "runtime", "api", "frontend")]
    files = [path for folder in folders for path in folder.rglob("*.py") if path.name != "allocation.py"]
    assert len(files) > 150
    assert [place for path in files for place in allocations(path)] == []


def test_the_scan_finds_what_it_looks_for(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("torch.empty(3)\nq.new_empty(3)\nnp.empty_like(q)\ntorch.empty(3, device='meta')\ncuda.empty(3)\nempty(3)")
    assert allocations(path) == ["x.py:1", "x.py:2", "x.py:3"]


def test_it_costs_nothing_where_it_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("allocation_again", allocation.__file__)
    for value in (None, "0"):
        monkeypatch.delenv("ATTN_MLIR_POISON", raising=False)
        if value is not None:
            monkeypatch.setenv("ATTN_MLIR_POISON", value)
        again = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        spec.loader.exec_module(again)  # type: ignore[union-attr]
        assert again.empty is torch.empty and again.empty_strided is torch.empty_strided


def test_what_memory_comes_full_of() -> None:
    assert allocation.POISONED, "test/conftest.py asks for it"
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert allocation.empty_strided((2, 3), (1, 2), dtype=dtype).isnan().all()
    assert (allocation.empty(4, dtype=torch.int64) == -(2**63)).all()
    assert allocation.empty(4, dtype=torch.bool).all()
    workspace = Workspace()
    given, cleared = workspace.take((3, 5), torch.float32), workspace.take((7,), torch.bfloat16, zeros=1)
    whole = workspace.make(torch.device("cpu"))
    assert given.of(whole).isnan().all() and (cleared.of(whole) == 0).all()


def causal_gradients(slopes: torch.Tensor) -> list[torch.Tensor]:
    q, k, v = (torch.randn(1, 2, 9, 16, requires_grad=True) for _ in range(3))
    o = attn_mlir.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i), mask_mod=attn_mlir.masks.causal())
    return list(torch.autograd.grad(o.sum(), (q, k, v, slopes)))


def test_sums_that_nobody_clears_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    slopes = torch.randn(2, requires_grad=True)
    assert all(gradient.isfinite().all() for gradient in causal_gradients(slopes))
    with monkeypatch.context() as planted:
        planted.setattr(memory, "_zeros", lambda shape, dtype, device, fresh: allocation.empty(shape, dtype=dtype, device=device))
        found = causal_gradients(slopes)
    assert found[3].isnan().all()


def test_a_kernel_that_writes_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    slopes, run = torch.randn(2, requires_grad=True), cpu_program.launch_grid

    def launch(worker: Any, grid: Any, arguments: Any, outputs: list[torch.Tensor], chunked: bool, *rest: Any) -> None:
        if not chunked:
            run(worker, grid, arguments, outputs, chunked, *rest)

    monkeypatch.setattr(cpu_program, "launch_grid", launch)
    _, dk, dv, _ = causal_gradients(slopes)
    assert dk.isnan().all() and dv.isnan().all()


def bottom_right(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2] >= torch.arange(k.shape[2])


def sized(q: Any, k: Any, v: Any, w: Any) -> dict[str, Any]:
    """An attention whose functions look at nothing but sizes of tensors."""
    return {
        "mask_mod": lambda b, h, i, j: i + k.shape[2] - q.shape[2] >= j,
        "score_mod": lambda s, b, h, i, j: s * 4 / q.shape[3] + w.shape[0] * v.shape[1],
    }


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.mT * q.shape[3] ** -0.5 * 4 / q.shape[3]).masked_fill(~bottom_right(q, k), -torch.inf)
    return scores.softmax(-1) @ v


def inputs(dtype: torch.dtype = torch.float64, lengths: tuple[int, int] = (5, 9)) -> list[torch.Tensor]:
    shapes = ((1, 2, lengths[0], 16), (1, 2, lengths[1], 16), (1, 2, lengths[1], 16), (2, 3, 4, 5))
    return [torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("device", [None, "hip-emulated", "hip-interpreted"])
def test_tensors_captured_for_their_size_have_no_gradient(device: str | None) -> None:
    dtype, tolerance = (torch.float64, 1e-12) if device is None else (torch.float16, 5e-3)
    q, k, v, w = inputs(dtype)
    o = attn_mlir.attention(q, k, v, **sized(q, k, v, w), device=device)
    found = torch.autograd.grad(o.square().sum(), (q, k, v, w), allow_unused=True)
    expected = torch.autograd.grad(dense(q.double(), k.double(), v.double()).square().sum(), (q, k, v))
    assert found[3] is None
    for made, wanted in zip(found, expected, strict=False):
        assert (made.double() - wanted).abs().max() <= tolerance * wanted.abs().max()


def test_second_derivatives_and_tangents_of_sizes() -> None:
    q, k, v, w = inputs()
    call = lambda q: attn_mlir.attention(q, k, v, **sized(q, k, v, w)).square().sum()  # noqa: E731
    wanted = lambda q: dense(q, k, v).square().sum()  # noqa: E731
    seconds = []
    for function in (call, wanted):
        (first,) = torch.autograd.grad(function(q), q, create_graph=True)
        seconds.append(torch.autograd.grad(first.square().sum(), (q, k, v)))
    for made, expected in zip(*seconds, strict=True):
        torch.testing.assert_close(made, expected)
    change = torch.randn_like(q)
    torch.testing.assert_close(torch.func.jvp(call, (q,), (change,)), torch.func.jvp(wanted, (q,), (change,)))
    nothing = torch.func.jvp(lambda w: attn_mlir.attention(q.detach(), k, v, **sized(q, k, v, w)), (w.detach(),), (torch.ones_like(w),))[1]
    assert (nothing == 0).all()


def test_sizes_under_torch_compile() -> None:
    q, k, v, w = inputs()
    compiled = torch.compile(lambda q, k, v, w: attn_mlir.attention(q, k, v, **sized(q, k, v, w)), backend="aot_eager")
    found = torch.autograd.grad(compiled(q, k, v, w).square().sum(), (q, k, v, w), allow_unused=True)
    for made, wanted in zip(found, torch.autograd.grad(dense(q, k, v).square().sum(), (q, k, v)), strict=False):
        torch.testing.assert_close(made, wanted)
    assert found[3] is None or (found[3] == 0).all()


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4), (2, 3, 4, 37), (1, 2, 3, 4, 5)])
def test_reads_without_a_derivative_give_zeros(shape: tuple[int, ...]) -> None:
    q, k, v = inputs()[:3]
    w = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    first = (0,) * len(shape)
    unreached: list[Callable[..., Any]] = [
        lambda s, b, h, i, j: s + torch.where(h < 0, w[first], 0.0),
        lambda s, b, h, i, j: s + torch.where(w[first] > 0, 1.0, 2.0),
        lambda s, b, h, i, j: s + w[first].detach(),
    ]
    for score_mod in unreached:
        o = attn_mlir.attention(q, k, v, score_mod=score_mod, mask_mod=lambda b, h, i, j: (w[first] < 9) & (j <= i + 4))
        found = torch.autograd.grad(o.sum(), (q, k, v, w), allow_unused=True)
        assert all(gradient.isfinite().all() for gradient in found[:3])
        assert found[3] is None or (found[3] == 0).all()


@pytest.mark.parametrize("sizes", [(0, 2, 5, 5), (1, 0, 5, 5), (1, 2, 0, 5), (1, 2, 5, 0)])
def test_gradients_where_there_is_nothing_to_compute(sizes: tuple[int, int, int, int]) -> None:
    b, heads, rows, keys = sizes
    q, k, v = (torch.randn(b, heads, length, 16, requires_grad=True) for length in (rows, keys, keys))
    slopes = torch.randn(2, requires_grad=True)
    score_mod = lambda s, b, h, i, j: s * slopes[h % 2]  # noqa: E731
    o, lse = attn_mlir.attention(q, k, v, score_mod=score_mod, return_lse=True)
    assert (o == 0).all() and (lse == -torch.inf).all()
    for gradient in torch.autograd.grad(o.sum(), (q, k, v, slopes)):
        assert (gradient == 0).all()


@pytest.mark.parametrize("length", [0, 1, 70])
def test_inputs_of_linear_attention_that_do_not_count(length: int) -> None:
    """A decay that its mod replaces, and a tensor that a mod captures for its size."""
    q, k, v = (torch.randn(1, 2, length, 16, requires_grad=True) for _ in range(3))
    decay, state = -torch.rand(1, 2, length, requires_grad=True), torch.randn(1, 2, 16, 16, requires_grad=True)
    w = torch.randn(2, 3, 4, 5, requires_grad=True)
    leaf = decay.detach().requires_grad_()
    decay_mod = lambda g, b, h, t: 0.0 * g - 0.25 * w.shape[0]  # noqa: E731
    o, final = attn_mlir.linear_attention(q, k, v, decay=leaf, initial_state=state, decay_mod=decay_mod, output_final_state=True)
    found = torch.autograd.grad(o.sum() + final.square().sum(), (q, k, v, leaf, state, w), allow_unused=True)
    assert all(gradient is None or gradient.isfinite().all() for gradient in found)
    assert (found[3] == 0).all() and found[5] is None
