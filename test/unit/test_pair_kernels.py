"""CPU kernels of pairs, elements and row products, against dense sums in float64."""

from collections.abc import Iterator, Sequence

import pytest
import torch

from attn_mlir.backends.cpu.program import compile_program

NAMES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
TOLERANCE = {torch.float64: 1e-13, torch.float32: 3e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
MASKS = {
    "none": "",
    "causal": "%keep = arith.cmpi sge, %q_idx, %kv_idx : index",
    "window": """%back = arith.subi %q_idx, %kv_idx : index
      %near = arith.cmpi sle, %back, %c9 : index
      %past = arith.cmpi sge, %q_idx, %kv_idx : index
      %keep = arith.andi %near, %past : i1""",
    "blocks": """%mine = arith.floordivsi %q_idx, %c9 : index
      %other = arith.floordivsi %kv_idx, %c9 : index
      %apart = arith.subi %mine, %other : index
      %two = arith.constant 2 : index
      %rest = arith.remsi %apart, %two : index
      %zero = arith.constant 0 : index
      %keep = arith.cmpi eq, %rest, %zero : index""",
}


def present(mask: str, queries: int, keys: int) -> torch.Tensor:
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None]
    return {
        "none": torch.ones(queries, keys, dtype=torch.bool),
        "causal": i >= j,
        "window": (i >= j) & (i - j <= 9),
        "blocks": (i // 9 - j // 9) % 2 == 0,
    }[mask]


# Where each scatter adds, and the positions in its captured tensor of pair (b, h, q, k).
SCATTERS = {
    "cells": ("?x?x?x?", "%b, %h, %q_idx, %kv_idx", "index, index, index, index", lambda b, h, q, k: (b, h, q, k)),
    "keys": ("?x?", "%h, %kv_idx", "index, index", lambda b, h, q, k: (h, k)),
    "rows": ("?", "%q_idx", "index", lambda b, h, q, k: (q,)),
    "heads": ("?", "%h", "index", lambda b, h, q, k: (h,)),
    "distance": ("?", "%place", "index", lambda b, h, q, k: (q - k + 150,)),
    "clamped": ("?", "%bucket", "index", lambda b, h, q, k: ((k - q).clamp(-8, 8) + 8,)),
    "modulo": ("?", "%slot", "index", lambda b, h, q, k: (k % 3,)),
    "scalar": ("", "", "", lambda b, h, q, k: ()),
}
ALL = tuple(SCATTERS)


def source(dtype: torch.dtype, dims: tuple[int, int], mask: str, scatters: Sequence[str] = ()) -> str:
    """Sums of weights 0.1 x, y sqrt(q - k + 0.5) (NaN above the diagonal) and x + y, where x = q k and y = u v."""
    element, score = NAMES[dtype], "f64" if dtype == torch.float64 else "f32"
    qk, uv = (f"tensor<?x?x?x{d}x{element}>" for d in dims)
    dq, dv = (f"tensor<?x?x?x{d}x{score}>" for d in dims)
    captures = {name: f"tensor<{SCATTERS[name][0] + 'x' if SCATTERS[name][0] else ''}{score}>" for name in scatters}
    arguments = "".join(f", %{name}: {type_}" for name, type_ in captures.items())
    results = [dq, dq, dv, *captures.values()]
    keep = (
        f'"attn.mask"() ({{\n    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):\n      {MASKS[mask]}\n' if MASKS[mask] else ""
    )
    keep += '      "attn.yield"(%keep) : (i1) -> ()\n    }) : () -> ()' if keep else ""
    sums = [
        f'%r0 = "attn.query_sum"(%w, %k, %k) {{weights = array<i64: 0, 2>}} : (none, {qk}, {qk}) -> {dq}',
        f'%r1 = "attn.key_sum"(%w, %q) {{weights = array<i64: 1>}} : (none, {qk}) -> {dq}',
        f'%r2 = "attn.key_sum"(%w, %u, %u) {{weights = array<i64: 0, 1>}} : (none, {uv}, {uv}) -> {dv}',
    ]
    for n, (name, type_) in enumerate(captures.items(), 3):
        _, index, types, _ = SCATTERS[name]
        sums.append(f"""%r{n} = "attn.scatter"(%w, %{name}) ({{
  ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
    %back = arith.subi %q_idx, %kv_idx : index
    %far = arith.constant 150 : index
    %place = arith.addi %back, %far : index
    %low = arith.constant -8 : index
    %high = arith.constant 8 : index
    %three = arith.constant 3 : index
    %ahead = arith.subi %kv_idx, %q_idx : index
    %above = arith.maxsi %ahead, %low : index
    %inside = arith.minsi %above, %high : index
    %bucket = arith.addi %inside, %high : index
    %slot = arith.remsi %kv_idx, %three : index
    "attn.yield"({index}) : ({types}) -> ()
  }}) {{weight = {1 + n % 2}}} : (none, {type_}) -> {type_}""")
    newline = "\n  "
    return f"""func.func @f(%q: {qk}, %k: {qk}, %v: {uv}, %u: {uv}{arguments}) -> ({", ".join(results)}) {{
  %c9 = arith.constant 9 : index
  %w = "attn.pairs"() ({{
    "attn.product"(%q, %k) : ({qk}, {qk}) -> ()
    "attn.product"(%u, %v) : ({uv}, {uv}) -> ()
    {keep}
    "attn.pair"() ({{
    ^bb0(%x: {score}, %y: {score}, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %tenth = arith.constant 0.1 : {score}
      %half = arith.constant 0.5 : {score}
      %w0 = arith.mulf %x, %tenth : {score}
      %back = arith.subi %q_idx, %kv_idx : index
      %back_int = arith.index_cast %back : index to i64
      %back_float = arith.sitofp %back_int : i64 to {score}
      %shifted = arith.addf %back_float, %half : {score}
      %positive = math.absf %shifted : {score}
      %root = math.sqrt %{"shifted" if mask in ("causal", "window") else "positive"} : {score}
      %w1 = arith.mulf %y, %root : {score}
      %w2 = arith.addf %x, %y : {score}
      "attn.yield"(%w0, %w1, %w2) : ({score}, {score}, {score}) -> ()
    }}) : () -> ()
  }}) : () -> none
  {newline.join(sums)}
  return {", ".join(f"%r{n}" for n in range(len(results)))} : {", ".join(results)}
}}"""


def expected(inputs: Sequence[torch.Tensor], mask: str, scatters: dict[str, torch.Tensor]) -> Iterator[torch.Tensor]:
    q, k, v, u = (t.double() for t in inputs)
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (t.repeat_interleave(group, 1) for t in (k, v))
    x, y = q @ wide_k.mT, u @ wide_v.mT
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
    keep = present(mask, q.shape[2], k.shape[2])
    weights = [torch.where(keep, w, 0.0) for w in (0.1 * x, y * (i - j + 0.5).double().abs().sqrt(), x + y)]

    def of_group(t: torch.Tensor) -> torch.Tensor:
        return t.unflatten(1, (-1, group)).sum(2)

    yield (weights[0] + weights[2]) @ wide_k
    yield of_group(weights[1].mT @ q)
    yield of_group((weights[0] + weights[1]).mT @ u)
    positions = torch.meshgrid(*(torch.arange(n) for n in x.shape), indexing="ij")
    for n, (name, like) in enumerate(scatters.items(), 3):
        weight, total = weights[1 + n % 2], torch.zeros(like.shape, dtype=torch.float64)
        index = [p[keep.expand(x.shape)] for p in SCATTERS[name][3](*positions)]
        values = weight[keep.expand(x.shape)]
        yield total.index_put_(tuple(index), values, accumulate=True) if index else total + values.sum()


def likes(names: Sequence[str], shape: tuple[int, int, int, int], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    _, h, queries, keys = shape
    sizes = {
        "cells": shape,
        "keys": (h, keys),
        "rows": (queries,),
        "heads": (h,),
        "distance": (150 + queries,),
        "clamped": (17,),
        "modulo": (3,),
        "scalar": (),
    }
    return {name: torch.zeros(sizes[name], dtype=dtype) for name in names}


def check(dtype, dims, mask, scatters, sizes, inputs=None) -> None:
    b, h, key_heads, queries, keys = sizes
    torch.manual_seed(0)
    if inputs is None:
        shapes = [(b, h, queries, dims[0]), (b, key_heads, keys, dims[0]), (b, key_heads, keys, dims[1]), (b, h, queries, dims[1])]
        inputs = [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]
    score = torch.float64 if dtype == torch.float64 else torch.float32
    captures = likes(scatters, (b, h, queries, keys), score)
    got = compile_program(source(dtype, dims, mask, scatters), "f").run([*inputs, *captures.values()])
    for n, (a, want) in enumerate(zip(got, expected(inputs, mask, captures), strict=True)):
        assert a.shape == want.shape and a.dtype == score, n
        assert (a.double() - want).abs().max() <= TOLERANCE[dtype] * want.abs().max(), n


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 4, 2, 37, 45), (1, 2, 2, 130, 70), (2, 3, 1, 64, 16), (1, 2, 1, 17, 150)])
@pytest.mark.parametrize("mask", MASKS)
def test_sums_and_scatters(mask: str, sizes: tuple[int, ...]) -> None:
    check(torch.float32, (16, 8), mask, ALL, sizes)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mask", ["causal", "none"])
def test_element_types(dtype: torch.dtype, mask: str) -> None:
    check(dtype, (32, 16), mask, ALL, (2, 4, 2, 75, 83))


@pytest.mark.parametrize("dims", [(1, 3), (20, 64), (80, 96), (128, 33), (200, 40)])
def test_head_dimensions(dims: tuple[int, int]) -> None:
    check(torch.float32, dims, "causal", (), (1, 2, 1, 70, 70))


def test_strides() -> None:
    torch.manual_seed(1)
    base = torch.randn(2, 41, 4, 2, 16)
    q, k, v, u = (base[:, :, n].transpose(1, 2) for n in range(4))
    u = u.transpose(2, 3).contiguous().transpose(2, 3)
    check(torch.float32, (16, 16), "causal", ("cells", "keys"), (2, 2, 2, 41, 41), [q, k[:1].expand(2, -1, -1, -1), v, u])


def test_same_bits_for_any_number_of_threads() -> None:
    torch.manual_seed(2)
    inputs = [torch.randn(2, 2, 600, 16) for _ in range(4)]
    captures = likes(ALL, (2, 2, 600, 600), torch.float32)
    captures["distance"] = torch.zeros(800)
    program = compile_program(source(torch.float32, (16, 16), "causal", ALL), "f")
    threads = torch.get_num_threads()
    try:
        runs = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            runs.append(program.run([*inputs, *captures.values()]))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


@pytest.mark.parametrize(
    ("dtype", "other"), [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.float64, torch.float64)]
)
def test_row_dot(dtype: torch.dtype, other: torch.dtype) -> None:
    torch.manual_seed(3)
    a, b = torch.randn(2, 3, 37, 20).to(dtype), torch.randn(2, 3, 37, 20).to(other)
    score = "f64" if dtype == torch.float64 else "f32"
    types = [f"tensor<?x?x?x20x{NAMES[t]}>" for t in (dtype, other)]
    text = f"""func.func @f(%a: {types[0]}, %b: {types[1]}) -> tensor<?x?x?x{score}> {{
  %r = "attn.row_dot"(%a, %b) : ({types[0]}, {types[1]}) -> tensor<?x?x?x{score}>
  return %r : tensor<?x?x?x{score}>
}}"""
    (got,) = compile_program(text, "f").run([a, b])
    want = (a.double() * b.double()).sum(-1)
    assert (got - want).abs().max() <= (1e-13 if score == "f64" else 1e-5)


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_elements(rank: int, dtype: torch.dtype) -> None:
    """x^2 collected, and added up by head, by position, and by position and column."""
    torch.manual_seed(4)
    element, score = NAMES[dtype], "f64" if dtype == torch.float64 else "f32"
    like = f"tensor<?x?x?{'x20' * (rank - 3)}x{element}>"
    names = ["b", "h", "i", "d"][:rank]
    columns = rank - 3
    table, table_index = f"tensor<?{'x?' * columns}x{score}>", ["i", *["d"] * columns]
    block = ", ".join(f"%{n}: index" for n in names)

    def scatter(name: str, target: str, type_: str, index: Sequence[str]) -> str:
        return f"""%{name} = "attn.scatter"(%w, %{target}) ({{
  ^bb0({block}):
    "attn.yield"({", ".join("%" + n for n in index)}) : ({", ".join(["index"] * len(index))}) -> ()
  }}) {{weight = 0}} : (none, {type_}) -> {type_}"""

    text = f"""func.func @f(%x: {like}, %k: tensor<?x?x?x4xf32>, %heads: tensor<?x{score}>, %table: {table})
    -> ({like}, tensor<?x{score}>, {table}) {{
  %w = "attn.elements"(%x) ({{
    "attn.element"() ({{
    ^bb0({block}):
      %0 = tensor.extract %x[{", ".join("%" + n for n in names)}] : {like}
      {f"%1 = arith.extf %0 : {element} to {score}" if element != score else f"%1 = arith.addf %0, %0 : {score}"}
      %2 = arith.mulf %1, %1 : {score}
      "attn.yield"(%2) : ({score}) -> ()
    }}) : () -> ()
  }}) : ({like}) -> none
  %r0 = "attn.collect"(%w) {{weight = 0}} : (none) -> {like}
  {scatter("r1", "heads", f"tensor<?x{score}>", ["h"])}
  {scatter("r2", "table", table, table_index)}
  return %r0, %r1, %r2 : {like}, tensor<?x{score}>, {table}
}}"""
    x = torch.randn(2, 3, 37, *[20] * columns, dtype=torch.float64).to(dtype)
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    program = compile_program(text, "f")
    got = program.run([x, torch.zeros(2, 3, 5, 4), torch.zeros(3, dtype=sums), torch.zeros(37, *[20] * columns, dtype=sums)])
    square = (x.double() * (1 if element != score else 2)) ** 2
    tolerance = 1e-13 if dtype == torch.float64 else 2e-6
    for a, want in zip(got, [square.to(dtype).double(), square.transpose(0, 1).flatten(1).sum(1), square.sum((0, 1))], strict=True):
        assert a.shape == want.shape
        assert (a.double() - want).abs().max() <= tolerance * want.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64])
@pytest.mark.parametrize("transposed", [False, True])
def test_captured_tensors_along_keys(dtype: torch.dtype, transposed: bool) -> None:
    """Keys that follow each other in memory, at a distance, and in a table; the last block of keys is not whole."""
    element = {torch.bool: "i1", torch.int64: "i64", torch.float32: "f32"}[dtype]
    cast = {
        torch.bool: "%a = arith.uitofp %e : i1 to f32",
        torch.int64: "%a = arith.sitofp %e : i64 to f32",
        torch.float32: "%a = arith.negf %e : f32",
    }[dtype]
    text = f"""func.func @f(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %m: tensor<?x?x{element}>, %t: tensor<?xf32>)
    -> tensor<?x?x?x8xf32> {{
  %w = "attn.pairs"() ({{
    "attn.product"(%q, %k) : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> ()
    "attn.pair"() ({{
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %e = tensor.extract %m[%q_idx, %kv_idx] : tensor<?x?x{element}>
      {cast}
      %two = arith.constant 2 : index
      %half = arith.divsi %kv_idx, %two : index
      %n = tensor.extract %t[%half] : tensor<?xf32>
      %y = arith.mulf %a, %n : f32
      "attn.yield"(%y) : (f32) -> ()
    }}) : () -> ()
  }}) : () -> none
  %r = "attn.query_sum"(%w, %k) {{weights = array<i64: 0>}} : (none, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %r : tensor<?x?x?x8xf32>
}}"""
    torch.manual_seed(5)
    q, k, table = torch.randn(1, 1, 21, 8), torch.randn(1, 1, 37, 8), torch.randn(19)
    matrix = torch.randn(37, 21).mul(3).to(dtype).mT if transposed else torch.randn(21, 37).mul(3).to(dtype)
    (got,) = compile_program(text, "f").run([q, k, matrix, table])
    weights = (-matrix if dtype == torch.float32 else matrix).double() * table.double().repeat_interleave(2)[:37]
    want = weights @ k.double()
    assert (got - want).abs().max() <= 3e-6 * want.abs().max()
