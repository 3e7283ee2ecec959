"""Functions of lanes: what vector instructions compute from f32, f16, 32-bit and 16-bit integers."""

from collections.abc import Callable
from typing import Any

import numpy as np

F16, F32, F64, I32, U16, U32, U64 = np.float16, np.float32, np.float64, np.int32, np.uint16, np.uint32, np.uint64
_SMALLEST = 1.1754943508222875e-38


def flushed(x: Any) -> Any:
    """Subnormal numbers as zero."""
    return np.where(np.abs(x) < _SMALLEST, np.copysign(F32(0), x), x).astype(F32)


def fused(a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once."""
    return (np.multiply(a, b, dtype=F64) + c).astype(F32)


def _clip(x: Any, low: float, high: float, to: type) -> Any:
    return np.clip(np.nan_to_num(np.trunc(np.asarray(x, F64)), nan=0.0, posinf=high, neginf=low), low, high).astype(to)


def _fix_division(quotient: Any, below: Any, above: Any) -> Any:
    odd = ~np.isfinite(below) | ~np.isfinite(above) | (below == 0) | (above == 0)
    return np.where(odd, above / below, quotient).astype(F32)


FLOATS: dict[str, Callable[..., Any]] = {
    "v_add_f32": np.add,
    "v_sub_f32": np.subtract,
    "v_subrev_f32": lambda a, b: b - a,
    "v_mul_f32": np.multiply,
    "v_mul_legacy_f32": lambda a, b: np.where((a == 0) | (b == 0), F32(0), a * b),
    "v_max_f32": np.fmax,
    "v_min_f32": np.fmin,
    "v_max3_f32": lambda a, b, c: np.fmax(np.fmax(a, b), c),
    "v_min3_f32": lambda a, b, c: np.fmin(np.fmin(a, b), c),
    "v_med3_f32": lambda a, b, c: np.fmax(np.fmin(a, b), np.fmin(np.fmax(a, b), c)),
    "v_fma_f32": fused,
    "v_mad_f32": lambda a, b, c: a * b + c,
    "v_fmaak_f32": fused,
    "v_fmamk_f32": fused,
    "v_madak_f32": lambda a, b, c: a * b + c,
    "v_madmk_f32": lambda a, b, c: a * b + c,
    "v_rcp_f32": lambda a: flushed(F32(1) / flushed(a)),
    "v_rcp_iflag_f32": lambda a: flushed(F32(1) / flushed(a)),
    "v_rsq_f32": lambda a: F32(1) / np.sqrt(flushed(a)),
    "v_sqrt_f32": np.sqrt,
    "v_log_f32": lambda a: np.log2(flushed(a)),
    "v_exp_f32": lambda a: flushed(np.exp2(np.asarray(a, F64)).astype(F32)),
    "v_sin_f32": lambda a: np.sin(2 * np.pi * np.asarray(a, F64)).astype(F32),
    "v_cos_f32": lambda a: np.cos(2 * np.pi * np.asarray(a, F64)).astype(F32),
    "v_rndne_f32": np.rint,
    "v_floor_f32": np.floor,
    "v_ceil_f32": np.ceil,
    "v_trunc_f32": np.trunc,
    "v_fract_f32": lambda a: a - np.floor(a),
    "v_div_fixup_f32": _fix_division,
}
"""Of f32, which may be negated or made positive, to f32."""

HALVES: dict[str, Callable[..., Any]] = {
    "v_add_f16": np.add,
    "v_sub_f16": np.subtract,
    "v_mul_f16": np.multiply,
    "v_max_f16": np.fmax,
    "v_min_f16": np.fmin,
    "v_fma_f16": lambda a, b, c: (np.multiply(a, b, dtype=F64) + c).astype(F16),
}
"""Of f16 to f16; the upper half of the result is zero."""


def _signed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: function(*(value.view(I32) for value in values)).view(U32)


def _bits(x: Any, offset: Any, width: Any) -> Any:
    return x >> (offset & U32(31)) & (U32(1) << (width & U32(31))) - U32(1)


def _signed_bits(x: Any, offset: Any, width: Any) -> Any:
    up = U32(32) - (width & U32(31))
    shifted = _bits(x, offset, width) << (up & U32(31))
    return np.where((width & U32(31)) == 0, U32(0), (np.asarray(shifted, U32).view(I32) >> np.asarray(up & U32(31), I32)).view(U32))


def _bytes(high: Any, low: Any, selector: Any) -> Any:
    whole = np.asarray(high, U64) << U64(32) | np.asarray(low, U64)
    result = np.zeros(64, U64)
    if np.ndim(selector) == 0:  # as compilers have it
        for i in range(4):
            place = int(selector) >> 8 * i & 255
            byte = whole >> U64(8 * place) & U64(255) if place < 8 else U64(0 if place == 12 else 255)
            result |= byte << U64(8 * i)
        return result.astype(U32)
    for i in range(4):
        chosen = np.asarray(selector, U64) >> U64(8 * i) & U64(255)
        byte = np.where(chosen < 8, whole >> U64(8) * np.minimum(chosen, U64(7)) & U64(255), np.where(chosen == 12, U64(0), U64(255)))
        result |= byte << U64(8 * i)
    return result.astype(U32)


def _leading(x: Any) -> Any:
    """How many zeros stand before the first one; all bits where there is none."""
    return np.array([32 - int(each).bit_length() if each else 0xFFFFFFFF for each in np.broadcast_to(x, 64)], U32)


_LOW = U32(0xFFFFFF)
INTEGERS: dict[str, Callable[..., Any]] = {
    "v_mov_b32": lambda a: a,
    "v_accvgpr_read_b32": lambda a: a,
    "v_accvgpr_write_b32": lambda a: a,
    "v_accvgpr_mov_b32": lambda a: a,
    "v_not_b32": np.invert,
    "v_add_u32": np.add,
    "v_sub_u32": np.subtract,
    "v_subrev_u32": lambda a, b: b - a,
    "v_and_b32": np.bitwise_and,
    "v_or_b32": np.bitwise_or,
    "v_xor_b32": np.bitwise_xor,
    "v_lshlrev_b32": lambda a, b: b << (a & U32(31)),
    "v_lshrrev_b32": lambda a, b: b >> (a & U32(31)),
    "v_ashrrev_i32": lambda a, b: (np.asarray(b).view(I32) >> np.asarray(a & U32(31)).view(I32)).view(U32),
    "v_lshl_or_b32": lambda a, b, c: a << (b & U32(31)) | c,
    "v_lshl_add_u32": lambda a, b, c: (a << (b & U32(31))) + c,
    "v_add_lshl_u32": lambda a, b, c: (a + b) << (c & U32(31)),
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_and_or_b32": lambda a, b, c: a & b | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_bfi_b32": lambda a, b, c: a & b | ~a & c,
    "v_bfe_u32": _bits,
    "v_bfe_i32": _signed_bits,
    "v_alignbit_b32": lambda a, b, c: ((np.asarray(a, U64) << U64(32) | b) >> np.asarray(c & U32(31), U64)).astype(U32),
    "v_perm_b32": _bytes,
    "v_mul_lo_u32": np.multiply,
    "v_mul_hi_u32": lambda a, b: (np.asarray(a, U64) * b >> U64(32)).astype(U32),
    "v_mul_hi_i32": lambda a, b: (np.asarray(a).view(I32).astype(np.int64) * np.asarray(b).view(I32) >> 32).astype(U32),
    "v_mul_u32_u24": lambda a, b: (a & _LOW) * (b & _LOW),
    "v_mad_u32_u24": lambda a, b, c: (a & _LOW) * (b & _LOW) + c,
    "v_mul_i32_i24": lambda a, b: _signed_24(a) * _signed_24(b),
    "v_mad_i32_i24": lambda a, b, c: _signed_24(a) * _signed_24(b) + c,
    "v_max_i32": _signed(np.maximum),
    "v_min_i32": _signed(np.minimum),
    "v_max_u32": np.maximum,
    "v_min_u32": np.minimum,
    "v_max3_i32": _signed(lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "v_min3_i32": _signed(lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_med3_i32": _signed(lambda a, b, c: np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))),
    "v_cvt_f32_u32": lambda a: a.astype(F32).view(U32),
    "v_cvt_f32_i32": lambda a: a.view(I32).astype(F32).view(U32),
    **{f"v_cvt_f32_ubyte{i}": lambda a, i=i: (a >> U32(8 * i) & U32(255)).astype(F32).view(U32) for i in range(4)},
    "v_bcnt_u32_b32": lambda a, b: np.array([int(x).bit_count() for x in np.broadcast_to(a, 64)], U32) + b,
    "v_bfrev_b32": lambda a: np.array([int(f"{int(x):032b}"[::-1], 2) for x in np.broadcast_to(a, 64)], U32),
    "v_ffbl_b32": lambda a: np.array([(int(x) & -int(x)).bit_length() - 1 & 0xFFFFFFFF for x in np.broadcast_to(a, 64)], U32),
    "v_ffbh_u32": lambda a: _leading(a),
    "v_ffbh_i32": lambda a: _leading(np.where(np.asarray(a).view(I32) < 0, ~a, a)),
}
"""Of 32 bits to 32 bits."""

SHORTS: dict[str, Callable[..., Any]] = {
    "v_add_u16": np.add,
    "v_sub_u16": np.subtract,
    "v_subrev_u16": lambda a, b: b - a,
    "v_mul_lo_u16": np.multiply,
    "v_mad_u16": lambda a, b, c: a * b + c,
    "v_lshlrev_b16": lambda a, b: b << (a & U16(15)),
    "v_lshrrev_b16": lambda a, b: b >> (a & U16(15)),
    "v_min_u16": np.minimum,
    "v_max_u16": np.maximum,
    "v_min_i16": lambda a, b: np.minimum(a.view(np.int16), b.view(np.int16)).view(U16),
    "v_max_i16": lambda a, b: np.maximum(a.view(np.int16), b.view(np.int16)).view(U16),
}
"""Of 16 bits to 16 bits; the upper half of the result is zero."""

CONVERSIONS: dict[str, Callable[..., Any]] = {
    "v_cvt_u32_f32": lambda a: _clip(a, 0, 2**32 - 1, U32),
    "v_cvt_i32_f32": lambda a: _clip(a, -(2**31), 2**31 - 1, I32).view(U32),
    "v_cvt_f16_f32": lambda a: np.asarray(a).astype(F16).view(U16).astype(U32),
    "v_cvt_pkrtz_f16_f32": lambda a, b: toward_zero(a) | toward_zero(b) << U32(16),
}
"""Of f32 to 32 bits."""


def _signed_24(x: Any) -> Any:
    return (np.asarray(x << U32(8)).view(I32) >> I32(8)).view(U32)


def toward_zero(x: Any) -> Any:
    """f32 as the bits of f16, cut off."""
    x = np.asarray(x, F32)
    cut = (x.view(U32) & U32(0xFFFFE000)).view(F32)
    small = np.trunc(x.astype(F64) * 2.0**24) / 2.0**24
    half = np.where(np.abs(cut) < 2.0**-14, small, cut).astype(F16)
    half = np.where(np.isinf(half) & np.isfinite(x), np.copysign(F16(65504), half), half)
    return np.where(np.isnan(x), F16(np.nan), half).astype(F16).view(U16).astype(U32)
