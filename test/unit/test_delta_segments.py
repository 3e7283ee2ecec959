"""When sequences of a delta rule are cut into segments by themselves."""

from types import SimpleNamespace

import pytest
import torch

from attn_mlir.backends.host import KernelGrid
from attn_mlir.backends.nvidia import cuda
from attn_mlir.backends.nvidia.delta_segments import delta_segment
from attn_mlir.backends.nvidia.program import NvidiaLaunchPlan


def kernels(prepared: bool = True) -> dict[str, KernelGrid]:
    """The two kernels of a scan of 128 columns, or one."""
    scan = KernelGrid("attention", 64, "chunks", 2, ("store",), ((),), False, blocks=2)
    chunks = KernelGrid("attention_chunks", 64, "chunks", 2, ("store",), ((),), False, segment=64)
    return {"attention": scan} | ({"attention_chunks": chunks} if prepared else {})


@pytest.mark.parametrize("shape", [(1, 8, 8192, 128), (1, 8, 32768, 128), (2, 4, 8192, 128), (1, 1, 65536, 128)])
def test_few_heads_of_long_sequences_are_cut(shape: tuple[int, ...]) -> None:
    segment = delta_segment(kernels(), shape, 132)
    assert segment >= 512 and segment & (segment - 1) == 0 and segment < shape[2]


@pytest.mark.parametrize(
    ("shape", "prepared"),
    [((1, 64, 8192, 128), True), ((8, 8, 8192, 128), True), ((1, 8, 512, 128), True), ((1, 8, 8192, 64), True), ((1, 8, 8192, 128), False)],
)
def test_others_stay_whole(shape: tuple[int, ...], prepared: bool) -> None:
    """Where heads fill the device, sequences are short, or one program makes all of a chunk."""
    assert delta_segment(kernels(prepared), shape, 132) == 0


def test_each_device_and_size_of_k_has_its_own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is that of the tensors; where columns of k are others than those of the measured times, sequences stay whole."""
    plan = NvidiaLaunchPlan.__new__(NvidiaLaunchPlan)
    plan._choices, plan._segments = {"arch": "sm_90a"}, {}
    monkeypatch.setattr(NvidiaLaunchPlan, "kernels", kernels(), raising=False)
    monkeypatch.setattr(cuda, "current_device", lambda: 0)
    monkeypatch.setattr(cuda, "index_of", lambda x: x.index)
    monkeypatch.setattr(cuda, "device", lambda n: SimpleNamespace(multiprocessors=(132, 8)[n]))

    def chosen(columns: int, index: int) -> int:
        q, v = (SimpleNamespace(shape=torch.Size((1, 8, 8192, size)), index=index) for size in (columns, 128))
        return plan.segment_for_delta([q, q, v])

    assert chosen(128, 0) and not chosen(128, 1) and chosen(128, 0) and not chosen(256, 0)
