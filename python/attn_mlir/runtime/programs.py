"""Traced programs by a string that names them, so that torch operators, which take strings, can find them.

A program also knows how its inputs are checked and how they become the arguments of the compiled function.
"""

import dataclasses
import functools
import importlib
import json
import math
from collections.abc import Callable, Container, Sequence
from typing import Any, ClassVar

import torch

from attn_mlir import driver
from attn_mlir.backends.program import DTYPES
from attn_mlir.capture_kinds import CaptureKinds
from attn_mlir.dialects import loaded
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError
from attn_mlir.frontend.bounds import Extent
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.program import Traced
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.read_arguments import read_arguments
from attn_mlir.performance import tell
from attn_mlir.runtime.reads import Reads, reads_of
from attn_mlir.runtime.row_values import score_of

_LINEAR, _VARLEN, _LISTED = "attn_mlir.runtime.linear", "attn_mlir.runtime.varlen", "attn_mlir.runtime.listed"
_TABLE: dict[str, "Program"] = {}
_READ: dict[str, tuple[list[Any], list[Extent]]] = {}
"""Of each program here where its functions read captured tensors; nothing where functions at several places came to the same program."""
_INPUTS = ("q", "k", "v")
_RARE = ("packed", "listed", "paged", "splits", "output", "invariant")
"""Fields of traces that names of programs tell where they are set."""
_WRITTEN = {"fwd": "written-fwd", "bwd": "written-bwd"}


@dataclasses.dataclass(frozen=True)
class WholeKernel:
    """A compiled function as a kernel, see `driver.Kernel`: of programs that are several kernels, or whose inputs are looked at first."""

    program: Any

    def run(self, q: Any, k: Any, v: Any, captures: Sequence[Any], layout: str = "bhsd") -> list[Any]:
        return self.program.run([q, k, v, *captures], layout)

    def stages(self) -> dict[str, str]:
        return self.program.stages()


@dataclasses.dataclass(eq=False)
class Program:
    """A traced attention: its module, and what a caller must know of its further arguments, the captures."""

    text: str
    located: str
    names: tuple[str, ...]
    kinds: CaptureKinds
    outputs: tuple[str, ...]
    """The names of the row outputs."""
    weights: int = dataclasses.field(default=1, kw_only=True)
    """How many weights its row gives, each with an o of its own."""
    nonzero: tuple[int, ...] = ()
    """Captures that are divided by."""
    extents: tuple[tuple[int, Extent], ...] = ()
    """Sizes that captured tensors need."""
    products: tuple[tuple[int, str, int], ...] = ()
    """Captures that products multiply: their positions, whether they are of "q" or of "k", and their head dimensions."""
    written: tuple[str, str] = ("", "")
    """The module, without and with locations, with the backward pass that its user wrote; empty where it is derived."""
    deterministic: bool = False
    """Whether gradients must have the same bits in every run."""
    name: str = ""
    """That by which `find` finds it."""
    device: str = ""
    """What computes it where that is not the device of its tensors, such as an emulation."""
    kernels: dict[str, driver.Kernel] = dataclasses.field(default_factory=dict)
    derivatives: dict[tuple[str, str, str, bool], driver.CompiledFunction] = dataclasses.field(default_factory=dict)
    places: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    """What `wanted` found."""
    slow: dict[str, str] = dataclasses.field(default_factory=dict)
    """Why compiled kernels are slower than their device can do, by their names."""
    served: dict[str, "Program"] = dataclasses.field(default_factory=dict)
    """The same program for devices that take tensors of another type, see `served_by`."""
    output: str = dataclasses.field(default="", kw_only=True)
    """The element type of o where it is not q's."""
    splits: int = 0
    """How many parts kernels for few queries see keys in; 0: chosen."""

    reads_results: ClassVar[bool] = True
    """Whether its backward reads all that the forward pass gave."""
    has_kernel: ClassVar[bool] = True
    """Whether it is one kernel, whose inputs nothing has to look at first."""

    def kernel(self, device: str) -> driver.Kernel:
        """The kernel for a device that computes o and the row outputs, compiled at its first use."""
        device = self.device or device
        if not self.has_kernel:
            return WholeKernel(self.derivative(device, "", ""))
        kernel = self.kernels.get(device)
        if kernel is None:
            try:
                kernel = driver.compile(self.text, device)
            except CompileError:
                # Once more with locations, for a message that shows the user's lines.
                kernel = driver.compile(self.located, device)
            tell(kernel, device, lambda: driver.slow_kernels(self.located, device, "", ()), self.slow, self.located)
            self.kernels[device] = kernel = driver.with_splits(kernel, device, self.splits) if self.splits else kernel
        return kernel

    def derivative(self, device: str, function: str, wrt: str) -> driver.CompiledFunction:
        """The derivative "fwd", "bwd", "jvp" or "bwd2" for a device, compiled at its first use; `wrt` joins names by "+".

        `torch.use_deterministic_algorithms` asks for deterministic programs, too.
        """
        deterministic = self.deterministic or torch.are_deterministic_algorithms_enabled()
        device = self.device or device
        key = (device, function, wrt, deterministic)
        found = self.derivatives.get(key)
        if found is None:
            text, located, written = self._texts(function)
            target = functools.partial(self._compile, (text, located), device, written, wrt, deterministic)
            found = self.derivatives[key] = self._whole(functools.cache(target), function, wrt)
        return found

    def _texts(self, function: str) -> tuple[str, str, str]:
        """The module that a derivative is compiled from, without and with locations, and what `driver` calls it."""
        if not self.is_written:
            return self.text, self.located, function
        if function == "bwd2":
            raise UnsupportedError("there are no second derivatives where `backward` is written: leave it out, and all are derived")
        text, located = (self.text, self.located) if function == "jvp" else self.written
        return text, located, _WRITTEN.get(function, function)

    def _compile(
        self, texts: tuple[str, str], device: str, function: str, wrt: str, deterministic: bool, segment: int = 0
    ) -> driver.CompiledFunction:
        names, located = wrt.split("+") if wrt else [], self._named(wrt)
        try:
            made = driver.compile_derivative(texts[0], device, function, names, deterministic, segment)
        except CompileError:
            # Once more with locations, for a message that shows the user's lines.
            made = driver.compile_derivative(texts[1], device, function, located, deterministic, segment)
        find = functools.partial(driver.slow_kernels, texts[1], device, function, located, deterministic, segment)
        tell(made, device, find, self.slow, texts[1])
        return made

    def _whole(self, compile_for: Callable[..., driver.CompiledFunction], function: str, wrt: str) -> Any:
        """What runs a derivative; `compile_for`, given a number of positions, compiles it for segments of so many."""
        return compile_for()

    def told(self, name: str) -> dict[str, str]:
        """What compiled kernels say, by the names of inputs and of kernels.

        "copies": why they copied some of q, k and v; "without_tiles": why they do not use the matrix tiles that the processor has.
        """
        notes: dict[str, str] = {}
        for made in (*self.kernels.values(), *self.derivatives.values()):
            inner: Any = made
            while hasattr(inner, "program"):  # a kernel that is a program
                inner = inner.program
            notes |= getattr(inner, name, {})
        return notes

    def kept(self, results: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """What of the results of a forward pass is kept for the backward: all, or those that its caller does not get."""
        return results if self.reads_results else results[self.made :]

    @property
    def kept_weights(self) -> int:
        """How many of these, the first ones, are in the order of the layout."""
        return self.weights if self.reads_results else 0

    @property
    def made(self) -> int:
        """How many results there are for its caller: each o, and the row outputs."""
        return self.weights + len(self.outputs)

    @property
    def is_written(self) -> bool:
        """Whether the user wrote the backward pass."""
        return bool(self.written[0])

    def _named(self, wrt: str) -> list[str]:
        """The names that the arguments have where the module has locations."""
        return [name if name in _INPUTS else self.names[int(name[3:]) - 3] for name in wrt.split("+") if name]

    def argument(self, position: int) -> str:
        """The name by which derivatives know argument `position`: q, k, v, arg3..."""
        return _INPUTS[position] if position < 3 else f"arg{position}"

    def follows_layout(self, place: int) -> bool:
        """Whether the gradient of argument number `place` has the memory order of the layout, as those of q, k and v; others are dense."""
        return place < len(_INPUTS) or any(3 + position == self.tensor_positions()[place] for position, _, _ in self.products)

    def takes_derivative(self, position: int) -> bool:
        """Whether the results can have a derivative by this argument; none by what is captured only for its size, or read only by masks."""
        return position < len(_INPUTS) or position in self._read

    @functools.cached_property
    def _read(self) -> frozenset[int]:
        with LOCK, loaded():
            return frozenset(read_arguments(ir.Module.parse(self.written[0] or self.text).operation))

    def position(self, name: str) -> int:
        """The inverse of `argument`."""
        return _INPUTS.index(name) if name in _INPUTS else int(name[3:])

    def wanted(self, wrt: str) -> tuple[int, ...]:
        """Where the tensors that `wrt` names stand among `tensor_positions`, in the order of the arguments."""
        found = self.places.get(wrt)
        if found is None:
            positions = self.tensor_positions()
            found = self.places[wrt] = tuple(positions.index(n) for n in sorted(self.position(name) for name in wrt.split("+")))
        return found

    def tensor_positions(self) -> list[int]:
        """The arguments that are tensors: q, k, v and those of the captures."""
        return [0, 1, 2, *[3 + i for i in self.kinds.tensors]]

    def check(self, captures: Sequence[Any], sizes: dict[str, int], device: torch.device) -> None:
        """Checks the captured values of a call: devices, divisors, and sizes that the functions need. Raises ArgumentError."""
        for name, value in zip(self.names, captures, strict=True):
            if isinstance(value, torch.Tensor) and value.device != device:
                raise ArgumentError(f"the captured tensor `{name}` is on {value.device} but q is on {device}: move it there")
        for position, role, columns in self.products:
            heads, length = (sizes["Hq"], sizes["Sq"]) if role == "q" else (sizes["Hkv"], sizes["Skv"])
            wanted, shape = (sizes["B"], heads, length, columns), captures[position].shape
            if tuple(shape) != wanted:
                raise ArgumentError(f"`{self.names[position]}` has shape {list(shape)}, and must have {list(wanted)} beside this {role}")
        for position in self.nonzero:
            if captures[position] == 0:
                raise ArgumentError(f"the captured number `{self.names[position]}` is 0, and a function divides by it")
        for number, (position, extent) in enumerate(self.extents):
            shape, size = captures[position].shape, sizes[extent.size]
            if shape[extent.dim] < size:
                name = self.names[position]
                what = "a tensor that a function computes" if name.startswith("captured") else f"the captured tensor `{name}`"
                has = f"{what} has size {shape[extent.dim]} in dimension {extent.dim}"
                raise ArgumentError(f"{has}, but `{extent.index}` indexes it with 0 to {size - 1}{self._line(number)}")
        if self.kinds.tensors:
            self.reads.check(sizes, captures, self.kinds.key(captures))

    @property
    def reads(self) -> Reads:
        """How it reads its captured tensors."""
        return reads_of(self.written[0] or self.text, self.names)

    def _line(self, extent: int) -> str:
        """The line of a function that reads a captured tensor, where it is known."""
        extents = _READ.get(self.name, ([], []))[1]
        return extents[extent].line() if extents else ""

    def sizes(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, int]:
        """The sizes that q, k and v, [B, H, S, D], give."""
        (b, hq, sq, d), (_, hkv, skv, _), dv = q.shape, k.shape, v.shape[3]
        return {"B": b, "Hq": hq, "Hkv": hkv, "Sq": sq, "Skv": skv, "D": d, "Dv": dv}

    def is_empty(self, sizes: dict[str, int]) -> bool:
        """Whether there is nothing to compute: no output, or no key for any row."""
        return 0 in (sizes["B"], sizes["Hq"], sizes["Sq"], sizes["Skv"])

    def results(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, captures: Sequence[Any]) -> list[tuple[Any, torch.dtype]]:
        """Shape and dtype of each result where no gradient is needed."""
        output = DTYPES[self.output] if self.output else q.dtype
        return [*[((*q.shape[:3], v.shape[3]), output)] * self.weights, *[(tuple(q.shape[:3]), score_of(q))] * len(self.outputs)]

    def ordered(self, results: int) -> Container[int]:
        """Which of a forward pass's results have the memory order of the layout where they have rank 4."""
        return range(results)

    def fill_empty(self, rows: Sequence[torch.Tensor]) -> None:
        """Row outputs where there are no keys: the logarithm of an empty sum, else 0."""
        for name, row in zip(self.outputs, rows, strict=False):
            row.fill_(-math.inf if name == "lse" else 0.0)


def program_of(entry: Entry, deterministic: bool = False) -> Program:
    """The program of a trace, which all equal traces share."""
    program = entry.programs[deterministic]
    if program is None:
        program = entry.programs[deterministic] = find(register(entry.traced, deterministic))
    return program


def register(traced: Traced, deterministic: bool = False) -> str:
    """The name of a traced program; the same for equal ones. It tells the whole program, so that any process can run it."""
    positions = {captured.source: i for i, captured in enumerate(traced.captures)}
    extents = [extent for extent in traced.extents if extent.source in positions]
    form = {
        "text": traced.text,
        "written": traced.written[0],
        "names": [captured.name for captured in traced.captures],
        "kinds": [captured.kind for captured in traced.captures],
        "outputs": list(traced.outputs),
        "nonzero": sorted(positions[source] for source in traced.nonzero if source in positions),
        "extents": [(positions[e.source], e.dim, e.index, e.size) for e in extents],
        "products": [(i, c.source[1][0], c.columns) for i, c in enumerate(traced.captures) if c.columns is not None],
        "deterministic": deterministic,
        "device": "",
    }
    if traced.linear is not None:
        form |= {"linear": list(traced.linear), "segment": traced.segment}
    if traced.weights > 1:
        form["weights"] = traced.weights
    form |= {name: value for name in _RARE if (value := getattr(traced, name))}
    name = json.dumps(form)
    find(name, (traced.located, traced.written[1]))
    read = [extent.position for extent in extents]
    if _READ.setdefault(name, (read, extents))[0] != read:
        _READ[name] = ([], [])
    return name


def served_by(program: Program, device: str) -> Program:
    """The same program, computed by a device that takes tensors of another torch device type, such as an emulation."""
    found = program.served.get(device)
    if found is None:
        form = {**json.loads(program.name), "device": device}
        found = program.served[device] = find(json.dumps(form), (program.located, program.written[1]))
    return found


def find(name: str, located: tuple[str, str] | None = None) -> Program:
    """The program that `register` named so, in this or in another process; `located` are its modules with locations, where known."""
    program = _TABLE.get(name)
    if program is None:
        form = json.loads(name)
        program = _TABLE[name] = _read(form, name, located or (form["text"], form["written"]))
    return program


def _read(form: dict[str, Any], name: str, located: tuple[str, str]) -> Program:
    names, outputs, nonzero = (tuple(form[key]) for key in ("names", "outputs", "nonzero"))
    extents = tuple((p, Extent(("leaf", p), d, i, s)) for p, d, i, s in form["extents"])
    products = tuple((p, role, columns) for p, role, columns in form.get("products", ()))
    written = (form["written"], located[1])
    kind: type[Program] = Program
    options = {key: form[key] for key in ("weights", "splits", "output", "paged", "invariant") if key in form}
    if "linear" in form:
        kind = importlib.import_module(_LINEAR).LinearProgram
        options |= {"inputs": tuple(form["linear"]), "segment": form["segment"]}
    elif "packed" in form:
        kind = importlib.import_module(_VARLEN).VarlenProgram
    elif "listed" in form:
        kind = importlib.import_module(_LISTED).ListedProgram
    return kind(
        form["text"], located[0], names, CaptureKinds(form["kinds"]), outputs, nonzero, extents, products, written, form["deterministic"],
        name, form["device"], **options,
    )  # fmt: skip
