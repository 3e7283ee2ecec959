"""`report(path)`: one page with a program from the user's functions to its code, and what is known of its kernels."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attn_mlir
from attn_mlir.backends import backend_for, load_backends
from attn_mlir.backends.seen import FORMED, SCHEDULED, Seen
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.program import Traced
from attn_mlir.mlir import LOCK
from attn_mlir.registry import registry
from attn_mlir.runtime.programs import program_of
from attn_mlir.seeing.locations import Listing, Place, places_in, read_listing
from attn_mlir.seeing.page import page
from attn_mlir.seeing.picture import MaskPicture, name_of
from attn_mlir.seeing.sources import excerpts
from attn_mlir.seeing.timeline import line_of

FORMED_BELOW = -1_000_000
"""Numbers of lines of kernels in the `warp` dialect are this and less, those of other lines of the schedule are -1 and less."""
_FLOATS = ("f16", "bf16", "f32", "f64")
_WORK = re.compile(r"(\d+) flops of matrix work for each present pair")
_TRAFFIC = re.compile(r"at least B Hq Sq (\d+) \+ B Hkv Skv (\d+) bytes")


@dataclass(frozen=True)
class Subject:
    """What a report is of: the user's functions by role, their trace for a device, what `explain()` says, and the mask's picture."""

    kind: str
    functions: Mapping[str, Any]
    entry: Entry
    device: str
    explained: str
    picture: Callable[[tuple[int, int] | None], MaskPicture] | None = None
    """For blocks of so many queries and keys."""

    @property
    def traced(self) -> Traced:
        """The traced program."""
        return self.entry.traced

    @property
    def form(self) -> str:
        """The device, and the types of q, k and v."""
        types = re.findall(r"%([qkv]): tensor<(?:\?x)*(\d+)x(\w+)>", self.traced.text.partition(") -> ")[0])
        return ", ".join(
            [self.device, types[0][2] if types else "", *[f"{dim} columns of {name}" for name, dim, _ in types if name != "k"]]
        )


def write_report(path: str | Path, subject: Subject, backward: bool, binaries: bool) -> None:
    """Writes the page. Raises UnsupportedError for devices whose backend shows nothing, and ArgumentError for names that are no page."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ArgumentError(f"a report is a page, such as report.html, got {path.name!r}")
    runs = {"forward": _seen(subject, "", (), binaries)}
    if backward:
        runs["backward"] = _seen(subject, "bwd", _with_gradient(subject.entry), binaries)
    picture = subject.picture(runs["forward"].block) if subject.picture is not None else None
    path.write_text(page(_data(subject, runs), _texts(subject, runs, picture)), encoding="utf-8", errors="backslashreplace")


def _seen(subject: Subject, function: str, wrt: Sequence[str], binaries: bool) -> Seen:
    backend = backend_for(subject.device)
    see = backend.seer(subject.device) if backend is not None else None
    if see is None:
        usable = sorted(device for each in load_backends().values() if each.see for device in each.device_types)
        raise UnsupportedError(f"there is no report for device '{subject.device}': use one of {', '.join(usable)}")
    text = subject.traced.located
    if function and subject.traced.written[1]:
        text, function = subject.traced.written[1], f"written-{function}"
    with LOCK:
        return see(text, function, tuple(wrt), binaries)


def _with_gradient(entry: Entry) -> list[str]:
    """The names of what has a gradient: q, k, v and the floating tensors that functions compute with."""
    program = program_of(entry)
    captures = enumerate(entry.traced.captures, start=3)
    tensors = [c.name for i, c in captures if c.kind == "tensor" and c.element in _FLOATS and program.takes_derivative(i)]
    return ["q", "k", "v", *tensors]


def _data(subject: Subject, runs: Mapping[str, Seen]) -> dict[str, Any]:
    """What the script of the page links: excerpts of sources, listings, and the places of each line by number."""
    numbers: dict[Place, int] = {}
    call = _call_site(subject.traced.located)

    def links(places: Sequence[Place]) -> list[int]:
        """Numbers of places; lines of the schedule are negative, those of kernels in the `warp` dialect much so."""
        known = {SCHEDULED: 0, FORMED: FORMED_BELOW}
        found = [known[file] - line if file in known else numbers.setdefault((file, line, column), len(numbers))
                 for file, line, column in places if (file, line, column) not in call]  # fmt: skip
        return sorted(set(found))

    stages = []
    for run, seen in runs.items():
        for name, text in seen.stages.items():
            listing = read_listing(text)
            found = [links(places) for places in listing.places]
            if name in (seen.schedule, seen.formed):
                last = FORMED_BELOW if name == seen.formed else 0
                found = [sorted({last - number, *each}) for number, each in enumerate(found, start=1)]
            stages.append(_stage(run, name, _about(name), listing, found, name == seen.schedule))
        for code in seen.codes:
            found = [links(places_in(locations)) for locations in code.locations]
            listing = Listing(code.lines, ())
            stages.append(
                _stage(run, f"{code.name} ({code.language})", f"the {code.language} source of kernel {code.name}", listing, found, False)
            )
    shown = excerpts(subject.functions, [(file, line) for file, line, _ in numbers])
    return {
        "places": [[*_short(file), line, column] for file, line, column in numbers],
        "sources": [
            {
                "role": each.role,
                "place": each.place if each.first else "",
                "first": each.first,
                "lines": each.lines,
                "links": [_numbers_at(numbers, each.file, each.first + i) for i in range(len(each.lines))],
            }
            for each in shown
        ],
        "stages": stages,
        "timelines": [
            {"run": run, "stage": seen.formed, "events": [[line_of(event), links(places_in([event.location]))] for event in each.events]}
            for run, seen in runs.items()
            for each in seen.timelines
        ],
    }


def _stage(run: str, name: str, about: str, listing: Listing, links: list[list[int]], scheduled: bool) -> dict[str, Any]:
    return {"run": run, "name": name, "about": about, "lines": listing.lines, "links": links, "scheduled": scheduled}


def _short(file: str) -> tuple[str]:
    return ("/".join(Path(file).parts[-2:]),)


def _numbers_at(numbers: Mapping[Place, int], file: str, line: int) -> list[int]:
    return [number for (its_file, its_line, _), number in numbers.items() if (its_file, its_line) == (file, line)]


def _call_site(located: str) -> tuple[Place, ...]:
    """Where the attention was made, which is the place of all ops that no function of the user asks for."""
    listing = read_listing(located)
    return next((places for line, places in zip(listing.lines, listing.places, strict=True) if line.lstrip().startswith("func.func")), ())


def _about(name: str) -> str:
    """What a pass does, in its own words."""
    known = registry().passes
    base = re.sub(r"-\d+$", "", name)
    if name == "traced":
        return "the functions as regions on scalars"
    if name == "warp-kernel":
        return "the kernels in the warp dialect, of which code is printed"
    if name == "llvm":
        return "the kernels in the LLVM dialect, of which machine code is made"
    return (known[base]().__doc__ or "").strip().partition("\n")[0] if base in known else ""


def _texts(subject: Subject, runs: Mapping[str, Seen], picture: MaskPicture | None) -> dict[str, Any]:
    names = [name_of(f) for f in subject.functions.values() if f is not None]
    kernels = [(run, facts.kernel, facts.known) for run, seen in runs.items() for facts in seen.facts]
    return {
        "title": f"{subject.kind}: {', '.join(name for name in names if name != '<lambda>') or 'lambda'}",
        "form": f"{subject.form}, attn-mlir {attn_mlir.__version__}",
        "explained": subject.explained,
        "picture": picture,
        "kernels": kernels,
        "timelines": [(run, each) for run, seen in runs.items() for each in seen.timelines],
        "floor": _floor(subject.explained, picture) if picture is not None else [],
    }


def _floor(explained: str, picture: MaskPicture) -> list[tuple[str, str]]:
    """What a head costs at least at the lengths of the picture."""
    work, traffic = _WORK.search(explained), _TRAFFIC.search(explained)
    if work is None or traffic is None:
        return []
    pairs = picture.block[0] * picture.block[1]
    _, partial, whole = picture.panels[0].survey.counts
    least, most = (min(count * pairs, picture.q_len * picture.kv_len) * int(work[1]) for count in (whole, whole + partial))
    moved = picture.q_len * int(traffic[1]) + picture.kv_len * int(traffic[2])
    told = f"{least / 1e9:.4g} to {most / 1e9:.4g}" if least != most else f"{least / 1e9:.4g}"
    return [
        ("matrix work of the forward pass", f"{told} GFLOP a head, in whole and in all visited blocks"),
        ("memory traffic", f"{moved / 1e6:.4g} MB a head"),
    ]
