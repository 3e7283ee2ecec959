"""8-bit attention on AMD GPUs, emulated and interpreted: widened to 16 bits on the way to shared memory, weights with v's digits."""

from typing import Any

import pytest
import torch

from amd_tools import needs_clang, needs_host_clang
from attn_mlir import Attention, attention, attention_varlen, masks
from attn_mlir.backends.amd.compile import compile_all
from attn_mlir.backends.amd.target import TARGETS
from attn_mlir.errors import UnsupportedError
from fp8_cases import check_as_flash_attention_3, dense, outliers, scaled, softmax
from test_amd_compile import codes

E4, E5, E5Z = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e5m2fnuz


def inputs(sq: int, skv: int, dim: int, dtype: torch.dtype, q_dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    q, k, v = outliers(1, 4, sq, dim), outliers(1, 2, skv, dim, seed=1), outliers(1, 2, skv, dim, seed=2)
    return [q.to(q_dtype or dtype), k.to(dtype), v.to(dtype)]


@needs_host_clang
@pytest.mark.parametrize(
    ("sizes", "dtype", "q_dtype"),
    [((37, 129, 64), E4, None), ((5, 70, 35), E5Z, None), ((37, 129, 36), E5, torch.bfloat16), ((1, 130, 64), E4, torch.float16)],
)
def test_emulated(sizes: tuple[int, int, int], dtype: torch.dtype, q_dtype: torch.dtype | None) -> None:
    q, k, v = inputs(*sizes, dtype, q_dtype)
    given: dict[str, Any] = {"k_descale": torch.rand(1, 2) + 0.5, "v_descale": torch.rand(2) + 0.5}
    o, lse = attention(q, k, v, mask_mod=masks.causal(), return_lse=True, device="hip-emulated", **given)
    wide: Any = q.double(), scaled(k, given["k_descale"]), scaled(v, given["v_descale"])
    mask = torch.ones(sizes[:2], dtype=torch.bool).tril()
    plain = dense(*wide, row=softmax, mask=mask, weights=dtype if q_dtype is None else q_dtype)
    check_as_flash_attention_3(o, dense(*wide, row=softmax, mask=mask), plain)
    assert torch.isfinite(lse).all()


@needs_host_clang
def test_packed_sequences_and_a_changed_value() -> None:
    q, k, v = (x[0].transpose(0, 1) for x in inputs(40, 40, 32, E4))
    offsets = torch.tensor([0, 33, 40]).int()
    given: dict[str, Any] = {"v_descale": torch.rand(2, 2) + 0.5, "value_mod": lambda x: x * x}
    emulated = attention_varlen(q, k, v, offsets, device="hip-emulated", **given)
    torch.testing.assert_close(emulated, attention_varlen(q, k, v, offsets, **given), rtol=0.06, atol=0.06)


@needs_clang
@needs_host_clang
def test_machine_code_gives_the_bits_of_the_emulation() -> None:
    q, k, v = inputs(3, 40, 32, E4)
    o = [attention(q, k, v, v_descale=0.5, out_dtype=torch.float32, device=f"hip-{how}") for how in ("interpreted", "emulated")]
    assert torch.equal(*o)


@needs_clang
@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("q_dtype", [E4, torch.float16])
def test_no_scratch(arch: str, q_dtype: torch.dtype) -> None:
    compute = Attention(mask_mod=masks.causal())
    compute(*inputs(1, 1, 128, E4, q_dtype), k_descale=torch.ones(2), v_descale=torch.ones(2))
    (binary,) = compile_all(codes(compute.ir("traced"), arch))
    assert binary.spills == binary.scratch == 0 and binary.shared <= 65536


def test_outputs_of_8_bits_are_refused() -> None:
    q, k, v = inputs(3, 4, 32, E4)
    with pytest.raises(UnsupportedError, match="AMD GPUs give no 8-bit o yet: leave out_dtype out"):
        attention(q, k, v, out_dtype=E4, device="hip-emulated")
