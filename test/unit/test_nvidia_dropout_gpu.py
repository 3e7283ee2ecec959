"""Dropout on an NVIDIA GPU: bits, gradients, graphs; and what its kernels for Hopper compile to, wherever there is nvcc."""

from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import attention, dropout_mask, masks
from attn_mlir.backends.nvidia import driver, pipeline
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.frontend.emit import Inputs
from gpu_cases import GPU
from machine_code import compiled
from test_dropout import SEED, P, bits, check, dense, qkv


@pytest.mark.parametrize("choice", ["lanes", "own"])
@pytest.mark.parametrize("function", ["fwd", "bwd"])
def test_lanes_share_calls_on_hopper(function: str, choice: str) -> None:
    """Not one call of Philox for each pair, and no pressure on registers that the forward pass would feel."""
    call = attn_mlir.Attention()
    call.__dict__.update(_last=Inputs("f16", 64, 64), _form=("tensor", "tensor"))
    name, prepare = prepare_derivative(function, ("q", "k", "v"), pipeline.outline("sm_90a"))
    _, units = driver._lower(call.ir(), name, prepare, {"arch": "sm_90a", "dropout": choice})
    (code,) = [unit.code for unit in units.values() if "wgmma" in unit.code.source]
    body = code.source[code.source.index("__global__") :]
    calls = ("dropout_of_", "philox_two(", "philox_kept(")
    assert [text in body for text in calls] == [choice == "lanes", choice == "own", False]
    assert compiled(code).spills <= (0 if function == "fwd" else 256)
    if function == "fwd" and choice == "own":  # beside the products, and not of each weight but of packed ones
        places = [body.rindex(text) for text in ("philox_two(seed", "wgmma_wait<1>", "philox_mask(")]
        assert places == sorted(places)


class TestDropout:
    pytestmark = GPU

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("sizes", [(2, 4, 33, 136), (1, 2, 300, 128), (2, 2, 1, 256), (1, 4, 129, 72)])
    def test_bits(self, sizes: tuple[int, int, int, int], dtype: Any) -> None:
        for seed in (SEED, torch.tensor(SEED, device="cuda")):
            for p in (0.004, P, 0.998):
                with torch.device("cuda"):
                    got = bits(*sizes, p, seed, dtype, hkv=2)
                assert torch.equal(got, dropout_mask(*sizes, p, SEED, device="cuda"))

    def test_bits_under_a_mask(self) -> None:
        with torch.device("cuda"):
            got = bits(1, 1, 248, 248, P, SEED, torch.float16, mask_mod=masks.sliding_window(21, 5))
            q, k = torch.arange(248)[:, None], torch.arange(248)
            assert torch.equal(got, dropout_mask(1, 1, 248, 248, P, SEED, device="cuda") & (q - k <= 21) & (k - q <= 5))

    @pytest.mark.parametrize("sizes", [(37, 71), (257, 300), (1, 500), (512, 512)])
    @pytest.mark.parametrize("d", [64, 128])
    def test_results_and_gradients(self, sizes: tuple[int, int], d: int) -> None:
        sq, skv = sizes
        inputs = [x.detach().cuda().requires_grad_() for x in qkv(2, 4, 2, sq, skv, d, torch.float16)]
        kept = dropout_mask(2, 4, sq, skv, P, SEED, device="cuda")
        mask = torch.arange(skv, device="cuda") < torch.arange(sq, device="cuda")[:, None]
        for options, given in (({}, None), ({"mask_mod": lambda b, h, q, k: k < q}, mask)):
            check(
                lambda q, k, v, options=options: attention(q, k, v, dropout_p=P, dropout_seed=SEED, **options),
                lambda q, k, v, given=given: dense(q, k, v, kept, mask=given),
                inputs,
                4e-3,
            )

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("row", [attn_mlir.rows.relu, attn_mlir.rows.sigmoid])
    def test_other_rows(self, row: Any, dtype: Any) -> None:
        inputs = [x.detach().cuda().requires_grad_() for x in qkv(dtype=dtype, d=64)]
        kept = dropout_mask(2, 4, 37, 71, P, SEED, device="cuda")
        formula = torch.relu if row is attn_mlir.rows.relu else torch.sigmoid
        check(
            lambda q, k, v: attention(q, k, v, row=row, dropout_p=P, dropout_seed=SEED),
            lambda q, k, v: dense(q, k, v, kept, row=formula),
            inputs,
            4e-3,
        )

    def test_a_graph_reads_its_seed_when_it_runs(self) -> None:
        q, k, v = (x.detach().cuda() for x in qkv(sq=100, skv=130, d=64, dtype=torch.float16))
        seed = torch.tensor(SEED, device="cuda")
        run = lambda: attention(q, k, v, dropout_p=P, dropout_seed=seed)  # noqa: E731
        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = run()
        for new in (SEED, (1, 2)):
            seed.copy_(torch.tensor(new))
            graph.replay()
            torch.testing.assert_close(o, attention(q, k, v, dropout_p=P, dropout_seed=new), rtol=0, atol=0)

    def test_a_graph_without_a_seed_draws_anew(self) -> None:
        q, k, v = (x.detach().cuda() for x in qkv(sq=100, skv=130, d=64, dtype=torch.float16))
        attention(q, k, v, dropout_p=P)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = attention(q, k, v, dropout_p=P)
        graph.replay()
        first = o.clone()
        graph.replay()
        assert not torch.equal(first, o)

    def test_compiled(self) -> None:
        inputs = [x.detach().cuda().requires_grad_() for x in qkv(sq=100, skv=130, d=64, dtype=torch.float16)]
        kept = dropout_mask(2, 4, 100, 130, P, SEED, device="cuda")
        seed = torch.tensor(SEED, device="cuda")
        graph = torch.compile(lambda q, k, v: attention(q, k, v, dropout_p=P, dropout_seed=seed), fullgraph=True)
        check(graph, lambda q, k, v: dense(q, k, v, kept), inputs, 4e-3)
