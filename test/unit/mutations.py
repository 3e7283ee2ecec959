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
        found, other = rng.choice(list(re.finditer(r"^.*\n", text, re.MULTILINE))), ""
    elif kind < 0.8:
        values = list(re.finditer(r"%[a-z_0-9]+(?![:a-z_0-9])", text))
        found, other = rng.choice(values), rng.choice(values)[0]
    else:
        types = list(re.finditer(r"tensor<[^>]*>|f32|index|i1", text))
        found, other = rng.choice(types), rng.choice(types)[0]
        if rng.random() < 0.7:
            return text.replace(found[0], other).encode()
    return (text[: found.start()] + other + text[found.end() :]).encode()


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
