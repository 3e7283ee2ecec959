"""Libraries for NVIDIA GPUs on one: the bits that Python has, for odd lengths and strides, on streams and in CUDA graphs.

Where the machine has no C++ compiler, ATTN_MLIR_AHEAD_LIBRARIES names a folder with libraries that another one made, by
`python test/unit/ahead_gpu_files.py FOLDER`. Another CUDA may have compiled their kernels: they are compared within rounding.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from ahead_cuda_calls import OnCuda
from ahead_cuda_cases import CASES, factor, places, shift, slopes, table
from gpu_cases import GPU

GIVEN = os.environ.get("ATTN_MLIR_AHEAD_LIBRARIES", "")
CXX = shutil.which(os.environ.get("CXX") or "c++")
pytestmark = [*GPU, pytest.mark.skipif(not (GIVEN or CXX), reason="needs a C++ compiler, or libraries that another machine made")]
Make = Callable[[str], OnCuda]
SIZES = [(2, 4, 2, 150, 210), (1, 4, 4, 1, 77), (1, 4, 1, 333, 5003)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Make:
    folder = tmp_path_factory.mktemp("gpu")
    found: dict[str, OnCuda] = {}

    def make(name: str) -> OnCuda:
        if name not in found:
            attention, spec, _, more = CASES[name]
            path = Path(GIVEN) / f"lib{name}.so"
            if not GIVEN:
                path = attn_mlir.compile_ahead(attention, spec, "sm_90a", folder / f"lib{name}.so", **more).library
            found[name] = OnCuda(path, name)
        return found[name]

    return make


def captures(name: str) -> list[Any]:
    return {"alibi": [factor, slopes, shift], "fixed": [factor, slopes, shift], "lookup": [places, table]}.get(name, [])


@pytest.fixture(autouse=True)
def moved() -> Any:
    """What the attentions capture is on the GPU."""
    kept = [tensor.data for tensor in (slopes, places, table)]
    for tensor in (slopes, places, table):
        tensor.data = tensor.data.cuda()
    yield
    for tensor, data in zip((slopes, places, table), kept, strict=True):
        tensor.data = data


def heads(name: str, sizes: tuple[int, ...]) -> list[torch.Tensor]:
    spec = CASES[name][1]
    b, hq, hkv, sq, skv = sizes
    shapes = ((hq, sq, spec.head_dim), (hkv, skv, spec.head_dim), (hkv, skv, spec.value_dim or spec.head_dim))
    return [torch.randn(b, h, s, n, device="cuda").to(spec.dtype).requires_grad_() for h, s, n in shapes]


def plain(*values: Any) -> list[Any]:
    return [value.detach() if isinstance(value, torch.Tensor) else value for value in values]


def same(found: torch.Tensor, wanted: torch.Tensor, bits: bool = True) -> None:
    """The same bits; from another compiler, or where sums have no order, the same numbers."""
    if bits and not GIVEN:
        assert torch.equal(found, wanted)
    assert not found.isnan().any()
    finite = wanted.isfinite()
    assert torch.equal(finite, found.isfinite())
    error = (found.double() - wanted.double())[finite].norm()
    assert float(error) <= (1e-2 if bits else 2e-2) * (1e-3 + float(wanted.double()[finite].norm()))


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", ["alibi", "fixed", "odd", "sigmoid"])
def test_results_and_gradients_are_those_of_python(library: Make, name: str, sizes: tuple[int, ...]) -> None:
    if name == "sigmoid" and sizes[1] == sizes[2]:
        sizes = (3, 8, 2, *sizes[3:])
    attention, made = CASES[name][0], library(name)
    deterministic = CASES[name][3].get("deterministic", False)
    given, further = heads(name, sizes), captures(name)
    torch.use_deterministic_algorithms(deterministic)
    try:
        with torch.no_grad():
            alone = attention(*given)
        found = attention(*given)
        alone, results = ([x] if isinstance(x, torch.Tensor) else list(x) for x in (alone, found))
        grads = [torch.randn_like(x) for x in results]
        wanted = torch.autograd.grad(results, [*given, *([slopes] if any(x is slopes for x in further) else [])], grads)
    finally:
        torch.use_deterministic_algorithms(False)
    arguments = plain(*given, *further)
    outputs = [torch.full_like(x, torch.nan).detach() for x in results]
    made.call("forward", [*arguments, *outputs], stream())
    for mine, right in zip(outputs, alone, strict=True):
        same(mine, right)
    sizes_ = made.sizes_of(*arguments)
    saved = torch.full((max(1, sizes_.saved),), 255, dtype=torch.uint8, device="cuda")
    work = torch.full((max(1, sizes_.training_workspace, sizes_.backward_workspace),), 255, dtype=torch.uint8, device="cuda")
    keep = made.pointer(saved)
    outputs = [torch.full_like(x, torch.nan).detach() for x in results]
    made.call("training_forward", [*arguments, *outputs, *keep], stream(), work)
    for mine, right in zip(outputs, results, strict=True):
        same(mine, right.detach())
    gradients = [torch.full_like(x, torch.nan) for x in wanted]
    made.call("backward", [*arguments, *outputs, *keep, *grads, *gradients], stream(), work)
    for number, (mine, right) in enumerate(zip(gradients, wanted, strict=True)):
        # Without an order of sums, and for captured tensors, whose slots torch adds up in another order, the last bits are open.
        same(mine, right, number < 3 and (deterministic or number > 0))


def test_strided_tensors_and_odd_addresses(library: Make) -> None:
    attention, made = CASES["alibi"][0], library("alibi")
    packed = torch.randn(2, 150, 4, 192, device="cuda").bfloat16()
    q, k, v = (packed[..., i : i + 64].transpose(1, 2) for i in (0, 64, 128))
    odd = torch.zeros(k.numel() + 1, device="cuda", dtype=torch.bfloat16)[1:].view(2, 4, 150, 64).copy_(k)
    with torch.no_grad():
        o, lse = attention(q, k, v)
    room = torch.full((2, 150, 4, 70), torch.nan, device="cuda", dtype=torch.bfloat16)
    for keys, place in ((k, room[..., 3:67].transpose(1, 2)), (odd, torch.zeros_like(o))):
        rows = torch.zeros_like(lse)
        made.call("forward", [*plain(q, keys, v, *captures("alibi")), place, rows], stream())
        same(place, o)
        same(rows, lse)
    assert room[..., :3].isnan().all() and room[..., 67:].isnan().all()


def test_without_keys_and_without_a_gradient_of_a_row(library: Make) -> None:
    attention, made = CASES["alibi"][0], library("alibi")
    q, k, v = heads("alibi", (1, 4, 2, 65, 0))
    o, lse = torch.full((1, 4, 65, 64), torch.nan, device="cuda").bfloat16(), torch.zeros(1, 4, 65, device="cuda")
    made.call("forward", [*plain(q, k, v, *captures("alibi")), o, lse], stream())
    assert not o.any() and (lse == -torch.inf).all()
    q, k, v = heads("alibi", (1, 4, 2, 65, 70))
    found = attention(q, k, v)
    wanted = torch.autograd.grad(found[0], [q, k, v], torch.ones_like(found[0]))
    arguments = plain(q, k, v, *captures("alibi"))
    saved = torch.zeros(made.sizes_of(*arguments).saved, dtype=torch.uint8, device="cuda")
    results = [torch.empty_like(x).detach() for x in found]
    made.call("training_forward", [*arguments, *results, *made.pointer(saved)], stream())
    gradients = [torch.full_like(x, torch.nan).detach() for x in (q, k, v, slopes)]
    made.call("backward", [*arguments, *results, *made.pointer(saved), torch.ones_like(o), None, *gradients], stream())
    for number, (mine, right) in enumerate(zip(gradients, wanted, strict=False)):
        same(mine, right, number > 0)


def test_streams_and_graphs(library: Make) -> None:
    attention, made = CASES["lookup"][0], library("lookup")
    q, k, v = (x.detach() for x in heads("lookup", (1, 2, 2, 130, 300)))
    arguments, o = plain(q, k, v, *captures("lookup")), torch.zeros_like(q)
    wanted = attention(q, k, v)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    made.call("forward", [*arguments, o], side.cuda_stream)
    side.synchronize()
    same(o, wanted)
    graph = torch.cuda.CUDAGraph()
    memory = torch.zeros(max(1, made.sizes_of(*arguments).forward_workspace), dtype=torch.uint8, device="cuda")
    with torch.cuda.graph(graph):
        made.call("forward", [*arguments, o], stream(), memory)
    q.copy_(torch.randn_like(q))
    o.zero_()
    graph.replay()
    same(o, attention(q, k, v))
    places[7] = 9
    with pytest.raises(RuntimeError, match="6: table has size 7 in dimension 0, but is read at places"):
        made.call("forward", [*arguments, o], stream())
    places[7] = 0
    with pytest.raises(RuntimeError, match="5: q is on device type 1"):
        made.forward((q.cpu(), *arguments[1:]), [o])
