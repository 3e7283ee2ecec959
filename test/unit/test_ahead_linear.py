"""Libraries of linear attentions made ahead of time for the CPU give the bits that Python gives."""

import ctypes
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from ahead_calls import Loaded, plain_host
from attn_mlir.errors import ArgumentError, UnsupportedError

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in (os.environ.get("CXX") or "c++", "g++", "clang++")), reason="needs a C++ compiler"
)
rates = torch.nn.Parameter(torch.tensor([0.5, 0.25, 1.0, 0.75]))
Linear, Spec = attn_mlir.LinearAttention, attn_mlir.LinearSpec


def by_channel(g: Any, b: Any, h: Any, t: Any, d: Any) -> Any:
    return g * rates[h] - d * 0.01


F32, BF16 = torch.float32, torch.bfloat16
CASES: dict[str, tuple[Any, Any]] = {
    "states": (Linear(decay_mod=lambda g, b, h, t: g * rates[h], output_final_state=True), Spec(F32, 24, 16, initial_state=True)),
    "packed": (Linear(scale=0.25, output_final_state=True), Spec(F32, 16, decay="head", cu_seqlens=torch.int32)),
    "turned": (Linear(k_mod=lambda x: x.sigmoid(), layout="bshd"), Spec(BF16, 32, 24, decay="step")),
    "channels": (Linear(decay_mod=by_channel, layout="bshd", output_final_state=True), Spec(F32, 16, 8, decay="step channel")),
    "plain": (Linear(q_mod=lambda x, b, h, t, d: x * rates[h], segment_size=512), Spec(torch.float64, 8, decay="none")),
}
SIZES = [(2, 2, 1, 4, 77), (1, 4, 4, 4, 1), (1, 4, 2, 4, 600), (3, 1, 2, 4, 33)]
"""B, Hq, Hk, H, T: the single position has a program of its own, and so has what is longer than a segment."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    found: dict[str, Loaded] = {}

    def make(name: str) -> Loaded:
        if name not in found:
            attention, spec = CASES[name]
            with plain_host(name not in ("states", "packed")):
                made = attn_mlir.compile_ahead(attention, spec, out=tmp_path_factory.mktemp("linear") / f"lib{name}.so")
            assert made.functions == tuple(f"{name}_{function}" for function in ("sizes", "forward", "backward", "last_error"))
            found[name] = Loaded(made.library, name)
        return found[name]

    return make


def call(library: Loaded, function: str, arguments: list[Any], size: int, threads: int = 1) -> None:
    """With a workspace of the size that the library tells; without one for two threads."""
    work = torch.full((max(1, size),), 255, dtype=torch.uint8)
    space = [ctypes.c_void_p(work.data_ptr()), ctypes.c_size_t(size)] if threads == 1 else [None, ctypes.c_size_t(0)]
    library._call(function, [*arguments, *space, None, ctypes.c_int32(threads)])


def problem(name: str, sizes: tuple[int, ...]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """q, k, v and inputs, which need gradients; and those of Python that are no input of the library, such as rates."""
    attention, spec = CASES[name]
    b, hq, hk, h, t = sizes
    if "packed" in name:
        b = 1
    if name == "plain":
        hq = h  # its function reads the head
    value = spec.value_dim or spec.key_dim
    score = torch.float64 if spec.dtype == torch.float64 else F32
    turned = attention._options.layout == "bshd"

    def order(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous() if turned else x

    heads = [order(torch.randn(b, n, t, d)).to(spec.dtype) for n, d in ((hq, spec.key_dim), (hk, spec.key_dim), (h, value))]
    shapes = {"none": None, "head": (h,), "step": (b, h, t), "step channel": (b, h, t, spec.key_dim)}
    more = []
    if shapes[spec.decay] is not None:
        decay = -torch.rand(shapes[spec.decay]).to(score) * 0.3  # type: ignore[arg-type]
        more.append(order(decay) if decay.dim() > 2 else decay)
    if spec.initial_state:
        more.append(torch.randn(b, h, spec.key_dim, value).to(score))
    made = [x.requires_grad_() for x in (*heads, *more)]
    if spec.cu_seqlens is not None:
        places = [0, t // 3, t // 3, t] if t > 1 else [0, 1]
        made.append(torch.tensor(places, dtype=spec.cu_seqlens))
    return made, [rates] if name in ("states", "channels", "plain") else []


def in_python(name: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
    spec = CASES[name][1]
    q, k, v, *more = given
    names = ["decay"] * (spec.decay != "none") + ["initial_state"] * spec.initial_state + ["cu_seqlens"] * (spec.cu_seqlens is not None)
    found = CASES[name][0](q, k, v, **dict(zip(names, more, strict=True)))
    return [found] if isinstance(found, torch.Tensor) else list(found)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_have_the_bits_of_python(library: Callable[[str], Loaded], name: str, sizes: tuple[int, ...]) -> None:
    loaded = library(name)
    given, captured = problem(name, sizes)
    inputs = [x.detach() for x in (*given, *captured)]
    results = in_python(name, given)
    grads = [torch.randn_like(x) for x in results]
    leaves = [x for x in (*given, *captured) if x.requires_grad]
    wanted = torch.autograd.grad(results, leaves, grads)
    need = loaded.sizes(*inputs)
    assert need.saved == 0
    for threads in (1, 2):
        made = [torch.full_like(x, torch.nan).detach() for x in results]
        call(loaded, "forward", [*inputs, *made], need.forward_workspace, threads)
        assert all(torch.equal(a, b) for a, b in zip(made, results, strict=True))
        found = [torch.full_like(x, torch.nan).detach() for x in leaves]
        call(loaded, "backward", [*inputs, *grads, *found], need.backward_workspace, threads)
        for mine, right in zip(found, wanted, strict=True):
            assert torch.equal(mine, right)


def test_without_positions_the_state_stays(library: Callable[[str], Loaded]) -> None:
    loaded = library("states")
    given, captured = problem("states", (2, 2, 1, 4, 0))
    inputs = [x.detach() for x in (*given, *captured)]
    o, state = torch.empty(2, 4, 0, 16), torch.full((2, 4, 24, 16), torch.nan)
    call(loaded, "forward", [*inputs, o, state], 0, 2)
    assert torch.equal(state, inputs[4])
    d_state = torch.randn_like(state)
    found = [torch.full_like(x, torch.nan) for x in inputs]
    call(loaded, "backward", [*inputs, o, d_state, *found], 0, 2)
    assert torch.equal(found[4], d_state) and not found[5].any()


def test_the_gradient_of_the_state_may_be_left_out(library: Callable[[str], Loaded]) -> None:
    loaded = library("states")
    given, captured = problem("states", SIZES[0])
    inputs = [x.detach() for x in (*given, *captured)]
    o, _ = in_python("states", given)
    wanted = torch.autograd.grad(o, [*given, *captured], torch.ones_like(o))
    need = loaded.sizes(*inputs).backward_workspace
    for threads in (1, 2):
        found = [torch.full_like(x, torch.nan) for x in inputs]
        call(loaded, "backward", [*inputs, torch.ones_like(o), None, *found], need, threads)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_arguments_are_checked(library: Callable[[str], Loaded]) -> None:
    def refused(name: str, message: str, *changed: tuple[int, Any]) -> None:
        given, captured = problem(name, SIZES[0])
        inputs: list[Any] = [x.detach() for x in (*given, *captured)]
        results = [x.detach() for x in in_python(name, given)]
        for place, value in changed:
            inputs[place] = value(inputs[place])
        with pytest.raises(RuntimeError, match=message):
            call(library(name), "forward", [*inputs, *results], 0, 2)

    refused("states", "3: decay must have size 77 where it has 76", (3, lambda x: x[:, :, :76]))
    refused("states", "3: initial_state must have size 2 where it has 1", (4, lambda x: x[:1]))
    refused("states", "3: initial_state must have 16 columns, it has 15", (4, lambda x: x[..., :15]))
    refused("states", "3: rates has size 3 in dimension 0, but it is indexed with h, which runs from 0 to 3", (5, lambda x: x[:3]))
    refused("states", "3: v has 4 heads, which is no multiple of the 3 heads of q", (0, lambda x: x[:, :1].expand(-1, 3, -1, -1)))
    refused("states", "2: decay must be float32", (3, lambda x: x.double()))
    refused("plain", "3: q must have size 4 where it has 2", (0, lambda x: x[:, :2]))
    refused("packed", "6: cu_seqlens must end at the number of positions, 77; it ends at 25", (4, lambda x: x[:2]))
    refused("packed", "6: cu_seqlens must not decrease, 25 follows 77", (4, lambda x: x[[0, 3, 1, 3]]))
    refused("packed", "6: cu_seqlens must start at 0, it starts at 25", (4, lambda x: x[1:]))


def test_an_engine(tmp_path: Path) -> None:
    meta = attn_mlir.meta_tensor
    engine = attn_mlir.LinearAttentionEngine(
        (meta(2, 4, 65, 16), meta(2, 4, 65, 16), meta(2, 4, 65, 24)),
        decay_mod=lambda g, custom_io: g * custom_io.input_tensors["rate"],
        custom_io=attn_mlir.CustomIO({"rate": (1, "heads")}),
    )
    with plain_host():
        made = attn_mlir.compile_ahead(engine, out=tmp_path / "libengine.so", wrt=["q", "rate"])
    q, k, v = (torch.randn(2, 4, 65, n, dtype=engine._shapes.dtype, requires_grad=True) for n in (16, 16, 24))
    decay, rate = -torch.rand(2, 4, 65), torch.rand(1, 4, requires_grad=True)
    o = engine(q, k, v, decay, rate)
    d_o = torch.randn_like(o)
    wanted = torch.autograd.grad(o, [q, rate], d_o)
    loaded, inputs = Loaded(made.library, "engine"), [x.detach() for x in (q, k, v, decay, rate)]
    result, found = torch.empty_like(o), [torch.empty_like(q), torch.empty_like(rate)]
    call(loaded, "forward", [*inputs, result], 0, 2)
    call(loaded, "backward", [*inputs, d_o, *[x.detach() for x in found]], 0, 2)
    assert torch.equal(result, o) and all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_errors_of_compile_ahead(tmp_path: Path) -> None:
    out = tmp_path / "libx.so"
    with pytest.raises(ArgumentError, match="the last of which may be missing, or an attn_mlir"):
        attn_mlir.compile_ahead(Linear(), attn_mlir.InputSpec(), out=out)
    with pytest.raises(ArgumentError, match="decay is one of 'none', 'head'"):
        attn_mlir.compile_ahead(Linear(), Spec(decay="all"), out=out)
    with pytest.raises(UnsupportedError, match="kernels for NVIDIA GPUs take 16-bit and f32 inputs, but q, k and v are f64"):
        attn_mlir.compile_ahead(Linear(), Spec(torch.float64), "sm_90a", out)
    assert not list(tmp_path.iterdir())
