"""Pipelines in text form, of project and upstream passes alike: `attn-simplify,func.func(cse),attn-tile{block-q=32}`."""

import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from attn_mlir.diagnostics import Diagnostic, DiagnosticError, at, from_mlir_error
from attn_mlir.errors import AttnError
from attn_mlir.mlir import ir, passmanager
from attn_mlir.passes import load_pass, pass_names
from attn_mlir.passes.base import Pass, add_to
from attn_mlir.passes.length import length_of
from attn_mlir.passes.options import PipelineError, option_names, options_of, parse_options, spec, split, suggest
from attn_mlir.passes.regions import walk

PIPELINES: Mapping[str, str] = {
    "attn-pipeline": (
        "attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-fit-range,attn-chunk-rewrite,attn-guard-empty-rows,attn-tile"
    ),
    "attn-tile": "attn-tile-rows,attn-tile-pairs,attn-tile-chunks,attn-tile-sums",
}

_FORMER = {
    "attn-dense-rows": "attn-recover-rows",
    "attn-written-backward": "attn-custom-vjp",
    "gpu-keep-max": "gpu-lazy-rescale",
}
"""What passes were called in pipelines that were saved before."""
_ELEMENT = re.compile(r"([\w.+-]+)\s*(?:\((.*)\))?\s*(?:\{(.*)\})?", re.DOTALL)
_OPTIONS = re.compile(r"\{[^{}]*\}")
# MLIR cannot list its passes; these are worth suggesting for a misspelt name.
_UPSTREAM = ("canonicalize", "cse", "inline", "loop-invariant-code-motion", "sccp", "symbol-dce", "convert-scf-to-cf", "lower-affine")


@dataclass(frozen=True)
class Registry:
    """The passes and named pipelines that a textual pipeline may use; passes are imported when first needed."""

    passes: Mapping[str, Callable[[], type[Pass]]]
    pipelines: Mapping[str, str] = field(default_factory=dict)
    parsed: dict[str, "Pipeline"] = field(default_factory=dict, compare=False, repr=False)
    """Pipelines by their texts."""

    def load(self, name: str) -> type[Pass]:
        """The pass class called `name`."""
        try:
            return self.passes[name]()
        except ImportError as error:
            raise PipelineError(f"pass '{name}' cannot be loaded: {error}") from error


def core_registry() -> Registry:
    """The target-independent passes and pipelines."""

    def loader(name: str) -> Callable[[], type[Pass]]:
        return lambda: load_pass(name)

    return Registry({name: loader(name) for name in pass_names()}, PIPELINES)


@dataclass(frozen=True)
class PipelineStep:
    """One element of a pipeline: a project pass, or the text of upstream passes."""

    text: str
    pass_: Pass | None = None

    @property
    def name(self) -> str:
        """The element without its options."""
        return self.pass_.name if self.pass_ is not None else _OPTIONS.sub("", self.text)

    def add_to(self, manager: passmanager.PassManager) -> None:
        """Appends the element to `manager`. Raises ValueError for unknown upstream passes or options."""
        if self.pass_ is not None:
            add_to(manager, self.pass_, self.text)
        else:
            manager.add(self.text)


Callback = Callable[[PipelineStep, ir.Operation, float], None]


@dataclass(frozen=True)
class Pipeline:
    """A sequence of steps; its `str` parses back to the same pipeline."""

    steps: tuple[PipelineStep, ...]

    @classmethod
    def parse(cls, text: str, registry: Registry) -> "Pipeline":
        """Parses `text`, with named pipelines expanded. Raises PipelineError."""
        if text not in registry.parsed:
            steps = tuple(_parse(text, registry, ()))
            _check_upstream(steps, registry)
            registry.parsed[text] = cls(steps)
        return registry.parsed[text]

    @classmethod
    def of(cls, passes: Sequence[Pass]) -> "Pipeline":
        """A pipeline of project passes."""
        return cls(tuple(PipelineStep(spec(pass_), pass_) for pass_ in passes))

    def __str__(self) -> str:
        return ",".join(step.text for step in self.steps)

    def run(self, module: ir.Module | ir.Operation | ir.OpView, after: Sequence[Callback] = (), each: bool = False) -> None:
        """Runs the steps on `module`, calling `after` with (step, module, seconds) after each.

        Verifies after the last of several steps of the project in a row, or after `each` of them, as where `after` sees them: our verifiers
        are Python and would take a sixth of a compilation's time. Raises DiagnosticError. Handles of operations inside `module` are invalid
        afterwards.
        """
        operation = module.operation
        for number, step in enumerate(self.steps, 1):
            last = number == len(self.steps) or self.steps[number].pass_ is None
            start = time.perf_counter()
            _run(step, operation, verify=bool(each or after or last))
            seconds = time.perf_counter() - start
            for callback in after:
                callback(step, operation, seconds)


def _parse(text: str, registry: Registry, within: tuple[str, ...]) -> Iterator[PipelineStep]:
    if not text.strip():
        return
    for element in split(text, ","):
        match = _ELEMENT.fullmatch(element)
        if not element:
            raise PipelineError(f"expected a pass between the commas of '{text}'")
        if match is None:
            raise PipelineError(f"'{element}' is not a pipeline element")
        name, nested, options = match[1], match[2], match[3]
        if name == "builtin.module" and nested is not None and options is None:
            yield from _parse(nested, registry, within)
        elif name in registry.pipelines:
            if nested is not None:
                raise PipelineError(f"pipeline '{name}' does not hold other passes")
            if name in within:
                raise PipelineError(f"pipeline '{name}' contains itself")
            yield from _with_options(name, _parse(registry.pipelines[name], registry, (*within, name)), options or "")
        elif name in registry.passes:
            if nested is not None:
                raise PipelineError(f"pass '{name}' does not hold other passes")
            pass_ = parse_options(registry.load(name), options or "")
            yield PipelineStep(spec(pass_), pass_)
        else:
            _check_nesting(name, nested, registry)
            yield PipelineStep(element)


def _with_options(name: str, steps: Iterator[PipelineStep], options: str) -> Iterator[PipelineStep]:
    """The steps of a named pipeline, its options given to all of its passes that have them."""
    given, taken = {option: option.partition("=")[0] for option in split(options, " \t\n") if option}, set[str]()
    for step in steps:
        known = option_names(type(step.pass_)) if step.pass_ is not None else ()
        own = [option for option, key in given.items() if key in known]
        taken.update(own)
        pass_ = parse_options(type(step.pass_), " ".join([*options_of(step.pass_), *own])) if own and step.pass_ is not None else step.pass_
        yield PipelineStep(spec(pass_), pass_) if own and pass_ is not None else step
    if unknown := [key for option, key in given.items() if option not in taken]:
        raise PipelineError(f"no pass of the pipeline '{name}' has an option '{unknown[0]}'")


def _check_nesting(anchor: str, nested: str | None, registry: Registry) -> None:
    inner = re.findall(r"[\w.+-]+", re.sub(r"\{[^{}]*\}", "", nested or ""))
    for name in inner:
        if name in registry.passes or name in registry.pipelines:
            raise PipelineError(f"'{name}' works on modules, it cannot stand inside '{anchor}(...)'")


_VALID: set[str] = set()
"""Elements of upstream passes that MLIR has taken: asking it makes a context."""


def _check_upstream(steps: Sequence[PipelineStep], registry: Registry) -> None:
    unknown = [step for step in steps if step.pass_ is None and step.text not in _VALID]
    if not unknown:
        return
    with ir.Context() as scratch:
        for step in unknown:
            try:
                step.add_to(passmanager.PassManager("builtin.module", context=scratch))
            except ValueError as error:
                raise PipelineError(_upstream_message(step.text, str(error), registry)) from None
            _VALID.add(step.text)


def _upstream_message(element: str, message: str, registry: Registry) -> str:
    if unknown := re.search(r"'([^']*)' does not refer to a registered pass", message):
        name, known = unknown[1], [*registry.passes, *registry.pipelines, *_UPSTREAM]
        if name in _FORMER:
            return f"pass '{name}' is called '{_FORMER[name]}' now"
        # One that backends came to share has lost the name of one of them in its own.
        alike = [other for other in known if other.partition("-")[2] == name.partition("-")[2] != ""]
        hint = f"; did you mean '{alike[0]}'?" if alike else suggest(name, known)
        return f"unknown pass '{name}'{hint}"
    if option := re.search(r"no such option (\S+)", message):
        return f"pass '{element.partition('{')[0]}' has no option '{option[1]}'"
    first = message.strip().splitlines()[0] if message.strip() else "not a pipeline"
    return f"'{element}': {first.rpartition('error: ')[2]}"


def _run(step: PipelineStep, module: ir.Operation, verify: bool) -> None:
    manager = passmanager.PassManager("builtin.module", context=module.context)
    step.add_to(manager)
    # Upstream's own are not suspected.
    manager.enable_verifier(verify and step.pass_ is not None)
    try:
        manager.run(module)
    except ir.MLIRError as error:
        raise DiagnosticError(from_mlir_error(error, f"{step.name} failed")) from None
    except DiagnosticError:
        raise
    except Exception as error:
        location = _location_of_failure(error.__traceback__, module)
        if isinstance(error, AttnError):
            raise DiagnosticError([at(location, "error", f"{step.name}: {error}")]) from error
        if isinstance(error, RecursionError):
            raise DiagnosticError([at(location, "error", f"{step.name}: {_too_long(module)}")]) from error
        raise DiagnosticError([_internal_error(step, error, location)]) from error


def _too_long(module: ir.Operation) -> str:
    ops, chain = length_of(module)
    return (
        f"the program is too long: it has {ops:,} ops, {chain:,} of them in one chain, which this pass follows within Python's limit of "
        f"{sys.getrecursionlimit():,} nested calls. Split it, make tables of parts that do not depend on the score before the call, or "
        "raise sys.setrecursionlimit"
    )


def _internal_error(step: PipelineStep, error: Exception, location: ir.Location | None) -> Diagnostic:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{'/'.join(frame.filename.rsplit('/', 2)[-2:])}:{frame.lineno} in {frame.name}"
    return at(location, "error", f"internal error in {step.name}: {type(error).__name__}: {error} ({where})")


def _location_of_failure(trace: TracebackType | None, module: ir.Operation) -> ir.Location | None:
    """The location of the operation at hand in the innermost frame that had one.

    A handle found in a frame may be stale, and touching it would crash; only those that are still in `module` count.
    """
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    candidates = [v for frame in reversed(frames) for v in frame.f_locals.values() if isinstance(v, (ir.Operation, ir.OpView))]
    live = list(walk(module))
    for candidate in candidates:
        for op in live:
            if op == candidate:
                return op.location
    return None
