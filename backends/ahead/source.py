"""The host's part of a library as one C++ file, and the way from there to the library with its header."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from attn_mlir.backends.ahead.entries import entries, foreign
from attn_mlir.backends.ahead.link import link
from attn_mlir.backends.ahead.request import Library, Request, functions

_FIRST, _AFTER_MACHINE = ("attn_tensor.h", "attn_values.h"), ("attn_bounds.h",)
_LAST = ("attn_check.h", "attn_call.h", "attn_linear.h", "attn_ffi.h")


def host_source(
    request: Request,
    header: str,
    machine: Sequence[Path],
    programs: Sequence[Path],
    tables: Sequence[str],
    limits: Sequence[str] = (),
    rank: int = 0,
) -> str:
    """The C++ file. `machine` and `programs` are the files of a target: what it computes on, and how programs run there.

    `limits` come first, `tables` last. `rank`: of how many dimensions tensors are at least; files of one library must agree.
    """
    files = runtime_files(machine, programs)
    return "\n".join([runtime(request.name, max(rank, rank_of(request)), limits, header, files), *tables, entries(request)])


def runtime_files(machine: Sequence[Path], programs: Sequence[Path]) -> tuple[Path, ...]:
    """The files of the runtime in their order; for `machine` and `programs` see `host_source`."""
    here = Path(__file__).parent
    after, last = ([here / name for name in names] for names in (_AFTER_MACHINE, _LAST))
    return (*[here / name for name in _FIRST], *machine, *after, *programs, *last)


def runtime(name: str, rank: int, limits: Sequence[str], header: str, files: Sequence[Path]) -> str:
    """The C++ that runs programs, in a namespace of the library `name`; `header` declares what the library's users see."""
    # Static libraries of several attentions, for several targets, may be in one program.
    names = [f"#define attn attn_{name}", f"#define attn_device_code {name}_device_code"]
    first = [*names, "#define ATTN_MLIR_OWN_DLPACK", f"#define ATTN_MAX_RANK {rank}", *limits, header]
    return "\n".join([*first, *[path.read_text(encoding="utf-8") for path in files]])


def finish(
    request: Request, header: str, command: tuple[str, ...], source: str, objects: Mapping[str, bytes], out: Path, data: bool = False
) -> Library:
    """Compiles and links the library, and writes its header beside it; for `data` see `link`. Raises CompileError."""
    names = [f"{request.name}_{function}" for function in functions(request)] + [f"{request.name}_last_error"]
    exported = [*names, *[f"__tvm_ffi_{request.name}_{function}" for function in foreign(request)]]
    link(command, {"host": source}, objects, exported, out, data)
    path = out.with_name(f"{request.name}.h")
    path.write_text(header, encoding="utf-8")
    return Library(out, path, tuple(names))


def rank_of(request: Request) -> int:
    """The most dimensions of a tensor: partial sums of gradients have three more than what is captured."""
    return 3 + max([4, *[capture.rank for capture in request.captures]])
