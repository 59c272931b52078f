"""What is wrong with a record or a text is said with file and line, never by a bare traceback."""

import pytest

from oarlock.corpus.records import Place, Text, decode, first_flaw, read_record

HERE = Place("a.jsonl", 7, 100)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "cut in the mid', r"a\.jsonl, line 7: not valid JSON"),
        (b"plain text", r"a\.jsonl, line 7: not valid JSON.*one object a line"),
        (b"[", r"a\.jsonl, line 7: a JSON array, where one object a line .*jq"),
        (b' [{"text": "x"}]', r"a\.jsonl, line 7: a JSON array, where one object a line .*jq"),
        (b"[" * 100_000, r"a\.jsonl, line 7: a JSON array"),
        (b'{"a":' * 100_000, r"a\.jsonl, line 7: .*nested too deep"),
        (b'{"text": "x", "id": ' + b"1" * 6000 + b"}", r"line 7: holds a number of thousands of digits"),
        (b'"text"', r"a\.jsonl, line 7: a str, where an object"),
        (b'{"body": "x", "id": 1}', r"line 7: no key 'text' \(its keys: 'body', 'id'\).*text_key"),
        (b"{}", r"no key 'text' \(its keys: none\)"),
        (b'{"text": ["a"]}', r"line 7: 'text' is a list, not a string"),
        (b'{"text": 5}', r"line 7: 'text' is a int, not a string"),
        (b'{"text": "a \\ud83d b"}', r"line 7: half of a surrogate pair \(\\ud83d\).*on_invalid_utf8"),
        (b'{"text": "a \xff b"}', r"line 7: byte 112 \(0xff\) is not valid UTF-8.*on_invalid_utf8"),
    ],
)
def test_c21_a_broken_record_is_refused(line: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_record(line, "text", "error", HERE)


@pytest.mark.parametrize("policy", ["error", "replace", "skip"])
def test_a_sound_record(policy: str) -> None:
    assert read_record(b'{"text": "a \\ud83d\\ude00"}\r', "text", policy, HERE) == Text("a \U0001f600", 0, False)
    assert read_record(b'{"text": null}', "text", policy, HERE) == Text(None, 0, False)
    assert read_record(b'{"text": ""}', "text", policy, HERE) == Text("", 0, False)


@pytest.mark.parametrize("line", [b'{"text": "a \\ud83d b"}', b'{"text": "a \xff b"}'])
def test_an_invalid_character_by_policy(line: bytes) -> None:
    assert read_record(line, "text", "replace", HERE) == Text("a \ufffd b", 1, False)
    assert read_record(line, "text", "skip", HERE) == Text(None, 1, True)


def test_bytes_that_stand_for_a_replaced_character_are_valid() -> None:
    data = "\ufffd".encode() + b" \xff \xc3\x28"
    assert decode(data, "replace", HERE).num_flaws == 2
    assert first_flaw(data, HERE).offset == 104


def test_utf16_is_recognised() -> None:
    with pytest.raises(ValueError, match=r"a\.txt, line 1: byte 0 .*UTF-16.*iconv"):
        decode("text".encode("utf-16"), "error", Place("a.txt", 1, 0))


def test_a_row_is_not_taken_for_a_file() -> None:
    """A row of bytes may start as a file in UTF-16 does, and hold line feeds."""
    row = Place("a.parquet", 1, 0, "row")
    with pytest.raises(ValueError, match=r"a\.parquet, row 1: byte 0 .*on_invalid_utf8"):
        decode("text".encode("utf-16"), "error", row)
    assert first_flaw(b"a\nb\n\xff", row) == Place("a.parquet", 1, 4, "row")
