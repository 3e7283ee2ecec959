"""Descriptions of GPUs: their numbers among themselves and against what the backends know of the same GPUs."""

import copy
import dataclasses
import pickle
from typing import Any

import pytest
import torch

import engine_programs as ep
from attn_mlir import AttentionEngine, LinearAttentionEngine
from attn_mlir.api.arch import A100, H100, H200, MI250, MI300X, RTX4090, Arch
from attn_mlir.backends.amd import target as amd
from attn_mlir.backends.nvidia import target as nvidia
from attn_mlir.errors import ArgumentError

ALL = (A100, RTX4090, H100, H200, MI250, MI300X)
FIELDS = (
    "reg_cap register_per_thread smem_cap max_smem_usage compute_max_core warp_size sm_partition transaction_size bandwidth platform "
    "compute_capability mma_primitive cutlass_mma threads_per_mma threads_cap"
).split()


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (A100, nvidia.AMPERE),
        (H100, nvidia.HOPPER),
        (H200, nvidia.HOPPER),
        (MI250, amd.MI250),
        (MI300X, amd.MI300X),
    ],
)
def test_backends_know_the_same(kind: type[Any], target: Any) -> None:
    assert kind().target() == target


def test_every_target_has_a_description() -> None:
    targets = {*nvidia.TARGETS.values(), *amd.TARGETS.values()}
    assert targets <= {kind().target() for kind in ALL}


def test_a_gpu_that_no_backend_lists() -> None:
    made = RTX4090().target()
    assert (made.arch, made.multiprocessors, made.shared_bytes, made.bulk_copies) == ("sm_89", 128, 99 * 1024, False)
    smaller = dataclasses.replace(H100(), compute_max_core=114, smem_cap=100 * 1024)
    assert smaller.target() == dataclasses.replace(nvidia.HOPPER, multiprocessors=114, shared_bytes=100 * 1024)
    slower = dataclasses.replace(MI250(), clock_ghz=1.0, compute_capability="gfx908")
    assert (slower.target().arch, slower.target().clock_ghz, slower.target().wave) == ("gfx908", 1.0, 64)
    with pytest.raises(ArgumentError, match='A100: platform is "CUDA" or "ROCM", got \'cpu\''):
        dataclasses.replace(A100(), platform="cpu").target()


@pytest.mark.parametrize("kind", ALL)
def test_numbers_fit_each_other(kind: type[Any]) -> None:
    arch = kind()
    assert arch.name == kind.__name__ and all(hasattr(arch, field) for field in FIELDS)
    assert arch.smem_cap <= arch.max_smem_usage < 256 * 1024
    lanes = 128 if arch.platform == "CUDA" else 4 * 64
    assert arch.reg_cap == lanes * 512 and arch.register_per_thread in (255, 512)
    # A multiprocessor reads 128 bytes of shared memory in a cycle.
    assert arch.bandwidth[1] == pytest.approx(arch.compute_max_core * 128 * arch.clock_ghz, rel=1e-3)
    peaks = {A100: 312, RTX4090: 165.2, H100: 989.4, H200: 989.4, MI250: 362.1 / 2, MI300X: 1307.4}
    assert arch.tflops == pytest.approx(peaks[kind], rel=1e-3)


def test_descriptions_are_values() -> None:
    assert H100() == H100() != H200() and len({A100(), A100(), RTX4090()}) == 2
    assert pickle.loads(pickle.dumps(MI250())) == MI250() == copy.deepcopy(MI250())
    with pytest.raises(dataclasses.FrozenInstanceError):
        A100().smem_cap = 1  # type: ignore[misc]
    assert not isinstance(MI300X(), MI250) and all(isinstance(kind(), Arch) for kind in ALL)


def test_engines_take_them() -> None:
    q, k, v = torch.randn(1, 9, 4, 16), torch.randn(1, 9, 2, 16), torch.randn(1, 9, 2, 16)
    plain, made = (AttentionEngine(ep.meta(), None, ep.scaled, ep.causal, online_func=ep.Mine(""), device=d) for d in (None, H100()))
    assert torch.equal(plain(q, k, v), made(q, k, v)) and pickle.loads(pickle.dumps(made))._arguments["device"] == H100()
    LinearAttentionEngine(ep.meta(2, 2), device=MI250())
    with pytest.raises(ArgumentError, match="device is the class H100; pass an instance"):
        AttentionEngine(ep.meta(), None, ep.scaled, device=H100)
