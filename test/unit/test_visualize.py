"""`visualize` against dense evaluation of the same masks, and against the loops of the tile IR."""

import time
import warnings
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import attn_mlir
from attn_mlir import ArgumentError, UnsupportedError, kv_len, masks
from attn_mlir.api.rows import softmax
from attn_mlir.frontend.sizes import known
from attn_mlir.mlir import ir
from attn_mlir.passes.intervals import survey
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.reference import tiles
from attn_mlir.registry import registry
from attn_mlir.seeing.visualize import _traced
from contexts import loaded_context

DOCUMENTS = torch.tensor([0] * 31 + [1] * 9 + [2] * 60 + [3] * 1 + [4] * 72)
LENGTHS = torch.tensor([100, 1, 173])
BOUNDED: dict[str, Callable[..., Any]] = {
    "causal": masks.causal(),
    "causal bottom right": masks.causal("bottom_right"),
    "window": masks.sliding_window(31, 2),
    "chunks": lambda b, h, q, k: (q // 50 == k // 50) & (q >= k),
    "lengths": lambda b, h, q, k: (k < LENGTHS[b]) & (q - k <= h * 8),
}
CLASSIFIED: dict[str, Callable[..., Any]] = {
    "documents": lambda b, h, q, k: (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k),
    "sink": lambda b, h, q, k: (q >= k) & ((q - k < 20) | (k < 4)),
    "dilated": lambda b, h, q, k: (abs(q - k) <= 40) & (abs(q - k) % 2 == 0),
    "prefix or local": lambda b, h, q, k: (k < 22) | (q < 22) | (abs(q - k) < 30),
}
MASKS = BOUNDED | CLASSIFIED


def dense(mask: Callable[..., Any], q_len: int, kv_len: int, b: int = 0, h: int = 0) -> Any:
    """Every position of a head."""
    at = [torch.tensor(b), torch.tensor(h), torch.arange(q_len)[:, None], torch.arange(kv_len)[None, :]]
    with known(q_len=q_len, kv_len=kv_len):
        return torch.as_tensor(mask(*at)).broadcast_to(q_len, kv_len).numpy()


def classes_of(present: Any, block: tuple[int, int]) -> Any:
    """0, 1 or 2 of each block: none, some or all positions present."""
    starts = [np.arange(0, size, step) for size, step in zip(present.shape, block, strict=True)]
    some = np.logical_or.reduceat(np.logical_or.reduceat(present, starts[0], 0), starts[1], 1)
    every = np.logical_and.reduceat(np.logical_and.reduceat(present, starts[0], 0), starts[1], 1)
    return some.astype(int) + every


@pytest.mark.parametrize("name", MASKS)
def test_blocks_and_bounds_are_those_of_the_positions(name: str) -> None:
    for block in ((16, 16), (7, 13)):
        b, h = ([0, 2], [0, 3]) if name == "lengths" else (0, 0)
        picture = attn_mlir.visualize(MASKS[name], q_len=173, block_size=block, b=b, h=h)
        for number, (b, h) in enumerate(picture.heads):
            present = dense(MASKS[name], 173, 173, b, h)
            assert picture.classes[number].tolist() == classes_of(present, block).tolist(), (b, h)
            for row, (begin, full_begin, full_end, end) in enumerate(picture.bounds[number].tolist()):
                rows = present[row * block[0] : (row + 1) * block[0]]
                assert not rows[:, :begin].any() and not rows[:, end:].any()
                assert rows[:, full_begin:full_end].all()
        counts = np.bincount(picture.classes.flatten(), minlength=3).tolist()
        assert list(picture.counts.values()) == counts
        assert picture.sparsity == pytest.approx(100 * counts[0] / sum(counts))


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("sizes", [(173, 173), (1, 150), (130, 61)])
def test_counting_without_looking_at_every_block(name: str, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "documents" and sizes[1] > sizes[0]:
        sizes = (sizes[1], sizes[1])
    listed = attn_mlir.visualize(MASKS[name], q_len=sizes[0], kv_len=sizes[1], block_size=(4, 3))
    monkeypatch.setattr(survey, "_GRID", 0)
    monkeypatch.setattr(survey, "_CELLS", 5)
    counted = attn_mlir.visualize(MASKS[name], q_len=sizes[0], kv_len=sizes[1], block_size=(4, 3))
    cell = counted.panels[0].survey.cell
    assert counted.counts == listed.counts and counted.is_exact
    for kind, found in ((1, counted.panels[0].survey.partial), (2, counted.panels[0].survey.full)):
        present = (listed.classes[0].numpy() == kind).astype(int)
        rows = np.add.reduceat(present, np.arange(0, present.shape[0], cell[0]), axis=0)
        assert np.add.reduceat(rows, np.arange(0, present.shape[1], cell[1]), axis=1).tolist() == found.tolist()
    with pytest.raises(UnsupportedError, match=r"too many for a table: use `counts`"):
        _ = counted.classes


def test_what_was_not_looked_at_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "_GRID", 0)
    monkeypatch.setattr(survey, "_CELLS", 4)
    monkeypatch.setattr(survey, "_LIMIT", 100)
    picture = attn_mlir.visualize(CLASSIFIED["dilated"], q_len=173, block_size=2)
    assert not picture.is_exact and "were not looked at" in str(picture)
    assert sum(picture.counts.values()) == 87 * 87


def loops(mask: Any, whole: bool, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[tuple[int, int]]], list[int]]:
    """For each row of blocks the ends of the loops over keys that the tile IR runs, and how many blocks of keys it loads."""
    problem = {"B": 1, "Hq": 1, "Hkv": 1, "Sq": sizes[0], "Skv": sizes[1], "D": 1, "Dv": 1}
    entry, captures = _traced((None, None, None, None, mask, softmax), problem)
    tiling = f"attn-tile{{block-q=16 block-kv=16 whole={str(whole).lower()}}}"
    ends: list[list[tuple[int, int]]] = []
    loads: list[int] = []
    run, load, program = tiles.RULES["scf.for"], tiles.RULES["tile.load"], tiles._program_id

    def for_(frame: Any, op: Any, args: Any) -> Any:
        ends[-1].append((int(args[0]), int(args[1])))
        return run(frame, op, args)

    def load_(frame: Any, op: Any, args: Any) -> Any:
        loads[-1] += ir.BlockArgument(op.operands[0]).arg_number == 1
        return load(frame, op, args)

    def program_(ids: Any) -> Any:
        ends.append([])
        loads.append(0)
        return program(ids)

    monkeypatch.setitem(tiles.RULES, "scf.for", for_)
    monkeypatch.setitem(tiles.RULES, "tile.load", load_)
    monkeypatch.setattr(tiles, "_program_id", program_)
    with loaded_context():
        module = ir.Module.parse(entry.traced.text)
        steps = f"attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,{tiling}"
        Pipeline.parse(steps, registry()).run(module)
        kernel = find_all(module.operation, "func.func")[0]
        q, kv = np.zeros((1, 1, sizes[0], 1)), np.zeros((1, 1, sizes[1], 1))
        tiles.run_kernel(kernel, [q, kv, kv, *captures, q.copy()])
    monkeypatch.undo()
    return ends, loads


@pytest.mark.parametrize("name", ["causal", "causal bottom right", "window", "chunks"])
def test_bounds_are_the_loops_of_the_tile_ir(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends, _ = loops(MASKS[name], False, (61, 83), monkeypatch)
    picture = attn_mlir.visualize(MASKS[name], q_len=61, kv_len=83, block_size=16)
    for (begin, full_begin, full_end, end), ran in zip(picture.bounds[0].tolist(), ends, strict=True):
        wanted = [(begin, full_begin), (full_begin, full_end), (full_end, end)]
        assert [loop for loop in ran if loop[0] < loop[1]] == [loop for loop in wanted if loop[0] < loop[1]]


@pytest.mark.parametrize("name", ["causal", "window", "documents", "sink", "dilated"])
def test_blocks_that_are_not_skipped_are_those_that_the_tile_ir_loads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, loads = loops(MASKS[name], True, (173, 173), monkeypatch)
    picture = attn_mlir.visualize(MASKS[name], q_len=173, block_size=16)
    assert (picture.classes[0] > 0).sum(dim=1).tolist() == loads


def test_a_million_positions() -> None:
    length, start = 1 << 20, time.perf_counter()
    causal = attn_mlir.visualize(masks.causal(), q_len=length)
    sink = attn_mlir.visualize("t:100000,0,1000", q_len=length)
    text = f"{causal}{sink}{sink.svg()}"
    assert time.perf_counter() - start < 5, "these take 0.2 s on one core"
    blocks = length // 128
    assert causal.counts == {"skipped": blocks * (blocks - 1) // 2, "partial": blocks, "whole": blocks * (blocks - 1) // 2}
    assert causal.bounds[0, -1].tolist() == [0, 0, length - 127, length]
    assert "1,048,576 queries" in text


def test_documents_of_a_million() -> None:
    length = 1 << 20
    ids = torch.arange(length) // 4096
    picture = attn_mlir.visualize(lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k), q_len=length)
    documents, inside = length // 4096, 4096 // 128
    wanted = {"partial": documents * inside, "whole": documents * inside * (inside - 1) // 2}
    assert {name: picture.counts[name] for name in wanted} == wanted and picture.is_exact


def test_block_masks_strings_and_names() -> None:
    given = attn_mlir.create_block_mask(masks.causal(), 1, 1, 100, 120, Q_BLOCK_SIZE=32, KV_BLOCK_SIZE=16)
    picture = attn_mlir.visualize(given)
    assert (picture.q_len, picture.kv_len, picture.block) == (100, 120, (32, 16))
    assert ((picture.classes[0] > 0).int() == given.to_dense()[0, 0]).all()
    assert str(attn_mlir.visualize("b:9,0", q_len=9)).startswith("b:9,0: 9 queries x 9 keys")
    assert picture.name == "causal()"
    assert attn_mlir.visualize(masks.and_(masks.causal(), masks.sliding_window(8)), q_len=9).name.startswith(
        "and_(causal(), sliding_window(8))"
    )
    assert attn_mlir.visualize(q_len=9).counts == {"skipped": 0, "partial": 0, "whole": 1}


def test_scores_are_sampled() -> None:
    bias = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    picture = attn_mlir.visualize(score_mod=lambda s, b, h, q, k: s + bias[h, q] - 0.5 * k, q_len=2, h=[0, 1])
    values = [panel.scores.values.tolist() for panel in picture.panels if panel.scores is not None]
    assert values == [[[0.0, -0.5], [1.0, 0.5]], [[2.0, 1.5], [3.0, 2.5]]]

    def hidden(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.where(q >= k, score, -float("inf"))

    assert "-inf at 49.5 % of the samples, which kernels compute all the same: a mask_mod" in str(
        attn_mlir.visualize(score_mod=hidden, q_len=1000)
    )


def test_scores_that_read_sizes() -> None:
    picture = attn_mlir.visualize(score_mod=lambda s, b, h, q, k: s + kv_len() - k, q_len=2, kv_len=3)
    assert [panel.scores.values.tolist() for panel in picture.panels if panel.scores is not None] == [[[3.0, 2.0, 1.0]] * 2]


def test_svg_is_xml_and_escaped(tmp_path: Path) -> None:
    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    mask.__name__ = "<script>&"
    picture = attn_mlir.visualize(mask, q_len=100, h=[0, 1], block_size=16)
    picture.save(tmp_path / "x.svg")
    root = xml.etree.ElementTree.fromstring((tmp_path / "x.svg").read_text())
    titles = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0].startswith("<script>&") and "queries 16 to 31: keys [0, 32), whole in [0, 17)" in titles
    assert picture._repr_svg_() == picture.svg()


def test_png_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = attn_mlir.visualize(masks.causal(), q_len=100)
    pytest.importorskip("matplotlib")
    picture.save(tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ArgumentError, match=r"\.svg or \.png, got \.pdf"):
        picture.save(tmp_path / "x.pdf")

    def missing(name: str, *args: Any) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("attn_mlir.seeing.picture.importlib.import_module", missing)
    with pytest.raises(UnsupportedError, match="pip install matplotlib, or save the picture as"):
        picture.save(tmp_path / "y.png")
    assert not (tmp_path / "y.png").exists()


def test_errors() -> None:
    small = torch.zeros(10, dtype=torch.int64)
    with pytest.raises(ArgumentError, match="captured tensor 'small' has size 10"):
        attn_mlir.visualize(lambda b, h, q, k: small[q // 2] == k, q_len=100)
    with pytest.raises(ArgumentError, match="needs q_len"):
        attn_mlir.visualize(masks.causal())
    with pytest.raises(ArgumentError, match="block_size is a positive number"):
        attn_mlir.visualize(masks.causal(), q_len=9, block_size=0)
    with pytest.raises(ArgumentError, match="16 heads at most, got 32"):
        attn_mlir.visualize(masks.causal(), q_len=9, h=range(32))
    with pytest.raises(ArgumentError, match="b is a number from 0 on"):
        attn_mlir.visualize(masks.causal(), q_len=9, b=-1)
    with pytest.raises(ArgumentError, match="the block mask is for 8 queries and 8 keys, got 9"):
        attn_mlir.visualize(attn_mlir.create_block_mask(masks.causal(), 1, 1, 8, 8), q_len=9)
    by_head = lambda b, h, q, k: q + h >= k + attn_mlir.num_heads()  # noqa: E731
    with pytest.raises(ArgumentError, match="pass num_heads="):
        attn_mlir.visualize(by_head, q_len=9)
    assert attn_mlir.visualize(by_head, q_len=9, num_heads=4, block_size=1).counts["whole"] == 15


def test_names_that_no_file_takes(tmp_path: Path) -> None:
    """Markup in a name stays text, and what is no character of XML is written out."""

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx >= kv_idx

    for name, told in (("</title><script>x</script>&", "</title><script>x</script>&"), ("a\x00\x0b\ud800", r"a\x00\x0b\ud800")):
        mask.__name__ = name
        picture = attn_mlir.visualize(mask, q_len=17)
        picture.save(tmp_path / "x.svg")
        picture.save(tmp_path / "x.png")
        title = ElementTree.parse(tmp_path / "x.svg").getroot()[0]
        assert title.text is not None and told in title.text and told in str(picture)
    mask.__name__ = "long" * 1000
    assert len(str(attn_mlir.visualize(mask, q_len=17)).splitlines()[0]) < 200
    with pytest.raises(ArgumentError, match="score is a number"):
        attn_mlir.visualize(mask, q_len=17, score_mod=lambda s, b, h, q, k: s, score="1")  # type: ignore[arg-type]


def test_scores_that_are_no_numbers_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = attn_mlir.visualize(score_mod=lambda score, b, h, q_idx, kv_idx: score / (q_idx - kv_idx), q_len=17)
    scores = picture.panels[0].scores
    assert scores is not None and np.isnan(scores.values).any()
