"""Orders of graphs without recursion: a chain of a thousand ops is deeper than Python's stack."""

from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def deepest_first(root: T, done: Container[T], arguments: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """`root` and what it needs that is not `done`, arguments before what uses them, in the order in which recursion would finish.

    Who walks makes each of them done before the next: then a recursive function that remembers its results never goes deep.
    """
    if root in done:
        return
    todo = [(root, iter(arguments(root)))]
    while todo:
        n, rest = todo[-1]
        for deeper in rest:
            if deeper not in done:
                todo.append((deeper, iter(arguments(deeper))))
                break
        else:
            todo.pop()
            if n not in done:
                yield n
