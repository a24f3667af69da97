"""Changes to inputs: of bytes, blindly, and of CBOR trees, keeping the encoding canonical so that inner checks are reached.

Everything is drawn from the `Random` that is given, so that a seed repeats a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import cbor2

_BYTES = (0x00, 0x01, 0x17, 0x18, 0x1B, 0x1F, 0x20, 0x40, 0x5F, 0x60, 0x7F, 0x80, 0x81, 0x9F, 0xA0, 0xA1, 0xC2, 0xF5, 0xF9, 0xFF)
_NUMBERS = (0, 1, 2, 3, 4, 5, 23, 24, 31, 32, 255, 256, 2**16, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -1)
_JUNK: tuple[Any, ...] = (
    *_NUMBERS,
    None,
    True,
    False,
    0.0,
    -0.0,
    1.0,
    1.5,
    -1e308,
    5e-324,
    math.nan,
    math.inf,
    "",
    "x",
    "é\0\U0001f980",
    "x" * 100,
    b"",
    b"\0",
    b"x" * 31,
    b"x" * 32,
    b"x" * 33,
    [],
    [[]],
    [0, 0],
    {},
    {"a": 1},
    {0: 0},
    2**64,
)


def change_bytes(data: bytes, random: Random, *, others: Sequence[bytes] = (b"",)) -> bytes:
    """One to five changes somewhere: a bit, a byte, a run removed, repeated, filled or taken from one of `others`."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 5))):
        start = random.randint(0, len(changed))
        stop = min(len(changed), start + random.choice((1, 1, 2, 4, 8, 32)))
        match random.randrange(8):
            case 0 if start < len(changed):
                changed[start] ^= 1 << random.randrange(8)
            case 1 if start < len(changed):
                changed[start] = random.choice(_BYTES)
            case 2:
                del changed[start:stop]
            case 3:
                changed[start:start] = changed[start:stop]
            case 4:
                changed[start:start] = random.randbytes(stop - start or 1)
            case 5:
                width = random.choice((1, 2, 4, 8))
                number = random.choice(_NUMBERS) & (1 << 8 * width) - 1
                changed[start : start + width] = number.to_bytes(width, random.choice(("little", "big")))
            case 6:
                other = random.choice(others)
                cut = random.randint(0, len(other))
                changed[start:] = other[cut:]
            case _:
                del changed[start:]

    return bytes(changed)


def change_cbor(data: bytes, random: Random) -> bytes:
    """The encoded tree with one to three nodes changed; bytes changed where it is no CBOR."""
    try:
        tree = cbor2.loads(data)
        for _ in range(random.choice((1, 1, 2, 3))):
            tree = _changed(tree, random)
        return bytes(cbor2.dumps(tree, canonical=True))
    except (cbor2.CBORError, ValueError, TypeError, RecursionError):  # what the mutator cannot read it cannot keep well formed
        return change_bytes(data, random)


def _changed(tree: Any, random: Random) -> Any:
    """The tree with a node changed; every level is gone down with the same chance, so that shallow nodes get their share."""
    if isinstance(tree, list) and tree and random.random() < 0.85:
        place = random.randrange(len(tree))
        return [*tree[:place], _changed(tree[place], random), *tree[place + 1 :]]

    if isinstance(tree, dict) and tree and random.random() < 0.85:
        key = random.choice(list(tree))
        return {**tree, key: _changed(tree[key], random)}

    return _other(tree, random)


def _other(node: Any, random: Random) -> Any:
    """What stands in the place of a node: something near it, or junk."""
    if random.random() < 0.3:
        return random.choice(_JUNK)

    match node:
        case bool():
            return not node
        case int():
            near = max(-(2**53), min(node, 2**53))  # a float can say this exactly
            return random.choice((node + 1, node - 1, -node, node << random.randrange(1, 64), float(near), bool(node)))
        case float():
            return random.choice((-node, node * 2, math.nan, int(node) if math.isfinite(node) else 0))
        case bytes():
            return change_bytes(node, random)
        case str():
            return random.choice(
                (node[:-1], node * 2, node + "\0", node.upper(), node.encode(), change_bytes(node.encode(), random))
            )
        case list():
            return _other_list(node, random)
        case dict():
            return _other_dict(node, random)
        case _:
            return random.choice(_JUNK)


def _other_list(node: list[Any], random: Random) -> Any:
    place = random.randint(0, len(node))
    match random.randrange(6):
        case 0:
            return node[:place] + node[place + 1 :]
        case 1:
            return node[:place] + node[max(0, place - 1) :]
        case 2:
            return [*node[:place], random.choice(_JUNK), *node[place:]]
        case 3:
            return [node]
        case 4:
            return random.sample(node, len(node))
        case _:
            return node * random.choice((0, 2, 3, 17))


def _other_dict(node: dict[Any, Any], random: Random) -> Any:
    keys = list(node)
    match random.randrange(4):
        case 0 if keys:
            left_out = random.choice(keys)
            return {key: value for key, value in node.items() if key != left_out}
        case 1:
            return {**node, random.choice(("x", "", 0, 2**63, keys[0] if keys else "a")): random.choice(_JUNK)}
        case 2 if keys:
            one, other = random.choice(keys), random.choice(keys)
            return {**node, one: node[other], other: node[one]}
        case _:
            return list(node.items())


_TOML_VALUES = (
    "0",
    "-1",
    "18446744073709551616",
    "1e400",
    "nan",
    "-inf",
    "true",
    '""',
    '"\\u0000"',
    '"' + "x" * 70 + '"',
    "'é'",
    "[]",
    "[1, [2]]",
    "{}",
    "{a = 1, b = {c = []}}",
    "1979-05-27T07:32:00Z",
    "07:32:00",
    "{Hub = {repo_id = 'a/b'}}",
    "[" * 30 + "]" * 30,
)
_TOML_MONSTERS = ("9" * 4400, "0x" + "f" * 4400, "[" * 1500 + "]" * 1500, "{a = " * 400 + "}" * 400)
"""Numbers that Python refuses to write, and more levels than it can go down; rare, because they are slow."""


_TOML_TABLES = ("[config]", "[[model]]", "[model.LLM.x]", "[progress]", "[a." + "b." * 30 + "c]")


def change_toml(data: bytes, random: Random) -> bytes:
    """The text with one to three lines changed: a value, a key, the table it stands in, its place."""
    lines = data.decode(errors="replace").split("\n")
    for _ in range(random.choice((1, 1, 2, 3))):
        place = random.randrange(len(lines))
        key, equals, value = lines[place].partition("=")
        match random.randrange(8):
            case 0 | 1 | 2 if equals:
                lines[place] = f"{key}= {random.choice(_TOML_VALUES if random.random() < 0.998 else _TOML_MONSTERS)}"
            case 3 if equals:
                lines[place] = f"{key.strip()}{random.choice(('x', '.a', '.a' * 40, '_time'))} ={value}"
            case 4:
                del lines[place]
            case 5:
                lines.insert(random.randint(0, len(lines)), lines[place])
            case 6:
                lines.insert(
                    place, random.choice(("[config]", "[[model]]", "[model.LLM.x]", "[progress]", "[a." + "b." * 30 + "c]"))
                )
            case _:
                lines[place] = change_bytes(lines[place].encode(), random).decode(errors="replace")
        lines = lines or [""]

    return "\n".join(lines).encode()
