"""Libraries made ahead of time for the CPU give the bits that Python gives, and tell what is wrong with their arguments."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from ahead_calls import Loaded
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.tools import attn_ahead

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in (os.environ.get("CXX") or "c++", "g++", "clang++")), reason="needs a C++ compiler"
)
SIZES = [(2, 4, 2, 127, 127), (1, 4, 4, 1, 17), (2, 4, 1, 1, 127), (1, 4, 2, 16, 33), (1, 2, 1, 17, 1100)]
"""B, Hq, Hkv, Sq, Skv: blocks of every kernel that a library has, and sums in several slots."""

slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.125, 0.0625]))
table = torch.nn.Parameter(torch.linspace(-1, 1, 64))
factor = 0.7


def biased(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    distance = (q_idx - kv_idx).clamp(-32, 31) + 32
    return score * factor + slopes[h] * (kv_idx - q_idx) + table[distance]


CAUSAL = attn_mlir.Attention(score_mod=biased, mask_mod=attn_mlir.masks.causal(), return_lse=True)
HALF = attn_mlir.Attention(row=attn_mlir.rows.sigmoid, layout=("bshd", "bhsd"), dropout_p=0.25)


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    made = attn_mlir.compile_ahead(
        CAUSAL, attn_mlir.InputSpec(torch.float32, 24, 16), out=tmp_path_factory.mktemp("ahead") / "libcausal.so"
    )
    assert made.functions == tuple(f"causal_{name}" for name in ("sizes", "forward", "training_forward", "backward", "last_error"))
    return Loaded(made.library, "causal")


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    out = tmp_path_factory.mktemp("ahead") / "libhalf.so"
    assert attn_ahead.main([f"{__file__}:HALF", "-o", str(out), "--dtype", "bf16", "--dim", "32", "--name", "half"]) == 0
    return Loaded(out, "half")


def inputs(sizes: tuple[int, ...], d: int = 24, dv: int = 16) -> list[torch.Tensor]:
    b, hq, hkv, sq, skv = sizes
    return [torch.randn(b, h, s, n, requires_grad=True) for h, s, n in ((hq, sq, d), (hkv, skv, d), (hkv, skv, dv))]


def given(*tensors: torch.Tensor) -> tuple[Any, ...]:
    """The arguments of the library `causal`, in the order of its header."""
    return (*[tensor.detach() for tensor in tensors], factor, slopes.detach(), table.detach())


def nans(*like: torch.Tensor) -> list[torch.Tensor]:
    return [torch.full_like(tensor, torch.nan, requires_grad=False) for tensor in like]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_forward_has_the_bits_of_python(causal: Loaded, sizes: tuple[int, ...]) -> None:
    q, k, v = inputs(sizes)
    with torch.no_grad():
        o, lse = CAUSAL(q, k, v)
    for threads in (1, 2):
        made = nans(o, lse)
        causal.forward(given(q, k, v), made, threads)
        assert torch.equal(made[0], o) and torch.equal(made[1], lse)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gradients_have_the_bits_of_python(causal: Loaded, sizes: tuple[int, ...]) -> None:
    q, k, v = inputs(sizes)
    o, lse = CAUSAL(q, k, v)
    d_o, d_lse = torch.randn_like(o), torch.randn_like(lse)
    wanted = torch.autograd.grad([o, lse], [q, k, v, slopes, table], [d_o, d_lse])
    for threads in (1, 2):
        results, made = nans(o, lse), nans(*wanted)
        saved = causal.training_forward(given(q, k, v), results, threads)
        assert torch.equal(results[0], o) and torch.equal(results[1], lse)
        causal.backward(given(q, k, v), results, saved, [d_o, d_lse], made, threads)
        assert all(torch.equal(a, b) for a, b in zip(made, wanted, strict=True))


def test_gradient_of_a_row_output_may_be_left_out(causal: Loaded) -> None:
    q, k, v = inputs(SIZES[3])
    o, lse = CAUSAL(q, k, v)
    wanted = torch.autograd.grad(o, [q, k, v, slopes, table], torch.ones_like(o))
    results, made = nans(o, lse), nans(*wanted)
    saved = causal.training_forward(given(q, k, v), results)
    causal.backward(given(q, k, v), results, saved, [torch.ones_like(o), None], made)
    assert all(torch.equal(a, b) for a, b in zip(made, wanted, strict=True))


def test_without_keys_or_rows(causal: Loaded) -> None:
    for sizes in ((1, 2, 1, 3, 0), (0, 2, 1, 3, 4), (1, 2, 1, 0, 4)):
        q, k, v = inputs(sizes)
        o, lse = CAUSAL(q, k, v)
        wanted = torch.autograd.grad(o, [q, k, v, slopes, table], torch.ones_like(o))
        results, made = nans(o, lse), nans(*wanted)
        causal.forward(given(q, k, v), results)
        assert torch.equal(results[0], o) and torch.equal(results[1], lse)
        results = nans(o, lse)
        saved = causal.training_forward(given(q, k, v), results)
        causal.backward(given(q, k, v), results, saved, [torch.ones_like(o), None], made)
        assert torch.equal(results[1], lse) and all(torch.equal(a, b) for a, b in zip(made, wanted, strict=True))


def test_strided_tensors_are_read_and_written_where_they_are(causal: Loaded) -> None:
    b, h, s = 2, 4, 21
    packed = torch.randn(b, s, h, 64)
    q, k, v = (packed[..., i : i + n].transpose(1, 2) for i, n in ((0, 24), (24, 24), (48, 16)))
    with torch.no_grad():
        o, lse = CAUSAL(q, k, v)
    room, rows = torch.full((b, s, h, 20), torch.nan), torch.full((h, b, s), torch.nan)
    causal.forward(given(q, k, v), [room[..., 2:18].transpose(1, 2), rows.transpose(0, 1)])
    assert torch.equal(room[..., 2:18].transpose(1, 2), o) and torch.equal(rows.transpose(0, 1), lse)
    assert room[..., :2].isnan().all() and room[..., 18:].isnan().all()


def test_bfloat16_with_dropout_in_another_layout(half: Loaded) -> None:
    q = torch.randn(2, 67, 4, 32, dtype=torch.bfloat16, requires_grad=True)
    k, v = (torch.randn(2, 45, 2, 32, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    o = HALF(q, k, v, dropout_seed=(11, 5))
    grads = torch.randn_like(o)
    wanted = torch.autograd.grad(o, [q, k, v], grads)
    names = {"dropout_seed": 11, "dropout_offset": 5, "dropout_p": 0.25}
    with torch.no_grad():
        again = HALF(q, k, v, dropout_seed=(11, 5))
    found = (q.detach(), k.detach(), v.detach(), *[names[name] for name in _numbers(half)])
    results, made = nans(o), nans(*wanted)
    half.forward(found, results, 2)
    assert torch.equal(results[0], again)
    saved = half.training_forward(found, results, 2)
    assert torch.equal(results[0], o)
    half.backward(found, results, saved, [grads], made, 2)
    assert all(torch.equal(a, b) for a, b in zip(made, wanted, strict=True))


def _numbers(library: Loaded) -> list[str]:
    """The names of the numbers that the header declares, in order."""
    text = next(library.path.parent.glob("*.h")).read_text()
    declared = text[text.index("half_forward(") :].split(")")[0]
    return [part.split()[-1] for part in declared.split(",") if part.strip().startswith(("int64_t", "double"))]


def test_functions_are_symbols_of_tvm_ffi(causal: Loaded) -> None:
    ffi = pytest.importorskip("tvm_ffi", reason="needs apache-tvm-ffi")
    module = ffi.load_module(str(causal.path))
    q, k, v = inputs(SIZES[0])
    o, lse = CAUSAL(q, k, v)
    d_o = torch.randn_like(o)
    wanted = torch.autograd.grad(o, [q, k, v, slopes, table], d_o)
    found, results, made = given(q, k, v), nans(o, lse), nans(*wanted)
    module["causal_forward"](*found, *results)
    assert torch.equal(results[0], o) and torch.equal(results[1], lse)
    saved = torch.empty(module["causal_saved_size"](*found), dtype=torch.uint8)
    module["causal_training_forward"](*found, *results, saved, 2)
    module["causal_backward"](*found, *results, saved, d_o, None, *made, 2)
    assert all(torch.equal(a, b) for a, b in zip(made, wanted, strict=True))
    with pytest.raises(ValueError, match="causal_forward takes 8 arguments, and the number of threads if you like, got 3"):
        module["causal_forward"](*found[:3])
    with pytest.raises(ValueError, match="argument 3 of causal_forward must be a number, its tvm-ffi type is"):
        module["causal_forward"](*found[:3], *found[:1], *found[4:], *results)
    with pytest.raises(TypeError, match="k must be float32"):
        module["causal_forward"](found[0], found[1].double(), *found[2:], *results)


def test_arguments_are_checked(causal: Loaded) -> None:
    q, k, v = (tensor.detach() for tensor in inputs((1, 4, 2, 5, 7)))
    o, lse = torch.empty(1, 4, 5, 16), torch.empty(1, 4, 5)
    numbers = given()

    def refused(message: str, *tensors: Any, results: Any = (o, lse), more: Any = numbers) -> None:
        with pytest.raises(RuntimeError, match=message):
            causal.forward((*tensors, *more), list(results))

    refused("1: k is NULL", q, None, v)
    refused("2: v must be float32; its DLDataType is code 2, 64 bits", q, k, v.double())
    refused("3: q must have 4 dimensions, it has 3", q[0], k, v)
    refused("3: k must have size 24 in dimension 3, it has 16", q, v, v)
    refused("3: v has 7 positions but k has 6", q, k[:, :, :6], v)
    refused("3: q has 3 heads, which is no multiple of the 2 heads of k and v", q[:, :3], k, v)
    refused("3: the batch sizes of q, k and v differ: 1, 2, 1", q, torch.cat([k, k]), v)
    refused("4: .* stride 20 of the head dimension of q is not 1", q.permute(0, 3, 2, 1).contiguous().permute(0, 3, 2, 1), k, v)
    refused("3: o must have size 5 in dimension 2, it has 4", q, k, v, results=(o[:, :, :4], lse))
    refused("4: the last stride of lse must be 1", q, k, v, results=(o, torch.empty(1, 5, 4).transpose(1, 2)))
    refused(
        "3: slopes has size 3 in dimension 0, but it is indexed with h, which runs from 0 to 3",
        q,
        k,
        v,
        more=(factor, slopes.detach()[:3], numbers[2]),
    )
    refused(
        "6: table has size 30 in dimension 0, but is read at .*, which runs over 26..36", q, k, v, more=(*numbers[:2], table.detach()[:30])
    )
    with pytest.raises(RuntimeError, match=r"7: saved has 8 bytes, \d+ are needed"):
        causal.backward((q, k, v, *numbers), [o, lse], torch.empty(8, dtype=torch.uint8), [o, None], [q, k, v, slopes, table])


def test_errors_of_compile_ahead(tmp_path: Path) -> None:
    spec = attn_mlir.InputSpec(torch.float32, 24, 16)
    out = tmp_path / "libx.so"
    with pytest.raises(UnsupportedError, match=r"target 'gfx90b': no backend .*; did you mean 'gfx90a'\? there are: .*gfx90a.*cpu.*sm_90a"):
        attn_mlir.compile_ahead(CAUSAL, spec, "gfx90b", out)
    with pytest.raises(UnsupportedError, match=r"target 'tpu': no backend makes libraries for it; there are: "):
        attn_mlir.compile_ahead(CAUSAL, spec, "tpu", out)
    with pytest.raises(UnsupportedError, match="the C\\+\\+ compiler 'no-such-compiler' is not there: install it"):
        attn_mlir.compile_ahead(CAUSAL, spec, out=out, compiler="no-such-compiler")
    with pytest.raises(ArgumentError, match="wrt names 'scale', but these have a gradient: q, k, v, slopes, table"):
        attn_mlir.compile_ahead(CAUSAL, spec, out=out, wrt=["scale"])
    with pytest.raises(ArgumentError, match="functions cannot be named '1_forward'"):
        attn_mlir.compile_ahead(CAUSAL, spec, out=tmp_path / "lib1.so")
    with pytest.raises(ArgumentError, match="takes an attn_mlir"):
        attn_mlir.compile_ahead(len, spec, out=out)  # type: ignore[arg-type]
    own = attn_mlir.Attention(score_mod=lambda score, b, h, i, j: score + torch.tensor([1.0, 2.0])[h])
    with pytest.raises(UnsupportedError, match=r"`captured` is made by a function while it is traced.*make it outside"):
        attn_mlir.compile_ahead(own, spec, out=out)
    with pytest.raises(UnsupportedError, match="tuned schedules"):
        attn_mlir.compile_ahead(attn_mlir.Attention(tune=True), spec, out=out)
    assert not list(tmp_path.iterdir())


def test_header_is_plain_c_beside_a_dlpack_of_its_own(causal: Loaded, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source = tmp_path / "use.c"
    source.write_text(
        '#include "causal.h"\n#include "causal.h"\nint main(void) { attn_mlir_sizes s; return causal_sizes(0, 0, 0, 0, 0, 0, &s); }\n'
    )
    command = [compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{causal.path.parent}", str(source), str(causal.path)]
    subprocess.run([*command, "-o", str(tmp_path / "use")], check=True)
    library = {**os.environ, "LD_LIBRARY_PATH": str(causal.path.parent)}
    assert subprocess.run([str(tmp_path / "use")], env=library, check=False).returncode == 1


def test_errors_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = tmp_path / "model.py", tmp_path / "libx.so"
    model.write_text("other = 1\n")
    for place, message in (("window", "names no attention"), (f"{model}:absent", "has no 'absent'"), (f"{model}:other", "got int")):
        assert attn_ahead.main([place, "-o", str(out)]) == 1
        assert message in capsys.readouterr().err
    model.write_text("import attn_mlir\nattention, spec = attn_mlir.Attention(), attn_mlir.InputSpec()\n")
    for options, message in (
        (["--dim", "0"], "head_dim is 0"),
        (["--inputs", "spec", "--dtype", "f16"], "leave out --dtype"),
        (["--no-backward", "--wrt", "q"], "backward=False makes none"),
    ):
        assert attn_ahead.main([f"{model}:attention", "-o", str(out), *options]) == 1
        assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (\n", "SyntaxError: '(' was never closed"),
        ("def f():\n    return 1 / 0\nf()\n", "line 2, in f"),
        ("import not_there_at_all\n", "No module named 'not_there_at_all'"),
    ],
)
def test_files_that_cannot_be_loaded(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command tells the user's lines, and none of its own."""
    broken = tmp_path / "broken_file.py"
    broken.write_text(text)
    assert attn_ahead.main([f"{broken}:attention", "-o", str(tmp_path / "libx.so")]) == 1
    told = capsys.readouterr().err
    assert f"{broken} cannot be loaded:" in told and message in told and "attn_ahead.py" not in told
    assert attn_ahead.main([".relative:attention", "-o", str(tmp_path / "libx.so")]) == 1
    assert "write its whole dotted name" in capsys.readouterr().err


documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3]])
shift, by_document = 1, torch.linspace(0, 1, 8, dtype=torch.float64)


def of_documents(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + by_document[documents[b, kv_idx] + shift - 4] + by_document[(q_idx - kv_idx) // shift % 8]


def test_integers_that_choose_what_is_read_are_checked(tmp_path: Path) -> None:
    attention = attn_mlir.Attention(score_mod=of_documents, mask_mod=lambda b, h, i, j: documents[b, i] == documents[b, j])
    made = attn_mlir.compile_ahead(attention, attn_mlir.InputSpec(torch.float64, 8), out=tmp_path / "documents.so", backward=False)
    assert made.functions == ("documents_sizes", "documents_forward", "documents_last_error")
    header = made.header.read_text()
    assert "int64_t: not 0; 1 when the library was made" in header
    given = {"documents": documents, "documents_1": documents, "shift": shift, "by_document": by_document}
    declared = [part.split()[-1].strip("*") for part in header[header.index("documents_forward(") :].split(")")[0].split(",")]
    library = Loaded(made.library, "documents")
    q = torch.randn(1, 2, 19, 8, dtype=torch.float64)

    def run(**changed: Any) -> torch.Tensor:
        o = torch.empty_like(q)
        library.forward((q, q, q, *[{**given, **changed}[name] for name in declared if name in given]), [o])
        return o

    assert torch.equal(run(), attention(q, q, q))
    many = documents.expand(1, 19).contiguous()
    many[0, 7] = 11  # 11 + 1 - 4 is 8
    with pytest.raises(RuntimeError, match=r"6: by_document has size 8 in dimension 0, but is read at documents.*, which runs over -3..8"):
        run(documents=many)
    with pytest.raises(RuntimeError, match="6: shift is 0, and a function divides by it"):
        run(shift=0)
    with pytest.raises(RuntimeError, match="3: documents has size 18 in dimension 1, but it is indexed with"):
        run(documents=documents[:, :18])
