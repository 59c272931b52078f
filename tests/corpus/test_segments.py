"""Files as segments: whatever their format, size and compression, the documents are the same."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.corpus import segments as segments_module
from oarlock.corpus.blocks import Segment
from oarlock.corpus.cutting import cut_anywhere
from oarlock.corpus.documents import find_documents
from oarlock.corpus.segments import Reading, read_blocks, read_segments
from oarlock.corpus.sources import Source, find_sources

SMALL = 64


def reading(documents: str = "line", size: int = SMALL, policy: str = "error", key: str = "text") -> Reading:
    return Reading(documents, key, policy, cut_anywhere, size)  # type: ignore[arg-type]


def write(folder: Path, data: bytes | str, name: str = "a.txt") -> list[Source]:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return find_sources((str(path),), "out")


def documents(sources: list[Source], how: Reading) -> list[str]:
    """The documents of all segments, pieces joined."""
    found: list[str] = []
    for segment in read_segments(sources, how):
        texts = find_documents(segment, how.text_key, how.on_invalid_utf8).texts
        if segment.continues:
            found[-1] += texts.pop(0)
        found += texts
    return found


def plain_documents(data: str, rule: str) -> list[str]:
    """What the documents of a text are, said in the plainest way."""
    lines = [line.removesuffix("\r") for line in data.split("\n")[:-1]] + data.split("\n")[-1:]
    if rule == "line":
        return [line for line in lines if line.strip(" \t\r\n\f\v")]
    if rule == "file":
        return ["\n".join(lines).strip("\n")] if data else []
    groups: list[list[str]] = [[]]
    for line in lines:
        if line.strip(" \t\r\f\v"):
            groups[-1].append(line)
        else:
            groups.append([])
    return ["\n".join(group) for group in groups if group]


LINES = st.lists(
    st.text(st.sampled_from("ab é\u2028漢\f\t"), max_size=150).filter(lambda line: line.strip() or not line),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(lines=LINES, end=st.sampled_from(["\n", "\r\n"]), last=st.booleans(), rule=st.sampled_from(["line", "blank"]))
def test_documents_equal_the_plain_rule(
    lines: list[str], end: str, last: bool, rule: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In segments of 64 bytes, so that most documents come in pieces."""
    data = end.join(lines) + (end if last and lines else "")
    sources = write(tmp_path_factory.mktemp("texts"), data)
    expected = plain_documents(data, rule)
    for size in (SMALL, 300, 1 << 20):
        found = documents(sources, reading(rule, size))
        if rule == "blank":  # a piece of blanks may stand where there is no document
            found = [document for document in found if document.strip(" \t\f\v\n")]
        assert found == expected


@pytest.mark.parametrize("size", [SMALL, 1 << 20])
@pytest.mark.parametrize("data", ["", "\n", "one\n", "one", "\none\r\n\r\ntwo\r\n\n" * 9, "é" * 200])
def test_a_file_as_a_document(tmp_path: Path, data: str, size: int) -> None:
    sources = write(tmp_path, data)
    found = [text for text in documents(sources, reading("file", size)) if text]
    assert found == [text for text in plain_documents(data, "file") if text]


def test_c28_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    data = "one\r\ntwo\rstill two\u2028and\fstill\x85two\x1e\x0bso\nthree\r"
    for size in (SMALL, 1 << 20):
        assert documents(write(tmp_path, data), reading("line", size)) == [
            "one",
            "two\rstill two\u2028and\fstill\x85two\x1e\x0bso",
            "three\r",
        ]
    assert documents(write(tmp_path, "a\n \t\r\nb\n\u2028\nc"), reading("blank")) == ["a", "b\n\u2028\nc"]


@pytest.mark.parametrize("data", [b"", b"\n\n\r\n \n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_c21_a_file_without_text(tmp_path: Path, data: bytes) -> None:
    for name in ("a.txt", "a.jsonl"):
        assert documents(write(tmp_path, data, name), reading()) == []


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    mark = "\ufeff"
    assert documents(write(tmp_path, f"{mark}one\n{mark}two"), reading()) == ["one", f"{mark}two"]
    assert documents(write(tmp_path, mark + '{"text": "one"}', "a.jsonl"), reading()) == ["one"]
    (segment,) = read_segments(write(tmp_path, f"{mark}one"), reading())
    assert segment.place.offset == 3


def test_places_of_segments(tmp_path: Path) -> None:
    data = "".join(f"line {number}\n" for number in range(100)).encode()
    for segment in read_segments(write(tmp_path, data), reading()):
        assert data[segment.place.offset :].startswith(segment.data)
        assert segment.place.line == data[: segment.place.offset].count(b"\n") + 1


TEXTS = ["short", "", "x " * 200, "two\nlines", "漢字" * 100, "last"]


def as_json(texts: list[str | None], **more: Any) -> str:
    return "".join(json.dumps({"id": 1, "text": text}, **more) + "\n" for text in texts)


@pytest.mark.parametrize("size", [SMALL, 1 << 20])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_json_lines(tmp_path: Path, size: int, ascii_only: bool) -> None:
    sources = write(tmp_path, as_json([*TEXTS, None], ensure_ascii=ascii_only), "a.jsonl")
    assert documents(sources, reading(size=size)) == [*TEXTS, ""]


def test_json_lines_in_any_compression_and_key(tmp_path: Path) -> None:
    data = gzip.compress(as_json(TEXTS).replace('"text"', '"content"').encode())
    assert documents(write(tmp_path, data, "a.jsonl.gz"), reading(key="content")) == TEXTS


def test_a_json_record_over_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_module, "RECORD_LIMIT", 500)
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: a JSON record of over 500 bytes"):
        documents(write(tmp_path, as_json(["one", "x" * 2000]), "a.jsonl"), reading())


PARQUET_TYPES = {
    "string": pa.string(),
    "large": pa.large_string(),
    "view": pa.string_view(),
    "binary": pa.binary(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}


@pytest.mark.parametrize("size", [SMALL, 1 << 20])
@pytest.mark.parametrize("kind", PARQUET_TYPES)
def test_parquet(tmp_path: Path, kind: str, size: int) -> None:
    texts = [*TEXTS, None]
    values = [text if text is None or kind != "binary" else text.encode() for text in texts]
    table = pa.table({"n": range(len(texts)), "text": pa.array(values, PARQUET_TYPES[kind])})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    assert documents(find_sources((str(tmp_path / "a.parquet"),), "out"), reading(size=size)) == [*TEXTS, ""]


def test_parquet_of_many_rows(tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(2000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    sources = find_sources((str(tmp_path / "a.parquet"),), "out")
    found = list(read_segments(sources, reading(size=1 << 20)))
    assert [text for segment in found for text in find_documents(segment, "text", "error").texts] == texts
    assert [segment.place.line for segment in found] == [1, 513, 1025, 1537]
    assert found[-1].bytes_read == sources[0].size


@pytest.mark.parametrize(
    ("key", "message"), [("nothing", r"no column 'nothing' \(it has: n, text\)"), ("n", "holds int64, not text")]
)
def test_a_wrong_parquet_column_is_named(tmp_path: Path, key: str, message: str) -> None:
    pq.write_table(pa.table({"n": [1], "text": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=message):
        documents(find_sources((str(tmp_path / "a.parquet"),), "out"), reading(key=key))


def test_what_is_no_parquet_is_named(tmp_path: Path) -> None:
    for data in (b"", b"PAR1 but no more than that"):
        with pytest.raises(ValueError, match=r"a\.parquet cannot be read as parquet"):
            documents(write(tmp_path, data, "a.parquet"), reading())


def test_small_files_share_a_block(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number:03}.txt").write_text(f"number {number}\n")
    sources = find_sources((str(tmp_path),), "out")
    blocks = list(read_blocks(sources, reading(size=200)))
    assert 5 < len(blocks) < 30
    assert [block.index for block in blocks] == list(range(len(blocks)))
    segments = [segment for block in blocks for segment in block.segments]
    assert [segment.source for segment in segments] == list(range(100))
    read = [segment.bytes_read for segment in segments]
    assert read == sorted(read)
    assert read[-1] == sum(source.size for source in sources)


class Trickle(io.BytesIO):
    """A file that hands out a few bytes at a time, as a network may."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(7, size) if size and size > 0 else size)


def test_division_does_not_depend_on_how_bytes_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = write(tmp_path, "some words on a line\n" * 50 + "w" * 300)

    def divided() -> list[Segment]:
        return list(read_segments(sources, reading()))

    at_once = divided()
    monkeypatch.setattr(segments_module, "decompress", lambda source, raw: Trickle(raw.read()))
    assert [segment.data for segment in divided()] == [segment.data for segment in at_once]


@pytest.mark.parametrize("rule", ["line", "blank", "file"])
def test_c20_a_large_invalid_document_is_skipped_whole(tmp_path: Path, rule: str) -> None:
    """Also when its last byte is the invalid one."""
    separator = {"line": b"\n", "blank": b"\n\n", "file": b""}[rule]
    large = b"word " * 200 + b"\xff"
    data = large if rule == "file" else separator.join([b"first", large, b"second", b"good " * 100, b"third"])
    kept = [] if rule == "file" else ["first", "second", "good " * 100, "third"]
    how = reading(rule, policy="skip")
    segments = list(read_segments(write(tmp_path, data), how))
    assert documents(write(tmp_path, data), how) == kept
    (skipped,) = [segment for segment in segments if segment.rule == "skipped"]
    assert skipped.num_flaws == 1
    assert skipped.place.offset == data.index(b"\xff")
    assert skipped.place.line == data[: data.index(b"\xff")].count(b"\n") + 1
    assert find_documents(skipped, "text", "skip").num_skipped == 1


def test_a_large_record_with_half_a_surrogate_pair(tmp_path: Path) -> None:
    line = '{"text": "' + "word " * 100 + '\\ud83d"}\n'
    sources = write(tmp_path, line + '{"text": "next"}', "a.jsonl")
    assert documents(sources, reading(policy="skip")) == ["next"]
    assert documents(sources, reading(policy="replace")) == ["word " * 100 + "\ufffd", "next"]
    assert sum(segment.num_flaws for segment in read_segments(sources, reading(policy="replace"))) == 1
    with pytest.raises(ValueError, match=r"a\.jsonl, line 1: half of a surrogate pair"):
        documents(sources, reading())
