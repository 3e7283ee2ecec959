"""From a traced program to a kernel: finds the backend of a device and lets it compile."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from attn_mlir.backends import Backend, backend_for, load_backends, tensors_of
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.mlir import LOCK

_PACKED, _PAGED = "attn.sequences", "attn.pages"


class Kernel(Protocol):
    """A compiled program, which gives the same bits in every run."""

    def run(self, q: Any, k: Any, v: Any, captures: Sequence[Any], layout: str = "bhsd") -> list[Any]:
        """Runs on tensors shaped [B, H, S, D] of any strides; returns o, [B, Hq, Sq, Dv], and the row outputs, [B, Hq, Sq].

        `captures` are the tensors, floats and ints of the function's further arguments. The memory of o
        is contiguous in the order of `layout`, "bhsd", "bshd" or "sbhd"; its shape is the same.
        """
        ...

    def stages(self) -> dict[str, str]:
        """The program as IR text: "traced", and after each pass of the backend's pipeline, by the pass's name, in order."""
        ...


class Repeating(Kernel, Protocol):
    """A kernel that knows a shorter way for calls which it has seen."""

    def again(self, inputs: Sequence[Any], layout: str) -> list[Any] | None:
        """What `run` gives, where it ran on q, k, v and captures of the same shapes and strides that needed no copy; else None.

        Here q, k, v and o have the order of `layout`: [B, S, H, D] for "bshd".
        """
        ...


class CompiledFunction(Protocol):
    """A compiled derivative."""

    def run(self, inputs: Sequence[Any], layout: str = "bhsd") -> list[Any]:
        """Runs on the arguments of its function, tensors [B, H, S, D] of any strides, floats and ints; returns its results.

        The memory of what is shaped like q, k, v or o is contiguous in the order of `layout`, "bhsd", "bshd" or "sbhd".
        """
        ...

    def results(self, inputs: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Shape and dtype of each result of `run`; looks at the shapes of tensors only."""
        ...

    def segment_for(self, inputs: Sequence[Any]) -> int:
        """Of a linear attention: for how many positions the device would rather scan segments at the same time; 0: it need not.

        `inputs` are those of `run`. `compile_derivative` takes the number.
        """
        ...

    def segment_for_delta(self, inputs: Sequence[Any]) -> int:
        """The same of a delta rule, whose segments are scanned three times."""
        ...

    def stages(self) -> dict[str, str]:
        """As `Kernel.stages`."""
        ...


def compiler_for(device: str) -> Callable[[str], Kernel]:
    """The function that compiles modules for a device such as "cpu".

    Raises UnsupportedError for devices without a backend that generates kernels.
    """
    backend = backend_for(device)
    compiler = backend.compiler(device) if backend is not None else None
    if compiler is None:
        usable = sorted(d for b in load_backends().values() if b.compile for d in b.device_types)
        known = f"the {backend.name} backend generates no kernels yet" if backend else "no backend serves it"
        raise UnsupportedError(f"device '{device}': {known}. Use a device of: {', '.join(usable)}.")
    return compiler


def compile(module: str, device: str) -> Kernel:
    """Compiles a stage-0 (or online) module, given as text, for a device such as "cpu".

    Kernels are cached by the text. Raises UnsupportedError for devices without a backend that generates kernels, and
    CompileError when a pass rejects the program.
    """
    compiler = compiler_for(device)
    check_packed(module, device)
    with LOCK:
        return compiler(module)


def with_splits(kernel: Kernel, device: str, splits: int) -> Kernel:
    """The kernel, which sees the keys of a few queries in so many parts. Raises UnsupportedError for devices whose kernels do not."""
    make = getattr(kernel, "with_splits", None)
    if make is None:
        raise UnsupportedError(f"num_splits is for up to 16 queries, and a kernel for '{device}' sees these keys in one part: leave it out")
    return make(splits)


def with_work(program: "CompiledFunction", device: str, splits: int, invariant: bool) -> "CompiledFunction":
    """A program on packed tensors that sees the keys of few queries in so many parts, and cuts sums by the length of a sequence alone."""
    make = getattr(program, "with_work", None)
    if make is None:
        raise UnsupportedError(f"num_splits and batch_invariant are not for '{device}': leave them out")
    return make(splits, invariant)


def planned(program: "CompiledFunction", inputs: Sequence[Any]) -> "CompiledFunction":
    """A program on packed tensors with its lists of work made for such inputs, where its backend makes some ahead."""
    make = getattr(program, "planned", None)
    return program if make is None else make(inputs)


def compile_derivative(
    module: str, device: str, function: str, wrt: Sequence[str], deterministic: bool = False, segment: int = 0
) -> CompiledFunction:
    """Compiles a derivative of a stage-0 (or online) module, given as text: "fwd", "bwd", "jvp" or "bwd2".

    "written-fwd" and "written-bwd" are those of a module that `attn-custom-vjp` takes; the first is `@attention` itself.
    With "given" the module's `@attention` is a differentiated function itself, such as `attn-cut-backward` leaves it.
    `wrt` are the names of the arguments that it is for. Arguments and results are those that `attn-differentiate` describes.
    Linear attentions are scanned in segments of `segment` positions at the same time, where it is not 0 (`attn-split-sequences`).
    A `deterministic` program gives the same bits in every run; on a CPU, all do. Programs are cached by the text. Raises as `compile` does.
    """
    backend = backend_for(device)
    derive = backend.deriver(device) if backend is not None else None
    if derive is None:
        compiler_for(device)
        raise UnsupportedError(f"device '{device}' has no derivatives yet: move the tensors to the CPU, or call it under torch.no_grad()")
    check_packed(module, device)
    with LOCK:
        return derive(module, function, tuple(wrt), deterministic, segment=segment)


def list_maker(device: str) -> Callable[..., Any] | None:
    """What makes `PreparedLists` on a device, as `runtime.prepared_lists` does; None where operations of torch do.

    It gives None for lists that it does not take. After what `prepare` is given it takes k and v as pages, [pages, rows, heads, columns],
    which a kernel reads next: what is listed of them may be brought closer.
    """
    backend = backend_for(device)
    return None if backend is None or backend.lists is None or tensors_of(device) != device else backend.load(backend.lists)


def offset_maker(device: str) -> Callable[..., Any] | None:
    """What makes offsets of packed sequences ready on a device; None where operations of torch do.

    It takes int32 tensors (cu_seqlens_q; cu_seqlens_k, or None; seqused_k, or None), how many rows of queries and keys there are, where
    offsets are cut off, whether keys lie in pages, and whether sequences have a query each at most, so that those without one may stand for
    rows of no sequence; it gives first queries, numbers of queries, first keys and numbers of keys, int32 tensors [sequences], or None
    where it has no kernel, and waits for nothing.
    """
    backend = backend_for(device)
    return None if backend is None or backend.offsets is None else backend.load(backend.offsets)


def check_packed(module: str, device: str) -> None:
    """Refuses packed tensors where the backend of a device does not take them."""
    backend = backend_for(device)
    if backend is not None and not backend.packed and _PACKED in module:
        usable = sorted(d for b in load_backends().values() if b.packed for d in b.device_types)
        raise UnsupportedError(
            f"device '{device}': the {backend.name} backend has no kernels for packed sequences (attention_varlen) yet: move the tensors "
            f"to a device of {', '.join(usable)}, call `attention` for each sequence, or pad them and leave the padding out with mask_mod"
        )
    if backend is not None and not backend.paged and _PAGED in module:
        usable = sorted(d for b in load_backends().values() if b.paged for d in b.device_types)
        raise UnsupportedError(
            f"block_table on device '{device}': the {backend.name} backend has no kernels for keys in pages yet: gather the pages, or move "
            f"the tensors to a device of {', '.join(usable)}"
        )


def slow_kernels(
    module: str, device: str, function: str, wrt: Sequence[str], deterministic: bool = False, segment: int = 0
) -> Mapping[str, str]:
    """Why some kernels of a program are not made by the best code generator of a device, by their names; nothing is compiled for it.

    `function` is "" for the attention itself, else a derivative as `compile_derivative` takes it.
    """
    backend = backend_for(device)
    find = None if backend is None or backend.slow is None else backend.load(backend.slow)
    with LOCK:
        return {} if find is None else find(module, function, tuple(wrt), deterministic, segment)


def tuner_of(device: str) -> Any:
    """The `backends.tuning.program.Tuner` of a device such as "cuda", or None where its backend has none."""
    backend = backend_for(device)
    return None if backend is None else backend.tuner()


def tuner_for(device: str) -> Callable[..., tuple[str, str]] | None:
    """The function that tunes programs for a device such as "cuda", or None where its backend has no tuner.

    `tuner(texts, function, wrt, inputs, deterministic=, layout=, file=, measure=, segment=)` takes the texts of a module, without and with
    locations, which function of it is meant ("" for the attention itself, else a derivative as `compile_derivative` names it), and the
    arguments that it is to be fast on. It returns the texts with what it chose written into them: what the tune file `file` holds, and,
    where `measure` is true, what it measured and wrote there.
    """
    found = tuner_of(device)
    if found is None:
        return None
    from attn_mlir.backends.tuning.program import tune_texts
    from attn_mlir.backends.tuning.worker import Job

    def tune(
        texts: tuple[str, str], function: str, wrt: Sequence[str], inputs: Sequence[Any], *, deterministic: bool, layout: str, file: str,
        measure: bool, segment: int = 0,
    ) -> tuple[str, str]:  # fmt: skip
        job = Job(device, function, tuple(wrt), deterministic, segment)
        return tune_texts(found, texts, job, inputs, layout, file, measure)

    return tune


def library_targets() -> dict[str, Backend]:
    """The targets of libraries that are made ahead of time, each with its backend."""
    return {name: backend for backend in load_backends().values() if backend.ahead for name in sorted(backend.targets)}


def library_tools() -> dict[str, str]:
    """What libraries for each target are for and made with on this machine, or why they are not."""
    found = {}
    for name, backend in library_targets().items():
        if backend.ahead_with is None:
            continue
        try:
            found[name] = backend.load(backend.ahead_with)()
        except UnsupportedError as error:
            found[name] = f"not here: {error}"
    return found


def build_library(request: Any, target: str, out: Path, compiler: str | None, version: str) -> Any:
    """Makes a shared library with C functions ahead of time; returns a `backends.ahead.Library`.

    `request` is a `backends.ahead.Request`, `target` a name such as "cpu" or "sm_90a", `compiler` the command of the system's C++ compiler
    (None: found), `version` what the header says. Raises UnsupportedError for targets without it, and where a compiler is missing;
    CompileError when a pass or the compiler rejects the program.
    """
    backend = _backend_of(target)
    assert backend.ahead is not None
    with LOCK:
        return backend.load(backend.ahead)(request, target, out, compiler, version)


def kernel_sources(request: Any, target: str) -> Any:
    """The kernels of a library as source files, a `backends.ahead.sources.Sources`; arguments and errors are those of `build_library`."""
    make = _of_project(target, _backend_of(target).ahead_sources)
    with LOCK:
        return make(request, target)


def library_project(target: str, name: str) -> Any:
    """What a project with the sources of kernels for a target has besides, a `backends.ahead.sources.Project`; `name` is its library's."""
    return _of_project(target, _backend_of(target).ahead_project)(target, name)


def _of_project(target: str, reference: str | None) -> Callable[..., Any]:
    backend = _backend_of(target)
    if reference is None:
        raise UnsupportedError(f"target '{target}': the {backend.name} backend makes libraries, but no source files of kernels yet")
    return backend.load(reference)


def _backend_of(target: Any) -> Backend:
    """The backend that makes libraries for a target. Raises ArgumentError, or UnsupportedError where there is none."""
    usable = library_targets()
    if not isinstance(target, str):
        raise ArgumentError(f"target is a string, one of {', '.join(usable)}; got {type(target).__name__}")
    backend = usable.get(target)
    if backend is None or backend.ahead is None:
        nearest = difflib.get_close_matches(target, usable, 1, 0.7)
        hint = f"did you mean '{nearest[0]}'? " if nearest else ""
        raise UnsupportedError(f"target '{target}': no backend makes libraries for it; {hint}there are: {', '.join(usable)}")
    return backend


def build_operators(
    programs: Sequence[tuple[str, Any]], schema: str, target: str, out: Path, compiler: str | None, folders: Sequence[str], version: str
) -> Path:
    """Makes a shared library that registers the operator `attn_mlir::forward` with torch; returns its path.

    `programs` are the texts that name programs in graphs, with a `backends.ahead.request.Request` of each, `schema` the operator's,
    `folders` those of torch's headers. Raises as `build_library` does.
    """
    backend = next(b for b in load_backends().values() if target in b.targets)
    if any(_PACKED in text for text, _ in programs):
        raise UnsupportedError("attention_varlen has no operator made ahead of time yet: use torch.compile, or call it uncompiled")
    if backend.operators is None:
        raise UnsupportedError(f"target '{target}': the {backend.name} backend makes no operators for torch yet")
    with LOCK:
        return backend.load(backend.operators)(programs, schema, target, out, compiler, folders, version)
