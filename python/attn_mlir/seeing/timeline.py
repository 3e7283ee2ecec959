"""Draws what the roles of a kernel do in time as SVG text: a lane for each warpgroup, and in it what it has in flight."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from attn_mlir.backends.seen import FORMED, Timeline
from attn_mlir.reference.warp import Event
from attn_mlir.seeing.locations import places_in

_LEFT, _TOP, _OWN, _FLIGHT, _GAP, _LEAST = 92, 58, 18, 11, 12, 0.8
_KINDS = ("load", "product", "map", "store", "wait", "arrive")
_STYLE = """
.tl-paper{fill:#fff}.tl-text{fill:#212529}.tl-small{fill:#5c636a;font-size:11px}.tl-lane{fill:#f1f3f5}.tl-grid{stroke:#ced4da}
.tl-load{fill:#1c7ed6}.tl-product{fill:#f08c00}.tl-map{fill:#2b8a3e}.tl-store{fill:#ae3ec9}.tl-wait{fill:#adb5bd}.tl-arrive{fill:#212529}
.tl-flight{fill-opacity:.35}.tl-order{fill:none;stroke:#c92a2a;stroke-width:1.2}.tl-event:hover,.tl-hit{stroke:#e03131;stroke-width:1.5}
@media (prefers-color-scheme:dark){.tl-paper{fill:#16191d}.tl-text{fill:#e9ecef}
.tl-small{fill:#adb5bd}.tl-lane{fill:#23272c}.tl-grid{stroke:#495057}
.tl-load{fill:#4dabf7}.tl-product{fill:#ffa94d}.tl-map{fill:#69db7c}.tl-store{fill:#da77f2}.tl-wait{fill:#5c636a}.tl-arrive{fill:#f1f3f5}
.tl-order{stroke:#ff8787}}
"""


@dataclass(frozen=True)
class _Lane:
    """Where a warpgroup is drawn: its own ops at `top`, what it has in flight in rows below."""

    top: int
    rows: int

    @property
    def height(self) -> int:
        return _OWN + self.rows * _FLIGHT


def draw(timeline: Timeline, width: int) -> str:
    """The SVG text of a timeline with events, about so wide. Each event is an element with its number in `data-event`."""
    events = timeline.events
    rows = _in_rows(events)
    lanes = _lanes(events, rows)
    end = max(event.end for event in events)
    scale = (width - _LEFT - 20) / max(end, 1.0)
    height = max(lane.top + lane.height for lane in lanes.values()) + 40
    head = f"@{timeline.kernel}: roles in time, {timeline.problem}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui,sans-serif" font-size="13" role="img">',
        f"<title>{escape(head)}</title><style>{_STYLE}</style>",
        f'<rect class="tl-paper" width="{width}" height="{height}"/>',
        f'<text class="tl-text" x="8" y="20" font-weight="600">{escape(head)}</text>',
        *_legend(),
    ]
    for name, lane in lanes.items():
        parts.append(f'<rect class="tl-lane" x="{_LEFT}" y="{lane.top}" width="{width - _LEFT - 20}" height="{lane.height}"/>')
        parts.append(f'<text class="tl-text" x="8" y="{lane.top + 14}">{escape(name)}</text>')
    parts += _axis(end, scale, height)
    # Waits lie behind what flies and is computed; arrivals before all.
    order = sorted(range(len(events)), key=lambda n: (events[n].kind != "wait", events[n].kind == "arrive"))
    parts += [_event(n, events[n], lanes[_lane(events[n])], rows.get(n), scale) for n in order]
    parts += [_order(events, n, lanes, rows, scale) for n in range(len(events)) if _crosses(events, n)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def line_of(event: Event) -> int:
    """The line of the kernel in IR that an event is an execution of."""
    return next((line for file, line, _ in places_in([event.location]) if file == FORMED), 0)


def _lane(event: Event) -> str:
    return event.unit if not event.block else f"{event.unit}, block {event.block}"


def _in_rows(events: Sequence[Event]) -> dict[int, int]:
    """For everything in flight the first row of its lane that is free: nothing in a row overlaps."""
    ends: dict[str, list[float]] = {}
    found: dict[int, int] = {}
    for number, event in enumerate(events):
        if event.asynchronous:
            taken = ends.setdefault(_lane(event), [])
            row = next((n for n, end in enumerate(taken) if end <= event.begin), len(taken))
            taken[row : row + 1] = [event.end]
            found[number] = row
    return found


def _lanes(events: Sequence[Event], rows: dict[int, int]) -> dict[str, _Lane]:
    begun = list(dict.fromkeys(event.unit.rpartition(" ")[0] for event in events))  # roles in the order in which they begin
    names = sorted({(event.block, begun.index(event.unit.rpartition(" ")[0]), _lane(event)) for event in events})
    found, top = {}, _TOP
    for _, _, name in names:
        lane = _Lane(top, 1 + max((row for n, row in rows.items() if _lane(events[n]) == name), default=-1))
        found[name], top = lane, top + lane.height + _GAP
    return found


def _legend() -> Iterator[str]:
    x = _LEFT
    for kind, told in (*((kind, "arrival" if kind == "arrive" else kind) for kind in _KINDS), ("", "pale: issued, or its unit is busy")):
        style = f"tl-{kind}" if kind else "tl-map tl-flight"
        yield f'<rect class="{style}" x="{x}" y="32" width="{3 if kind == "arrive" else 10}" height="10"/>'
        yield f'<text class="tl-small" x="{x + 14}" y="41">{told}</text>'
        x += 32 + 6 * len(told)
    yield f'<path class="tl-order" d="M{x} 37h16"/><text class="tl-small" x="{x + 20}" y="41">what ends a wait of another role</text>'


def _axis(end: float, scale: float, height: int) -> Iterator[str]:
    step = next(step for step in (100, 200, 500, 1000, 2000, 5000, 10000, 50000, 10**6, 10**9) if step * scale >= 60)
    for at in range(0, int(end) + 1, step):
        x = _LEFT + at * scale
        yield f'<path class="tl-grid" d="M{x:.1f} {_TOP - 6}V{height - 28}"/>'
        yield f'<text class="tl-small" x="{x:.1f}" y="{height - 14}" text-anchor="middle">{at:,}</text>'


def _top(lane: _Lane, row: int | None) -> int:
    return lane.top if row is None else lane.top + _OWN + row * _FLIGHT


def _event(number: int, event: Event, lane: _Lane, row: int | None, scale: float) -> str:
    x, y, height = _LEFT + event.begin * scale, _top(lane, row), _OWN if row is None else _FLIGHT
    title = f"<title>{escape(told(event))}</title>"
    opened = f'<g class="tl-event tl-{event.kind}" data-event="{number}">{title}'
    if event.kind == "arrive":
        return f'{opened}<rect x="{x - 1:.1f}" y="{y + 1}" width="2" height="{height - 2}"/></g>'
    parts = []
    if event.end > event.begin or event.kind == "wait":
        style = ' class="tl-flight"' if event.kind != "wait" else ""
        width = max(_LEAST, (event.end - event.begin) * scale)
        parts.append(f'<rect{style} x="{x:.1f}" y="{y + 1}" width="{width:.1f}" height="{height - 2}"/>')
    if event.busy is not None:
        x, width = _LEFT + event.busy[0] * scale, max(_LEAST, (event.busy[1] - event.busy[0]) * scale)
        parts.append(f'<rect x="{x:.1f}" y="{y + 1}" width="{width:.1f}" height="{height - 2}"/>')
    return f"{opened}{''.join(parts)}</g>"


def told(event: Event) -> str:
    """An event in words."""
    times = f"{event.begin:,.0f} to {event.end:,.0f}" if event.end > event.begin else f"at {event.begin:,.0f}"
    busy = f", at work from {event.busy[0]:,.0f} to {event.busy[1]:,.0f}" if event.busy is not None and event.asynchronous else ""
    return f"{_lane(event)}: {event.op} ({event.kind}), line {line_of(event)} of warp-kernel, {times}{busy}"


def _crosses(events: Sequence[Event], number: int) -> bool:
    """Whether a wait took time, and something of another role, or a copy, ended it."""
    event = events[number]
    return event.after is not None and event.end > event.begin and _lane(events[event.after]) != _lane(event)


def _order(events: Sequence[Event], number: int, lanes: dict[str, _Lane], rows: dict[int, int], scale: float) -> str:
    event, source = events[number], events[number].after
    assert source is not None
    x, y = _LEFT + event.end * scale, lanes[_lane(event)].top + _OWN // 2
    from_x, from_y = _LEFT + events[source].end * scale, _top(lanes[_lane(events[source])], rows.get(source)) + 5
    tip = 4 if y > from_y else -4
    return f'<path class="tl-order" d="M{from_x:.1f} {from_y}L{x:.1f} {y}m-2.5 {-tip}l2.5 {tip}l2.5 {-tip}"/>'
