"""Dropout as the caller asks for it: a probability, a seed, and the mask of what is kept."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.dropout import NAMES, DropoutForm
from attn_mlir.philox import BITS, GROUP, limit, threshold, words

_INT64 = 2**63
_SEED = "dropout_seed is (seed, offset), two integers or int64 tensors of one element, or an int64 tensor that holds both"


class Dropout(NamedTuple):
    """How a program takes dropout, and the values of a call. Without dropout both are empty."""

    form: DropoutForm | None = None
    """Whether seed and offset are an "int" or a "tensor"."""
    values: Mapping[str, Any] = {}


NONE = Dropout()


def dropout_of(p: Any, seed: Any, q: Any) -> Dropout:
    """The dropout of a call for the queries q. Raises ArgumentError."""
    if seed is None and type(p) is float and p == 0.0:  # nearly all calls
        return NONE
    p, device = check_p(p), getattr(q, "device", torch.device("cpu"))
    if p == 0.0:
        if seed is not None:
            seed_of(seed, device)
        return NONE
    pair = seed_of(seed, device)
    form = ("tensor" if isinstance(pair[0], torch.Tensor) else "int", "tensor" if isinstance(pair[1], torch.Tensor) else "int")
    return Dropout(form, dropout_values(p, pair))


def dropout_values(p: float, pair: Sequence[Any]) -> dict[str, Any]:
    """What a program with dropout captures, by name."""
    return dict(zip(NAMES, (*pair, threshold(p), scale_of(p)), strict=True))


def scale_of(p: float) -> float:
    """What weights that are kept are multiplied with."""
    return 0.0 if p == 1.0 else 1.0 / (1.0 - p)


def seed_in_graph(p: Any, seed: Any, q: torch.Tensor) -> list[torch.Tensor]:
    """Seed and offset as tensors, inside torch.compile; none without dropout."""
    if check_p(p) == 0.0:
        return []
    pair = seed_of(seed, q.device)
    return [x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=torch.int64, device=q.device) for x in pair]


def check_p(p: Any) -> float:
    """The probability as a float. Raises ArgumentError."""
    if isinstance(p, bool) or not isinstance(p, (int, float)):
        raise ArgumentError(f"dropout_p must be a number between 0 and 1, got {type(p).__name__}")
    if not 0 <= p <= 1:  # nor NaN
        raise ArgumentError(f"dropout_p must lie between 0 and 1, got {p}")
    return p if isinstance(p, float) else float(p)


def seed_of(seed: Any, device: torch.device) -> tuple[Any, Any]:
    """Seed and offset, each an int of 64 bits with sign or a tensor without dimensions. None: the device's generator gives them."""
    if seed is None:
        seed = torch.randint(0, 2**62, (2,), dtype=torch.int64, device=device)
    if isinstance(seed, torch.Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 2:
            raise ArgumentError(f"{_SEED}; got a tensor of {seed.dtype} with shape {list(seed.shape)}")
        seed = seed.reshape(2).unbind()
    if not isinstance(seed, (tuple, list)) or len(seed) != 2:
        what = f"a {type(seed).__name__} of {len(seed)}" if isinstance(seed, (tuple, list)) else type(seed).__name__
        raise ArgumentError(f"{_SEED}; got {what}")
    return _word(seed[0], "seed"), _word(seed[1], "offset")


def _word(x: Any, name: str) -> Any:
    if isinstance(x, torch.Tensor):
        if x.dtype != torch.int64 or x.numel() != 1:
            raise ArgumentError(f"{_SEED}; its {name} is a tensor of {x.dtype} with shape {list(x.shape)}")
        return x.reshape(()) if x.dim() else x
    if isinstance(x, bool) or not isinstance(x, int):
        raise ArgumentError(f"{_SEED}; its {name} is a {type(x).__name__}")
    if not -_INT64 <= x < 2 * _INT64:
        raise ArgumentError(f"{_SEED}; its {name} does not fit 64 bits: {x}")
    return x - 2 * _INT64 if x >= _INT64 else x


def dropout_mask(
    batch: int, heads: int, q_len: int, kv_len: int, dropout_p: float, dropout_seed: Any, device: torch.device | str | None = None
) -> torch.Tensor:
    """Which weights dropout keeps, bool [batch, heads, q_len, kv_len]: the bits that every kernel of attention uses.

    They are a function of the seed and the position, whatever the device, dtype, tiles and splits; `heads` are those of the queries.
    Without `device` the mask is made on torch's default one. With every number taken modulo 2^32, the 16 keys of a group share four words,

        w0, w1, w2, w3 = philox4x32_10(counter=(kv_idx // 16, q_idx, b * heads + h, offset), key=(seed, seed >> 32)).

    A key's byte is number kv_idx % 2 + 2 ((kv_idx // 8) % 2), counted from the lowest, of word (kv_idx // 2) % 4; its lower 7 bits count.
    With drop = round(dropout_p * 2^32), at most 2^32 - 1, it is kept where they are at least drop >> 25, and one more where
    (w0 ^ w1 ^ w2 ^ w3) % 2^25 < drop % 2^25: so the probability is drop / 2^32. With dropout_p=0 all are kept, with dropout_p=1 none.
    """
    p, device = check_p(dropout_p), torch.get_default_device() if device is None else torch.device(device)
    for name, size in (("batch", batch), ("heads", heads), ("q_len", q_len), ("kv_len", kv_len)):
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ArgumentError(f"{name} must be an integer of at least 0, got {size!r}")
    shape = (batch, heads, q_len, kv_len)
    if p in (0.0, 1.0):
        return torch.full(shape, p == 0.0, dtype=torch.bool, device=device)
    if dropout_seed is None:
        raise ArgumentError("dropout_mask needs the seed of a call: dropout_seed=(seed, offset)")
    seed, offset = (torch.as_tensor(x, dtype=torch.int64, device=device) for x in seed_of(dropout_seed, device))
    groups = -(-kv_len // GROUP)
    row, q_idx, group = torch.meshgrid(*(torch.arange(n, device=device) for n in (batch * heads, q_len, groups)), indexing="ij")
    four = words(seed, offset, row, q_idx, group)
    least = limit(threshold(p), four)
    kept = [((four[key // 2 % 4] >> (8 * (key % 2) + 16 * (key // 8))) & (1 << BITS) - 1) >= least for key in range(GROUP)]
    return torch.stack(kept, -1).reshape(batch, heads, q_len, groups * GROUP)[..., :kv_len].contiguous()
