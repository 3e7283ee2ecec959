"""A progress bar on stderr: that of tqdm where it is installed, else a line of its own."""

import sys
from types import TracebackType
from typing import Any

from attn_mlir import forks


class Progress:
    """`with Progress("compiling", 20) as bar: ... bar.step()`. Steps may come from several threads."""

    def __init__(self, title: str, total: int, quiet: bool = False) -> None:
        self._title, self._total, self._quiet = title, total, quiet
        self._done = 0
        self._lock = forks.lock()
        self._bar: Any = None

    def __enter__(self) -> "Progress":
        if not self._quiet:
            try:
                from tqdm import tqdm  # pyright: ignore[reportMissingModuleSource]
            except ImportError:
                self._show()
            else:
                self._bar = tqdm(total=self._total, desc=self._title, file=sys.stderr)
        return self

    def step(self) -> None:
        """One more is done."""
        with self._lock:
            self._done += 1
            if self._bar is not None:
                self._bar.update()
            elif not self._quiet:
                self._show()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
        elif not self._quiet:
            print(file=sys.stderr)

    def _show(self) -> None:
        width = 24
        filled = width * self._done // max(self._total, 1)
        line = f"\r{self._title} [{'#' * filled}{'.' * (width - filled)}] {self._done}/{self._total}"
        print(line, end="", file=sys.stderr, flush=True)
