"""Object files of the modules that the JIT compiles, with names that are unique in a library.

`python -m attn_mlir.backends.cpu.ahead.objects FOLDER FILE.mlir PREFIX ...` makes FOLDER/FILE.o of each file; generated projects call it.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from attn_mlir.backends.cpu import engine
from attn_mlir.backends.cpu.target import check_runs
from attn_mlir.dialects import loaded
from attn_mlir.errors import AttnError
from attn_mlir.mlir import ir


def object_code(module: ir.Module, prefix: str) -> bytes:
    """The code of a module in the LLVM dialect, whose functions get the prefix in their names. The module is changed."""
    check_runs()
    for view in list(module.body.operations):
        function = view.operation
        if function.name == "llvm.func" and len(function.regions[0].blocks):
            name = ir.StringAttr(function.attributes["sym_name"]).value
            ir.SymbolTable.replace_all_symbol_uses(name, prefix + name, module.operation)
            ir.SymbolTable.set_symbol_name(function, prefix + name)
    # The pipeline of the JIT, but for addresses, which the dynamic linker finds.
    return engine.object_code(module, pic=True)


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    folder, *given = argv
    for file, prefix in zip(given[::2], given[1::2], strict=True):
        made = Path(folder) / f"{Path(file).stem}.o"
        try:
            with loaded():
                code = object_code(ir.Module.parse(Path(file).read_text(encoding="utf-8")), prefix)
        except (AttnError, ir.MLIRError, OSError) as error:
            print(f"{file}: error: {error}", file=sys.stderr)
            return 1
        partial = made.with_suffix(f".{os.getpid()}")
        partial.write_bytes(code)
        os.replace(partial, made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
