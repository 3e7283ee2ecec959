"""C++ text under construction."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from attn_mlir.backends.gpu.origins import marked


class CodeWriter:
    """Lines of C++ with the current indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = ""

    def line(self, *texts: str) -> None:
        """Adds lines; an empty text is an empty line."""
        self.lines.extend(marked(self.indent + text) if text else "" for text in texts)

    def all(self, texts: Iterable[str]) -> None:
        """Adds lines that come as a list."""
        self.line(*texts)

    @contextmanager
    def block(self, head: str = "") -> Iterator[None]:
        """`head { ... }` around what is added inside."""
        self.line(f"{head} {{" if head else "{")
        indent, self.indent = self.indent, self.indent + "  "
        yield
        self.indent = indent
        self.line("}")

    @contextmanager
    def unrolled(self, index: str, count: int) -> Iterator[None]:
        """A loop that is unrolled fully: `index` runs from 0 to `count` - 1."""
        self.line("#pragma unroll")
        with self.block(f"for (int {index} = 0; {index} < {count}; ++{index})"):
            yield

    def text(self) -> str:
        """Everything so far."""
        return "\n".join(self.lines) + "\n"
