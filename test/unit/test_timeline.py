"""Timelines on the page of `report`: lanes, links of their events, what is said where there is none, and that they work in a browser."""

import itertools
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import attn_mlir
from attn_mlir import masks
from attn_mlir.backends.seen import Seen, Timeline
from attn_mlir.reference.warp import Event
from attn_mlir.seeing.page import page as page_of
from attn_mlir.seeing.report import FORMED_BELOW
from attn_mlir.seeing.timeline import draw, line_of
from report_pages import BROWSER, Page, in_browser, linked
from timeline_figure import DEVICE, FIGURE, attention, figure, seen, softmax

_SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def found() -> Seen:
    return seen()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("timeline") / "report.html"
    attention().report(path, device=DEVICE, dtype=torch.float16, head_dim=64, backward=True, q_len=512, binaries=False)
    return path


@pytest.fixture(scope="module")
def page(path: Path) -> Page:
    return Page(path.read_text())


def svg_of(page: Page) -> ElementTree.Element:
    """The forward kernel's."""
    return ElementTree.fromstring(re.findall(r'<div class="timeline".*?(<svg .*?</svg>)', page.text, re.DOTALL)[0])


def test_there_is_a_lane_for_each_warpgroup(page: Page) -> None:
    svg = svg_of(page)
    names = [each.text for each in svg.iter(f"{_SVG}text") if re.fullmatch(r"(producer|consumer) \d", each.text or "")]
    assert names == ["producer 0", "consumer 0", "consumer 1", "consumer 2"]
    assert sum(each.get("class") == "tl-lane" for each in svg.iter()) == 4


def test_every_event_is_drawn_with_its_kind_in_its_lane(found: Seen) -> None:
    events = found.timelines[0].events
    svg = ElementTree.fromstring(draw(found.timelines[0], 3000))
    tops = [float(each.get("y", "")) for each in svg.iter(f"{_SVG}rect") if each.get("class") == "tl-lane"] + [1e9]
    drawn = {int(each.get("data-event", "")): each for each in svg.iter(f"{_SVG}g") if each.get("data-event")}
    assert sorted(drawn) == list(range(len(events)))
    lanes = ["producer 0", "consumer 0", "consumer 1", "consumer 2"]
    for number, event in enumerate(events):
        assert drawn[number].get("class") == f"tl-event tl-{event.kind}"
        for rect in drawn[number].iter(f"{_SVG}rect"):
            top = float(rect.get("y", ""))
            assert tops[lanes.index(event.unit)] <= top < tops[lanes.index(event.unit) + 1]
    assert {event.kind for event in events} == {"load", "product", "map", "store", "wait", "arrive"}
    arrows = [each for each in svg.iter(f"{_SVG}path") if each.get("class") == "tl-order"]
    assert len(arrows) > 10 and len(arrows) - 1 == sum(
        e.after is not None and e.end > e.begin and events[e.after].unit != e.unit for e in events
    )


def test_what_is_in_flight_does_not_overlap(found: Seen) -> None:
    svg = ElementTree.fromstring(draw(found.timelines[0], 3000))
    places: dict[str, list[tuple[float, float]]] = {}
    for group in svg.iter(f"{_SVG}g"):
        number = group.get("data-event")
        if number and found.timelines[0].events[int(number)].asynchronous:
            rect = next(group.iter(f"{_SVG}rect"))
            begin = float(rect.get("x", ""))
            places.setdefault(rect.get("y", ""), []).append((begin, begin + float(rect.get("width", ""))))
    assert len(places) > 4
    for spans in places.values():
        spans.sort()
        assert all(first[1] <= second[0] + 0.2 for first, second in itertools.pairwise(spans))


def test_events_lead_to_lines_of_the_kernel_the_code_and_the_functions(page: Page) -> None:
    timeline = page.data["timelines"][0]
    kernel, code = page.stage(timeline["stage"]), page.stage("attention (cuda)")
    assert kernel["name"] == "warp-kernel"
    lines = {text.strip()[:60]: (line, links) for line, links in timeline["events"] for text in [kernel["lines"][line - 1]]}
    for text, (line, links) in lines.items():
        assert '"warp.' in text, text
        assert linked(kernel, [FORMED_BELOW - line]) == [kernel["lines"][line - 1].strip()]
        assert FORMED_BELOW - line in links
    for op, printed in (("mma_async", "wgmma_m64"), ("copy_async", "tma_load|copy"), ("arrive_expect", "barrier_arrive_expect")):
        links = [FORMED_BELOW - line for text, (line, _) in lines.items() if f'"warp.{op}"' in text]
        assert links and all(any(re.search(printed, line) for line in linked(code, [link])) for link in links), op
    number, source = page.source("e = (s - s.max()).exp()")
    assert number == softmax.__code__.co_firstlineno + 1
    maps = [text for text, (_, links) in lines.items() if set(links) & set(source)]
    assert len(maps) >= 3 and all('"warp.map"' in text or '"warp.reduce"' in text for text in maps)


def test_the_time_is_called_a_model(page: Page) -> None:
    for text in ("nothing of it was measured", "product: FLOPs / 4096", "B=1 Hq=1 Hkv=1 Sq=384 Skv=512"):
        assert text in page.text
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page.text.partition('id="data"')[0])


def test_kernels_of_the_backward_pass_have_theirs(page: Page) -> None:
    for name in ("row_dot", "elements", "pairs"):
        assert re.search(rf"backward: attention_bwd_\d_{name}", page.text)
    assert len([each for each in page.data["timelines"] if each["events"]]) == 4
    assert "B=1 Hq=1 Hkv=1 Sq=256 Skv=256" in page.text and "no timeline" not in page.text


def test_why_there_is_none(tmp_path: Path) -> None:
    narrow = tmp_path / "narrow.html"
    attention().report(narrow, device=DEVICE, dtype=torch.float16, head_dim=36, q_len=512, binaries=False)
    assert "rows of a multiple of 8 up to 256 elements fit swizzled tiles" in narrow.read_text()
    assert not [each for each in Page(narrow.read_text()).data["timelines"] if each["events"]]
    attn_mlir.Attention(mask_mod=masks.causal()).report(
        tmp_path / "cuda.html", device="cuda", dtype=torch.float16, q_len=512, binaries=False
    )
    assert "shows the timeline of the kernel of the warp dialect" in (tmp_path / "cuda.html").read_text()


def test_names_are_escaped() -> None:
    hostile = "</script><b>&amp;"
    event = Event(0, f"{hostile} 0", "map", hostile, 'loc("formed":7:1)', 0.0, 5.0, (1.0, 5.0))
    assert line_of(event) == 7
    timelines = [("forward", Timeline(hostile, hostile, (event,), (hostile,))), ("backward", Timeline("", why=hostile))]
    texts: dict[str, Any] = {"title": "", "form": "", "explained": "", "picture": None, "kernels": [], "floor": [], "timelines": timelines}
    text = page_of({}, texts)
    assert hostile not in text and text.count("&lt;b&gt;&amp;amp;") >= 5


def test_figure_of_the_documentation_is_current(found: Seen) -> None:
    """`python test/unit/timeline_figure.py` draws it again; look at it."""
    assert FIGURE.read_text() == figure(found)


SCRIPT = """{
const over = (element) => element.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
const lit = (side) => [...document.querySelectorAll(`#listing-${side} .row.hit code`)].map((e) => e.textContent.trim());
const box = document.querySelector(".timeline");
const found = [...box.querySelectorAll(".tl-event.tl-product")];
over(found[0].querySelector("rect"));
const result = { count: box.querySelectorAll(".tl-event").length, right: lit("right"), told: document.querySelector(".told").textContent };
result.same = document.querySelectorAll(".tl-hit").length;
found[0].querySelector("rect").dispatchEvent(new MouseEvent("click", { bubbles: true }));
result.stage = document.getElementById("stage-left").selectedOptions[0].textContent;
result.left = lit("left");
document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
result.after = lit("left").length + document.querySelectorAll(".tl-hit").length;
return result;
}"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium")
def test_in_a_browser(path: Path, page: Page, tmp_path: Path) -> None:
    result = in_browser(path, SCRIPT, tmp_path)
    events = next(each["events"] for each in page.data["timelines"] if each["events"])
    assert result["count"] == len(events) > 100
    assert any("wgmma_m64" in line for line in result["right"])
    assert re.search(r"consumer \d: warp.mma_async \(product\), line \d+ of warp-kernel, .* warp-kernel line \d+$", result["told"])
    assert result["stage"] == "warp-kernel" and len(result["left"]) == 1 and '"warp.mma_async"' in result["left"][0]
    assert 1 <= result["same"] < 10 and result["after"] == 0
