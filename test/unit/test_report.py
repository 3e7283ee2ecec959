"""The page of `report`: what is on it, which lines are linked, that it is safe to open, and that it works in a browser."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import ArgumentError, UnsupportedError, masks
from attn_mlir.backends.gpu import origins
from attn_mlir.seeing.locations import read_listing
from engine_helpers import meta
from report_pages import BROWSER, Page, in_browser, linked

SLOPES = torch.tensor([0.5, 0.25])


def relu_normalised(s: Any) -> Any:
    w = s.max(0.0)
    hostile = "</script><b>&amp;"  # noqa: F841
    return w / (w.sum() + 1e-6)


def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + SLOPES[h] * (kv_idx - q_idx)


@cache
def attention() -> attn_mlir.Attention:
    return attn_mlir.Attention(row=relu_normalised, score_mod=alibi, mask_mod=masks.causal())


def unnamed(text: str) -> str:
    """IR without the names of values, of which the page has more."""
    return re.sub(r"%[\w#]+", "%", text)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    attention().report(path, q_len=1000, backward=True)
    return path


@pytest.fixture(scope="module")
def page(path: Path) -> Page:
    return Page(path.read_text())


def test_stages_are_those_of_the_compiler(page: Page) -> None:
    names = [stage["name"] for stage in page.data["stages"] if stage["run"] == "forward"]
    assert [n for n in names if n.startswith(("traced", "attn-resolve", "attn-online", "attn-tile", "tile-", "cpu-lower", "llvm"))] == [
        "traced", "attn-resolve-masks", "attn-online-rewrite", "attn-tile-rows", "tile-schedule", "cpu-lower-tiles", "llvm",
    ]  # fmt: skip
    stages = attention().stages()
    for name in ("traced", "attn-online-rewrite", "tile-schedule"):
        assert unnamed("\n".join(page.stage(name)["lines"])) == unnamed(stages[name].rstrip("\n")), name
    assert page.stage("attn-differentiate", "backward")["lines"]


def test_lines_of_functions_are_linked_down_to_the_code(page: Page) -> None:
    first = relu_normalised.__code__.co_firstlineno
    number, links = page.source("w = s.max(0.0)")
    assert number == first + 1
    assert any("arith.maximumf %s" in line for line in linked(page.stage("traced"), links))
    scheduled = linked(page.stage("tile-schedule"), links)
    assert scheduled and all(line.startswith("%weight") for line in scheduled)
    code = linked(page.stage("llvm"), links)
    assert code and all("llvm.intr.maximum" in line for line in code)
    _, links = page.source("w.sum() + 1e-6")
    assert any(line.startswith("%sum_new") for line in linked(page.stage("tile-schedule"), links))
    _, links = page.source("SLOPES[h]")
    assert any("memref.load %SLOPES" in line for line in linked(page.stage("tile-schedule"), links))
    assert any("llvm.load" in line for line in linked(page.stage("llvm"), links))


def test_lines_of_the_schedule_are_linked_to_what_they_became(page: Page) -> None:
    schedule = page.stage("tile-schedule")
    dots = [-n for n, line in enumerate(schedule["lines"], start=1) if '"tile.dot' in line]
    assert len(dots) == 4, "two products before the diagonal, and two on it"
    for dot in dots:
        assert any("llvm.intr.fm" in line for line in linked(page.stage("llvm"), [dot])), dot
    assert not any(n < 0 for links in page.stage("attn-tile-rows")["links"] for n in links)


def test_where_the_attention_was_made_links_nothing(page: Page) -> None:
    loads = [i for i, line in enumerate(page.stage("attn-tile-rows")["lines"]) if '"tile.load"' in line]
    assert loads and all(page.stage("attn-tile-rows")["links"][i] == [] for i in loads)


def test_it_holds_everything_itself_and_escapes_it(page: Page) -> None:
    for tag, attributes in page.tags:
        assert not {"src", "srcset"} & set(attributes)
        assert tag not in ("link", "iframe", "object", "base")
        assert not (attributes.get("href") or "#").startswith(("http", "//"))
    assert sum(tag == "script" for tag, _ in page.tags) == 2
    assert "</script><b>&amp;" not in page.text
    assert page.source("hostile")[0]
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page.text.partition('id="data"')[0])


def test_it_tells_of_derivation_mask_and_kernels(page: Page) -> None:
    for text in (
        "o: independent, accumulated as it is",
        "confirmed in float64",
        "causal(): 1,000 queries x 1,000 keys in blocks of 32 x 64",
    ):
        assert text in page.text
    for kernel in ("forward: attention", "backward: attention_bwd_0_row_dot"):
        assert f"<caption>{kernel}</caption>" in page.text
    for fact in ("buffers on the stack", "vectors", "multiply-adds", "GFLOP a head"):
        assert fact in page.text


def test_cuda_without_a_gpu(tmp_path: Path) -> None:
    attention().report(tmp_path / "cuda.html", device="cuda", dtype=torch.float16, q_len=1000, binaries=False)
    page = Page((tmp_path / "cuda.html").read_text())
    code = page.stage("attention (cuda)")
    _, links = page.source("w = s.max(0.0)")
    assert [line for line in linked(code, links) if line.startswith("const float weight")]
    assert "/*@" not in "".join(code["lines"]) and 'extern "C" __global__' in "".join(code["lines"])
    for product in ('"tile.dot"', '"tile.dot_add"'):  # one loop of the kernel runs several of the schedule: it is linked with one of them
        dots = [-n for n, line in enumerate(page.stage("tile-schedule")["lines"], start=1) if product in line]
        assert any("wgmma_m64" in line for line in linked(code, dots)), product
    assert "bytes a thread block" in page.text and "cuda, f16, 64 columns of q" in page.text


def test_marks_are_taken_out_of_code() -> None:
    with origins.recorded() as found:
        found.locations = ['loc("a.py":1:2)', 'loc("w"("b.py":3:4))']
        lines, locations = found.taken_out("int x; /*@0*/ /*@1*/\nint y;")
    assert lines == ("int x;", "int y;")
    assert locations == (('loc("a.py":1:2)', 'loc("w"("b.py":3:4))'), ())
    assert origins.marked("int x;") == "int x;"


def test_listings() -> None:
    text = """#loc1 = loc("a \\"b\\".py":1:2)
module {
  func.func @f(%x: i32 loc("x"(#loc1))) {
    "a.b"() ({
      "c.d"() {s = "loc(no)"} : () -> () loc(#loc3)
    }) : () -> () loc(#loc2)
  } loc(#loc1)
} loc(#loc)
#loc = loc(unknown)
#loc2 = loc("x"(#loc1))
#loc3 = loc(fused[#loc1, "c.py":3:4])
"""
    listing = read_listing(text)
    place = ('a \\"b\\".py', 1, 2)
    assert listing.lines[1] == "  func.func @f(%x: i32) {"
    assert listing.lines[3] == '      "c.d"() {s = "loc(no)"} : () -> ()'
    assert listing.places == ((), (place,), (place,), (("c.py", 3, 4), place), (place,), (place,), ())


def test_linear_attention_and_engines(tmp_path: Path) -> None:
    rates = torch.tensor([0.1, 0.2])

    def decay(g: Any, b: Any, h: Any, t: Any) -> Any:
        return g * rates[h]

    attn_mlir.LinearAttention(decay_mod=decay).report(tmp_path / "linear.html")
    page = Page((tmp_path / "linear.html").read_text())
    _, links = page.source("return g * rates[h]")
    assert any("arith.mulf" in line for line in linked(page.stage("tile-schedule"), links))
    assert linked(page.stage("llvm"), links) and 'id="mask"' not in page.text
    engine = attn_mlir.AttentionEngine(meta(*[torch.zeros(1, 9, 2, 8)] * 3), mask_mod="b:10,0", online_func=attn_mlir.OnlineSoftmax())
    engine.report(tmp_path / "engine.html", q_len=100)
    page = Page((tmp_path / "engine.html").read_text())
    assert "b:10,0" in page.text or "parse(" in page.text
    assert page.stage("llvm")["lines"]


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"a report is a page, such as report\.html"):
        attention().report(tmp_path / "x.svg")
    with pytest.raises(UnsupportedError, match="there is no report for device 'mps'"):
        attention().report(tmp_path / "x.html", device="mps")
    engine = attn_mlir.AttentionEngine(meta(*[torch.zeros(1, 9, 2, 8)] * 3), online_func=attn_mlir.OnlineSoftmax())
    with pytest.raises(ArgumentError, match="AttentionEngine has its own dtype and head dimensions: leave out"):
        engine.report(tmp_path / "x.html", head_dim=64)
    with pytest.raises(ArgumentError, match="dtype is one of"):
        attention().report(tmp_path / "x.html", dtype=torch.int32)


def test_a_name_that_no_file_takes(tmp_path: Path) -> None:
    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx >= kv_idx

    mask.__name__ = mask.__qualname__ = "a\ud800</title>"
    attn_mlir.Attention(mask_mod=mask).report(tmp_path / "x.html")
    assert r"a\ud800&lt;/title&gt;" in (tmp_path / "x.html").read_text(encoding="utf-8")


SCRIPT = """{
const row = (side, text) => [...document.querySelectorAll(`#listing-${side} .row`)].find((e) => e.textContent.includes(text));
const lit = (side) => [...document.querySelectorAll(`#listing-${side} .row.hit code`)].map((e) => e.textContent.trim());
const over = (element) => element.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
over(row("source", "w = s.max(0.0)"));
const result = { left: lit("left"), right: lit("right") };
result.status = document.getElementById("status").textContent;
over(row("left", '"tile.dot"'));
result.dot = lit("right");
document.getElementById("listing-left").dispatchEvent(new MouseEvent("mouseleave"));
result.after = lit("right").length + lit("left").length;
const select = document.getElementById("stage-left");
select.value = 0;
select.dispatchEvent(new Event("change"));
row("source", "w = s.max(0.0)").click();
result.traced = lit("left");
document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
result.escaped = lit("left").length;
result.bold = document.querySelectorAll("b").length;
return result;
}"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium")
def test_in_a_browser(path: Path, tmp_path: Path) -> None:
    result = in_browser(path, SCRIPT, tmp_path)
    assert result["left"] and all(line.startswith("%weight") for line in result["left"])
    assert result["right"] and all("llvm.intr.maximum" in line for line in result["right"])
    assert re.fullmatch(r"unit/test_report\.py:\d+:9", result["status"])
    assert any("llvm.intr.fm" in line for line in result["dot"]) and result["after"] == 0
    assert len(result["traced"]) == 1 and result["traced"][0].startswith("%w = arith.maximumf %s") and result["escaped"] == 0
    assert result["bold"] == 1, "no element of the function's text"
