"""What a backend shows of a program: its stages with locations, its code with the ops behind each line, and facts of its kernels."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk
from attn_mlir.reference.warp import Event

SCHEDULED = "scheduled"
"""The file that locations name for lines of the scheduled kernels."""
FORMED = "formed"
"""The file that locations name for lines of kernels in the `warp` dialect."""
_SCHEDULE = "tile-schedule"


@dataclass(frozen=True)
class Code:
    """Generated source, and for each line the locations of the ops that it was printed for, as MLIR writes them."""

    name: str
    language: str
    lines: tuple[str, ...]
    locations: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Facts:
    """What is known of a compiled kernel, by name: registers, buffers, sizes."""

    kernel: str
    known: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Timeline:
    """What the roles of a kernel do in time, in a small problem; or `why` there is no schedule in IR to show."""

    kernel: str
    problem: str = ""
    events: tuple[Event, ...] = ()
    model: tuple[str, ...] = ()
    """What the time is, a line for each kind of work."""
    why: str = ""


@dataclass(frozen=True)
class Seen:
    """stages: the program as IR with locations, "traced" and after each pass that changed it, by the pass's name.

    Ops of the stages after `schedule` and lines of `codes` are also located in the lines of that stage: in a file called SCHEDULED. Those
    of kernels of the `warp` dialect also in the lines of the stage `formed`, "" for none: in a file called FORMED.
    """

    stages: dict[str, str]
    schedule: str
    codes: tuple[Code, ...] = ()
    facts: tuple[Facts, ...] = ()
    block: tuple[int, int] | None = None
    """Queries and keys of a block of the first kernel over rows."""
    formed: str = ""
    timelines: tuple[Timeline, ...] = ()


@dataclass
class StageRecorder:
    """A pipeline callback that keeps the stages of a program, and marks the ops of the schedule with their lines."""

    source: str
    skipped: Sequence[str] = ()
    """Passes whose result is not kept."""
    stages: dict[str, str] = field(default_factory=dict)
    schedule: str = ""
    block: tuple[int, int] | None = None
    formed: str = ""

    def __post_init__(self) -> None:
        self.stages["traced"] = self.source

    def __call__(self, step: Any, operation: ir.Operation, seconds: float) -> None:
        """See `passes.pipeline.Callback`."""
        if step.name not in self.skipped:
            self.add(step.name, operation)
        if step.name == _SCHEDULE:
            self.add(step.name, operation)
            self.schedule, self.block = step.name, _block(operation)
            _mark(operation, SCHEDULED)

    def form(self, operation: ir.Operation) -> None:
        """Keeps the kernels of the `warp` dialect as the last stage, and marks their ops with its lines."""
        self.add("warp-kernel", operation)
        self.formed = next(reversed(self.stages))
        _mark(operation, FORMED)

    def add(self, name: str, operation: ir.Operation) -> None:
        """Keeps a stage unless it is the last one again."""
        text = operation.get_asm(use_name_loc_as_prefix=True, enable_debug_info=True)
        if name == _SCHEDULE or text != next(reversed(self.stages.values())):
            number = sum(known == name or known.startswith(f"{name}-") for known in self.stages)
            self.stages[f"{name}-{number + 1}" if number and name != _SCHEDULE else name] = text


def _block(operation: ir.Operation) -> tuple[int, int] | None:
    for function in find_all(operation, "func.func"):
        given = ir.DictAttr(function.attributes["tile.kernel"]) if "tile.kernel" in function.attributes else {}
        if "block_kv" in given and "grid" not in given:
            return ir.IntegerAttr(given["block_q"]).value, ir.IntegerAttr(given["block_kv"]).value
    return None


def _mark(operation: ir.Operation, file: str) -> None:
    """Adds the line of an op in the text of the module, called `file`, to its location."""
    text = operation.get_asm(use_name_loc_as_prefix=True)
    parsed = [op.location for op in walk(ir.Module.parse(text, operation.context).operation)]
    for op, place in zip(walk(operation), parsed, strict=True):
        if isinstance(place, ir.FileLineColLoc):
            op.location = _with_line(op.location, ir.Location.file(file, place.start_line, 1, operation.context))


def _with_line(location: ir.Location, line: ir.Location) -> ir.Location:
    """A location and a line, under the name that the location has."""
    with line.context:
        if isinstance(location, ir.NameLoc):
            return ir.Location.name(location.name_str, ir.Location.fused([location.child_loc, line]))
        return ir.Location.fused([location, line])
