"""Scans with decays of value channels on NVIDIA GPUs: which kernels are Hopper's, and the parts of their code."""

import re
import shutil

import pytest

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import compile as nvcc
from attn_mlir.backends.nvidia.hopper.value_read import read_values
from attn_mlir.backends.nvidia.hopper.value_scan import emit_values, plan_values
from attn_mlir.backends.nvidia.target import TARGETS
from attn_mlir.errors import UnsupportedError
from linear_programs import Linear
from nvidia_fakes import set_apart
from nvidia_scheduled import emitter_of, hopper_code, scheduled

_USUAL = {"channels": "value", "state": "vk", "factor": True, "interval": 512, "k": 128, "v": 128, "chunk": 0, "element": "bf16"}


def text_of(rows: bool = True, **fields: object) -> str:
    """A program, which returns o only with `rows`."""
    first, *lines, last, end = Linear(**{**_USUAL, **fields}).text().strip().splitlines()  # pyright: ignore[reportArgumentType]
    if not rows:
        first, last = re.sub(r"-> \(\S+ ", "-> (", first), re.sub(r"%r0, |(?<=: )\S+ ", "", last)
    return "\n".join([first, *lines, last, end])


def code_of(**fields: object) -> KernelCode:
    return hopper_code(text_of(**fields))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("fields", [{"k": 96}, {"k": 256}, {"v": 96}, {"mods": True}, {"factor": False}])
def test_other_kernels_are_left_to_others(fields: dict[str, object]) -> None:
    assert emitter_of(text_of(interval=64, **fields)) == "tilelang"  # pyright: ignore[reportArgumentType]


def test_warpgroups_by_columns_of_v() -> None:
    assert [code_of(v=v).threads for v in (64, 128, 192, 256)] == [256, 512, 256, 512]
    # Only two warpgroups with states need more registers than all threads are launched with.
    assert ["more_registers<144>" in code_of(v=v).source for v in (64, 128)] == [False, True]


def test_products_alone() -> None:
    """As where only what decays capture has a gradient."""
    both, alone = (code_of(rows=rows).source.partition('extern "C"')[2] for rows in (True, False))
    assert all("to_products[0] = product.x" in source for source in (both, alone))
    assert "rows.whole(" in both and "rows.whole(" not in alone and "rows_place" not in alone


def test_rows_of_another_sequence_are_cut_off() -> None:
    packed, alone = (code_of(offsets=offsets).source for offsets in (True, False))
    assert packed.count("::cut(values, count, lane);") == 1 and packed.count("::cut(in + 4096 + n * 2048, count, lane);") == 1
    assert "attn::named_sync(8 + worker, 64);" in packed and "::cut(" not in alone.partition('extern "C"')[2]


def test_nothing_is_loaded_where_there_are_no_chunks() -> None:
    """Of an empty sequence: what the copy engine is still writing when a kernel ends is lost to nobody knows whom."""
    source = code_of().source
    assert source.count(" load(") == 2 and "for (int n = 0; n < 5 && n < chunks; ++n) load(n);" in source
    assert "if (half == 0 && lane == 0 && number + 5 < chunks) {" in source


def test_programs_share_columns_of_every_tensor() -> None:
    """Of 192 columns a program has 64."""
    found = re.findall(r"tma_load\(in \+ \d+, &(\w+)_map_\w+, full, (\w+) \+ \d+,", code_of(v=192, initial=True).source)
    assert [name for name, _ in found] == ["v", "factor_2", "decay", "decay"] and len({column for _, column in found}) == 1


def test_there_is_one_schedule() -> None:
    with scheduled(text_of()) as kernel:
        scan = read_values(kernel)
        assert scan is not None and emit_values(scan).shared_bytes <= TARGETS["sm_90a"].shared_bytes
        with pytest.raises(UnsupportedError, match="one schedule"):
            plan_values(kernel, TARGETS["sm_90a"], {"stages": 3})


CASES = {
    "both": {"direction": "forward", "initial": True},
    "alone": {"rows": False},
    "turned": {"direction": "backward", "element": "f16", "offsets": True, "initial": True, "final": True},
}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on the PATH")
def test_products_are_not_serialised(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    set_apart(monkeypatch, tmp_path)  # pyright: ignore[reportArgumentType]
    for binary in nvcc.compile_all([code_of(**fields) for fields in CASES.values()]):
        assert binary.spills == 0 and not [text for text in binary.warnings if "C75" in text or "setmaxnreg" in text]
