"""The tuner for NVIDIA GPUs: choices in modules, tune files, and tuning with made-up times. No GPU is needed."""

import json
import os
import resource
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attn_mlir.api.attention import Attention
from attn_mlir.api.masks import causal
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia.passes.choose_blocks import NvidiaChooseBlocks
from attn_mlir.backends.nvidia.target import HOPPER
from attn_mlir.backends.nvidia.tuning import space
from attn_mlir.backends.nvidia.tuning.choices import EVERY, choices_for, choices_in, with_choices
from attn_mlir.backends.nvidia.tuning.facts import KernelFacts
from attn_mlir.backends.nvidia.tuning.program import tunables, versions
from attn_mlir.backends.tuning.store import Key, TuneFile, bucket
from attn_mlir.backends.tuning.worker import Job
from attn_mlir.frontend.emit import Inputs
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry
from contexts import loaded_context
from fake_bench import FakeBench, tune_module

KEY = Key("0" * 64, "sm_90a", "f16", (128, 128), 4096, (("torch", "2.11"),))


def traced(element: str = "f16", columns: int = 128) -> str:
    """A causal softmax."""
    attention = Attention(mask_mod=causal())
    return attention._entry(Inputs(element, columns, columns))[0].traced.text


def tuned(bench: FakeBench, path: str = "", measure: bool = True, text: str = "") -> dict[str, Fields]:
    tensor = torch.empty(4, 16, 4096, 128, dtype=torch.float16, device="meta")
    return tune_module(text or traced(), Job("cuda"), [tensor, tensor, tensor], path=path, measure=measure, bench=bench)


# ---- choices in a module


def test_choices_travel_with_the_text() -> None:
    text = traced()
    chosen: dict[str, Fields] = {"attention": {"block_q": 64, "emitter": "tilelang"}}
    changed = with_choices(text, chosen)
    assert with_choices(changed, {}) == text
    assert with_choices(with_choices(text, {"other": {"a": 1}}), chosen) == changed
    with loaded_context():
        assert choices_in(ir.Module.parse(changed).operation) == chosen


def test_choices_reach_the_blocks() -> None:
    text = with_choices(traced(), {"attention": {"block_q": 64, "block_kv": 80, "stages": 1}, EVERY: {"block_q": 192, "ping_pong": 0}})
    with loaded_context():
        module = ir.Module.parse(text)
        Pipeline.parse("attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows", registry()).run(module)
        (function,) = find_all(module.operation, "func.func")
        assert choices_for(function, choices_in(module.operation)) == {"block_q": 64, "block_kv": 80, "stages": 1, "ping_pong": 0}
        assert NvidiaChooseBlocks().run(module.operation)
        assert list(ir.DenseI64ArrayAttr(function.attributes["tile.blocks"])) == [64, 80]
        assert attributes.read(function, attributes.CHOICES)["stages"] == 1


def test_a_text_without_a_plain_module_is_refused() -> None:
    with pytest.raises(ValueError, match="no module"):
        with_choices("func.func @f() { return }", {"f": {"a": 1}})


# ---- tune files


def test_a_tune_file_keeps_what_was_found(tmp_path: Any) -> None:
    path = tmp_path / "folder" / "tune.json"
    TuneFile(path).add(KEY, {"block_q": 128, "order": "dynamic"}, kernel="attention", ms=0.9)
    assert TuneFile(path).find(KEY) == {"block_q": 128, "order": "dynamic"}
    other = Key(KEY.ir, KEY.arch, KEY.element, KEY.head_dims, 8192, KEY.versions)
    assert TuneFile(path).find(other) is None
    (entry,) = json.loads(path.read_text())["entries"].values()
    assert entry["kernel"] == "attention" and entry["length"] == 4096 and entry["versions"] == {"torch": "2.11"}


def test_choices_of_older_files_are_called_as_today(tmp_path: Any) -> None:
    path = tmp_path / "tune.json"
    TuneFile(path).add(KEY, {"block_q": 64, "residents": 2, "optimistic": 1, "turns": 0, "adders": 1})
    now = {"block_q": 64, "occupancy": 2, "lazy_rescale": 1, "ping_pong": 0, "reduction_warps": 1}
    assert TuneFile(path).find(KEY) == now


def test_choices_of_saved_programs_are_called_as_today() -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(with_choices("module {\n}\n", {"attention": {"residents": 2, "stages": 3, "turns": 0}}))
        assert choices_in(module.operation) == {"attention": {"occupancy": 2, "stages": 3, "ping_pong": 0}}


def test_two_writers_keep_each_others_entries(tmp_path: Any) -> None:
    path = tmp_path / "tune.json"
    first, second = TuneFile(path), TuneFile(path)
    other = Key("1" * 64, KEY.arch, KEY.element, KEY.head_dims, KEY.length, KEY.versions)
    first.add(KEY, {"block_q": 128})
    second.add(other, {"block_q": 64})
    assert TuneFile(path).find(KEY) and TuneFile(path).find(other)


def test_no_entry_is_lost_where_many_write(tmp_path: Any) -> None:
    """Each reads the file and writes all of it, again and again."""
    path = tmp_path / "tune.json"

    def write(number: int) -> None:
        file = TuneFile(path)
        for count in range(8):
            file.add(Key(f"{number}-{count}", KEY.arch, KEY.element, KEY.head_dims, KEY.length, KEY.versions), {"block_q": 64 + number})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(json.loads(path.read_text())["entries"]) == 48
    assert [each.name for each in tmp_path.iterdir()] == ["tune.json"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{not json", "is not JSON"),
        ("[1, 2]", "is not a tune file"),
        ('{"best": {}}', "is not a tune file"),
        ('{"format": "attn-mlir tuning", "version": 99, "entries": {}}', "has version 99"),
        ('{"format": "attn-mlir tuning", "version": 1}', "has no entries"),
    ],
)
def test_a_foreign_file_is_left_alone(tmp_path: Any, content: str, told: str) -> None:
    path = tmp_path / "tune.json"
    path.write_text(content)
    with pytest.warns(UserWarning, match=told):
        file = TuneFile(path)
    file.add(KEY, {"block_q": 128})
    assert file.find(KEY) == {"block_q": 128}
    assert path.read_text() == content


@pytest.mark.parametrize(
    "choices", [{"order": 'x", evil = "'}, {"a b": 1}, {"block_q": True}, {"block_q": 1 << 70}, {"block_q": [1]}, [1], 3]
)
def test_choices_are_numbers_and_words(choices: Any, tmp_path: Any) -> None:
    """Nothing else gets from a file into a program."""
    path = tmp_path / "tune.json"
    TuneFile(path).add(KEY, {"block_q": 128})
    form = json.loads(path.read_text())
    form["entries"][KEY.digest]["choices"] = choices
    path.write_text(json.dumps(form))
    with pytest.warns(UserWarning, match="1 damaged entries"):
        assert TuneFile(path).find(KEY) is None


def test_odd_files_and_full_disks(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.warns(UserWarning, match="is no file"):
        TuneFile(tmp_path / "pipe")
    (tmp_path / "deep").write_text("[" * 200_000)
    with pytest.warns(UserWarning, match="is not JSON"):
        TuneFile(tmp_path / "deep")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.warns(UserWarning, match="cannot be written"):
            TuneFile(tmp_path / "new").add(KEY, {"block_q": 128})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "pipe"]


def test_damaged_entries_are_left_out(tmp_path: Any) -> None:
    path = tmp_path / "tune.json"
    TuneFile(path).add(KEY, {"block_q": 128})
    form = json.loads(path.read_text())
    form["entries"] |= {"x": {"choices": {"a": [1]}}, "y": 3}
    path.write_text(json.dumps(form))
    with pytest.warns(UserWarning, match="2 damaged entries"):
        assert TuneFile(path).find(KEY) == {"block_q": 128}


def test_an_empty_or_missing_file_is_no_mistake(tmp_path: Any) -> None:
    (tmp_path / "empty.json").write_text("")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TuneFile(tmp_path / "empty.json").find(KEY) is None
        assert TuneFile(tmp_path / "missing.json").find(KEY) is None


def test_a_folder_in_place_of_a_file(tmp_path: Any) -> None:
    with pytest.warns(UserWarning, match="is no file"):
        TuneFile(tmp_path).add(KEY, {"block_q": 128})


@pytest.mark.parametrize(("length", "expected"), [(0, 1), (1, 1), (2, 2), (1000, 1024), (1024, 1024), (1025, 2048)])
def test_buckets(length: int, expected: int) -> None:
    assert bucket(length) == expected


# ---- tuning


def by_columns(choices: Fields) -> float:
    """Fastest with 96 columns and ping-pong off."""
    return abs(int(choices["block_kv"]) - 96) / 100 + 1.0 - 0.1 * (choices.get("ping_pong") == 0)


def test_the_fastest_candidate_wins_and_is_kept(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path, bench = str(tmp_path / "tune.json"), FakeBench(by_columns)
    found = tuned(bench, path)["attention"]
    assert (found["block_kv"], found["ping_pong"]) == (96, 0)
    again = FakeBench(by_columns)
    assert tuned(again, path)["attention"] == found
    assert not again.compiled and not again.timed
    told = capsys.readouterr().err
    assert "compiling" in told and "measuring" in told and "attention:" in told


@pytest.mark.parametrize("columns", [64, 128])
def test_the_backward_has_its_own_choices(tmp_path: Any, columns: int) -> None:
    """Its kernel over pairs is tuned in the same way: keys and queries of a block first, then what else its schedule knows."""

    def time(choices: Fields) -> float:
        return 1.0 + 0.2 * (choices["block_q"] != 64) + 0.1 * (choices.get("reduction_warps") != 1) + 0.1 * (choices.get("stages", 2) != 1)

    job, path = Job("cuda", "bwd", ("q", "k", "v")), str(tmp_path / "tune.json")
    tensor = torch.empty(4, 32, 4096, columns, dtype=torch.float16, device="meta")
    text = traced(columns=columns)
    (kernel,) = tunables(text, job, (tensor.shape, tensor.shape), HOPPER)[1]
    bench = FakeBench(time, kernel=kernel.name)
    found = tune_module(text, job, [tensor] * 3, path=path, bench=bench)[kernel.name]
    assert (found["block_q"], found["stages"], found["reduction_warps"]) == (64, 1, 1)
    assert [sum(name in choices for choices in bench.compiled) for name in ("reduction_warps", "order", "group")] == [2, 2, 2]
    again = FakeBench(time, kernel=kernel.name)
    assert tune_module(text, job, [tensor] * 3, path=path, bench=again)[kernel.name] == found and not again.compiled
    # The file holds the backward's entry under the backward's kernel: the forward's is another.
    assert tuned(FakeBench(by_columns), path, text=text)["attention"]["block_kv"] == 96


def test_candidates_that_fail_or_err_are_counted(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bench = FakeBench(by_columns, lambda choices: "nvcc rejects it" if choices["block_kv"] == 96 else "")
    found = tuned(bench, str(tmp_path / "tune.json"))["attention"]
    assert found["block_kv"] != 96
    assert found.get("stages") != 3  # gave wrong results
    (entry,) = json.loads((tmp_path / "tune.json").read_text())["entries"].values()
    assert entry["failed"] > 0
    assert "nvcc rejects it" in capsys.readouterr().err


def test_a_small_gain_does_not_replace_the_untuned_schedule() -> None:
    untuned = space.best(KernelFacts("rows", "f16", (128,), (128,), (), 1.0, 5.0, True), HOPPER)
    found = tuned(FakeBench(lambda choices: 1.0 if all(choices.get(n) == v for n, v in untuned.items()) else 0.995))
    assert found["attention"] == untuned


def test_without_measuring_only_the_file_counts(tmp_path: Any) -> None:
    path, bench = str(tmp_path / "tune.json"), FakeBench(by_columns)
    assert tuned(bench, path, measure=False) == {}
    assert not bench.compiled
    found = tuned(FakeBench(by_columns), path)
    assert tuned(bench, path, measure=False) == found


def test_another_kernel_length_or_version_is_tuned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(text: str, length: int) -> str:
        (kernel,) = tunables(text, Job("cuda"), ((1, 2, length, 128),) * 2, HOPPER)[1]
        return kernel.key.digest

    same = keys(traced(), 1000)
    assert same == keys(traced(), 1024) == keys(with_choices(traced(), {"attention": {"block_q": 64}}), 600)
    assert same != keys(traced(), 1025)
    assert same != keys(traced("bf16"), 1024)
    assert {name for name, _ in versions()} == {"attn_mlir", "nvcc", "tilelang", "torch"}


def test_a_candidate_that_does_not_end_is_skipped(tmp_path: Any) -> None:
    class Hanging(FakeBench):
        def prepare(self, text: str) -> Callable[[], Any]:
            if self._choices(text)["block_kv"] == 96:
                raise RuntimeError("does not end within 20 s")
            return super().prepare(text)

    assert tuned(Hanging(by_columns), str(tmp_path / "tune.json"))["attention"]["block_kv"] != 96
    (entry,) = json.loads((tmp_path / "tune.json").read_text())["entries"].values()
    assert entry["reasons"]["RuntimeError: does not end within 20 s"] > 0
