"""Runs PyTorch's own tests of FlexAttention against attn_mlir, from a checkout of PyTorch: benchmarks/flex_suite.py --pytorch PATH

    --pytorch PATH   a checkout, or a folder with test_flex_attention.py and test_flex_decoding.py in it (of the installed torch's version)
    -k EXPRESSION    as pytest's; without it everything but the tests of Inductor's internals (test/unit/flex_suite.py) runs
    --compiled       calls attn_mlir inside torch.compile(fullgraph=True), as the tests do; else directly
    --list           prints what would run

The files are not changed on disk. In memory they get: no skips on a CPU, gradients on a CPU, and a `torch.compile` whose function calls
attn_mlir where it calls flex_attention. What the tests call uncompiled stays torch's eager implementation: it is their oracle,
in float64 as well.
"""

import argparse
import contextvars
import functools
import importlib.util
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

from attn_mlir import flex

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "test" / "unit"))
import flex_suite

FILES = ("test_flex_attention.py", "test_flex_decoding.py")
_ours: contextvars.ContextVar[bool] = contextvars.ContextVar("ours", default=False)
_torch_compile = torch.compile
_torch_attention = torch_flex.flex_attention
_EDITS = (
    (r"(def skip_on_cpu\(test_func\):\n(?:.*\n)*?    )decorated_func = .*\n    return decorated_func", r"\1return test_func"),
    (r"^@supports_learnable_bias\n", ""),
    (r"^    @running_on_a100_only\n", "    @supported_platform\n"),
    (r'(DEVICE_SUPPORTS_BACKWARDS = SubstringSet\(\n    \[\n        "cuda",\n)', r'\1        "cpu",\n'),
    (r'only_for=\(test_device\[0\] if HAS_GPU else "cuda",\)', "only_for=test_device"),
    (r"^    SKIP_UT_ON_CPU = True", "    SKIP_UT_ON_CPU = False"),
    (r"^            self\.test_inference_only = True", "            self.test_inference_only = False"),
    (r"get_params\(device_configs\[\"cuda\"\]\.dtypes\)", 'get_params(device_configs["cpu"].dtypes)'),
)
"""Pattern and replacement, of the text of the files; those that are of one file only do nothing to the other."""


def compile_ours(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """torch.compile for the tests: what the function calls as flex_attention is ours."""
    if function is None:
        return functools.partial(compile_ours, **options)
    if not COMPILED:
        return _with(function)
    if getattr(function, "__name__", "") == "_flex_attention_hop_wrapper":  # torch's eager flex_attention, the oracle
        return _torch_compile(function, **options)
    return _torch_compile(function, fullgraph=True, dynamic=options.get("dynamic"), backend="aot_eager")


def _with(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function if hasattr(function, "__name__") else compile_ours)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = _ours.set(True)
        try:
            return function(*args, **kwargs)
        finally:
            _ours.reset(before)

    return call


@functools.wraps(_torch_attention)
def attention(*args: Any, **kwargs: Any) -> Any:
    """flex_attention as the tests see it: ours inside of what `compile_ours` made, torch's eager one elsewhere."""
    ours = torch.compiler.is_dynamo_compiling() if COMPILED else _ours.get()
    return flex.flex_attention(*args, **kwargs) if ours else _torch_attention(*args, **kwargs)


def patch() -> None:
    """Lets torch's eager implementation run on a CPU with gradients and auxiliary outputs, and the tests' calls reach ours."""
    options = torch_flex._apply_kernel_options

    def on_any_device(query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> Any:
        somewhere = torch.empty(0, device="meta")
        return {**options(somewhere, somewhere, somewhere, *rest, **named), "OUTPUT_LOGSUMEXP": True}

    for name, function in (("_validate_device", lambda *_: None), ("_apply_kernel_options", on_any_device), ("flex_attention", attention)):
        setattr(torch_flex, name, function)
    for name in ("BlockMask", "and_masks", "create_block_mask", "create_mask", "noop_mask", "or_masks"):
        setattr(torch_flex, name, getattr(flex, name))
    setattr(torch, "compile", compile_ours)
    setattr(flex.attention, "_WARNINGS_SHOWN", torch_flex._WARNINGS_SHOWN)


def load(folder: Path, name: str, into: Path) -> Path:
    """A test file, edited, in a folder of its own."""
    for place in (folder / "test" / "inductor" / name, folder / name):
        if place.exists():
            text = place.read_text()
            for pattern, replacement in _EDITS:
                text = re.sub(pattern, replacement, text, flags=re.M)
            made = into / name
            made.write_text(text)
            return made
    raise SystemExit(f"{name} is neither in {folder}/test/inductor nor in {folder}: give a checkout of PyTorch with --pytorch")


def internal() -> str:
    """A pytest expression that leaves out the tests of Inductor's internals, by class, since some names are in two."""
    left_out = [
        f"({group} and {test})"
        for group, tests in flex_suite.SUITE.items()
        for test, covered in tests.items()
        if covered is flex_suite.INDUCTOR
    ]
    return " and ".join(f"not {one}" for one in left_out)


class Tally:
    """Counts outcomes by test function."""

    def __init__(self) -> None:
        self.outcomes: dict[str, dict[str, int]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or (report.outcome != "passed" and report.when == "setup"):
            name = re.sub(r"_cpu.*|_cuda.*", "", report.nodeid.split("::")[-1])
            counts = self.outcomes.setdefault(f"{report.nodeid.split('::')[-2]}.{name}", {})
            counts[report.outcome] = counts.get(report.outcome, 0) + 1

    def show(self) -> None:
        """Prints every function that is not simply passed, and the sums."""
        sums: dict[str, int] = {}
        for name, counts in sorted(self.outcomes.items()):
            for outcome, count in counts.items():
                sums[outcome] = sums.get(outcome, 0) + count
            if set(counts) != {"passed"}:
                print(f"{name}: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}")
        print(f"{len(self.outcomes)} test functions: {', '.join(f'{count} {outcome}' for outcome, count in sums.items()) or 'nothing ran'}")


def main() -> int:
    global COMPILED
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pytorch", type=Path, required=True)
    parser.add_argument("-k", default="")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    COMPILED = arguments.compiled
    if importlib.util.find_spec("expecttest") is None:
        raise SystemExit("PyTorch's tests need the package expecttest: pip install expecttest")
    with tempfile.TemporaryDirectory() as folder:
        files = [str(load(arguments.pytorch, name, Path(folder))) for name in FILES]
        patch()
        tally = Tally()
        left = f"({arguments.k}) and {internal()}" if arguments.k else internal()
        options = ["-q", "-p", "no:cacheprovider", "--rootdir", folder, "-c", "/dev/null", "-k", left, "--tb=line"]
        result = pytest.main([*options, *(["--collect-only"] if arguments.list else []), *files], plugins=[tally])
        if not arguments.list:
            tally.show()
    return int(result)


COMPILED = False
if __name__ == "__main__":
    raise SystemExit(main())
