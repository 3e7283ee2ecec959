"""One launch for a few queries with lists of keys: its kernel, how calls are cut, and where others are taken."""

from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir import driver, rows
from attn_mlir.api import key_pages
from attn_mlir.backends.gpu.program import BY_ROWS, PartsForm
from attn_mlir.backends.nvidia.few_decode import FewCut, cut_for
from generated_code import complaints
from key_list_cases import draw
from test_key_pages import in_pages


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Programs of calls, the last one last."""
    seen, before = list[str](), key_pages.looks_at_scores_alone
    monkeypatch.setattr(key_pages, "_TEMPLATES", {})
    monkeypatch.setattr(key_pages, "looks_at_scores_alone", lambda text: seen.append(text) or before(text))
    return seen


def kernel_of(texts: list[str], columns: int, values: int, row: Any, lse: bool) -> Any:
    q, k = torch.randn(1, 32, 3, columns).half(), torch.randn(1, 1, 50, columns).half()
    v = k[..., :values] if values < columns else torch.randn(1, 1, 50, values).half()
    in_pages((q, k, v), draw((1, 32, 1, 3, 50, 0), (1, 16), 1, 3), (1, 16), lse=lse, row=row)
    made: Any = driver.compile_derivative(texts[-1], "cuda", "", [])
    found = made._few.kernel(made, PartsForm(columns > 256, BY_ROWS))
    assert found is not None
    return found[0]


@needs_host_clang
@pytest.mark.parametrize("row", [rows.softmax, rows.sigmoid, rows.softmax1], ids=lambda row: row.__name__)
@pytest.mark.parametrize(("columns", "values"), [(64, 64), (128, 128), (576, 512)])
def test_the_kernel(columns: int, values: int, row: Any, texts: list[str]) -> None:
    """It makes its list, and what a cluster has written is no constant to the function that merges."""
    made = kernel_of(texts, columns, values, row, row is rows.softmax)
    code, source = made.unit.code, made.unit.code.source
    assert complaints(code) == "" and code.grid == "few"
    function = source[source.index('extern "C" __global__') :]
    assert "__restrict__" not in function and "counter" not in function and function.count("attn_list_part<") == 1
    assert function.count("merging::attention_combine(") == 1 and function.index("cluster_sync") < function.index("merging::")
    states = 0 if row is rows.sigmoid else 2
    assert made.partial == 1 + states and len(made.unit.outputs) == made.partial + 1 + (row is rows.softmax)
    assert code.parameters[-1].kind == "bytes" and code.parameters[-1].argument == 8 + len(made.unit.outputs)


def test_cuts() -> None:
    """Clusters fill the GPU, and no part is shorter than a block."""
    active = {1: 132, 2: 66, 3: 42, 4: 31, 5: 24, 6: 20, 7: 16, 8: 14}.__getitem__
    assert cut_for(1, 1, 2048, 128, active) == FewCut(8, 256, 1)
    assert cut_for(31, 1, 2048, 128, active) == FewCut(4, 512, 1)
    assert cut_for(32, 1, 2048, 128, active) == FewCut(3, 768, 1)
    assert cut_for(64, 1, 2048, 128, active) == FewCut(2, 1024, 1)
    assert cut_for(132, 2, 2048, 64, active) == FewCut(1, 2048, 2)
    assert cut_for(1, 1, 100, 128, active) == FewCut(1, 128, 1) and cut_for(1, 1, 1, 64, active) == FewCut(1, 64, 1)
    assert cut_for(1, 1, 9 * 128, 128, active) == FewCut(5, 256, 1)
    assert cut_for(133, 1, 2048, 128, active) is None


def test_lists_that_nobody_made_are_told() -> None:
    pending: Any = type("Pending", (), {"is_made": False})()
    call: Any = key_pages.PagedCall(*[None] * 2, None, type("Lists", (), {"pending": pending})(), *[None] * 2, False, "bhsd")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="lists of keys that were not made"):
        call._made([])
    pending.is_made = True
    assert call._made([]) == []
