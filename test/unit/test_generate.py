"""attn-generate: names, filters and files; kernels are those of the Python API; the built library finds instances and tells of mistakes."""

import ctypes
import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import attn_mlir
from ahead_calls import dl
from attn_mlir import driver
from attn_mlir.backends.amd import driver as amd
from attn_mlir.backends.cpu import driver as cpu
from attn_mlir.backends.cpu import program as cpu_program
from attn_mlir.backends.gpu.ahead.build import kernel_source
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import driver as nvidia
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.tools import attn_generate
from attn_mlir.tools.generate import Instance
from attn_mlir.tools.generate.listed import usual
from generate_calls import MISSING, Library, build, generated, needs_cmake

_EXAMPLE = Path(__file__).parents[2] / "examples/generate"
_INSTANCES = Path(__file__).with_name("generate_instances.py")


def hashes(manifest: dict[str, Any], number: int = 0) -> set[str]:
    return {kernel["sha256"] for kernel in manifest["instances"][number]["kernels"]}


def test_names_are_unique_and_tell_the_traits() -> None:
    for target in ("cpu", "sm_90a"):
        names = [each.name for each in usual(target)]
        assert len(set(names)) == len(names) > 500
    name = Instance("bwd", "bf16", 128, 64, mask="b:128,0,4", bias="e:1", bias_gradient=True, dropout=True, soft_cap=True).name
    assert name == "fmha_bwd_d128x64_bf16_batch_bhsd_softmax_logits_bias1_mblrs_nlse_dbias_dropout_ndeterministic"
    kinds = {
        mask: Instance(mask=mask).mask_kind
        for mask in ("0", "1", "t", "2", "b:-1,0", "t:4,-1", "t:-1,4", "xb:7", "xt:0", "g:4,4", "t:-1,-1")
    }
    assert list(kinds.values()) == ["0", "t", "t", "b", "b", "tl", "tr", "blr", "t", "tlr", "0"]
    assert Instance(mask="t:-1,-1", bias="a").mask_kind == "tn"  # ALiBi's distances are from the top left


def test_what_is_no_instance_is_told() -> None:
    def refused(message: str, kind: type[Exception] = ArgumentError, **traits: Any) -> None:
        with pytest.raises(kind, match=message):
            Instance(**traits)

    refused("dtype of an instance is one of .*, got 'fp15'; did you mean 'fp16'", dtype="fp15")
    refused("direction of an instance is one of fwd, bwd, got 'both'", direction="both")
    refused("row of an instance is a function or one of .*; did you mean 'softmax'", row="sofmax")
    refused("unknown mask 'b:1'", mask="b:1")
    refused("-bias is n, e", bias="x")
    refused("layout of an instance", layout="hdsb")
    refused("head_dim", head_dim=0)
    refused("has a variant", row=lambda s: s)
    refused("and another one has none", variant="mine")
    refused("score_mod takes the place of bias", score_mod=lambda s, b, h, q, k: s, bias="e", variant="mine")
    refused("mask_mod takes the place of mask", mask_mod=lambda b, h, q, k: q > k, mask="t", variant="mine")
    refused("traits of a backward pass", deterministic=True)
    refused("bias_gradient without a bias", direction="bwd", bias_gradient=True)
    refused("row 'relu' has no lse", UnsupportedError, row="relu", lse=True)


def test_mistakes_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(message: str, *arguments: str) -> None:
        assert attn_generate.main(list(arguments)) == 1
        assert message in capsys.readouterr().err

    refused("the filter 'fmha_fwd_d65*' matches none of ", "--filter", "fmha_fwd_d65*", "--list")
    refused("'*_mblr_*' matches ", "--filter", "_mblr_", "--list")
    refused("no backend makes libraries for it; did you mean 'sm_90a'", "--target", "sm_90b", "--list")
    refused("--name '8x' is no name", "--name", "8x", "--list")
    refused("name the folder of the project with --out", "--filter", "fmha_fwd_d32_fp32_*_nmask_*")
    refused("--jobs is a number of processes", "-j0", "--list")
    file = tmp_path / "own.py"
    file.write_text("instances = [3]\n")
    refused("has no list of instances", "--instances", str(file), "--list")
    (tmp_path / "twice.py").write_text("from attn_mlir.tools.generate import Instance\ninstances = [Instance(), Instance(mask='0')]\n")
    refused("two instances with the same traits, fmha_fwd_d128_fp16", "--instances", str(tmp_path / "twice.py"), "--list")
    refused("has no 'mine'", "--instances", f"{file}:mine", "--list")
    (tmp_path / "CMakeLists.txt").write_text("")
    refused("it is no folder of attn-generate", "--out", str(tmp_path), "--filter", "fmha_fwd_d32_*_mt_nlse_ndropout", "-j1")
    two = tmp_path / "refused.py"
    two.write_text(
        "import torch\nfrom attn_mlir.tools.generate import Instance\nleft = torch.ones(1)\n"
        "own = lambda s, b, h, q, k: s * left[0]\ninstances = [Instance(mask='t:1,1', score_mod=own, variant='own')]\n"
    )
    refused("a function captures 'left', as the instance does itself", "--instances", str(two), "--out", str(tmp_path / "o"), "--quiet")
    assert not (tmp_path / "o/CMakeLists.txt").exists()


def test_files_that_stay_the_same_keep_their_time_and_others_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several processes write what one does."""
    both = "fmha_fwd_d32_fp32_batch_bhsd_softmax_nlogits_nbias_m[tb]_nlse_ndropout"
    first = generated(tmp_path, "--filter", both)
    assert len(first["instances"]) == 2 and (tmp_path / "attn_fmha.h").exists()
    times = {file: (tmp_path / file).stat().st_mtime_ns for file in first["files"]}
    assert attn_generate.main(["--filter", both, "--out", str(tmp_path), "-j2"]) == 0
    assert "2 instances, 16 files, 0 of them written, 0 removed" in capsys.readouterr().out
    assert times == {file: (tmp_path / file).stat().st_mtime_ns for file in first["files"]}
    (tmp_path / "kernels/own.txt").write_text("not of attn-generate")
    second = generated(tmp_path, "--filter", "fmha_fwd_d32_fp32_batch_bhsd_softmax_nlogits_nbias_mt_nlse_ndropout")
    gone = set(first["files"]) - set(second["files"])
    assert len(gone) == 5 and not any((tmp_path / file).exists() for file in gone) and (tmp_path / "kernels/own.txt").exists()
    kept = [file for file in second["files"] if file.startswith(("kernels/", "instances/", "runtime/"))]
    assert all((tmp_path / file).stat().st_mtime_ns == times[file] for file in kept)
    for kernel in second["instances"][0]["kernels"]:
        assert hashlib.sha256((tmp_path / kernel["file"]).read_bytes()).hexdigest() == kernel["sha256"]


def test_kernels_are_those_that_python_runs_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward by its four kernels, and backward with the gradient of the bias; other lengths and numbers than those that were traced."""
    file = tmp_path / "two.py"
    file.write_text(
        "from attn_mlir.tools.generate import Instance\ncommon = dict(dtype='fp32', head_dim=16, mask='b:1,1', bias='e:1')\n"
        "instances = [Instance(**common, lse=True), Instance('bwd', **common, bias_gradient=True)]\n"
    )
    manifest = generated(tmp_path / "o", "--instances", str(file))
    seen: set[str] = set()

    def recorded(load: Callable[..., Any]) -> Callable[..., Any]:
        def run(module: Any, names: Any) -> Any:
            seen.add(hashlib.sha256(str(module).encode()).hexdigest())
            return load(module, names)

        return run

    monkeypatch.setenv("ATTN_MLIR_CACHE", "off")
    for module, kept in ((cpu, "_KERNELS"), (cpu_program, "_PROGRAMS")):
        monkeypatch.setattr(module, "load_workers", recorded(module.load_workers))
        monkeypatch.setattr(module, kept, {})
    bias = torch.randn(1, 4, 40, 70, requires_grad=True)

    def call(heads: int, rows: int, lse: bool) -> Any:
        q, k, v = torch.randn(2, heads, rows, 16), torch.randn(2, 2, 70, 16), torch.randn(2, 2, 70, 16)
        mod, mask = attn_mlir.mods.bias(bias), attn_mlir.masks.parse("b:9,3")
        if not lse:
            q, k, v = (x.requires_grad_() for x in (q, k, v))
        return attn_mlir.attention(q, k, v, score_mod=mod, mask_mod=mask, scale=0.3, return_lse=lse)

    with torch.no_grad():
        for heads, rows in ((4, 40), (4, 1), (2, 3), (2, 1)):
            call(heads, rows, True)
    assert seen == hashes(manifest, 0)
    seen.clear()
    call(4, 40, False).sum().backward()
    assert seen == hashes(manifest, 1)


def test_kernels_for_gpus_are_those_of_python(tmp_path: Path) -> None:
    """The text that a call in Python compiles, through the drivers of both vendors."""
    file = tmp_path / "half.py"
    file.write_text("from attn_mlir.tools.generate import Instance\ninstances = [Instance('fwd', 'fp16', 64, mask='t:1,0', lse=True)]\n")
    texts: list[str] = []
    compile_ = driver.compile
    with mock.patch.object(driver, "compile", lambda text, device: (texts.append(text), compile_(text, device))[1]):
        q, k, v = torch.randn(3, 1, 2, 3, 64).half()
        attn_mlir.attention(q, k, v, mask_mod=attn_mlir.masks.parse("t:7,0"), scale=0.2, return_lse=True)
    assert len(texts) == 1
    for target, suffix, kernel in (
        ("sm_90a", "cu", nvidia.compile_module(texts[0])),
        ("gfx90a", "hip", amd.compile_module(texts[0], "hip-emulated")),
    ):
        manifest = generated(tmp_path / target, "--instances", str(file), "--target", target)
        sources = {unit.code.source for unit in kernel.program.units.values()}
        assert hashes(manifest) == {hashlib.sha256(source.encode()).hexdigest() for source in sources}
        made = manifest["instances"][0]["kernels"][0]
        assert made["file"].endswith(f".{suffix}") and made["threads"] and made["shared_bytes"] > 0
        assert f"attn_kernel({Path(made['file']).name} {made['code']}" in (tmp_path / target / "instances.cmake").read_text()


def test_what_a_target_has_no_kernels_for_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "large.py"
    file.write_text("from attn_mlir.tools.generate import Instance\ninstances = [Instance('bwd', 'fp16', 512), Instance(dtype='fp32')]\n")
    assert attn_generate.main(["--instances", str(file), "--target", "sm_90a", "--out", str(tmp_path / "o"), "-j1", "--quiet"]) == 1
    told = capsys.readouterr().err
    assert "fmha_bwd_d512_fp16" in told and "take matrix products of torch" in told
    assert "kernels for NVIDIA GPUs take 16-bit inputs" in told and "2 of 2 instances cannot be made" in told
    assert not (tmp_path / "o/CMakeLists.txt").exists()
    code = KernelCode("attention", "attention", "", (), 128, 0, language="tilelang", includes=("tilelang",))
    with pytest.raises(UnsupportedError, match="is made by TileLang and includes its headers"):
        kernel_source("x", "x_online_attention", code)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build folder of the example with the instances of these tests, as a shared library."""
    if MISSING:
        pytest.skip(f"needs {', '.join(MISSING)}")
    folder = tmp_path_factory.mktemp("generated")
    generated(folder / "sources", "--instances", str(_INSTANCES))
    refused = subprocess.run(
        ["cmake", "-S", _EXAMPLE, "-B", folder / "build", f"-DATTN_GENERATED={folder}"], capture_output=True, text=True, check=False
    )
    assert refused.returncode and "attn_fmha.h" in refused.stderr
    build(_EXAMPLE, folder / "build", f"-DATTN_GENERATED={folder / 'sources'}")
    return folder / "build"


@pytest.fixture(scope="module")
def library(built: Path) -> Library:
    return Library(built / "attn_fmha/libattn_fmha.so")


@needs_cmake
def test_the_example_in_cpp_agrees_with_the_formula_in_double(built: Path, library: Library) -> None:
    """Odd lengths, grouped heads, fully masked rows, forward and backward, and an instance with functions of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
    ran = subprocess.run([built / "program"], capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count(": right") == 23 and "WRONG" not in ran.stdout
    assert "error 65: attn_fmha has no instance of a forward pass" in ran.stdout and "has mask 'blr' (not 't')" in ran.stdout
    manifest = json.loads((built.parent / "sources/manifest.json").read_text())
    assert library.names() == [each["name"] for each in manifest["instances"]]


@needs_cmake
def test_a_second_build_makes_nothing_and_a_change_only_its_own(built: Path) -> None:
    assert attn_generate.main(["--instances", str(_INSTANCES), "--out", str(built.parent / "sources"), "-j1", "--quiet"]) == 0
    again = subprocess.run(["cmake", "--build", built], capture_output=True, text=True, check=True).stdout
    assert "Compiling" not in again and "Building" not in again
    kernel = next((built.parent / "sources/kernels").glob("*_mblr_lse_ndropout.usual.mlir"))
    os.utime(kernel)
    changed = subprocess.run(["cmake", "--build", built], capture_output=True, text=True, check=True).stdout
    assert changed.count("Compiling the kernels of") == 1 and "Building" not in changed


_CAPPED = {"dtype": "fp32", "head_dim": 16, "layout": "bshd", "soft_cap": 1, "dropout": 1}


@needs_cmake
@pytest.mark.parametrize(("rows", "keys", "heads"), [(1, 17, 2), (1, 127, 4), (17, 1, 4), (127, 1000, 4)])
def test_numbers_of_a_call_give_the_bits_of_python(library: Library, rows: int, keys: int, heads: int) -> None:
    """Cap, scale, dropout and the window's limits are those of the call, not those that were generated; strides are the caller's."""
    q, k, v = torch.randn(2, heads, rows, 16).transpose(1, 2), *torch.randn(2, 2, keys, 2, 16)
    for mask in ("t:5,3,2", "t:900,0,1", "t:0,40,4"):
        o = torch.full((2, rows, heads, 16), torch.nan)
        numbers = {"scale": 0.4, "soft_cap": 3.0, "dropout_p": 0.3, "dropout_seed": 11, "dropout_offset": 5}
        assert library.call("fwd", {**_CAPPED, "mask": mask}, q=q, k=k, v=v, o=o, **numbers) == (0, "")
        wanted = attn_mlir.attention(
            q, k, v, score_mod=attn_mlir.mods.softcap(3.0), mask_mod=mask, scale=0.4, layout="bshd", dropout_p=0.3, dropout_seed=(11, 5)
        )
        assert torch.equal(o, wanted)


_BIASED = {"dtype": "fp32", "head_dim": 16, "mask": "b:30,0", "bias": "e:1", "bias_gradient": 1, "lse": 1}


def _biased(rows: int, keys: int) -> dict[str, Any]:
    made = {"q": torch.randn(2, 4, rows, 16), "k": torch.randn(2, 2, keys, 16), "v": torch.randn(2, 2, keys, 16)}
    return {**made, "bias": torch.randn(1, 4, rows, keys)}


@needs_cmake
@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (17, 127), (127, 17)])
def test_gradients_and_that_of_the_bias_against_float64(library: Library, rows: int, keys: int) -> None:
    """With fully masked rows where there are more queries than keys; memory is full of NaN before."""
    given = _biased(rows, keys)
    made = {name: torch.full_like(tensor, torch.nan) for name, tensor in given.items()}
    results: dict[str, Any] = {"o": torch.full((2, 4, rows, 16), torch.nan), "lse": torch.full((2, 4, rows), torch.nan)}
    sizes = library.sizes(_BIASED, **given)
    saved = torch.full((max(1, sizes.saved),), 255, dtype=torch.uint8)
    d_o, d_lse = torch.randn(2, 4, rows, 16), torch.randn(2, 4, rows)
    assert library.call("training_fwd", _BIASED, **given, **results, saved=saved) == (0, "")
    gradients: dict[str, Any] = {f"d_{name}": tensor for name, tensor in made.items()}
    assert library.call("bwd", _BIASED, **given, **results, saved=saved, d_o=d_o, d_lse=d_lse, **gradients) == (0, "")

    q, k, v, bias = (tensor.double().requires_grad_() for tensor in given.values())
    distance = torch.arange(keys)[None] - torch.arange(rows)[:, None] - (keys - rows)
    kept = (distance <= 0) & (distance >= -30)
    scores = torch.where(kept, q @ k.repeat_interleave(2, 1).transpose(2, 3) / 4 + bias, -torch.inf)
    some = kept.any(1)[:, None]
    weights = torch.where(some, torch.where(some, scores, 0.0).softmax(-1), 0.0)
    o, lse = weights @ v.repeat_interleave(2, 1), torch.where(some, scores, 0.0).logsumexp(-1)
    torch.testing.assert_close(results["o"].double(), o, atol=2e-6, rtol=2e-5)
    torch.testing.assert_close(results["lse"].double(), torch.where(some[:, 0], lse, -torch.inf), atol=2e-6, rtol=2e-5)
    wanted = torch.autograd.grad((o * d_o).sum() + (lse * d_lse * some[:, 0]).sum(), (q, k, v, bias))
    for found, expected in zip(made.values(), wanted, strict=True):
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-4)


@needs_cmake
def test_masks_as_strings_find_their_instance(library: Library) -> None:
    traits = {"dtype": "fp32", "head_dim": 32, "lse": 1}
    for mask in ("b:64,0", "b:1,2", "xb:7", "b:+3,1", "b:99999999999999999999,4"):
        assert library.find(mask=mask, **traits).endswith("_mblr_lse_ndropout"), mask
        assert Instance(mask=mask).mask_kind == "blr"
    for mask in ("0", "1", "t", "2", "b", "t:4,0", "b:-1,3", "b:4,-1", "b:4,0,1", "xt:7", "xb:0", "g:4,4", "b:-1,-1"):
        assert library.find(mask=mask, **traits) == "", mask
        kind = Instance(mask=mask).mask_kind
        assert f"has mask 'blr' (not '{kind}')" in library.message()
    for mask in ("", "c", "b:", "b:1", "b:1,", "b:1,2,", "b:1,2,3,4", "b:1;2", "xb:", "b:4,0,-1", "g:1,0", "t ", "b:1, 2", "b:--1,2"):
        assert library.find(mask=mask, **traits) == "" and f"unknown mask '{mask}'" in library.message()
        with pytest.raises(ArgumentError):
            attn_mlir.masks.parse(mask)


@needs_cmake
def test_mistakes_in_traits_and_arguments_are_told(library: Library) -> None:
    given = _biased(5, 9)
    window = {"dtype": "fp32", "head_dim": 32, "mask": "b:4,0", "lse": 1}
    q, k, v = (torch.randn(1, 2, n, 32) for n in (5, 9, 9))
    good: dict[str, Any] = {"q": q, "k": k, "v": v, "o": torch.zeros(1, 2, 5, 32), "lse": torch.zeros(1, 2, 5)}
    assert library.call("fwd", window, **good) == (0, "")

    def refused(code: int, message: str, traits: dict[str, Any] = window, function: str = "fwd", **changed: Any) -> None:
        before = good["o"].clone()
        found = library.call(function, traits, **{**good, **changed})
        assert found[0] == code and message in found[1], found
        assert torch.equal(good["o"], before)

    refused(64, "unknown dtype 'fp15'", {**window, "dtype": "fp15"})
    refused(64, "unknown bias 'e:3'", {**window, "bias": "e:3"})
    refused(64, "unknown layout 'hdsb'", {**window, "layout": "hdsb"})
    refused(64, "head_dim 0 and value_dim 0 must be positive", {"dtype": "fp32"})
    refused(1, "traits.dtype is NULL", {"head_dim": 32})
    refused(65, "has dtype 'fp32' (not 'fp16'), head_dim '32' (not '64')", {**window, "dtype": "fp16", "head_dim": 64})
    refused(65, "has row 'softmax' (not 'sofmax')", {**window, "row": "sofmax"})
    refused(65, "no instance of a backward pass", {**window, "mask": "t"}, "bwd")
    refused(1, "q is NULL", q=None)
    refused(1, "lse is NULL", lse=None)
    refused(2, "k must be float32", k=k.double())
    refused(3, "v has 8 positions but k has 9", v=v[:, :, :8])
    refused(3, "o must have size 5 in dimension 2, it has 4", o=torch.zeros(1, 2, 4, 32))
    refused(3, "q must have size 32 in dimension 3, it has 16", q=torch.randn(1, 2, 5, 16))
    refused(3, "q has 3 heads, which is no multiple of the 2 heads", q=torch.randn(1, 3, 5, 32))
    refused(4, "stride 2 of the head dimension of k is not 1", k=torch.randn(1, 2, 9, 64)[..., ::2])
    odd = torch.zeros(q.numel() * 4 + 1, dtype=torch.uint8)
    pointer = dl(q)
    pointer.data = odd.data_ptr() + 1
    refused(4, "the address of q is no multiple of 4 bytes", q=ctypes.pointer(pointer))
    refused(6, "o overlaps v in memory", o=v[:, :, :5])
    own = {"dtype": "fp32", "head_dim": 32, "value_dim": 16, "row": "own", "variant": "cubed"}
    refused(1, "needs 'weights', which is not among args.values", own, v=torch.randn(1, 2, 9, 16), o=torch.zeros(1, 2, 5, 16))
    refused(1, "args.values is NULL, and args.value_count 2", own, value_count=2)
    biased = {**given, "o": torch.zeros(2, 4, 5, 16), "lse": torch.zeros(2, 4, 5)}
    refused(1, "bias is NULL", _BIASED, "training_fwd", **{**biased, "bias": None})
    refused(
        3,
        "bias has size 8 in dimension 3, but it is indexed with kv_idx",
        _BIASED,
        "training_fwd",
        **{**biased, "bias": torch.zeros(1, 4, 5, 8)},
    )
    refused(6, "dropout_p must lie between 0 and 1, it is 2", {**_CAPPED, "mask": "t:1,1,1"}, dropout_p=2.0,
            q=torch.randn(1, 5, 2, 16), k=torch.randn(1, 9, 2, 16), v=torch.randn(1, 9, 2, 16), o=torch.zeros(1, 5, 2, 16))  # fmt: skip
