"""Gradients of heads of more than 256 columns on GPUs, emulated and real: scores and weights of pairs go through memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from amd_tools import needs_host_clang
from attn_mlir import attention, masks, rows
from attn_mlir.backends.gpu import pair_chunks
from attn_mlir.diagnostics import DiagnosticError
from gpu_cases import GPU

EMULATED = "hip-emulated"
B, HEADS, GROUPS, QUERIES, KEYS = 2, 4, 2, 50, 61
causal = masks.causal()


def captures() -> dict[str, Tensor]:
    """What functions capture, each with a gradient."""
    return {
        "factor": torch.tensor(1.3),
        "slopes": torch.randn(HEADS),
        "table": torch.randn(HEADS, QUERIES + KEYS),
        "bias": torch.randn(1, HEADS, QUERIES, KEYS),
        "of_keys": torch.randn(KEYS),
        "of_queries": torch.randn(B, QUERIES),
    }


Form = tuple[Callable[[dict[str, Tensor]], dict[str, Any]], tuple[str, ...]]
CASES: dict[str, Form] = {
    "full": (lambda c: {}, ()),
    "causal": (lambda c: {"mask_mod": causal}, ()),
    "bottom right": (lambda c: {"mask_mod": masks.causal("bottom_right")}, ()),
    "both sides": (lambda c: {"mask_mod": lambda b, h, i, j: (i - j <= 9) & (j - i <= 4)}, ()),
    "by head": (lambda c: {"mask_mod": lambda b, h, i, j: (i >= j) & (i - j <= 4 * h)}, ()),
    "fully masked rows": (lambda c: {"mask_mod": lambda b, h, i, j: i >= j + 20}, ()),
    "sigmoid": (lambda c: {"mask_mod": causal, "row": rows.sigmoid}, ()),
    "retention": (lambda c: {"mask_mod": causal, "row": rows.retention}, ()),
    "factor": (lambda c: {"mask_mod": causal, "score_mod": lambda s, b, h, i, j: s * c["factor"]}, ("factor",)),
    "slopes": (lambda c: {"mask_mod": causal, "score_mod": lambda s, b, h, i, j: s + c["slopes"][h] * (j - i)}, ("slopes",)),
    # The table is read outside of it where the mask says no.
    "table": (
        lambda c: {"mask_mod": lambda b, h, i, j: i >= j, "score_mod": lambda s, b, h, i, j: s + c["table"][h, i - j]},
        ("table",),
    ),
    "bias": (lambda c: {"score_mod": lambda s, b, h, i, j: s + c["bias"][0, h, i, j]}, ("bias",)),
    "keys and queries": (
        lambda c: {"mask_mod": causal, "score_mod": lambda s, b, h, i, j: s * c["of_queries"][b, i] + c["of_keys"][j]},
        ("of_keys", "of_queries"),
    ),
    "query_mod": (lambda c: {"mask_mod": causal, "query_mod": lambda x, b, h, i, d: x * c["of_queries"][b, i]}, ("of_queries",)),
    "dropout": (lambda c: {"mask_mod": causal, "dropout_p": 0.2}, ()),
}


def differences(
    name: str, columns: tuple[int, int], device: str, tensors: str, sizes: tuple[int, int] = (QUERIES, KEYS), factor: float = 1.0
) -> list[str]:
    """Which of o and the gradients differ from those in float64 by more than bf16 rounds; `factor`: of q."""
    torch.manual_seed(len(name))
    made, wrt = CASES[name]
    given = captures()
    drawn = [
        torch.randn(B, h, n, d).bfloat16()
        for h, n, d in zip((HEADS, GROUPS, GROUPS, HEADS), (*sizes, sizes[1], sizes[0]), (columns[0], *columns, columns[1]), strict=True)
    ]

    drawn[0] *= factor

    def run(where: str, at: str, exact: bool) -> list[Tensor]:
        kept = {key: (value.double() if exact else value).to(at).requires_grad_(key in wrt) for key, value in given.items()}
        *given_to, do = ((value.double() if exact else value).to(at) for value in drawn)
        ins: Any = [value.requires_grad_() for value in given_to]
        torch.manual_seed(7)
        o = attention(*ins, **made(kept), device=where)
        return [x.detach().double().cpu() for x in (o, *torch.autograd.grad(o, [*ins, *(kept[key] for key in wrt)], do))]

    pairs = zip(("o", "dq", "dk", "dv", *wrt), run(device, tensors, False), run("cpu", "cpu", True), strict=True)
    bounds = {"factor": 0.15, "slopes": 0.15}  # sums of terms that cancel, over all pairs
    return [
        f"{which}: {float((a - b).norm() / b.norm())}"
        for which, a, b in pairs
        if not (a - b).norm() <= bounds.get(which, 6e-3) * b.norm() + 0.06
    ]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of few pairs."""
    monkeypatch.setattr(pair_chunks, "MOST_PAIRS", 4096)
    monkeypatch.setattr(pair_chunks, "FEWEST", 8)


@needs_host_clang
@pytest.mark.parametrize("name", CASES)
def test_emulated(name: str, small: None) -> None:
    assert not differences(name, (272, 48), EMULATED, "cpu")


@needs_host_clang
@pytest.mark.parametrize(("columns", "sizes"), [((64, 264), (1, 17)), ((576, 512), (17, 1)), ((257, 264), (33, 127))])
def test_emulated_sizes(columns: tuple[int, int], sizes: tuple[int, int]) -> None:
    assert not differences("causal", columns, EMULATED, "cpu", sizes)


@needs_host_clang
@pytest.mark.parametrize("factor", [1e-6, 100.0])
def test_small_and_large_scores(factor: float) -> None:
    assert not differences("causal", (272, 264), EMULATED, "cpu", (127, 127), factor)


@needs_host_clang
def test_row_outputs_and_bits(small: None) -> None:
    """The gradient through lse; the same bits in every run; a tensor that is all of q, k and v."""
    x = torch.randn(1, 2, 40, 264).bfloat16().requires_grad_()
    runs = []
    for _ in range(2):
        o, lse = attention(x, x, x, mask_mod=causal, return_lse=True, deterministic=True, device=EMULATED)
        runs.append(torch.autograd.grad((o.float().sum() + (lse * lse).sum()), x)[0])
    exact = x.detach().double().requires_grad_()
    o, lse = attention(exact, exact, exact, mask_mod=causal, return_lse=True)
    (wanted,) = torch.autograd.grad(o.sum() + (lse * lse).sum(), exact)
    assert torch.equal(*runs)
    assert float((runs[0].double() - wanted).norm()) <= 6e-3 * float(wanted.norm())


def test_what_is_not_there() -> None:
    x = torch.randn(1, 1, 16, 264).half().requires_grad_()
    with pytest.raises(DiagnosticError, match="are made not with query_mod: change q before the call"):
        attention(x, x, x, query_mod=lambda y, b, h, i, d: 2 * y, device="cuda-emulated-sm80")


class TestGpu:
    pytestmark = GPU

    @pytest.mark.parametrize("name", [name for name in CASES if name != "dropout"])
    def test_gradients(self, name: str, small: None) -> None:
        assert not differences(name, (320, 64), "cuda", "cuda")

    @pytest.mark.parametrize(("columns", "sizes"), [((64, 512), (1, 17)), ((576, 512), (127, 1000)), ((1024, 1024), (1000, 127))])
    def test_sizes(self, columns: tuple[int, int], sizes: tuple[int, int]) -> None:
        assert not differences("causal", columns, "cuda", "cuda", sizes)

    def test_dropout(self) -> None:
        """What is dropped is that of heads of 256 columns."""
        q, k, v, do = (torch.randn(2, h, n, d, device="cuda").half() for h, n, d in ((4, 50, 272), (2, 61, 272), (2, 61, 48), (4, 50, 48)))
        q[..., 256:] = 0
        found = []
        for columns in (272, 256):
            ins: Any = [x.clone().requires_grad_() for x in (q[..., :columns].contiguous(), k[..., :columns].contiguous(), v)]
            torch.manual_seed(5)
            o = attention(*ins, mask_mod=causal, dropout_p=0.2, scale=0.0625)
            dq, dk, dv = torch.autograd.grad(o, ins, do)
            found.append([o, dq[..., :256], dk[..., :256], dv])
        assert all((a - b).float().norm() <= 1e-3 * b.float().norm() for a, b in zip(*found, strict=True))

    def test_a_graph_and_a_compiled_function(self) -> None:
        q, k, v, do = (torch.randn(1, 4, 300, 320, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        ins: Any = [x.requires_grad_() for x in (q, k, v)]

        def step() -> tuple[Tensor, ...]:
            return torch.autograd.grad(attention(*ins, mask_mod=causal), ins, do)

        with torch.cuda.stream(torch.cuda.Stream()):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step()
        with torch.no_grad():
            q.normal_()
            do.normal_()
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(found, step(), strict=True))
        compiled = torch.compile(lambda q, k, v: attention(q, k, v, mask_mod=causal))
        assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(compiled(*ins), ins, do), step(), strict=True))
