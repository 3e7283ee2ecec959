"""transformers' own tests of "sdpa", unedited, with attn_mlir in the place of "sdpa".

    git clone https://github.com/huggingface/transformers
    python benchmarks/transformers_sdpa.py --transformers transformers --models llama gemma2 t5

The tests of the checkout run against the transformers that is installed, or with --source against the checkout's own; versions that are far
apart do not fit. --baseline runs them with PyTorch's SDPA, which tells what fails without attn_mlir. Needs `pip install parameterized`.
"""

import argparse
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODELS = ("llama", "mistral", "gemma2", "gemma3", "qwen3", "phi3", "cohere2", "bamba", "falcon_h1", "minimax", "bert", "t5")


class Report:
    """A plugin of pytest: puts attn_mlir in, and counts outcomes."""

    def __init__(self, baseline: bool) -> None:
        self.baseline = baseline
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.calls = 0

    def pytest_collection_finish(self) -> None:
        if not self.baseline:
            stand_in(self.count)

    def count(self) -> None:
        """One more call of attn_mlir's attention."""
        self.calls += 1

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.reasons[report.nodeid] = str(report.longrepr).strip().splitlines()[-1][:160]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.outcomes[report.nodeid] = "failed"
            crash = getattr(report.longrepr, "reprcrash", None)
            self.reasons[report.nodeid] = (crash.message if crash else str(report.longrepr)).strip().splitlines()[0][:160]
        elif report.skipped or report.when == "call":
            self.outcomes.setdefault(report.nodeid, "skipped" if report.skipped else "passed")


def stand_in(called: Callable[[], None]) -> None:
    """attn_mlir as what transformers calls "sdpa"."""
    import transformers
    from transformers import masking_utils

    from attn_mlir.api.rows import softmax
    from attn_mlir.integrations.transformers import attention_function, mask_function

    run = attention_function(softmax, None, None)

    def sdpa(*arguments: Any, **options: Any) -> Any:
        called()
        options.pop("output_attentions", None)  # "sdpa" warns and gives None, too
        return run(*arguments, **options)

    transformers.AttentionInterface.register("sdpa", sdpa)
    transformers.AttentionMaskInterface.register("sdpa", mask_function(masking_utils.sdpa_mask, masking_utils.causal_mask_function))


def main() -> int:
    """The command; returns how many tests failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transformers", type=Path, required=True, metavar="PATH", help="a checkout of transformers")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="folders of tests/models")
    parser.add_argument("--keyword", "-k", default="sdpa and not dispatch", help="what pytest selects by, see pytest -k")
    parser.add_argument("--source", action="store_true", help="import the checkout's transformers, not the installed one")
    parser.add_argument("--baseline", action="store_true", help="PyTorch's SDPA in place of attn_mlir")
    options = parser.parse_args()
    checkout = options.transformers.resolve()
    if not (checkout / "tests" / "test_modeling_common.py").is_file():
        parser.error(f"{checkout} is no checkout of transformers: it has no tests/test_modeling_common.py")
    files = [checkout / "tests" / "models" / model / f"test_modeling_{model}.py" for model in options.models]
    for file in files:
        if not file.is_file():
            parser.error(f"there is no {file}")
    sys.path[:0] = [str(checkout / "src")] * options.source
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return run(checkout, files, options.keyword, options.baseline)


def run(checkout: Path, files: list[Path], keyword: str, baseline: bool) -> int:
    """Runs the tests and prints their outcomes; returns how many failed."""
    import pytest
    import transformers

    report = Report(baseline)
    with contextlib.chdir(checkout):
        code = pytest.main(
            ["-q", "--no-header", "--noconftest", "-W", "ignore", "-p", "no:cacheprovider", "--tb=no", "-k", keyword, *map(str, files)],
            plugins=[report],
        )
    system = "PyTorch's SDPA" if baseline else f"attn_mlir ({report.calls} calls)"
    print(f"\ntransformers {transformers.__version__}, tests of {checkout}, -k {keyword!r}: {system}")
    print("| model | passed | failed | skipped |\n|---|--:|--:|--:|")
    for file in files:
        counted = Counter(outcome for name, outcome in report.outcomes.items() if f"/{file.name}::" in f"/{name}")
        print(f"| {file.parent.name} | {counted['passed']} | {counted['failed']} | {counted['skipped']} |")
    for name, reason in report.reasons.items():
        print(f"failed: {name.rpartition('/')[2]}: {reason}")
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not report.outcomes:
        print(f"pytest ended with {code!r}")
        return 1
    return len(report.reasons)


if __name__ == "__main__":
    raise SystemExit(main())
