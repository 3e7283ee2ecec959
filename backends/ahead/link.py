"""The system's C++ compiler, which compiles the host's part of a library and links it, and ar, which packs static ones."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError

_COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-w")


def find_compiler(given: str | None) -> tuple[str, ...]:
    """The command of the C++ compiler: `given`, else $CXX, else the first of c++, g++ and clang++. Raises UnsupportedError without one."""
    if sys.platform not in ("linux", "darwin"):
        raise UnsupportedError(f"libraries for the CPU are made on Linux and macOS, this is {sys.platform}: use WSL or a container")
    if not isinstance(given, str | None):
        raise ArgumentError(f"compiler is the command of a C++ compiler, such as 'g++', got {type(given).__name__}")
    wanted = (given or os.environ.get("CXX", "")).strip()
    if wanted:
        command = _words(wanted)
        if shutil.which(command[0]) is None:
            raise UnsupportedError(f"the C++ compiler '{command[0]}' is not there: install it, or name another with compiler= or CXX")
        return command
    found = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
    if found is None:
        raise UnsupportedError(
            "making a library takes a C++ compiler, and there is none of c++, g++, clang++: install one (Debian: apt install g++, "
            "macOS: xcode-select --install), or name it with compiler= or CXX"
        )
    return (found,)


def _words(command: str) -> tuple[str, ...]:
    """A command and its options; the path of a program may have spaces. Raises ArgumentError for quotes without an end."""
    if shutil.which(command) is not None:
        return (command,)
    try:
        return tuple(shlex.split(command)) or (command,)
    except ValueError as error:
        raise ArgumentError(f"the command of the C++ compiler, {command}, cannot be read: {error}") from None


@cache
def thread_flags(command: tuple[str, ...]) -> tuple[str, ...]:
    """OpenMP where the compiler has it, else the threads of the C++ library."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text("#include <omp.h>\nint main() { return omp_get_max_threads() > 0 ? 0 : 1; }\n")
        probe = subprocess.run([*command, "-fopenmp", str(source), "-o", f"{folder}/probe"], capture_output=True, check=False)
    return ("-fopenmp",) if probe.returncode == 0 else ("-pthread",)


def link(
    command: tuple[str, ...],
    sources: Mapping[str, str],
    objects: Mapping[str, bytes],
    exported: Sequence[str],
    out: Path,
    data: bool = False,
    flags: Sequence[str] = (),
) -> None:
    """Compiles C++ files and links them with the kernels' code; only the `exported` symbols can be seen. Raises CompileError.

    `objects` are object files, or with `data` what becomes constants: of x the array `x_code`, which ends at `x_code_end`. An `out` that
    ends with .a becomes a static library.
    """
    threads = ("-pthread",) if data else thread_flags(command)
    with tempfile.TemporaryDirectory(prefix="attn-mlir-") as folder:
        hosts = [Path(folder) / f"{name}.cpp" for name in sources]
        for path, source in zip(hosts, sources.values(), strict=True):
            path.write_text(source, encoding="utf-8")
        files = []
        for name, code in objects.items():
            path = Path(folder) / f"{name}.{'bin' if data else 'o'}"
            path.write_bytes(code)
            files.append(str(path))
        if data:
            files = [_constants(Path(folder), files)]
        made = out.with_name(f"{out.name}.{os.getpid()}.partial")
        options = [*FLAGS, *flags, *threads]
        if is_static(out):
            _archive(command, options, [*map(str, hosts), *files], Path(folder), made)
        else:
            visible = _visible(Path(folder), exported, out.name)
            _run([*command, *options, "-shared", *map(str, hosts), *files, "-o", str(made), "-lm", *visible], made)
        os.replace(made, out)  # in one step: a process that has the old library loaded keeps it


def is_static(out: Path) -> bool:
    """Whether the file is to be a static library."""
    return out.suffix == ".a"


def _visible(folder: Path, exported: Sequence[str], name: str) -> list[str]:
    """Options of the linker for a shared library of this name with these symbols."""
    if sys.platform == "darwin":
        (folder / "exported").write_text("".join(f"_{name}\n" for name in exported))
        return ["-Xlinker", "-exported_symbols_list", "-Xlinker", f"{folder}/exported"]
    shown = f"global: {' '.join(f'{name};' for name in exported)} " if exported else ""
    (folder / "exported").write_text(f"{{ {shown}local: *; }};\n")
    # -Wl would take a comma in a name for the end of it.
    return [
        "-Xlinker",
        f"--version-script={folder}/exported",
        "-Wl,-Bsymbolic",
        "-Wl,-z,noexecstack",
        "-Xlinker",
        "-soname",
        "-Xlinker",
        name,
    ]


def _archive(command: Sequence[str], options: Sequence[str], files: Sequence[str], folder: Path, made: Path) -> None:
    """Compiles what is no object file yet, and packs all of it."""
    tool = shutil.which("ar")
    if tool is None:
        raise UnsupportedError("a static library is packed by ar, and there is none: install binutils, or make a shared library (.so)")
    members = []
    for file in files:
        member = file
        if not file.endswith(".o"):
            member = str(folder / f"{Path(file).stem}.member.o")
            _run([*command, *options, "-c", file, "-o", member], made)
        members.append(member)
    _run([tool, "rcs", str(made), *members], made, "ar")


def _run(command: Sequence[str], made: Path, tool: str = "the C++ compiler") -> None:
    ran = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if ran.returncode:
        made.unlink(missing_ok=True)
        raise CompileError(f"{tool} failed: {shlex.join(command)}\n{ran.stderr.strip()}")


def _constants(folder: Path, files: Sequence[str]) -> str:
    """A file of assembly with the content of files."""
    lines = [".section .rodata"]
    for file in files:
        name = f"{Path(file).stem}_code"
        lines += [f'.balign 64\n.globl {name}\n{name}:\n.incbin "{file}"\n.globl {name}_end\n{name}_end:\n.byte 0']
    source = folder / "constants.s"
    source.write_text("\n".join([*lines, '.section .note.GNU-stack,"",%progbits', ""]))
    return str(source)
