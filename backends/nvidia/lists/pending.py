"""Lists that are made ready by whoever reads their pages first: a kernel of its own, or the one that reads them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.backends.prepared import ListShapes

_PENDING = "attn_mlir_pending_lists"


@dataclass
class PendingLists:
    """What makes the lists whose pages a tensor will hold."""

    form: bytes
    """An `AttnLists`."""
    shapes: ListShapes
    launch: Callable[[], None]
    of: tuple[Any, ...]
    """Tensors that the form has addresses of."""
    is_made: bool = False

    def start(self) -> None:
        """Launches the kernel that makes them, unless somebody has made them."""
        if not self.is_made:
            self.launch()
            self.taken()

    def taken(self) -> None:
        """Somebody has launched what makes them."""
        self.is_made, self.of = True, ()


def keep_pending(pages: Any, lists: PendingLists) -> None:
    """Says that a tensor holds no pages before these lists are made."""
    setattr(pages, _PENDING, lists)


def pending_in(inputs: Sequence[Any]) -> PendingLists | None:
    """The lists that are to be made before one of the inputs is read."""
    for value in inputs:
        found = getattr(value, _PENDING, None)
        if found is not None and not found.is_made:
            return found
    return None
