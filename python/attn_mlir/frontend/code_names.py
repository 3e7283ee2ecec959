"""The names that a function's code looks up."""

import builtins
import dataclasses
import dis
from types import CodeType

LIBRARIES = frozenset({"torch", "numpy", "math", "builtins", "functools", "operator", "typing", "collections", "contextlib"})
"""Packages whose functions depend on nothing but their arguments."""
STATEFUL = frozenset({"ctypes", "datetime", "gc", "importlib", "inspect", "os", "random", "secrets", "sys", "threading", "time", "uuid"})
"""Modules whose functions read the state of the process."""
_BUILTINS = frozenset(vars(builtins))
# With these numpy makes generators of random numbers.
_GENERATORS = frozenset({"default_rng", "RandomState", "SeedSequence"})
_MODES = frozenset(
    {
        "is_grad_enabled", "no_grad", "enable_grad", "set_grad_enabled", "inference_mode", "is_inference_mode_enabled",
        "is_autocast_enabled", "is_autocast_cpu_enabled", "get_autocast_dtype", "get_default_dtype", "set_default_dtype", "autocast",
        "are_deterministic_algorithms_enabled", "is_deterministic_algorithms_warn_only_enabled", "get_num_threads",
    }
)  # fmt: skip
# With these a function reads values that its names do not tell.
_HIDING = frozenset(
    {
        "__builtins__", "__import__", "attrgetter", "delattr", "dir", "eval", "exec", "getattr", "getattr_static", "globals", "hasattr",
        "import_module", "input", "locals", "methodcaller", "next", "open", "setattr", "vars",
        "__closure__", "__code__", "__defaults__", "__dict__", "__func__", "__getattr__", "__getattribute__", "__globals__",
        "__kwdefaults__", "__self__", "__subclasses__", "_getframe", "cell_contents", "currentframe", "environ", "f_back", "f_globals",
        "f_locals", "modules",
    }
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CodeNames:
    """The global and attribute names used by a code object and the functions nested in it. Equal when their code is."""

    code: CodeType
    hash: int
    globals: tuple[str, ...]
    attributes: frozenset[str]
    hides: bool
    """Whether it may read values in ways that these names do not show."""
    stateful: bool = False
    """Whether it makes generators of random numbers, or imports modules that read the state of the process."""
    modes: bool = False
    """Whether it asks for, or changes, a mode of torch."""

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, CodeNames) and self.code == other.code)


# By identity: hashing code objects is slow. Each record keeps its code object, and so its identity, alive.
_KNOWN: dict[int, CodeNames] = {}
_LIMIT = 10_000


def names_of(code: CodeType) -> CodeNames:
    """The names used by `code`."""
    found = _KNOWN.get(id(code))
    if found is None:
        if len(_KNOWN) >= _LIMIT:
            _KNOWN.clear()
        found = _KNOWN[id(code)] = _look_up(code)
    return found


def _look_up(code: CodeType) -> CodeNames:
    used: set[str] = set()
    attributes: set[str] = set()
    hides = stateful = False
    stack = [code]
    while stack:
        inner = stack.pop()
        stack.extend(item for item in inner.co_consts if isinstance(item, CodeType))
        for instruction in dis.get_instructions(inner):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                used.add(instruction.argval)
            elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
                attributes.add(instruction.argval)
            elif instruction.opname == "IMPORT_NAME":
                hides = hides or not _is_steady(instruction.argval)
                stateful = stateful or instruction.argval.partition(".")[0] in STATEFUL
            elif instruction.opname == "MATCH_CLASS":  # its attributes are among the constants
                hides = True
    names = used | attributes
    hides = hides or not _HIDING.isdisjoint(names)
    stateful = stateful or not _GENERATORS.isdisjoint(names)
    return CodeNames(code, hash(code), tuple(sorted(used)), frozenset(attributes), hides, stateful, not _MODES.isdisjoint(names))


def is_builtin(name: str) -> bool:
    """Whether a global that the module does not define is one of Python's own."""
    return name in _BUILTINS


def _is_steady(module: str) -> bool:
    """Whether what a module holds does not change, so that a function may import it while it runs."""
    top = module.partition(".")[0]
    return top in LIBRARIES or top == "attn_mlir"
