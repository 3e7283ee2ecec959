"""Calls of `attn_mlir::forward` that no graph makes, in a process with torch alone: operator_calls.py LIBRARY PROGRAM."""

import ctypes
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

torch.set_num_threads(2)
# torch's own symbols are not seen by what Python loads later.
ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"), mode=ctypes.RTLD_GLOBAL)
torch.ops.load_library(sys.argv[1])
PROGRAM = Path(sys.argv[2]).read_text()
q, k, v = torch.randn(2, 2, 17, 8), torch.randn(2, 2, 33, 8), torch.randn(2, 2, 33, 8)


def call(*qkv: torch.Tensor, floats: Any = None, ints: Any = None, program: str = PROGRAM, wrt: str = "", layout: str = "bhsd") -> Any:
    """The output."""
    return torch.ops.attn_mlir.forward(*qkv, [qkv[0]], floats, ints, program, wrt, layout)[0]


def strides() -> None:
    """Any strides, and tensors without elements."""
    negative = torch.complex(k, -k).conj().imag
    assert negative.is_neg()
    keys = (k, k[:1].expand(2, 2, 33, 8), negative, torch.ones(2, 2, 33, 1).expand(2, 2, 33, 8), k.mT.contiguous().mT)
    for queries, each in ((q, keys[0]), (q.mT.contiguous().mT, keys[1]), (q, keys[2]), (q, keys[3]), (q[:, :, ::3], keys[4])):
        wanted = torch.nn.functional.scaled_dot_product_attention(queries, each, v)
        for layout in ("bhsd", "bshd", "sbhd"):
            torch.testing.assert_close(call(queries, each, v, layout=layout), wanted, rtol=1e-5, atol=1e-5)
    assert call(q, k[:, :, :0], v[:, :, :0]).abs().max() == 0
    assert call(q[:0], k[:0], v[:0]).shape == (0, 2, 17, 8) and call(q[:, :, :0], k, v).shape == (2, 2, 0, 8)


def refusals() -> None:
    """What is wrong is told."""
    for qkv, options, message in (
        ((q.double(), k.double(), v.double()), {}, "q must be float32"),
        ((q, k.half(), v), {}, "k must be float32"),
        ((q.to(torch.complex64), k, v), {}, "takes no tensors of this dtype"),
        ((q[0], k[0], v[0]), {}, "must have 4 dimensions"),
        ((q[..., :4], k, v), {}, "q must have size 8"),
        ((q, k, v[:, :, :9]), {}, "v has 9 positions"),
        ((q, k[:1], v[:1]), {}, "batch sizes"),
        ((torch.randn(2, 3, 17, 8), k, v), {}, "q has 3 heads"),
        ((q.new_empty(8).expand(1, 2, 2**45, 8), k[:1], v[:1]), {}, "new_empty"),
        ((q, k, v), {"program": ""}, "no attention of this graph"),
        ((q, k, v), {"wrt": "q"}, "computes no gradients"),
        ((q, k, v), {"floats": [1.0]}, "other captures"),
        ((q, k, v), {"ints": [1]}, "other captures"),
    ):
        with pytest.raises(RuntimeError, match=message):
            call(*qkv, **options)


def threads_and_forks() -> None:
    """The same bits from several threads at once, and in a child."""
    first, found = call(q, k, v), []

    def work() -> None:
        found.extend([torch.equal(call(q, k, v), first) for _ in range(10)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [True] * 40
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        os._exit(not torch.equal(call(q, k, v), first))
    assert os.waitpid(child, 0)[1] == 0


strides()
refusals()
threads_and_forks()
assert "attn_mlir" not in sys.modules
