"""What attn-opt prints besides the result: passes, pipelines, IR dumps, timings."""

from collections.abc import Sequence
from typing import TextIO

from attn_mlir.mlir import ir
from attn_mlir.passes.options import PipelineError, full_spec, suggest
from attn_mlir.passes.pipeline import Pipeline, PipelineStep, Registry
from attn_mlir.pretty import pretty
from attn_mlir.tools.arguments import OptArguments
from attn_mlir.tools.source import Source


def passes(registry: Registry) -> str:
    """Every pass with its options and what it does, one a line."""
    lines = []
    for name in registry.passes:
        try:
            cls = registry.load(name)
        except PipelineError as error:
            lines.append((name, f"(unavailable: {error})"))
            continue
        lines.append((full_spec(cls), (cls.__doc__ or "").strip().partition("\n")[0]))
    return _columns(lines)


def pipelines(registry: Registry) -> str:
    """Every named pipeline with what it stands for, one a line."""
    return _columns(list(registry.pipelines.items()))


def _columns(lines: Sequence[tuple[str, str]]) -> str:
    width = max((len(left) for left, _ in lines), default=0)
    return "\n".join(f"{left:{width}}  {right}".rstrip() for left, right in lines)


def check_names(names: Sequence[str], pipeline: Pipeline) -> None:
    """Raises PipelineError for a name that is no step of `pipeline`."""
    steps = [step.name for step in pipeline.steps]
    for name in names:
        if name not in steps:
            raise PipelineError(f"no pass '{name}' in the pipeline to print after{suggest(name, steps)}")


def asm(operation: ir.Operation, options: OptArguments, source: Source) -> str:
    """The text of `operation`, with values named as the author named them; `source` is what it was read from."""
    if options.pretty:
        return pretty(operation, source.text)
    text = operation.get_asm(
        use_name_loc_as_prefix=True,
        print_generic_op_form=options.generic,
        enable_debug_info=options.debug_info,
    )
    assert isinstance(text, str)
    # The parser names text that it gets from memory "-".
    text = text.replace('loc("-":', f'loc("{source.name}":') if options.debug_info else text
    return text if text.endswith("\n") else f"{text}\n"


class StagePrinter:
    """Prints the IR after the chosen steps; a pipeline callback."""

    def __init__(self, file: TextIO, options: OptArguments, source: Source) -> None:
        self._file = file
        self._source = source
        self._options = options

    def __call__(self, step: PipelineStep, module: ir.Operation, seconds: float) -> None:
        if self._options.print_after_all or step.name in self._options.print_after:
            print(f"// -----// IR Dump After {step.text} //----- //", file=self._file)
            print(asm(module, self._options, self._source), file=self._file)


class Timer:
    """Adds up the time of each step; a pipeline callback. Its `str` is a table."""

    def __init__(self) -> None:
        self._steps: list[tuple[str, float]] = []

    def __call__(self, step: PipelineStep, module: ir.Operation, seconds: float) -> None:
        self._steps.append((step.text, seconds))

    def __str__(self) -> str:
        total = sum(seconds for _, seconds in self._steps)
        rows = [f"{1e3 * seconds:10.3f} ms  {seconds / total if total else 0:6.1%}  {text}" for text, seconds in self._steps]
        return "\n".join(["Time per pass", *rows, f"{1e3 * total:10.3f} ms  total"])
