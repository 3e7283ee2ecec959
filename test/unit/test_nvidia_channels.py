"""Scans whose key channels have decays of their own, for Hopper: which the emitter takes, what it prints, what ptxas makes of it."""

import re
import shutil

import pytest

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import compile as nvcc
from attn_mlir.backends.nvidia.hopper.channel_read import read_channels
from attn_mlir.backends.nvidia.hopper.channel_scan import emit_channels, plan_channels
from attn_mlir.backends.nvidia.target import TARGETS
from attn_mlir.errors import UnsupportedError
from linear_programs import Linear
from nvidia_fakes import set_apart
from nvidia_scheduled import emitter_of, hopper_code, scheduled

_PLAIN = {"initial": True, "final": True}


def text_of(**fields: object) -> str:
    return Linear(**{"channels": "key", "k": 128, "v": 128, "chunk": 0, "element": "bf16", **fields}).text()  # pyright: ignore[reportArgumentType]


def code_of(**fields: object) -> KernelCode:
    return hopper_code(text_of(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"k": 96},
        {"k": 256},
        {"v": 96},
        {"factor": True, "interval": 256},
        {"mods": True},
        {"channels": "value", "state": "vk"},
    ],
)
def test_other_kernels_are_left_to_others(fields: dict[str, object]) -> None:
    assert emitter_of(text_of(**fields)) == "tilelang"


def test_warpgroups_by_columns_of_v() -> None:
    assert [code_of(v=v).threads for v in (64, 128, 192, 256)] == [384, 512, 384, 512]
    # Only two warpgroups with states need more registers than all threads are launched with.
    assert ["more_registers<144>" in code_of(v=v).source for v in (64, 128)] == [False, True]


def test_late_and_early_change_places_in_the_other_direction() -> None:
    forward, backward = (code_of(direction=name, **_PLAIN).source for name in ("forward", "backward"))
    assert "ChannelPairs<true, false> pairs" in forward and "ChannelPairs<true, true> pairs" in backward
    q, k = "in + 16384", "in + 24576"
    assert f"make_tiles<true, true>({q}, {k}," in forward and f"make_tiles<true, true>({k}, {q}," in backward


def test_rows_of_another_sequence_are_cut_off() -> None:
    packed, alone = (code_of(offsets=offsets).source for offsets in (True, False))
    zeros = re.compile(r"if \(8 \* warp \+ r >= \w+\) attn::store_shared_int\(address\w*, 0\);")
    assert len(zeros.findall(packed)) == 2 and not zeros.findall(alone)
    assert packed.count("store_shared_int4(own + ") == 1 and "store_shared_int4(own + " not in alone
    assert "rows_of_o[" in packed and "rows_of_o[" not in alone


def test_nothing_is_loaded_where_there_are_no_chunks() -> None:
    """Of an empty sequence: what the copy engine is still writing when a kernel ends is lost to nobody knows whom."""
    assert [line.strip() for line in code_of().source.splitlines() if re.search(r"\bload\(\d", line)] == [
        "if (chunks > 0) load(0, 0, 0);",
        "if (chunks > 0) load(0, 1, 1);",
    ]
    assert "if (chunks > 1) load(1, 0, 1);" in code_of(k=64).source


def test_there_is_one_schedule() -> None:
    with scheduled(text_of()) as kernel:
        scan = read_channels(kernel)
        assert scan is not None and emit_channels(scan).shared_bytes <= TARGETS["sm_90a"].shared_bytes
        with pytest.raises(UnsupportedError, match="one schedule"):
            plan_channels(kernel, TARGETS["sm_90a"], {"stages": 3})


CASES = {
    "both": {"direction": "forward", **_PLAIN},
    "turned": {"direction": "backward", "element": "f16"},
    "narrow": {"k": 64, "v": 64, "offsets": True, **_PLAIN},
}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on the PATH")
def test_products_are_not_serialised(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    set_apart(monkeypatch, tmp_path)  # pyright: ignore[reportArgumentType]
    for binary in nvcc.compile_all([code_of(**fields) for fields in CASES.values()]):
        assert binary.spills <= 256 and not [text for text in binary.warnings if "C75" in text or "setmaxnreg" in text]
