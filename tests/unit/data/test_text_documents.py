"""Documents from text files: none lost, none twice, cut where they may be cut."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.data.text import documents as text_documents
from psyche_core.data.text.documents import pieces, text_paths
from psyche_core.errors import DataError

TEXTS = st.text(st.sampled_from("ab é\U0001f600\n"), max_size=200)


def write(folder: Path, files: Mapping[str, bytes | str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def test_folders_are_searched_in_the_order_of_paths(tmp_path: Path) -> None:
    write(tmp_path, {"b/x.txt": "", "a/y.md": "", "a/z.jsonl": "", "a/code.py": "", "c.TXT": ""})

    names = [path.relative_to(tmp_path).as_posix() for path in text_paths([tmp_path / "b" / "x.txt", tmp_path])]

    assert names == ["b/x.txt", "a/y.md", "a/z.jsonl", "c.TXT"]


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a/x.txt": "", "b.txt": ""})
    real = os.scandir

    def refuse(place: Any) -> Any:
        if str(place).endswith("/a"):
            raise PermissionError(13, "Permission denied", str(place))
        return real(place)

    monkeypatch.setattr(os, "scandir", refuse)  # root may look everywhere, so the mode would not do

    with pytest.raises(DataError, match=r"cannot look for texts in .*/a: Permission denied"):
        text_paths([tmp_path])


@pytest.mark.parametrize(
    ("source", "sentence"), [("nowhere", "No such file"), ("empty", r"has no texts; expected files named \*")]
)
def test_nothing_to_read_is_an_error(tmp_path: Path, source: str, sentence: str) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(DataError, match=sentence):
        text_paths([tmp_path / source])


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=3), st.sampled_from([0.0, 0.1, 0.5, 0.99]), st.integers(1, 50), st.integers(8, 60))
def test_pieces_are_the_text(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], held_out: float, piece_bytes: int, longest: int
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    write(folder, {f"{number}.txt": text for number, text in enumerate(texts)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_documents, "PIECE_BYTES", piece_bytes)
        patch.setattr(text_documents, "LONGEST_LINE", longest)
        found = list(pieces(text_paths([folder]), held_out=held_out))

    assert "".join(piece.text for piece in found) == "".join(texts)
    assert sum(piece.size for piece in found) == len("".join(texts).encode())
    assert sum(piece.documents for piece in found) == sum(bool(text) for text in texts)
    assert all(piece.text for piece in found)

    at = 0
    for text in filter(None, texts):
        size = len(text.encode())
        training = size - round(size * held_out)
        taken, done = [], 0
        while done < size:
            taken.append(found[at])
            done += found[at].size
            at += 1
        kinds = [piece.held_out for piece in taken]
        assert kinds == sorted(kinds), "training text after held-out text"
        assert [piece.last for piece in taken] == [
            number + 1 == len(taken) or kinds[number] != kinds[number + 1] for number in range(len(taken))
        ]
        parts = ["".join(piece.text for piece in taken if piece.held_out is kind) for kind in (False, True)]
        if held_out == 0:
            assert not parts[1]
        elif parts[1] and longest > size:  # no line had to be cut within
            assert not parts[0] or parts[0].endswith("\n")
            assert "\n" not in parts[0].encode()[max(0, training - 1) :].decode(errors="replace")[:-1], (
                "not at the first line's end"
            )
        elif longest > size:
            assert "\n" not in text.encode()[max(0, training - 1) : -1].decode(errors="replace"), "it could have been cut"


def test_line_ends_and_the_byte_order_mark_are_no_text(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": b"\xef\xbb\xbfone\r\ntwo\r\n"})

    assert [piece.text for piece in pieces(text_paths([tmp_path]))] == ["one\ntwo\n"]


def test_lines_are_documents_and_held_out_whole(tmp_path: Path) -> None:
    records = [{"text": f"document {number}", "id": number} for number in range(40)]
    write(tmp_path, {"a.jsonl": "\n".join(map(json.dumps, records[:13])), "b.jsonl": "\n\n".join(map(json.dumps, records[13:]))})

    found = list(pieces(text_paths([tmp_path]), held_out=0.1))

    assert [piece.text for piece in found] == [record["text"] for record in records]
    assert [number for number, piece in enumerate(found) if piece.held_out] == [9, 19, 29, 39]
    assert all(piece.last and piece.documents == 1 for piece in found)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.txt", b"good\n\xff\xfe", r"a\.txt is not UTF-8 text: byte 5 cannot be read"),
        ("a.txt", b"cut \xf0\x9f", r"a\.txt is not UTF-8 text: byte 4"),
        ("a.jsonl", b'{"text": "x"}\n{"text": ', r"line 2 of .*a\.jsonl is not JSON"),
        ("a.jsonl", b"\xff\n", "line 1 of .* is not JSON"),
        ("a.jsonl", b"[" * 100_000, "line 1 of .* is not JSON"),
        (
            "a.jsonl",
            b'{"content": "x", "id": 1}',
            r"has no text under 'text' \(it has content, id\); name the key with --text-key",
        ),
        ("a.jsonl", b'{"text": 5}', "has no text under 'text'"),
        ("a.jsonl", b"[1]", r"has no text under 'text' \(it has a list\)"),
        ("a.jsonl", b'{"text": "\\ud800"}', "line 1 of .* has half a character"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    write(tmp_path, {name: content})

    with pytest.raises(DataError, match=sentence):
        list(pieces(text_paths([tmp_path])))


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_documents, "LONGEST_LINE", 100)
    write(tmp_path, {"a.jsonl": json.dumps({"text": "x" * 200})})

    with pytest.raises(DataError, match=r"line 1 of .*a\.jsonl is longer than 100 bytes"):
        list(pieces(text_paths([tmp_path])))


def test_a_file_that_goes_away_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "x"})
    paths = text_paths([tmp_path])
    paths[0].unlink()

    with pytest.raises(DataError, match=r"cannot read the text .*a\.txt: No such file"):
        list(pieces(paths))
