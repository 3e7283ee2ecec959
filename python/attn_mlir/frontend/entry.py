"""A traced program as calls find it: what it captures of each of them."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.program import Traced
from attn_mlir.frontend.tape import Found, same, shared


@dataclasses.dataclass(eq=False, slots=True)
class Entry:
    """A traced program, and, once it ran, what was registered of it (see `runtime.programs`)."""

    traced: Traced
    programs: list[Any] = dataclasses.field(default_factory=lambda: [None, None])
    """The second one is deterministic."""
    plain: bool = True
    """Whether the program holds whatever is captured, and takes it as it is."""

    def __post_init__(self) -> None:
        self.plain = self.traced.is_plain

    def found(self, scan: Scan) -> "Scan | Found | None":
        """What a call with the leaves of `scan` captures; None where what the trace was specialised on has another value."""
        if self.plain:
            return scan
        tape = self.traced.tape
        found = Found(scan.leaves, {}) if tape is None else tape.replay(scan.leaves)
        if found is None:
            return None
        if not all(same(found.value(source), value) for source, value in self.traced.specialised):
            return None
        return found if all(decision.holds(found.value) for decision in self.traced.decisions) else None

    def captures(self, scan: "Scan | Found", scale: float, given: Mapping[str, Any] = MappingProxyType({})) -> list[Any]:
        """The current values of the program's further arguments; `given`: those that are no leaves, by name."""
        if self.traced.tape is not None and not isinstance(scan, Found):
            scan = self.traced.tape.first(scan.leaves)
        values = []
        for captured in self.traced.captures:
            match captured.source[0]:
                case "leaf":
                    values.append(captured.kind.read(scan.leaves[captured.source[1]]))
                case "scale":
                    values.append(scale)
                case "dropout" | "product" | "sequences" | "position" | "lists" | "descale":
                    values.append(given[captured.source[1]])
                case "computed":
                    values.append(shared(scan.value(captured.source)))  # type: ignore[union-attr]
                case _:
                    values.append(captured.constant)
        return values
