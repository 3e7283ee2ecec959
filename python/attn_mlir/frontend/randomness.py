"""Random numbers and clocks in a user's function, which is traced once: an error that names the line.

Draws of torch are seen by the names of its functions and by the tags of its operators, those of Python and numpy by the state of their
generators, and by a look at every call where a function reaches modules such as `time`.
"""

import random
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attn_mlir.frontend import scope, where
from attn_mlir.frontend.node import Position
from attn_mlir.frontend.report import failure

_TORCH = frozenset(
    {
        "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal", "bernoulli", "multinomial", "poisson",
        "binomial", "gumbel_softmax", "normal_", "uniform_", "random_", "bernoulli_", "cauchy_", "log_normal_", "geometric_",
        "exponential_", "manual_seed", "seed",
    }
)  # fmt: skip
_DROPOUT = frozenset(
    {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "native_dropout"}
)
_CLOCKS = frozenset(
    {
        "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "process_time_ns", "thread_time",
        "thread_time_ns", "clock_gettime", "clock_gettime_ns", "localtime", "gmtime", "ctime", "asctime", "strftime",
    }
)  # fmt: skip
_LIBRARY = tuple({path + "/" for name in ("stdlib", "platstdlib") if (path := sysconfig.get_path(name))})
_ADVICE = (
    "the function is traced once, so that one draw would stand for all positions: draw the numbers before the call and read them from a "
    "captured tensor, as in noise[b, h, q_idx, kv_idx]"
)
_DROPOUT_ADVICE = f"for dropout of the weights of attention pass dropout_p= with the call; {_ADVICE}"
_CLOCK_ADVICE = "the function is traced once: read the clock before the call, and let the function capture the number"


def draws(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a function of torch draws random numbers; dropout that is switched off does not."""
    if name in _TORCH:
        return True
    if name == "rrelu":
        return _argument(args, kwargs, 3, "training", False) is True
    return name in _DROPOUT and _argument(args, kwargs, 2, "training", kwargs.get("train", True)) is not False


def _argument(args: Sequence[Any], kwargs: dict[str, Any], position: int, name: str, default: Any) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def of_torch(name: str) -> tuple[str, str]:
    """Problem and advice for a function of torch that draws."""
    advice = _DROPOUT_ADVICE if any(part in _DROPOUT for part in name.split(".")) else _ADVICE
    return f"draws random numbers: {name.removesuffix('.default')}", advice


class Draws(TorchDispatchMode):
    """Refuses operators of torch that draw, wherever they are called."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise scope.fail(*of_torch(f"torch.ops.{func}"))
        return func(*args, **(kwargs or {}))


def checked(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """What `function` gives. Raises TraceError where it draws random numbers or reads a clock."""
    trace = scope.current()
    before = _states(trace.generators)
    if trace.stateful:
        result, found = _profiled(function, arguments)
        if found is not None:
            raise _refused(*found)
    else:
        result = function(*arguments)
    after = _states(trace.generators)
    if len(after) != len(before):  # numpy.random was imported meanwhile: whether the function draws by it shows at its next call
        before = after
        function(*arguments)
        after = _states(trace.generators)
    if after != before and (_others_changed(before, after, trace.generators) or _draws_by_python(function, arguments)):
        at = _drawing_line(function, arguments, trace.generators)
        if at is not None:
            raise _refused("random numbers", at)
    return result


def _refused(what: str, at: Position) -> Exception:
    trace = scope.current()
    subject = trace.scope.subject if trace.scope else "the function"
    clock = not what.startswith("random")
    return failure(subject, f"{'reads' if clock else 'draws'} {what}", _CLOCK_ADVICE if clock else _ADVICE, at)


def _states(generators: Sequence[Any]) -> list[Any]:
    """The states of the generators of Python, of numpy, and of those that the functions capture."""
    states: list[Any] = [random.getstate()]
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        states.append(_state(numpy_random.mtrand._rand))
    return [*states, *map(_state, generators)]


def _others_changed(before: Sequence[Any], after: Sequence[Any], generators: Sequence[Any]) -> bool:
    """Whether the state of a generator changed that is none of Python's `random`."""
    of_python = (True, *[False] * (len(before) - 1 - len(generators)), *[isinstance(each, random.Random) for each in generators])
    return any(x != y and not python for x, y, python in zip(before, after, of_python, strict=True))


def _draws_by_python(function: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    """Whether the function draws by Python's `random`, in this thread: states of generators change by other threads, too."""
    drew = False

    def look(_: FrameType, event: str, called: Any) -> None:
        nonlocal drew
        owner = getattr(called, "__self__", None) if event == "c_call" else None
        drew |= isinstance(owner, random.Random) and called.__name__ in ("random", "getrandbits", "seed", "setstate")

    with _profile(look):
        function(*arguments)
    return drew


def _state(generator: Any) -> Any:
    """The state of a generator of Python or numpy; None where it has none, as that of the system."""
    if isinstance(generator, random.Random):
        return None if isinstance(generator, random.SystemRandom) else generator.getstate()
    state = getattr(getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", generator), "state", None)
    key = state.get("state") if isinstance(state, dict) else None
    if isinstance(key, dict) and hasattr(key.get("key"), "tobytes"):
        return key["key"].tobytes(), key["pos"]
    return repr(state)


def _drawing_line(function: Callable[..., Any], arguments: Sequence[Any], generators: Sequence[Any]) -> Position | None:
    """The user's line that draws, found by calling the function once more; None where it does not draw (another thread did)."""
    last, found, states = None, None, _states(generators)

    def look(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal last, found, states
        if _is_library(frame):
            return None
        if found is None and last is not None:
            now = _states(generators)
            if now != states:
                found = last
        last = Position(frame.f_code, frame.f_lasti) if event == "line" else last
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return found if found is not None else last if _states(generators) != states else None


def _profiled(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, tuple[str, Position] | None]:
    """What `function` gives, and what it called first that is no function of its arguments, with the line."""
    found: tuple[str, Position] | None = None

    def look(frame: FrameType, event: str, called: Any) -> None:
        nonlocal found
        what = _stateful(called) if event == "c_call" and found is None else None
        at = _user_line(frame) if what is not None else None
        if what is not None and at is not None:
            found = what, at

    try:
        with _profile(look):
            result = function(*arguments)
    except Exception:
        if found is None:
            raise
        result = None
    return result, found


@contextmanager
def _profile(look: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """Tells `look` of every call of this thread."""
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)


def _user_line(frame: FrameType) -> Position | None:
    """The line that calls, leaving out those of Python itself; None where a package or a module that is being imported calls.

    Packages, this one's compiler among them, read clocks for their own ends, and also when the garbage collector calls them in the midst of
    somebody else's function.
    """
    found: Position | None = None
    at: FrameType | None = frame
    while at is not None and at.f_code is not _profiled.__code__:
        if at.f_code.co_filename.startswith("<frozen importlib"):
            return None
        if found is None and where.is_own(at.f_code.co_filename) and _is_library(at):
            return None
        if found is None and not _is_library(at):
            if "site-packages" in at.f_code.co_filename:
                return None
            found = Position(at.f_code, at.f_lasti)
        at = at.f_back
    return found


def _stateful(called: Any) -> str | None:
    """What a builtin function gives that differs from call to call, in words; None for others."""
    name, module, owner = called.__name__, getattr(called, "__module__", None), getattr(called, "__self__", None)
    if module == "time" and name in _CLOCKS:
        return f"the clock: time.{name}"
    if name in ("now", "utcnow", "today") and isinstance(owner, type) and owner.__module__ == "datetime":
        return f"the clock: datetime.{owner.__name__}.{name}"
    if module in ("posix", "nt") and name == "times":
        return "the clock: os.times"
    if name == "seed" and isinstance(owner, torch.Generator):
        return "random numbers of the system"
    if module == "_uuid" or (module in ("posix", "nt") and name in ("urandom", "getrandom")):
        return "random numbers of the system"
    if isinstance(owner, random.Random) and name in ("random", "getrandbits"):
        return "random numbers"
    return None


def _is_library(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if where.is_ours(file) or file.startswith("<frozen"):
        return True
    return file.startswith(_LIBRARY) and "site-packages" not in file
