"""What libraries made ahead of time, and `compile_ahead`, refuse; names that C keeps to itself; tensors of many dimensions."""

import ctypes
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from ahead_calls import Loaded, dl, plain_host
from attn_mlir.backends.ahead import link
from attn_mlir.errors import ArgumentError, CompileError

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in (os.environ.get("CXX") or "c++", "g++", "clang++")), reason="needs a C++ compiler"
)
SPEC = attn_mlir.InputSpec(torch.float32, 8)
library, given, nullptr, size_t, d_q = (torch.nn.Parameter(torch.randn(2)) for _ in range(5))
made = torch.tensor([200, 3], dtype=torch.uint8)
deep = torch.nn.Parameter(torch.randn((2,) * 11))


def named(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * deep[(h,) * 11] + library[h] + given[h] * nullptr[h] + size_t[h] * (q_idx - kv_idx) + d_q[h] * kv_idx + made[h]


NAMED = attn_mlir.Attention(score_mod=named)
ARGUMENTS: tuple[Any, ...] = (deep, library, given, nullptr, size_t, d_q, made)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """A library that the compiler instruments: undefined behaviour of the host's part ends the process."""
    folder = tmp_path_factory.mktemp("ahead")
    (folder / "probe.cpp").write_text("int main() {}\n")
    check = ["-fsanitize=undefined", "-fno-sanitize-recover=undefined"]
    compiler = next(name for name in (os.environ.get("CXX") or "c++", "g++", "clang++") if shutil.which(name))
    command = [str(compiler), *check]
    works = subprocess.run([*command, str(folder / "probe.cpp"), "-o", str(folder / "probe")], capture_output=True, check=False)
    instrumented = " ".join(command) if works.returncode == 0 else None
    with plain_host():  # in which nothing undefined is optimised away
        found = attn_mlir.compile_ahead(NAMED, SPEC, out=folder / "libnamed.so", compiler=instrumented)
    return Loaded(found.library, "named")


def problem(sq: int = 5, skv: int = 7) -> list[torch.Tensor]:
    return [torch.randn(1, heads, s, 8, requires_grad=True) for heads, s in ((2, sq), (1, skv), (1, skv))]


def plain(*tensors: Any) -> tuple[Any, ...]:
    return tuple(tensor.detach() for tensor in (*tensors, *ARGUMENTS))


def test_names_of_c_and_tensors_of_many_dimensions(loaded: Loaded) -> None:
    header = (loaded.path.parent / "named.h").read_text()
    for name in ("*library_,", "*given_,", "*nullptr_,", "*size_t_,", "*captured_d_q,", "*d_captured_d_q,", "made_  ", "uint8, sizes"):
        assert name in header, name
    q, k, v = problem(17, 33)
    o = NAMED(q, k, v)
    d_o = torch.randn_like(o)
    wanted = torch.autograd.grad(o, [q, k, v, *ARGUMENTS[:-1]], d_o)
    results = [torch.full_like(o, torch.nan)]
    grads = [torch.full_like(each, torch.nan) for each in wanted]
    saved = loaded.training_forward(plain(q, k, v), results)
    loaded.backward(plain(q, k, v), results, saved, [d_o], grads)
    assert torch.equal(results[0], o) and all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))


def test_results_that_overlap_are_refused(loaded: Loaded) -> None:
    q, k, v = (tensor.detach() for tensor in problem(7, 7))
    room = torch.zeros(1, 2, 7, 32)
    for o, message in (
        (q, "6: o overlaps q in memory: results need memory of their own"),
        (torch.zeros(8).expand(1, 2, 7, 8), "4: elements of o lie over one another"),
        (torch.as_strided(torch.zeros(200), (1, 2, 7, 8), (112, 56, 7, 1)), "4: elements of o lie over one another"),
    ):
        with pytest.raises(RuntimeError, match=message):
            loaded.forward(plain(q, k, v), [o])
    # In the gaps of a tensor others may lie.
    inside, o = room[..., :8], room[..., 8:16]
    inside.copy_(q)
    loaded.forward(plain(inside, k, v), [o])
    assert torch.equal(o, NAMED(q, k, v).detach()) and torch.equal(inside, q)
    results = [torch.zeros_like(q)]
    saved = loaded.training_forward(plain(q, k, v), results)
    d_o = torch.ones_like(q)
    more = [torch.zeros_like(each) for each in ARGUMENTS[:-1]]
    for grads, message in (
        ([d_o, torch.zeros_like(k), torch.zeros_like(v)], "6: d_q overlaps d_o"),
        ([torch.zeros_like(q), torch.zeros_like(k), v], "6: d_v overlaps v"),
    ):
        with pytest.raises(RuntimeError, match=message):
            loaded.backward(plain(q, k, v), results, saved, [d_o], [*grads, *more])


def test_sizes_that_no_memory_has_are_refused(loaded: Loaded) -> None:
    q, k, v = (tensor.detach() for tensor in problem())
    large = dl(q)
    large.data, large.strides = None, None
    for i, size in enumerate((2**30, 2**22, 2**12)):  # times 8: 2**67, which 64 bits call 0
        large.shape[i] = size
    with pytest.raises(RuntimeError, match="3: q has more elements than memory can hold"):
        loaded.forward((large, *plain(q, k, v)[1:]), [q])
    for i, size in enumerate((0, 2**31 - 1, 2**31 - 1)):  # no elements, but strides that no number holds
        large.shape[i] = size
    with pytest.raises(RuntimeError, match="3: q has more elements than memory can hold"):
        loaded.sizes(large, *plain(q, k, v)[1:])
    far = dl(q)
    far.strides[2] = 2**62
    with pytest.raises(RuntimeError, match="4: stride 4611686018427387904 of q reaches beyond all memory"):
        loaded.forward((far, *plain(q, k, v)[1:]), [q])


def test_names_of_files_with_commas(tmp_path: Path) -> None:
    """The linker splits what -Wl hands over at commas."""
    out = tmp_path / "lib a,b.so"
    link.link(
        link.find_compiler(None),
        {"host": 'extern "C" __attribute__((visibility("default"))) int seven() { return 7; }\n'},
        {},
        ["seven"],
        out,
    )
    assert ctypes.CDLL(str(out)).seven() == 7


def test_sizes_read_no_data(loaded: Loaded) -> None:
    tensors = [dl(tensor) for tensor in plain(*problem())]
    wanted = loaded.sizes(*plain(*problem()))
    for tensor in tensors:
        tensor.data = None
    found = loaded.sizes(*tensors)
    assert found.backward_workspace == wanted.backward_workspace > 0 and found.saved == wanted.saved
    with pytest.raises(RuntimeError, match="1: the data of q is NULL"):
        loaded.forward(tuple(tensors), [problem()[0].detach()])


@pytest.mark.parametrize("threads", [-3, 2**31 - 1])
def test_numbers_of_threads_that_no_system_has(loaded: Loaded, threads: int) -> None:
    q, k, v = problem(700, 700)
    o, saved = torch.full_like(q, torch.nan, requires_grad=False), None
    saved = loaded.training_forward(plain(q, k, v), [o], threads)
    grads = [torch.full_like(each, torch.nan, requires_grad=False) for each in (q, k, v, *ARGUMENTS[:-1])]
    loaded.backward(plain(q, k, v), [o], saved, [torch.ones_like(o)], grads, threads)
    wanted = torch.autograd.grad(NAMED(q, k, v).sum(), [q, k, v, *ARGUMENTS[:-1]])
    assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))


def test_negative_strides_unaligned_views_and_threads(loaded: Loaded) -> None:
    q, k, v = (tensor.detach() for tensor in problem(17, 19))
    wanted = NAMED(q, k, v).detach()
    turned = dl(k.flip(2).contiguous())
    backwards = k.flip(2).contiguous()
    turned = dl(backwards)
    turned.data, turned.strides[2] = backwards[:, :, -1].data_ptr(), -8
    odd = torch.zeros(q.numel() + 1)[1:].view_as(q)
    odd.copy_(q)
    shifted = dl(odd)
    shifted.data, shifted.byte_offset = odd.data_ptr() - 4, 4
    o = torch.full_like(q, torch.nan)
    loaded.forward((shifted, turned, *plain(q, k, v)[2:]), [o])
    assert torch.equal(o, wanted)
    shifted.byte_offset = 6
    with pytest.raises(RuntimeError, match="4: the address of q is no multiple of 4 bytes"):
        loaded.forward((shifted, turned, *plain(q, k, v)[2:]), [o])

    def run(number: int) -> bool:
        mine = torch.full_like(q, torch.nan)
        bad = number % 2 == 1  # errors are those of the thread
        try:
            loaded.forward(plain(q, k[:, :, :-1] if bad else k, v), [mine])
        except RuntimeError as error:
            return bad and "v has 19 positions but k has 18" in str(error)
        return not bad and torch.equal(mine, wanted)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(64)))


def test_too_small_workspaces(loaded: Loaded) -> None:
    q, k, v = (tensor.detach() for tensor in problem(33, 65))
    need = loaded.sizes(*plain(q, k, v))
    saved, o = torch.zeros(need.saved, dtype=torch.uint8), torch.zeros_like(q)
    work = torch.zeros(need.backward_workspace, dtype=torch.uint8)
    grads = [torch.zeros_like(each) for each in (q, k, v, *ARGUMENTS[:-1])]
    kept = [ctypes.c_void_p(saved.data_ptr()), ctypes.c_size_t(need.saved)]
    space = [ctypes.c_void_p(work.data_ptr()), ctypes.c_size_t(1), None, ctypes.c_int32(1)]
    with pytest.raises(RuntimeError, match=r"7: the workspace has \d+ bytes, \d+ are needed"):
        loaded._call("backward", [*plain(q, k, v), o, *kept, o.clone(), *grads, *space])
    inside = [kept[0], ctypes.c_size_t(need.backward_workspace), *space[2:]]
    with pytest.raises(RuntimeError, match="6: workspace overlaps saved"):
        loaded._call("backward", [*plain(q, k, v), o, *kept, o.clone(), *grads, *inside])


def test_two_libraries_of_one_name(loaded: Loaded, tmp_path: Path) -> None:
    other = attn_mlir.Attention(row=attn_mlir.rows.sigmoid)
    found = attn_mlir.compile_ahead(other, SPEC, out=tmp_path / "libnamed.so", backward=False)
    q, k, v = (tensor.detach() for tensor in problem())
    a, b = torch.zeros_like(q), torch.zeros_like(q)
    Loaded(found.library, "named").forward((q, k, v), [a])
    loaded.forward(plain(q, k, v), [b])
    assert torch.equal(a, other(q, k, v)) and torch.equal(b, NAMED(q, k, v).detach())


def test_places_and_names_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "folder.so").mkdir()
    (tmp_path / "file").write_text("")
    plain = attn_mlir.Attention()
    for out, message in (
        ("folder.so", "is a folder: name a file"),
        ("file/libx.so", "the folder .*file cannot be made"),
        ("x.h", "the header would be written over the library"),
        ("libmath.so", "the header would be math.h, and hide the system's: give another name="),
    ):
        with pytest.raises(ArgumentError, match=message):
            attn_mlir.compile_ahead(plain, SPEC, out=tmp_path / out)
    for size in ("8", 8.0, True):
        with pytest.raises(ArgumentError, match="head_dim must be an integer"):
            attn_mlir.compile_ahead(plain, attn_mlir.InputSpec(torch.float32, size), out=tmp_path / "x.so")  # type: ignore[arg-type]
    for out in (None, 3, "", "/", "x\0.so", b"x.so"):
        with pytest.raises(ArgumentError, match="out is the path of the library's file"):
            attn_mlir.compile_ahead(plain, SPEC, out=out)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="file has more than 200 bytes"):
        attn_mlir.compile_ahead(plain, SPEC, out=tmp_path / f"{'x' * 300}.so")
    with pytest.raises(ArgumentError, match="more than 200 letters"):
        attn_mlir.compile_ahead(plain, SPEC, out=tmp_path / "x.so", name="x" * 300)
    with pytest.raises(ArgumentError, match="functions cannot be named"):
        attn_mlir.compile_ahead(plain, SPEC, out=tmp_path / "x.so", name=3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="wrt names 'made_'"):
        attn_mlir.compile_ahead(NAMED, SPEC, out=tmp_path / "x.so", wrt=["d_q", "made_"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrt": ["q"], "backward": False}, "backward=False makes none"),
        ({"wrt": 3}, r"wrt is a list of names such as \['q', 'k', 'v'\], got 3"),
        ({"wrt": [["q"]]}, "wrt is a list of names"),
        ({"wrt": []}, "wrt is a list of names"),
        ({"target": None}, "target is a string, one of .*cpu.*; got NoneType"),
        ({"target": ["cpu"]}, "target is a string"),
        ({"compiler": 3}, "compiler is the command of a C.. compiler, such as 'g..', got int"),
        ({"compiler": "g++ '"}, "cannot be read: No closing quotation"),
        ({"inputs": attn_mlir.InputSpec([1])}, r"dtype is \[1\]: use float32"),  # type: ignore[arg-type]
    ],
)
def test_arguments_of_other_types(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        attn_mlir.compile_ahead(attn_mlir.Attention(), **{"inputs": SPEC, "out": tmp_path / "x.so", **options})


def test_a_spec_of_recurrences_with_offsets_of_no_type(tmp_path: Path) -> None:
    for spec in (attn_mlir.LinearSpec(cu_seqlens=[1]), attn_mlir.LinearSpec(dtype=[1])):  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match=r"(cu_seqlens|dtype) is "):
            attn_mlir.compile_ahead(attn_mlir.LinearAttention(), spec, out=tmp_path / "x.so")


def test_a_compiler_in_a_folder_with_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "of mine"
    folder.mkdir()
    (folder / "c++").symlink_to(shutil.which("c++") or shutil.which("g++") or "/nowhere")
    assert link.find_compiler(f"{folder}/c++") == (f"{folder}/c++",)
    assert link.find_compiler(f"'{folder}/c++' -O1") == (f"{folder}/c++", "-O1")


def test_a_compiler_that_fails_is_told(tmp_path: Path) -> None:
    # With gradients of captured tensors, which the second attempt knows by other names.
    with pytest.raises(CompileError, match=r"the C\+\+ compiler failed: false"):
        attn_mlir.compile_ahead(NAMED, SPEC, out=tmp_path / "x.so", compiler="false")
    assert not list(tmp_path.iterdir())
