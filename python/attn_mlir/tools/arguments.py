"""The command line of attn-opt."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from attn_mlir.passes.options import PipelineError, suggest
from attn_mlir.passes.pipeline import Pipeline, Registry


@dataclass(frozen=True)
class OptArguments:
    """What the command line asks for."""

    input: str
    output: str
    pipeline: str
    split_input_file: bool
    verify_diagnostics: bool
    print_after_all: bool
    print_after: tuple[str, ...]
    generic: bool
    debug_info: bool
    pretty: bool
    timing: bool
    explain: bool
    show_passes: bool
    show_pipelines: bool


class Parser(argparse.ArgumentParser):
    """A parser whose mistakes end in exit code 1, like every other one."""

    def error(self, message: str) -> NoReturn:
        self.exit(1, f"{self.prog}: error: {message}\n")


def parse_arguments(argv: Sequence[str], registry: Registry) -> OptArguments:
    """Parses `argv`; every pass and named pipeline of `registry`, and every upstream pass, is a flag too."""
    parser = _build()
    flags = {flag for action in parser._actions for flag in action.option_strings}
    arguments = parser.parse_args([_as_pipeline(a, flags, registry, parser) for a in argv])
    if arguments.pretty and (arguments.mlir_print_op_generic or arguments.mlir_print_debuginfo):
        parser.error("--pretty prints neither the generic form nor locations: leave out --mlir-print-op-generic and --mlir-print-debuginfo")
    return OptArguments(
        input=arguments.input,
        output=arguments.output,
        pipeline=",".join(filter(str.strip, arguments.pass_pipeline)),
        split_input_file=arguments.split_input_file,
        verify_diagnostics=arguments.verify_diagnostics,
        print_after_all=arguments.print_ir_after_all,
        print_after=tuple(name for names in arguments.print_ir_after for name in names.split(",")),
        generic=arguments.mlir_print_op_generic,
        debug_info=arguments.mlir_print_debuginfo,
        pretty=arguments.pretty,
        timing=arguments.timing,
        explain=arguments.attn_explain,
        show_passes=arguments.show_passes,
        show_pipelines=arguments.show_pipelines,
    )


def _as_pipeline(argument: str, flags: set[str], registry: Registry, parser: argparse.ArgumentParser) -> str:
    """Turns the flag of a pass, `--attn-tile=block-q=32`, into a pipeline of that pass."""
    flag, equals, options = argument.partition("=")
    name = flag.removeprefix("--")
    if not argument.startswith("--") or flag in flags or not name:
        return argument
    element = f"{name}{{{options}}}" if equals else name
    if name not in registry.passes and name not in registry.pipelines:
        try:
            Pipeline.parse(element, registry)
        except PipelineError as error:
            known = [*(f.removeprefix("--") for f in flags), *registry.passes, *registry.pipelines]
            unknown = "unknown pass" in str(error)
            parser.error(f"unknown option or pass '{flag}'{suggest(name, known)}" if unknown else str(error))
    return f"--pass-pipeline={element}"


def _build() -> argparse.ArgumentParser:
    parser = Parser(
        prog="attn-opt",
        allow_abbrev=False,
        description="Runs a pass pipeline over MLIR text.",
        epilog="Every pass and named pipeline is a flag as well, with options after '=': --attn-tile='block-q=32 block-kv=64'.",
    )
    add = parser.add_argument
    add("input", nargs="?", default="-", help="MLIR file, or - for standard input")
    add("-o", dest="output", default="-", metavar="FILE", help="where to write the result (default: standard output)")
    add("-p", "--pass-pipeline", action="append", default=[], metavar="PIPELINE", help="for example 'attn-simplify,func.func(cse)'")
    add("--split-input-file", action="store_true", help="process the parts between '// -----' lines one by one")
    add("--verify-diagnostics", action="store_true", help="check that exactly the errors in expected-error comments are reported")
    add("--print-ir-after-all", action="store_true", help="print the IR after each pass, to standard error")
    add("--print-ir-after", action="append", default=[], metavar="PASS", help="print the IR after this pass")
    add("--mlir-print-op-generic", action="store_true", help="print every operation in generic form")
    add("--mlir-print-debuginfo", action="store_true", help="print locations")
    add("--pretty", action="store_true", help="print IR for people, not for parsers: loops, infix expressions, each type once")
    add("--timing", action="store_true", help="print how long each pass took, to standard error")
    add("--attn-explain", action="store_true", help="print the derivation of the online form instead of the IR")
    add("--show-passes", action="store_true", help="list the passes and their options")
    add("--show-pipelines", action="store_true", help="list the named pipelines")
    return parser
