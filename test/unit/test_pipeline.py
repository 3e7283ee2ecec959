"""Textual pipelines: parsing, round trips, running, and what failures turn into."""

from dataclasses import dataclass
from typing import Literal

import pytest

from attn_mlir.diagnostics import DiagnosticError
from attn_mlir.dialects import load_all
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.options import PipelineError
from attn_mlir.passes.pipeline import Pipeline, Registry, core_registry
from attn_mlir.registry import registry

SOURCE = """module {
  func.func @f() {
    return
  }
}"""


@dataclass(frozen=True)
class Options(Pass):
    """Has an option of every kind, and records itself in the module."""

    name = "test-options"
    count: int = 1
    ratio: float = 0.5
    on: bool = False
    target: str = "cpu"
    mode: Literal["fast", "exact"] = "fast"
    sizes: tuple[int, ...] = (1, 2)
    names: tuple[str, ...] = ()
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count must not be negative")

    def run(self, module: ir.Operation) -> bool:
        with module.context:
            module.attributes[f"test.seen_{self.count}"] = ir.UnitAttr.get()
        return True


@dataclass(frozen=True)
class Fail(Pass):
    """Fails in the way it is told to."""

    name = "test-fail"
    how: str

    def run(self, module: ir.Operation) -> bool:
        op = next(iter(module.regions[0].blocks[0].operations)).operation
        match self.how:
            case "emit":
                op.location.emit_error("not this one")
            case "unsupported":
                raise UnsupportedError("try another one")
            case "bug":
                raise KeyError(op.name)
            case "erased":
                op.erase()
                raise KeyError("after erasing")
            case "broken":
                del op.attributes["function_type"]
                return True
        return False


REGISTRY = Registry(
    {"test-options": lambda: Options, "test-fail": lambda: Fail},
    {"twice": "test-options,builtin.module(test-options{count=2})", "loop": "cse,loop"},
)


def run(text: str, registry: Registry = REGISTRY) -> str:
    context = ir.Context()
    load_all(context)
    with context:
        module = ir.Module.parse(SOURCE)
        Pipeline.parse(text, registry).run(module)
        return str(module)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", ""),
        ("test-options", "test-options"),
        (" test-options , cse ", "test-options,cse"),
        ("test-options{count=1}", "test-options"),
        ("test-options{count=7 on}", "test-options{count=7 on=true}"),
        ("test-options{sizes=3,4,5}", "test-options{sizes={3,4,5}}"),
        ("test-options{sizes={3}}", "test-options{sizes={3}}"),
        ("test-options{sizes={}}", "test-options{sizes={}}"),
        ("test-options{names=a,b mode=exact}", "test-options{mode=exact names={a,b}}"),
        ("test-options{limit=3 ratio=1e-3}", "test-options{ratio=0.001 limit=3}"),
        ("test-options{target={two words}}", "test-options{target={two words}}"),
        ("builtin.module(cse,builtin.module(test-options))", "cse,test-options"),
        ("twice{mode=exact},cse", "test-options{mode=exact},test-options{count=2 mode=exact},cse"),
        ("twice,cse", "test-options,test-options{count=2},cse"),
        ("func.func(canonicalize{max-iterations=2},cse)", "func.func(canonicalize{max-iterations=2},cse)"),
    ],
)
def test_round_trip(text: str, printed: str) -> None:
    pipeline = Pipeline.parse(text, REGISTRY)
    assert str(pipeline) == printed
    assert Pipeline.parse(printed, REGISTRY) == pipeline


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("test-option", r"unknown pass 'test-option'; did you mean 'test-options'\?"),
        ("attn-dense-rows", r"pass 'attn-dense-rows' is called 'attn-recover-rows' now"),
        ("attn-written-backward", r"pass 'attn-written-backward' is called 'attn-custom-vjp' now"),
        ("gpu-keep-max", r"pass 'gpu-keep-max' is called 'gpu-lazy-rescale' now"),
        ("test-options{cuont=1}", r"no option 'cuont' \(it has: count, .*\); did you mean 'count'\?"),
        ("test-options{count=1.5}", "takes an integer, got '1.5'"),
        ("test-options{ratio=x}", "takes a number, got 'x'"),
        ("test-options{on=maybe}", "is true or false, got 'maybe'"),
        ("test-options{mode=fsat}", r"one of fast, exact; got 'fsat'; did you mean 'fast'\?"),
        ("test-options{sizes=1,x}", "takes an integer, got 'x'"),
        ("test-options{count}", "needs a value"),
        ("test-options{count=-1}", "pass 'test-options': count must not be negative"),
        ("test-fail", "pass 'test-fail' needs its option 'how'"),
        ("test-options(cse)", "does not hold other passes"),
        ("func.func(test-options)", "works on modules"),
        ("func.func(cse,any(twice))", "works on modules"),
        ("twice{cuont=1}", "no pass of the pipeline 'twice' has an option 'cuont'"),
        ("twice{count=1}", "got the option 'count' twice"),
        ("twice(cse)", "pipeline 'twice' does not hold other passes"),
        ("loop", "pipeline 'loop' contains itself"),
        ("cse,", "expected a pass between the commas"),
        ("a b", "'a b' is not a pipeline element"),
        ("cse{", "'{' is never closed"),
        ("cse}", "'}' without its opening bracket"),
        ("cse(}", "without its opening bracket"),
        ("canonicalize{no-such=1}", "pass 'canonicalize' has no option 'no-such'"),
        ("canonicalize{max-iterations=x}", "canonicalize"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        Pipeline.parse(text, REGISTRY)


def test_passes_that_cannot_be_imported() -> None:
    def load() -> type[Pass]:
        raise ImportError("no such library")

    with pytest.raises(PipelineError, match="pass 'test-gone' cannot be loaded: no such library"):
        Pipeline.parse("test-gone", Registry({"test-gone": load}))


def test_core_pipeline_expands_to_core_passes() -> None:
    pipeline = Pipeline.parse("attn-pipeline", core_registry())
    assert [step.name for step in pipeline.steps][-5:] == [
        "attn-guard-empty-rows",
        "attn-tile-rows",
        "attn-tile-pairs",
        "attn-tile-chunks",
        "attn-tile-sums",
    ]
    assert all(step.pass_ is not None for step in pipeline.steps)


def test_own_and_upstream_passes_run_in_order() -> None:
    steps = []
    context = ir.Context()
    with context:
        module = ir.Module.parse(SOURCE)
        pipeline = Pipeline.parse("twice,func.func(canonicalize{max-iterations=2},cse),symbol-dce", REGISTRY)
        pipeline.run(module, after=[lambda step, op, seconds: steps.append((step.name, "test.seen_2" in op.attributes, seconds >= 0))])
        assert "test.seen_1, test.seen_2" in str(module)
    assert steps == [
        ("test-options", False, True),
        ("test-options", True, True),
        ("func.func(canonicalize,cse)", True, True),
        ("symbol-dce", True, True),
    ]


@pytest.mark.parametrize(
    ("how", "message", "line"),
    [
        ("emit", "not this one", 2),
        ("unsupported", "test-fail: try another one", 2),
        ("bug", "internal error in test-fail: KeyError: 'func.func' (unit/test_pipeline.py:", 2),
        ("erased", "internal error in test-fail: KeyError: 'after erasing'", 0),
        ("broken", "requires attribute 'function_type'", 2),
        ("silent", "test-fail failed", 0),
    ],
)
def test_failures_become_located_diagnostics(how: str, message: str, line: int) -> None:
    with pytest.raises(DiagnosticError) as failure:
        run(f"test-fail{{how={how}}},cse")
    (diagnostic,) = failure.value.diagnostics
    assert diagnostic.severity == "error"
    assert message in diagnostic.message
    assert diagnostic.line == line


def test_a_pipeline_of_passes() -> None:
    pipeline = Pipeline.of([Options(count=3), Fail("emit")])
    assert str(pipeline) == "test-options{count=3},test-fail{how=emit}"
    assert Pipeline.parse(str(pipeline), REGISTRY) == pipeline


def test_former_options_are_told_by_their_new_names() -> None:
    with pytest.raises(PipelineError, match=r"has no option 'remainder' \(.*\); it is called 'residual' now"):
        Pipeline.parse("attn-differentiate{remainder=true}", registry())
