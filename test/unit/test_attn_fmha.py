"""attn-fmha: options, columns, validation that fails where results are wrong, names of kernels."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attn_mlir.tools import attn_fmha
from attn_mlir.tools.fmha import measure, reference, validate
from attn_mlir.tools.fmha.coordinates import Coordinates
from attn_mlir.tools.fmha.options import parse
from attn_mlir.tools.fmha.problem import FmhaProblem, make

_QUICK = "-warmup 0 -repeat 1"
_COLUMNS = re.compile(
    r"\[(fp16|bf16|fp32)\|batch\|\S+\] b:\d+, h:\d+/\d+, s:\d+/\d+, d:\d+/\d+, scale(_s)?:\S+, bias:\S+, .*mask:\S+, v:[rc]"
    r", \d+\.\d{3} ms, \d+\.\d\d TFlops, \d+\.\d\d GB/s(, valid:y)?\n"
)

FORWARD = [
    "-b 2 -h 8 -h_k 2 -s 64 -s_k 127 -d 32 -mask b:20,0",
    "-s 17 -d 32 -prec bf16",
    "-s 65 -d 32 -prec fp32 -lse 1",
    "-s 1 -s_k 127 -d 64 -prec bf16 -h_k 1",
    "-s 127 -s_k 1 -d 16 -prec fp32 -mask t",
    "-s 40 -s_k 9 -d 32 -mask b -lse 1",
    "-s 33 -d 32 -mask 1 -lse 1 -prec fp32",
    "-s 33 -s_k 50 -d 32 -mask 2 -prec bf16",
    "-s 50 -d 32 -mask t:7,3 -iperm 0 -operm 0",
    "-s 50 -s_k 70 -d 32 -mask b:-1,5 -iperm 0 -operm 0 -prec bf16",
    "-s 50 -d 32 -mask xt:9",
    "-s 50 -s_k 33 -d 32 -mask xb:-1 -lse 1",
    "-s 50 -d 32 -mask g:9,3 -prec fp32",
    "-s 70 -d 32 -mask t:5,0,3",
    "-s 33 -s_k 65 -d 32 -mask b:5,2,4 -prec bf16",
    "-s 33 -d 32 -d_v 48 -vlayout c",
    "-s 33 -d 48 -d_v 16 -vlayout c -iperm 0 -operm 0 -prec bf16",
    "-s 33 -d 32 -iperm 0 -operm 1 -lse 1",
    "-s 33 -d 32 -bias e",
    "-s 33 -d 32 -bias e:1 -h_k 4 -prec bf16",
    "-s 33 -s_k 65 -d 32 -bias e:2 -prec fp32 -lse 1 -mask t:-1,0",
    "-s 33 -s_k 65 -d 32 -bias a -h 6",
    "-s 65 -s_k 33 -d 32 -bias a:1 -h 5 -prec fp32",
    "-s 33 -s_k 65 -d 32 -bias a -mask t -lse 1 -prec fp32",
    "-s 33 -s_k 65 -d 32 -bias a -mask b:9,4 -prec bf16",
    "-s 33 -s_k 65 -d 32 -bias a -mask t:9,4",
    "-s 33 -d 32 -logits_soft_cap 2.5 -init nf",
    "-s 33 -d 32 -scale_s 0.5 -init ui",
    "-s 33 -d 32 -init tf -prec fp32 -seed 0",
    "-s 33 -d 32 -init ni -prec bf16 -v 2",
    "-s 33 -s_k 65 -d 32 -p_drop 0.3 -h_k 2 -lse 1 -mask b:20,3",
    "-s 33 -d 32 -p_drop 0.9 -drop_prefs 1 -drop_seed 4611686018427387905 -drop_offset 7 -prec fp32 -bias e:1",
]
BACKWARD = [
    "-b 2 -h 4 -h_k 2 -s 33 -s_k 65 -d 32",
    "-s 33 -d 32 -prec bf16 -mask t",
    "-s 17 -s_k 40 -d 32 -prec fp32 -mask b:6,2 -lse 1",
    "-s 40 -s_k 9 -d 32 -mask b",
    "-s 33 -d 32 -d_v 48 -vlayout c -prec bf16",
    "-s 33 -d 32 -iperm 1 -operm 0 -mask xt:7",
    "-s 33 -d 32 -prec fp32 -bias e -dbias 1",
    "-s 33 -s_k 17 -h_k 4 -d 32 -prec bf16 -bias e:1 -dbias 1 -mask t",
    "-s 17 -d 32 -bias e:2 -dbias 1",
    "-s 33 -s_k 65 -d 32 -bias a:1 -mask b",
    "-s 33 -d 32 -logits_soft_cap 2.5 -init nf -prec bf16",
    "-s 33 -d 32 -mask t:5,0,3 -deterministic 1 -prec fp32",
    "-s 33 -d 32 -mask g:9,3 -v 2 -init ui",
    "-s 33 -s_k 65 -d 32 -p_drop 0.2 -h_k 2 -mask t -prec bf16 -drop_prefs 1",
    "-s 17 -d 32 -p_drop 0.5 -bias e:1 -dbias 1 -prec fp32 -drop_seed 9",
]


def _run(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = attn_fmha.main(command.split())
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.mark.parametrize("options", FORWARD)
def test_forward(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(f"fwd -b 2 -h 4 {_QUICK} {options}", capsys)
    assert code == 0, err
    assert _COLUMNS.fullmatch(out), out


@pytest.mark.parametrize("options", BACKWARD)
def test_backward(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(f"bwd -b 2 -h 4 {_QUICK} {options}", capsys)
    assert code == 0, err
    assert _COLUMNS.fullmatch(out), out


@pytest.mark.parametrize("options", ["fwd -h_k 1 -mask b:9,2 -lse 1", "bwd -prec bf16 -mask t -bias e:1 -dbias 1"])
def test_emulated_device(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(f"{options} -b 1 -h 2 -s 33 -d 32 -device hip-emulated", capsys)
    assert code == 0, err
    assert out.endswith("emulated, not timed, valid:y\n")


@pytest.mark.parametrize(("asked", "validate"), [("fwd", 1), ("fwd", 2), ("bwd", 1), ("bwd", 2)])
def test_wrong_results_are_told(asked: str, validate: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = FmhaProblem.call

    def wrong(self: FmhaProblem) -> tuple[torch.Tensor, ...]:
        o, *rest = right(self)
        factor = torch.ones_like(o)
        factor[-1, -1, -1, -1] = 1.2
        return (o * factor, *rest)

    monkeypatch.setattr(FmhaProblem, "call", wrong)
    code, out, err = _run(f"{asked} -b 2 -h 2 -s 17 -d 32 -v {validate} {_QUICK} -init nf", capsys)
    assert code == 1
    assert out.endswith("valid:n\n")
    assert ("o: 1 of 2176 elements" if asked == "fwd" else "dv: ") in err


def _planted(name: str, value: torch.Tensor) -> list[torch.Tensor]:
    """Faults of a gradient that are small beside CK's tolerances where the gradient is."""
    row = value.clone()
    row[:, :, 5] = 0.0
    off = [torch.zeros_like(value), row, value.roll(1, 1)]
    return [*off, value * 8.0] if name in ("dq", "dk") else [*off, value.mT] if name == "dbias" else off


@pytest.mark.parametrize("init", ["uf", "tf"])
def test_small_gradients_are_right_in_their_own_size(init: str) -> None:
    options = parse(f"-b 1 -h 4 -h_k 2 -s 72 -d 64 -v 1 -bias e:1 -dbias 1 -init {init}".split(), backward=True)
    problem = make(replace(options, device="cpu"))
    with torch.no_grad():
        for leaf in problem.leaves:
            leaf.mul_(0.5 if init == "uf" else 0.1)
        problem.grad.mul_(0.1)
    right = reference.results(problem, torch.float32, "cpu", torch.float16)
    made = {name: value.half() for name, value in right.items()}
    assert validate.faults(problem, tuple(made.values())) == []
    for name, value in made.items():
        for wrong in _planted(name, value):
            found = validate.faults(problem, tuple({**made, name: wrong}.values()))
            assert [fault.name for fault in found] == [name]
    assert "rows (" in str(validate.faults(problem, (torch.zeros_like(made["dq"]), *list(made.values())[1:]))[0])


@pytest.mark.parametrize("text", ["t:99999999999999999999,0", "b:9223372036854775800,9223372036854775800", "t:1,2,99999999999999999999"])
def test_windows_beyond_all_integers(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = _run(f"fwd -b 1 -h 1 -s 17 -s_k 23 -d 16 -mask {text} {_QUICK}", capsys)
    assert code == 0, err


def test_nan_is_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = FmhaProblem.call
    monkeypatch.setattr(FmhaProblem, "call", lambda self: (right(self)[0] * torch.nan,))
    code, out, _ = _run(f"fwd -b 1 -h 1 -s 17 -d 16 {_QUICK}", capsys)
    assert (code, out.rsplit(", ", 1)[1]) == (1, "valid:n\n")


def test_without_validation(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(f"fwd -b 1 -h 1 -s 17 -d 16 -v 0 {_QUICK}", capsys)
    assert code == 0
    assert out.endswith("GB/s\n")


@pytest.mark.parametrize("asked", ["fwd", "bwd"])
def test_json(asked: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made.json"
    code, out, _ = _run(f"{asked} -b 1 -h 2 -s 17 -d 16 -mask t {_QUICK} -json 1 -jsonfile {path}", capsys)
    assert code == 0
    assert f"Results written to {path} successfully" in out
    made = json.loads(path.read_text())
    assert made["name"] == f"fmha_{asked}"
    assert (made["nhead_k"], made["seqlen_k"], made["hdim_v"], made["verification"]) == (2, 17, 16, "pass")
    assert made["perf"][0]["time"] > 0


def test_names_of_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _run("--list fwd -mask t -prec bf16", capsys)
    names = out.split()
    assert len(names) == len(set(names)) == 6
    assert all(re.fullmatch(r"fmha_fwd_d\d+_bf16_batch_b\d+x\d+_cpu_nlogits_nbias_mt_nlse_ndropout", name) for name in names)
    _, out, _ = _run("--list bwd -d 64 -prec fp16 -device cuda", capsys)
    assert [name for name in out.split() if "pairs_d64_fp16" in name and "_hopper_" in name]
    _, out, _ = _run(f"fwd -b 1 -h 1 -s 17 -d 32 -mask t -prec bf16 -kname 1 {_QUICK}", capsys)
    assert next(name for name in names if "_d32_" in name) in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("fwd -b 0", "-b is a whole number from 1"),
        ("fwd -h 6 -h_k 4", "-h=6 is no multiple of -h_k=4"),
        ("fwd -h_k 2.5", "-h_k is a whole number"),
        ("fwd -s -3", "-s is a whole number"),
        ("fwd -s 3,4", "-s=3,4: sequences of different lengths"),
        ("fwd -d 513", "-d is a whole number from 1 to 512"),
        ("fwd -d_v -2", "-d_v is a whole number"),
        ("fwd -scale_s nan", "-scale_s is a finite number"),
        ("fwd -logits_soft_cap -1", "-logits_soft_cap is a finite number from 0"),
        ("fwd -iperm 2", "-iperm is one of 0, 1"),
        ("fwd -bias e:3", "-bias is n, e, e:0"),
        ("fwd -bias a:2", "-bias is n, e, e:0"),
        ("fwd -prec fp64", "-prec is one of fp16, bf16, fp32, got 'fp64'"),
        ("fwd -prec fp8", "-prec=fp8: fp8 scores are not computed yet"),
        ("fwd -mask q:3", "-mask is 0, 1, 2, t, b, t:l,r"),
        ("fwd -vlayout x", "-vlayout is one of r, c"),
        ("fwd -init zf", "-init is one of"),
        ("fwd -p_drop 1.5", "-p_drop is a finite number from 0 to below 1"),
        ("fwd -v 3", "-v is a whole number from 0 to 2"),
        ("fwd -repeat 0", "-repeat is a whole number from 1"),
        ("fwd -timer tpu", "-timer is one of gpu, cpu"),
        ("fwd -mode group", "-mode=group"),
        ("fwd -page_block_size 128", "-page_block_size=128: there is no KV cache yet"),
        ("fwd -num_splits 4", "-num_splits=4"),
        ("fwd -device tpu", "-device is one of cpu"),
        ("fwd -sk 3", "unknown option '-sk'; did you mean '-s_k'?"),
        ("fwd 3", "unknown option '3'"),
        ("fwd b 3", "unknown option 'b'; did you mean '-b'?"),
        ("fwd -b", "-b lacks its value"),
        ("fwd -b 1_0", "-b is a whole number from 1"),
        ("fwd -b ٣", "-b is a whole number from 1"),
        ("fwd -bias e:٢", "-bias is n, e, e:0"),
        ("fwd -mask t:1,٢", "-mask is 0, 1, 2, t, b, t:l,r"),
        ("fwd -mask g:0,1", "-mask=g:0,1 keeps nothing"),
        ("fwd -scale_s 1e308", "-scale_s is a finite number of float32"),
        ("fwd -json 1 -jsonfile=", "-jsonfile is the file of -json=1"),
        ("fwd -s 2147483647", "the tensors do not fit into memory"),
        ("bwd -dbias 1", "-dbias=1 is the gradient of an elementwise bias, got -bias=n"),
        ("fwd -b 1 -h 1 -s 9 -d 16 -json 1 -jsonfile /nowhere/x.json", "-jsonfile: /nowhere/x.json cannot be written"),
        ("sideways", "say fwd or bwd first, got 'sideways'"),
    ],
)
def test_bad_options_are_named(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = _run(options, capsys)
    assert code == 2
    assert message in err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("-?", "fwd -?", "bwd -?"):
        code, out, _ = _run(command, capsys)
        assert code == 0
        assert out.startswith("usage: attn-fmha")


def test_equals_sign_is_a_blank() -> None:
    assert parse(["-b=3", "-s_k=-1", "-scale=0.5"], True) == parse(["-b", "3", "-s_k", "-1", "-scale_s", "0.5"], True)


@pytest.mark.parametrize("text", ["0", "1", "2", "t:2,1", "b:2,1", "t:-1,2", "b:3,-1", "t:0,0", "xt:4", "xb:5", "b:1,0,2", "t:-1,-1"])
def test_coordinates_are_the_window(text: str) -> None:
    """`keeps` and `area` against windows written with left and right."""
    for q_len in range(1, 7):
        for kv_len in range(1, 7):
            made = Coordinates.decode(text, q_len, kv_len)
            kept = made.keeps(q_len, kv_len)
            shift = kv_len - q_len if made.origin == "b" else 0
            for i in range(q_len):
                for j in range(kv_len):
                    late = made.right >= 0 and j - (i + shift) > made.right
                    early = made.left >= 0 and i + shift - j > made.left and j >= made.sink
                    assert bool(kept[i, j]) == (not late and not early), (text, q_len, kv_len, i, j)
            assert made.area(q_len, kv_len) == int(kept.sum())


def test_area_of_coordinates() -> None:
    made = Coordinates.decode("g:3,2", 5, 7)
    assert (made.area(5, 7), str(made)) == (int(made.keeps(5, 7).sum()), "g(3:2)")


def test_flops_and_bytes() -> None:
    options = parse("-b 2 -h 4 -h_k 2 -s 8 -s_k 16 -d 32 -d_v 64 -mask 0".split(), False)
    assert measure.flops(options) == 2 * 4 * 8 * 16 * 2 * (32 + 64)
    assert measure.bytes_moved(options) == 2 * (2 * 4 * 8 * (32 + 64) + 2 * 2 * 16 * (32 + 64))
