"""The short ways of programs on packed sequences without a GPU: chains of kernels, and single queries, on tensors that lie elsewhere."""

import ctypes
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir import attention_varlen, driver, masks
from attn_mlir.backends.nvidia import cuda
from attn_mlir.backends.nvidia.launch import CudaLauncher
from attn_mlir.backends.nvidia.repeated_decode import RepeatedDecode
from attn_mlir.backends.nvidia.repeated_kernels import Chain
from attn_mlir.backends.work import cover_rows
from attn_mlir.errors import PerformanceWarning
from nvidia_fakes import BINARY, fake_gpu, moving_maps, set_apart
from program_texts import text_of
from test_nvidia_varlen import traced
from varlen_cases import offsets


@pytest.mark.parametrize("ordered", [False, True])
def test_the_short_way_serves_tensors_wherever_they_lie(ordered: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Launches are told the same, bit for bit, as if parameters were packed for these tensors; rows of no sequence become 0."""
    set_apart(monkeypatch, tmp_path)
    # Programs that no other test has launched.
    text, inputs = traced((lambda s, b, h, i, j: 0.5 * s) if ordered else (lambda s, b, h, i, j: 0.25 * s))
    compared = list[int]()
    pack = Chain._pack

    def packed(chain: Chain, key: Any, own: Any, results: Any, memory: Any) -> Any:
        made = pack(chain, key, own, results, memory)
        for (launcher, one), (_, arguments, _) in zip(made, chain._arguments(own, results, memory), strict=True):
            forms, launcher._forms = launcher._forms, {}  # so that every parameter is packed
            other, size = launcher.pack(arguments, key[0]), len(launcher._code.parameters)
            launcher._forms = forms
            pointers = [(ctypes.c_void_p * size).from_address(x.parameters) for x in (one, other)]
            for *places, parameter in zip(*pointers, launcher._code.parameters, strict=True):
                extent = 128 if parameter.kind in ("descriptor", "ragged", "window") else 4 if parameter.type in ("int", "float") else 8
                assert len({ctypes.string_at(place, extent) for place in places}) == 1, parameter
            compared.append(size)
        return made

    with fake_gpu() as fake, pytest.MonkeyPatch.context() as patch:
        patch.setattr("attn_mlir.backends.nvidia.program.compile_all", lambda codes: [BINARY] * len(codes))
        moving_maps(patch)
        patch.setattr(Chain, "_pack", packed)
        forward = driver.compile_derivative(text, "cuda", "fwd", ["q", "k", "v"])
        backward = driver.compile_derivative(text, "cuda", "bwd", ["q", "k", "v"], ordered)
        counts = list[tuple[int, int]]()
        for _ in range(4):
            own = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
            results = forward.run(own, "bshd")
            made = backward.run([*own, *results, torch.randn(1, 2, 12, 64).half()], "bshd")
            assert [x.shape for x in made] == [x.shape for x in own[:3]]
            counts.append((len(fake.named("cuLaunchKernelEx")), len(fake.named("cuMemsetD8Async"))))
        more = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(counts)]
        assert counts[0][0] == more[1][0] == more[2][0] and counts[0][1] == 0 < more[1][1] == more[2][1]
        assert len(compared) == 3 * (1 + 3)  # a kernel of the forward pass, and three of the backward, from the second time on
        # Rows of no sequence are those of queries here, and of keys there.
        cleared = list[set[int]]()
        for place in (4, 6):
            own = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
            cover_rows(own[place])
            given = [*own, *forward.run(own, "bshd"), torch.randn(1, 2, 12, 64).half()]
            before = len(fake.named("cuMemsetD8Async"))
            made = backward.run(given, "bshd")
            addresses = {each[0] for each in fake.named("cuMemsetD8Async")[before:]}
            cleared.append({number for number in (1, 2) if made[number].data_ptr() in addresses})
        assert cleared == [{1, 2}, set()]


@pytest.mark.parametrize("keys", [40, 4000])
def test_the_short_way_of_single_queries(keys: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of one part, and of several, which are merged: kernels are given the same tensors as on the long way, wherever these lie."""
    set_apart(monkeypatch, tmp_path)
    q, k = torch.randn(3, 4, 64).half(), torch.randn(3 * keys, 1, 64).half()
    cu_q, cu_k = offsets([1, 1, 1]), offsets([keys] * 3)
    text = text_of(lambda: attention_varlen(q, k, k, cu_q, cu_k, mask_mod=masks.causal("bottom_right")))
    start, told = CudaLauncher.start, list[tuple[int, ...]]()

    def starts(launcher: CudaLauncher, packed: Any) -> None:
        kinds = [parameter.kind for parameter in launcher._code.parameters]
        pointers = (ctypes.c_void_p * len(kinds)).from_address(packed.parameters)
        addressed = [place for place, kind in zip(pointers, kinds, strict=True) if kind in ("pointer", "descriptor", "ragged", "window")]
        told.append(tuple([ctypes.c_uint64.from_address(place).value for place in addressed]))
        start(launcher, packed)

    with fake_gpu() as fake, pytest.MonkeyPatch.context() as patch:
        patch.setattr("attn_mlir.backends.nvidia.program.compile_all", lambda codes: [BINARY] * len(codes))
        moving_maps(patch)
        patch.setattr(CudaLauncher, "start", starts)
        made: Any = driver.compile_derivative(text, "cuda", "", [])
        inputs = list[Any]()
        seen, held = list[list[tuple[str, ...]]](), list[Any]()
        for number in range(3):
            given = [x.clone().transpose(0, 1)[None] for x in (q, k, k)]
            inputs = [*given, *[x.clone() for x in (cu_q[:-1], cu_q[1:] - cu_q[:-1], cu_k[:-1], cu_k[1:] - cu_k[:-1])]]
            told.clear()
            (o,) = made.decode(inputs, "bshd", keys)
            names = {x.data_ptr(): str(place) for place, x in enumerate((*inputs, o))}
            seen.append([tuple([names.get(address, "") for address in one]) for one in told])
            held += [inputs, o]
            assert o.shape == (1, 4, 3, 64) and (not number) == (not fake.named("cuMemsetD8Async"))
        told.clear()
        negated = torch._neg_view(inputs[0])  # pyright: ignore[reportPrivateImportUsage]
        made.decode([negated, *inputs[1:]], "bshd", keys)
        assert not any(inputs[0].data_ptr() in one for one in told) and len(told) == len(seen[0])
        # What is copied there for each token is told, too.
        assert not made.copies
        odd = torch.empty(inputs[1].numel() + 1, dtype=torch.float16)[1:].view(inputs[1].shape).copy_(inputs[1])
        with pytest.warns(PerformanceWarning, match="k is copied at every call"):
            made.decode([inputs[0], odd, *inputs[2:]], "bshd", keys)
        assert list(made.copies) == ["k"]
        # A graph reads lists that something keeps, and what it makes of them is for itself.
        made._decoded.clear()
        with pytest.MonkeyPatch.context() as captured:
            captured.setattr(cuda, "is_capturing", lambda index: True)
            made.decode(inputs, "bshd", keys)
            assert not made._decoded
            captured.setattr(cuda, "is_capturing", lambda index: False)
            made.decode(inputs, "bshd", keys)
            captured.setattr(cuda, "is_capturing", lambda index: True)
            captured.setattr(RepeatedDecode, "__call__", None)
            made.decode(inputs, "bshd", keys)
        assert seen[0] == seen[1] == seen[2] and len(seen[0]) == (1 if keys < 100 else 2)
        assert "7" in seen[0][-1] and {"0", "1", "2", "6"} <= set(seen[0][0])
