"""Ways to damage MLIR text, each driven by a seeded random generator."""

import random
import re

# What is worth writing in place of something else.
_TOKENS = [
    "f32", "f64", "i1", "i128", "index", "tensor<?x?x?x64xf32>", "tensor<*xf32>", "memref<?xf32>", "vector<4xf32>", "()", "{}", "({})",
    "0", "-1", "99999999999999999999", "1.0e400", "true", '""', '"attn.row"', '"attn.yield"', '"attn.online"', '"tile.map"', "unit",
    "[]", "[1]", "array<i32: 1, 1>", "array<i32: -1, 9>", "dense<0> : tensor<2xi32>", "%undefined", "@nobody", "^bb9", "\x00", "\u00e9",
]  # fmt: skip
_NUMBER = re.compile(r"(?<=[ <:{,=\[])-?\d+(?=[ ,}>\]:])")
_TOKEN = re.compile(r'"[^"\n]*"|%[\w#]+|[\w.?<>]+|\S')


def damage(text: str, rng: random.Random) -> bytes:
    """`text` with one to three kinds of damage."""
    data = text.encode()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(_KINDS)(data, rng)
    return data


def exchange(text: str, rng: random.Random) -> bytes:
    """`text` with one value, type, number or line changed such that it mostly still parses: what verifiers and passes get to see."""
    kind = rng.random()
    numbers = list(_NUMBER.finditer(text))
    if kind < 0.4 and numbers:
        found, other = rng.choice(numbers), str(rng.choice((0, 1, 2, 3, -1, 7)))
    elif kind < 0.6:
        found, other = rng.choice(list(re.finditer(r"^.*\n?", text, re.MULTILINE))), ""
    elif kind < 0.8:
        values = list(re.finditer(r"%[a-z_0-9]+(?![:a-z_0-9])", text))
        if not values:
            return text.encode()
        found, other = rng.choice(values), rng.choice(values)[0]
    else:
        types = list(re.finditer(r"tensor<[^>]*>|f32|index|i1", text))
        if not types:
            return text.encode()
        found, other = rng.choice(types), rng.choice(types)[0]
        if rng.random() < 0.7:
            return text.replace(found[0], other).encode()
    return (text[: found.start()] + other + text[found.end() :]).encode()


def restructure(text: str, rng: random.Random) -> str:
    """`text` with other modules, functions, element types or sizes, such that it mostly still parses."""
    return rng.choice(_STRUCTURES)(text, rng)


def _in_modules(text: str, rng: random.Random) -> str:
    """The program inside of modules, beside others, or twice."""
    body = re.sub(r"^module \{\n(.*)^\}\s*$", r"\1", text, flags=re.MULTILINE | re.DOTALL)
    forms = (
        "module { module { BODY } }", "module @outer { module @inner { BODY } BODY }", "module { BODY module { } }", "module { }", "",
        "module { module { func.func @f() { return } } }", "module { func.func @attention() { return } }", "BODY BODY",
        "module { func.func private @attention(tensor<?x?x?x64xf32>) BODY }", "module attributes {a.b = 1, nvidia.tuned = 3} { BODY }",
        "module { func.func @f() { module { BODY } return } }", "BODY }", "{ BODY", "func.func @g() { BODY return }",
    )  # fmt: skip
    return rng.choice(forms).replace("BODY", body)


def _other_functions(text: str, rng: random.Random) -> str:
    """Functions with other names, visibility, or attributes."""
    found = list(re.finditer(r"func\.func (private |public )?@\w+", text))
    if not found:
        return text
    function = rng.choice(found)
    name = rng.choice(
        ("@attention", "@attention_fwd", "@attention_bwd", "@attention_jvp", "@main", '@"odd name"', "private @attention", "@f")
    )
    changed = text[: function.start()] + f"func.func {name}" + text[function.end() :]
    return changed.replace("attributes {", "attributes {llvm.emit_c_interface, tile.odd = 1, ", 1) if rng.random() < 0.3 else changed


def _other_elements(text: str, rng: random.Random) -> str:
    old, new = rng.choice(("f32", "f64", "f16", "bf16", "index", "i1", "i64")), rng.choice(_ELEMENTS)
    pattern = rf"\b{old}\b" if rng.random() < 0.5 else rf"(?<=x){old}(?=>)"
    return re.sub(pattern, new, text)


def _other_sizes(text: str, rng: random.Random) -> str:
    """One size everywhere, or at one place, by another one."""
    found = list(re.finditer(r"(?<=[<x])(\d+|\?)(?=x)", text))
    if not found:
        return text
    size, other = (
        rng.choice(found),
        rng.choice(("0", "1", "?", "3", "7", "64", "128", "256", "320", "512", "100000", f"{2**63 - 1}")),
    )
    if rng.random() < 0.5:
        return text[: size.start()] + other + text[size.end() :]
    return re.sub(rf"(?<=[<x]){re.escape(size[0])}(?=x)", other, text)


def _other_constants(text: str, rng: random.Random) -> str:
    """A constant or a number in an attribute by an extreme one."""
    found = list(re.finditer(r"(?<=constant )-?[\d.e+-]+|(?<== )-?\d+(?= : i64)", text))
    if not found:
        return text
    number, whole = rng.choice(found), ("0", "-1", "2", "9223372036854775807", "-9223372036854775808", "4294967296")
    other = rng.choice(("0.0", "-1.0", "1.0e+38", "0x7FC00000", "1.0e-45", "-0.0") if "." in number[0] else whole)
    return text[: number.start()] + other + text[number.end() :]


def _other_attributes(text: str, rng: random.Random) -> str:
    """Something else as the value of an attribute."""
    found = list(re.finditer(r"(?<=\w = )(\"[^\"]*\"|\[[^\]]*\]|array<[^>]*>|true|false|-?\d+)", text))
    if not found:
        return text
    value = rng.choice(found)
    return text[: value.start()] + rng.choice(_VALUES) + text[value.end() :]


def _named(text: str, rng: random.Random) -> str:
    """With locations that say names, or nothing."""
    where = rng.choice(('loc("a name")', "loc(unknown)", 'loc(fused["a", "b"])', 'loc(callsite("a" at "b"))', 'loc("f.py":3:4)'))
    return re.sub(
        r"(\) -> [^\n({]*|: \w+)$", lambda found: f"{found[0]} {where}" if rng.random() < 0.5 else found[0], text, flags=re.MULTILINE
    )


_ELEMENTS = (
    "f16",
    "bf16",
    "f32",
    "f64",
    "f8E4M3FN",
    "i1",
    "i8",
    "i32",
    "i64",
    "i128",
    "index",
    "complex<f32>",
    "vector<2xf32>",
    "tf32",
    "none",
)
_VALUES = (
    '""', '"x"', "[]", '[1, "a"]', "unit", "true", "-1", "0", "1 : i1", "1 : i128", "99999999999999999999 : i256", "1.0", "f32", "{}",
    "{a = {b = 1}}",
    "@f", "array<i32: 1, 1, 1>", "array<i128: 1, 1>", "array<i64>", "array<i1: true>", "array<f32: 1.0>", "dense<1> : tensor<2xi32>",
    "affine_map<(d) -> (d)>", "#attn.none", "loc(unknown)", "dense_resource<x> : tensor<1xi8>", "-9223372036854775808 : i64",
)  # fmt: skip
_STRUCTURES = (_in_modules, _other_functions, _other_elements, _other_sizes, _other_constants, _other_attributes, _other_attributes, _named)


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _change_bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.choice((rng.randrange(256), rng.randrange(32, 127)))
    return bytes(changed)


def _shuffle_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    first = rng.randrange(len(lines))
    part = lines[first : first + rng.randint(2, 12)]
    rng.shuffle(part)
    return b"\n".join([*lines[:first], *part, *lines[first + len(part) :]])


def _drop_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    first = rng.randrange(len(lines))
    return b"\n".join(lines[:first] + lines[first + rng.randint(1, 3) :])


def _repeat_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    first = rng.randrange(len(lines))
    return b"\n".join(lines[:first] + lines[first : first + rng.randint(1, 6)] * 2 + lines[first + 1 :])


def _replace_token(data: bytes, rng: random.Random) -> bytes:
    text = data.decode(errors="surrogateescape")
    found = list(_TOKEN.finditer(text))
    if not found:
        return data
    token = rng.choice(found)
    other = rng.choice((rng.choice(_TOKENS), rng.choice(found)[0]))
    return (text[: token.start()] + other + text[token.end() :]).encode(errors="surrogateescape")


def _drop_attribute(data: bytes, rng: random.Random) -> bytes:
    found = list(re.finditer(rb"\w+ = [^,}\n]*,? ?", data))
    if not found:
        return data
    attribute = rng.choice(found)
    return data[: attribute.start()] + data[attribute.end() :]


def _random_bytes(data: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(200))


# Those that leave most of the text intact get further than the parser, so they come more often.
_KINDS = [
    _truncate, _change_bytes, _shuffle_lines, _drop_lines, _repeat_lines, _random_bytes,
    _replace_token, _replace_token, _replace_token, _drop_attribute, _drop_attribute, _drop_lines,
]  # fmt: skip
