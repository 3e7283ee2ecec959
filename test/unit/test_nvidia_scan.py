"""Chunk scans for Hopper: which kernels the emitter takes, what it prints, and what ptxas makes of it."""

import re
import shutil
from collections.abc import Callable

import pytest

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import compile as nvcc
from attn_mlir.backends.nvidia.hopper.scan import emit_scan, plan_scan
from attn_mlir.backends.nvidia.target import TARGETS
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry
from contexts import loaded_context
from linear_programs import Linear
from nvidia_fakes import set_apart

PIPELINE = "canonicalize,attn-tile,canonicalize,cse,gpu-float-positions,gpu-sink-factors,gpu-fold-scale,gpu-exp2,canonicalize,cse"
EVERYTHING = {"initial": True, "final": True, "factor": True, "interval": 256}


def program(**fields: object) -> Linear:
    return Linear(**{"k": 64, "v": 64, "chunk": 64, "element": "bf16", **fields})  # pyright: ignore[reportArgumentType]


def code(of: Linear, change: Callable[[str], str] = lambda tiles: tiles) -> KernelCode | None:
    """The kernel by this emitter; None where it leaves the kernel to others. `change`: of the tiled program's text."""
    with loaded_context():
        module = ir.Module.parse(of.text())
        Pipeline.parse(PIPELINE, registry()).run(module)
        module = ir.Module.parse(change(str(module)))
        (kernel,) = module.body.operations
        schedule = plan_scan(kernel.operation, TARGETS["sm_90a"], {})
        return None if schedule is None else emit_scan(kernel.operation, schedule)


def code_of(**fields: object) -> KernelCode:
    made = code(program(**fields))
    assert made is not None
    return made


@pytest.mark.parametrize(
    "fields",
    [
        {"channels": "key"},
        {"k": 96},
        {"v": 32},
        {"chunk": 32},
        {"k": 64, "v": 192},
    ],
)
def test_other_kernels_are_left_to_others(fields: dict[str, object]) -> None:
    assert code(program(**fields)) is None


def test_warpgroups_by_columns_of_v() -> None:
    assert [code_of(v=v).threads for v in (64, 128)] == [160, 288]
    assert code_of(v=256, value_block=128).threads == 288
    assert code_of(k=256, v=128).threads == 384  # a producer warpgroup, which gives its registers away
    assert code_of(k=256).threads == 160  # one warpgroup has registers enough


def test_warpgroups_have_two_buffers_of_weights() -> None:
    # The one that is ahead may not write where another still reads.
    assert "kWeights + (number & 1) * 8192" in code_of(v=128).source
    assert "kWeights + (number & 1)" not in code_of(v=64).source


def test_factors_of_rows_are_no_pass_over_tiles() -> None:
    scaled = code_of()
    changed = code_of(mods=True)
    assert "store_shared_int4(address" in changed.source and "store_shared_int4(address" not in scaled.source
    # What multiplies rows goes to what leaves, enters and to pairs; own pairs of scans with products have it, too.
    rows = code_of(row_mods=True, factor=True).source
    assert "store_shared_int4(address" not in rows
    assert len(re.findall(r"const float (?:left|right) = \w+, (?:left|right)_\d+ = \w+;", rows)) == 2
    assert rows.count("* left;") == rows.count("* right;") == 1
    assert rows.count("* row_left[h]") == 2 and rows.count("* (e ? column_right.y : column_right.x)") == 2
    # Rows past the end are 0, whatever a mod makes of zeros.
    assert re.search(r"made\[0\] = i < \w+ \? .* : 0\.0f;", changed.source)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_states_before_or_after_a_chunk(direction: str) -> None:
    source = code_of(direction=direction, state="vk", **EVERYTHING).source
    loop = source[source.index("#pragma unroll 1") :]
    before = loop.index("make_float2(state[") < loop.index("wgmma_m64n64k16_rs_bf16_tb(state")
    assert before == (direction == "forward")


def test_scans_with_products_take_states_in_two_pieces() -> None:
    exact, plain = code_of(v=128, factor=True), code_of(v=128)
    for piece in ("pack_residual_bf16(held", "pack_residual_bf16(entering"):
        assert piece in exact.source and piece not in plain.source
    assert (exact.threads, plain.threads) == (384, 288)


def test_scans_with_products_have_weights_in_two_pieces() -> None:
    """In bf16; the digits of f16 are enough."""
    exact, enough, plain = code_of(v=128, factor=True), code_of(v=128, factor=True, element="f16"), code_of(v=128)
    for number, source in enumerate(each.source for each in (exact, enough, plain)):
        pieces = 1 if number else 2
        assert source.count("attn::store_matrices(shared + kWeights") == source.count("attn::k_major(shared + kWeights") == pieces
    assert "residual[2 * d + h] = attn::pack_residual_bf16(packed[2 * d + h], pair[0], pair[1]);" in exact.source
    assert exact.shared_bytes == enough.shared_bytes + 8192
    assert [program.source.count("wgmma_m64n64k16_ss_bf16_ta(o, ") for program in (exact, plain)] == [2, 1]


@pytest.mark.parametrize(("old", "new"), [("arith.cmpi sgt", "arith.cmpi sge"), ("arith.subf", "arith.addf")])
def test_other_tiles_than_what_rounding_leaves_out_are_left_to_others(old: str, new: str) -> None:
    """A difference in the map of the second piece of weights, the last one that compares positions with each other."""

    def change(tiles: str) -> str:
        end = tiles.index("arith.truncf", tiles.index("arith.extf", tiles.rindex("arith.cmpi sgt")))
        begin = tiles.rindex(old, 0, end)
        return tiles[:begin] + new + tiles[begin + len(old) :]

    assert code(program(factor=True)) is not None
    assert code(program(factor=True), change) is None


def test_what_rounding_to_f16_leaves_out_is_multiplied_apart() -> None:
    """2^11 times as large as it is, and before the rest; then what it adds to is scaled back."""
    source = code_of(v=128, factor=True, element="f16").source
    for target, small, large in (("o", "residual", "held"), ("state", "remaining", "entering")):
        places = [source.index(f"({target}, {piece}[") for piece in (small, large)]
        assert places[0] < source.index(f"{target}[c] *= (1.0f / 2048.0f);") < places[1]


def test_own_pairs_are_added_behind_the_products() -> None:
    source = code_of(v=128, factor=True).source
    assert (
        source.index("sums[2 * (c + d)] =")
        < source.index("attn::load_shared2(shared + kOwn")
        < source.index("store_matrices_transposed(own")
    )
    assert "((row + 8 * h) > (from + 8 * (c + d) + e))" in source
    assert "kOwn" not in code_of(v=128).source


def test_terms_that_products_leave_out_are_summed_apart() -> None:
    """After the others, in the same registers; each warp's sums have shared memory of their own."""
    apart, plain = code_of(factor=True, diagonal=True), code_of(factor=True)
    for source, number in ((apart.source, 2), (plain.source, 1)):
        assert source.count("float sums[16];") == source.count("attn::sum_over_rows(sums)") == number
        assert source.count("attn::load_matrices_transposed(other +") == number
    assert apart.shared_bytes == plain.shared_bytes + 4 * 256
    assert apart.source.index("shared + kDiagonalSums + (4 *") < apart.source.index("store_matrices_transposed(own")


def test_factors_behind_sums_scale_o_alone() -> None:
    scaled, own, plain = (code_of(factor=True, **more).source for more in ({"result": True}, {"result": True, "diagonal": True}, {}))
    assert [source.count("result = attn::load_shared2(rows + 768") for source in (scaled, own, plain)] == [1, 1, 0]
    for source in (scaled, own):
        assert source.index("sums[2 * (c + d)] = o[4 *") < source.index("*= result.x") < source.index("store_matrices_transposed(own")
    # Where there are no sums, they stand with the factors of q.
    rows = code_of(result=True).source
    assert "result.x" not in rows and "row_left" in rows


@pytest.mark.parametrize("fields", [{"diagonal": True}, {"diagonal": True, "result": True}])
def test_other_sums_than_those_of_own_terms_are_left_to_others(fields: dict[str, bool]) -> None:
    """A map behind the diagonal of scores that sums up squares."""
    sums = re.compile(r'arith.mulf (%\d+), %\d+( : f32\s+"tile.yield"\(%\d+\) \{operandSegmentSizes = array<i32: 0, 1>)')

    def change(tiles: str) -> str:
        before, behind = tiles.split("arith.cmpi eq", 1)
        changed, count = sums.subn(r"arith.mulf \1, \1\2", behind, count=1)
        assert count == 1
        return f"{before}arith.cmpi eq{changed}"

    assert code(program(factor=True, **fields)) is not None
    assert code(program(factor=True, **fields), change) is None


def test_what_rows_get_of_their_own_row_of_v_is_added_to_the_diagonal() -> None:
    """To two numbers of each block of 8 x 8 on it, none to others; rows of v may have factors, which it has not."""
    skipping, plain = code_of(v=128, skip=True), code_of(v=128)
    scaled = code_of(v=128, skip=True, row_mods=True, direction="backward", result=True)
    added = "if (warpgroup * 32 + 8 * (c + d) == 16 * warp + 8 * h) pair[0] += diagonal[2 * h], pair[1] += diagonal[2 * h + 1];"
    assert [each.source.count(added) for each in (skipping, scaled, plain)] == [1, 1, 0]
    assert skipping.shared_bytes == plain.shared_bytes + 3 * 256  # a row in each stage
    # What changes elements of v makes another tile: rows of v as they come are not multiplied.
    assert code(program(skip=True, mods=True)) is None


def test_other_sums_than_the_diagonal_are_left_to_others() -> None:
    def change(tiles: str) -> str:
        end = tiles.index("arith.addf", tiles.index("arith.cmpi eq"))
        begin = tiles.rindex("arith.cmpi eq", 0, end)
        return f"{tiles[:begin]}arith.cmpi sle{tiles[begin + len('arith.cmpi eq') :]}"

    assert code(program(skip=True)) is not None
    assert code(program(skip=True), change) is None


def test_sums_of_blocks_of_columns_have_slots() -> None:
    assert re.search(r"\w+\[block \* \w+_s0 \+ batch \* \w+_s1 .*\] = sum;", code_of(v=128, value_block=64, factor=True).source)


def test_rows_of_another_sequence_are_cut_off() -> None:
    packed, alone = code_of(v=128, offsets=True).source, code_of(v=128).source
    # k and v become zeros there, and o's rows are stored by threads: the copy engine would write the next sequence's.
    assert packed.count("store_shared_int4(at + ") == 2 and "store_shared_int4(at + " not in alone
    assert re.search(r"if \(n_\d+ < 64\) \{\s+for .*place < 512.*\{\s.*\s+if \(i < n_\d+\) .*rows_of_o\[", packed)
    assert "else if (leader)" in packed and "else if (leader)" not in alone


CASES = {
    "forward": {"k": 128, "v": 128, **EVERYTHING},
    "backward": {"k": 128, "v": 128, "state": "vk", "direction": "backward", "factor": True, "interval": 256},
    "heads": {"k": 128, "v": 64, "mods": True},
    "skip": {"k": 128, "v": 64, "skip": True, "row_mods": True},
    "rows": {"k": 128, "v": 128, "direction": "backward", "state": "vk", "factor": True, "interval": 256, "row_mods": True},
    "diagonal": {
        "k": 64,
        "v": 128,
        "direction": "backward",
        "state": "vk",
        "factor": True,
        "interval": 256,
        "diagonal": True,
        "result": True,
    },
    "packed": {"k": 128, "v": 128, "offsets": True, **EVERYTHING},
    "wide": {"k": 256, "v": 256, "value_block": 128, "state": "vk", "factor": True, "interval": 256},
}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on the PATH")
def test_products_are_not_serialised(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    set_apart(monkeypatch, tmp_path)  # pyright: ignore[reportArgumentType]
    for binary in nvcc.compile_all([code_of(**fields) for fields in CASES.values()]):
        assert binary.spills <= 64 and not [text for text in binary.warnings if "C75" in text or "setmaxnreg" in text]
