"""One record of JSON lines, and text that is not valid: what is done with either, by file and line."""

import json
import re
from typing import Literal, NamedTuple

from oarlock.corpus.kinds import InvalidText

REPLACEMENT = "\ufffd"
SURROGATE = re.compile("[\ud800-\udfff]")
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class Place(NamedTuple):
    """Where some bytes come from."""

    path: str
    line: int
    """From 1."""
    offset: int
    """In bytes from the start of the file, after decompression; in a row, from its start."""
    unit: Literal["line", "row"] = "line"
    """What `line` counts: rows in a parquet file."""

    def __str__(self) -> str:
        return f"{self.path}, {self.unit} {self.line}"


class Text(NamedTuple):
    """A document's text; None where there is none or it was left out."""

    text: str | None
    num_flaws: int
    """Places at which it was not valid."""
    skipped: bool


def decode(data: bytes, policy: InvalidText, place: Place) -> Text:
    """Bytes to text. Raises ValueError by policy `error`, with file, line and byte offset of the first invalid byte."""
    try:
        return Text(data.decode(), 0, False)
    except UnicodeDecodeError as error:
        if policy == "error":
            first = first_flaw(data, place)
            raise ValueError(
                f"{first}: byte {first.offset} (0x{data[error.start]:02x}) is not valid UTF-8. " + _advice(data, place)
            ) from error
    text = data.decode(errors="replace")
    num_flaws = text.count(REPLACEMENT) - data.count(REPLACEMENT.encode())
    return Text(text if policy == "replace" else None, num_flaws, policy == "skip")


def first_flaw(data: bytes, place: Place) -> Place:
    """Where the first invalid byte of `data`, which has one and begins at `place`, stands."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        lines = data.count(b"\n", 0, error.start) if place.unit == "line" else 0
        return place._replace(line=place.line + lines, offset=place.offset + error.start)
    raise AssertionError("valid UTF-8")


def _advice(data: bytes, place: Place) -> str:
    if place.unit == "line" and place.offset == 0 and data.startswith(UTF16_MARKS):
        return "The file looks like UTF-16; convert it, for example with `iconv -f utf-16 -t utf-8`"
    return "Mend the file, or choose on_invalid_utf8 `replace` (puts U+FFFD there) or `skip` (leaves the document out)"


def read_record(line: bytes, key: str, policy: InvalidText, place: Place) -> Text:
    """The text of one JSON line; null counts as no text.

    Raises ValueError, with file and line, where it is not a JSON object or `key` is missing or not a string, and by
    policy `error` where the text is not valid UTF-8 or holds half of a surrogate pair.
    """
    decoded = decode(line, policy, place)
    if decoded.text is None:
        return decoded
    where = str(place)
    if decoded.text.lstrip().startswith("["):
        raise ValueError(
            f"{where}: a JSON array, where one object a line with the key {key!r} is expected; "
            "`jq -c '.[]' FILE` makes JSON lines of a file that is one array of objects"
        )
    try:
        record = json.loads(decoded.text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where}: not valid JSON ({error}); a file of JSON lines has one object a line. Mend or delete the line"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{where}: holds a number of thousands of digits, or objects nested too deep, and is not read for that "
            f"({error}). Mend or delete the line"
        ) from error
    if not isinstance(record, dict):
        raise ValueError(f"{where}: a {type(record).__name__}, where an object with the key {key!r} is expected")
    if key not in record:
        known = ", ".join(map(repr, list(record)[:10])) or "none"
        raise ValueError(f"{where}: no key {key!r} (its keys: {known}); name the right one by text_key")
    text = record[key]
    if text is None:
        return Text(None, decoded.num_flaws, False)
    if not isinstance(text, str):
        raise ValueError(f"{where}: {key!r} is a {type(text).__name__}, not a string; name the right key by text_key")
    return _mend_surrogates(text, decoded.num_flaws, policy, where)


def _mend_surrogates(text: str, num_flaws: int, policy: InvalidText, where: str) -> Text:
    """Halves of surrogate pairs, which JSON can spell and UTF-8 cannot, are treated as invalid bytes are."""
    halves = 0 if text.isascii() else len(SURROGATE.findall(text))
    if not halves:
        return Text(text, num_flaws, False)
    if policy == "error":
        half = SURROGATE.search(text)
        assert half
        raise ValueError(
            f"{where}: half of a surrogate pair (\\u{ord(half[0]):04x}), which is no character. Mend the line, or "
            "choose on_invalid_utf8 `replace` (puts U+FFFD there) or `skip` (leaves the document out)"
        )
    mended = SURROGATE.sub(REPLACEMENT, text) if policy == "replace" else None
    return Text(mended, num_flaws + halves, policy == "skip")
