"""Kinds of captured values: lists of an operator and back, in the order of its schema, and what of a value tells where it is read."""

import numpy as np
import torch

from attn_mlir.capture_kinds import ARGUMENTS, CaptureKind, CaptureKinds, pack


def test_kinds_pack_and_unpack_in_the_order_of_the_schema() -> None:
    kinds = CaptureKinds(["int", "tensor", "float", "tensor"])
    a, b = torch.zeros(2), torch.ones(3)
    assert [kind.split()[-1] for kind in ARGUMENTS.split(", ")] == ["captures", "floats", "ints"]
    tensors, numbers = pack(kinds, [7, a, 0.5, b])
    assert tensors[0] is a
    assert tensors[1] is b
    assert numbers == ([0.5], [7])
    whole = kinds.unpack(tensors, numbers)
    assert whole[0::2] == [7, 0.5]
    assert whole[1] is a
    assert whole[3] is b
    assert kinds.tensors == (1, 3)


def test_floats_do_not_tell_where_something_is_read() -> None:
    kinds = CaptureKinds(["int", "tensor", "float"])
    assert kinds.key([7, torch.zeros(2), 0.5]) == kinds.key([7, torch.ones(2), 1.5])
    assert kinds.key([7, torch.zeros(2), 0.5]) != kinds.key([8, torch.zeros(2), 0.5])
    assert kinds.key([7, torch.zeros(2), 0.5]) != kinds.key([7, torch.zeros(3), 0.5])


def test_kinds_read_what_functions_capture() -> None:
    array = np.arange(3.0)
    tensor = CaptureKind.TENSOR.read(array)
    array[0] = 5.0
    assert tensor[0] == 5.0
    assert CaptureKind.of_number(3) is CaptureKind.INT
    assert CaptureKind.FLOAT.read(np.float32(0.5)) == 0.5
