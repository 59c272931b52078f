"""The documents of a segment, and where text is not valid."""

import numpy as np
import pytest

from oarlock.corpus.blocks import Segment
from oarlock.corpus.documents import find_documents
from oarlock.corpus.records import Place

DATA = b"one\ntw\xffo\r\n\n  \nth\xe9ree\nfour\n"


def segment(rule: str, data: bytes, **more: object) -> Segment:
    return Segment(0, Place("a.txt", 11, 1000), rule, data, 0, **more)  # type: ignore[arg-type]


def test_lines() -> None:
    found = find_documents(segment("line", b"one\r\n\n \t\ntwo \nthree"), "text", "error")
    assert found.texts == ["one", "two ", "three"]
    assert found.num_blank_lines == 2


def test_blank_lines() -> None:
    found = find_documents(segment("blank", b"\n\none\r\nmore\r\n \t\r\n\r\ntwo\n\nthree\n"), "text", "error")
    assert found.texts == ["one\nmore", "two", "three"]


@pytest.mark.parametrize(
    ("rule", "replaced", "kept"),
    [
        ("line", ["one", "tw\ufffdo", "th\ufffdree", "four"], ["one", "four"]),
        ("blank", ["one\ntw\ufffdo", "th\ufffdree\nfour"], []),
        ("file", ["one\ntw\ufffdo\n\n  \nth\ufffdree\nfour"], []),
    ],
)
def test_c20_invalid_bytes_by_policy(rule: str, replaced: list[str], kept: list[str]) -> None:
    with pytest.raises(ValueError, match=r"a\.txt, line 12: byte 1006 \(0xff\)"):
        find_documents(segment(rule, DATA), "text", "error")
    found = find_documents(segment(rule, DATA), "text", "replace")
    assert (found.texts, found.num_flaws, found.num_skipped) == (replaced, 2, 0)
    assert found.first_flaw == Place("a.txt", 12, 1006)
    found = find_documents(segment(rule, DATA), "text", "skip")
    assert (found.texts, found.num_flaws, found.num_skipped) == (kept, 2, len(replaced) - len(kept))
    assert found.first_flaw == Place("a.txt", 12, 1006)


def test_invalid_bytes_in_records() -> None:
    parts = [b"fine", b"", b"b\xffd", b"fine"]
    records = segment("records", b"".join(parts), ends=np.cumsum(list(map(len, parts))))
    found = find_documents(records, "text", "skip")
    assert found.texts == ["fine", "", "fine"]
    assert found.first_flaw is not None
    assert found.first_flaw.line == 13
    with pytest.raises(ValueError, match="line 13"):
        find_documents(records, "text", "error")


def test_json_errors_name_the_line() -> None:
    data = b'{"text": "a"}\n\n{"text": "b"}\n{"text": 1}\n'
    with pytest.raises(ValueError, match=r"a\.txt, line 14"):
        find_documents(segment("json", data), "text", "error")


def test_ends_of_a_piece_stay_where_it_goes_on() -> None:
    def texts(**more: bool) -> list[str]:
        return find_documents(segment("piece", b"\na\r\n", **more), "text", "error").texts

    assert texts() == ["a"]
    assert texts(continues=True) == ["\na"]
    assert texts(unfinished=True) == ["a\n"]
    assert texts(continues=True, unfinished=True) == ["\na\n"]
