"""The adapter for vLLM, run by what stands for vLLM here, since that cannot be installed: its registry, metadata, and a step's calls."""

import enum
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attn_mlir import UnsupportedError, mods, rows
from varlen_cases import offsets

PAGE = 16


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, beside a package with the names of `vllm/v1/attention/backend.py` and of the registry."""
    found: dict[Any, str] = {}
    base = types.ModuleType("vllm.v1.attention.backend")
    for name in ("AttentionBackend", "AttentionImpl", "AttentionMetadataBuilder"):
        setattr(base, name, type(name, (), {}))
    registry = types.ModuleType("vllm.v1.attention.backends.registry")
    kinds = enum.Enum("AttentionBackendEnum", "FLASH_ATTN CUSTOM")
    registry.__dict__.update(AttentionBackendEnum=kinds, register_backend=found.__setitem__, found=found)
    for name in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    monkeypatch.delitem(sys.modules, "attn_mlir.integrations.vllm", raising=False)
    made = importlib.import_module("attn_mlir.integrations.vllm")
    yield made
    sys.modules.pop("attn_mlir.integrations.vllm", None)


def test_without_vllm_it_says_so() -> None:
    with pytest.raises(UnsupportedError, match="vLLM cannot be imported"):
        importlib.import_module("attn_mlir.integrations.vllm")


def test_steps_of_a_runner(adapter: Any) -> None:
    """Prefill of two requests, then a step of both with a third: tokens of none, a user's row, score and mask, against all at once."""
    slope = torch.tensor(0.1)
    adapter.register(
        row=rows.sigmoid,
        score_mod=lambda s, b, h, i, j: s + slope * (j - i),
        mask_mod=lambda b, h, i, j: (i - j) % 3 != 2,
    )
    registry = sys.modules["vllm.v1.attention.backends.registry"]
    (path,) = registry.found.values()  # type: ignore[attr-defined]
    module, _, name = path.rpartition(".")
    backend = getattr(importlib.import_module(module), name)
    cache = torch.full(backend.get_kv_cache_shape(12, PAGE, 2, 32), torch.nan)
    builder, layer = backend.get_builder_cls()(), backend.get_impl_cls()(4, 32, 0.2, 2, None, None, "auto")
    tables = torch.tensor([[3, 7, 0], [1, 9, 0], [5, 0, 0]], dtype=torch.int32)
    tokens = [torch.randn(3, n, 4, 32) for n in (21, 18, 2)]
    at = [0, 0, 0]
    found: list[list[torch.Tensor]] = [[], [], []]
    for step in ([20, 17, 0], [1, 1, 2]):
        new = [tokens[r][:, at[r] : at[r] + n] for r, n in enumerate(step)]
        q, k, v = (torch.cat([each[i] for each in new]) for i in range(3))
        places = [torch.arange(at[r], at[r] + n) for r, n in enumerate(step)]
        slots = torch.cat([tables[r, p // PAGE].long() * PAGE + p % PAGE for r, p in enumerate(places)])
        at = [a + n for a, n in zip(at, step, strict=True)]
        common = types.SimpleNamespace(
            num_reqs=3, num_actual_tokens=len(q), query_start_loc=torch.cat([offsets(step), offsets(step)[-1:]]),
            seq_lens=torch.tensor([*at, 7]), block_table_tensor=torch.cat([tables, tables[:1]]), slot_mapping=slots, causal=True,
        )  # fmt: skip
        output = torch.full((len(q) + 3, 4 * 32), torch.nan)
        padded = [torch.cat([x, torch.full_like(x[:1], torch.nan).expand(3, *x.shape[1:])]) for x in (q, k[:, ::2], v[:, ::2])]
        layer.forward(None, *padded, cache, builder.build(0, common), output)
        for r, part in enumerate(output[: len(q)].view(-1, 4, 32).split(step)):
            found[r].append(part)
    for r in range(3):
        q, k, v = (x.double() for x in tokens[r])
        s = torch.einsum("ihd,jhd->hij", q, k[:, ::2].repeat_interleave(2, 1)) * 0.2
        i, j = torch.meshgrid(*[torch.arange(len(q))] * 2, indexing="ij")
        p = torch.sigmoid(s + 0.1 * (j - i)) * ((i >= j) & ((i - j) % 3 != 2))
        wanted = torch.einsum("hij,jhd->ihd", p, v[:, ::2].repeat_interleave(2, 1))
        torch.testing.assert_close(torch.cat(found[r]).double(), wanted, rtol=1e-5, atol=1e-5)


def test_functions_that_are_aligned_to_the_last_query(adapter: Any) -> None:
    """They see the whole request, whose last query and last key are at one position."""
    q, k, cache = torch.randn(3, 4, 32), torch.randn(3, 2, 32), torch.randn(2, 3, PAGE, 2, 32)
    table, seen = torch.tensor([[2, 0, 1]], dtype=torch.int32), torch.tensor([40], dtype=torch.int32)
    data = adapter.Metadata(3, offsets([3]), seen, table, PAGE + torch.arange(5, 8), True)
    found = []
    kinds: Any = ("b:8,0", "bottom_right"), ("t:8,0", "top_left")
    for mask, align in kinds:
        adapter.register(mask_mod=mask, score_mod=mods.alibi(torch.full((4,), 0.3), align=align))
        layer = adapter.Impl(4, 32, 0.2, 2, None, None, "auto")
        found.append(layer.forward(None, q, k, k, cache.clone(), data, torch.empty(3, 4, 32)))
    torch.testing.assert_close(found[0], found[1])


def test_what_is_not_served_is_refused(adapter: Any) -> None:
    for changed, message in (
        ({"attn_type": "encoder"}, "attention of type encoder"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "no quantised caches"),
    ):
        arguments = {"kv_cache_dtype": "auto", **changed}
        with pytest.raises(UnsupportedError, match=message):
            adapter.Impl(4, 32, 1.0, 2, None, None, **arguments)
    adapter.register(row=rows.relu)
    with pytest.raises(UnsupportedError, match="attention sinks"):
        adapter.Impl(4, 32, 1.0, 2, None, None, "auto", sinks=torch.zeros(4))
    layer = adapter.Impl(4, 32, 1.0, 2, [0.1] * 4, 8, "auto", 5.0)
    assert not layer.forward(None, *[torch.zeros(1, 4, 32)] * 3, torch.zeros(0), None, torch.ones(1, 4, 32)).any()
    with pytest.raises(UnsupportedError, match="does not quantise"):
        layer.forward(None, *[torch.zeros(1, 4, 32)] * 3, torch.zeros(0), None, None)
