"""Locks, pools and futures in a child that os.fork makes: only the thread that forked lives on there, whatever the others held."""

import concurrent.futures.thread  # noqa: F401 - registers its own hooks, which must be older than `waited_for`'s: these run in reverse
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

_WAIT = 10.0
"""Seconds that a fork waits for a lock."""
_LOCKS: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _register(**hooks: Callable[[], object]) -> None:
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
        os.register_at_fork(**hooks)


def lock() -> threading.Lock:
    """A lock that is free in children."""
    made = threading.Lock()
    _LOCKS.add(made)
    return made


def rlock() -> threading.RLock:  # type: ignore[valid-type]
    """A reentrant lock that is free in children."""
    made = threading.RLock()
    _LOCKS.add(made)
    return made


def waited_for() -> threading.RLock:  # type: ignore[valid-type]
    """A reentrant lock that forks wait for, so that children find what it guards whole; free in children in any case.

    They do not wait longer than `_WAIT`: whoever holds the lock might itself wait for the thread that forks.
    """
    made = threading.RLock()
    local = threading.local()

    def before() -> None:
        local.held = made.acquire(timeout=_WAIT)

    def in_parent() -> None:
        if local.held:
            made.release()

    def in_child() -> None:
        if local.held:
            made.release()
        else:
            made._at_fork_reinit()  # type: ignore[attr-defined]

    _register(before=before, after_in_parent=in_parent, after_in_child=in_child)
    return made


class SharedUse:
    """`with` it, several threads at once use a library that has locks of its own; forks wait until none does, and meanwhile none begins.

    As with `waited_for`, forks do not wait longer than `_WAIT`. A thread must not fork while it is inside.
    """

    def __init__(self) -> None:
        self._reset()
        _register(before=self._before, after_in_parent=self._in_parent, after_in_child=self._reset)

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def _reset(self) -> None:
        self._changed, self._inside, self._forking = threading.Condition(), 0, 0

    def _before(self) -> None:
        with self._changed:
            self._forking += 1
            self._changed.wait_for(lambda: not self._inside, _WAIT)

    def _in_parent(self) -> None:
        with self._changed:
            self._forking -= 1
            self._changed.notify_all()


def in_child(action: Callable[[], object]) -> None:
    """Has `action` called in every child, first of all."""
    _register(after_in_child=action)


def _free_locks() -> None:
    for each in list(_LOCKS):
        each._at_fork_reinit()


in_child(_free_locks)
