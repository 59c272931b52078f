"""Input files as runs of complete documents, about a megabyte each; a larger document comes in pieces.

How a file is divided depends on its contents alone: not on the number of processes, nor on how its bytes arrive.
"""

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, BinaryIO

import numpy as np

from oarlock.corpus.blocks import Block, Rule, Segment
from oarlock.corpus.cutting import Cut
from oarlock.corpus.kinds import DocumentRule, InvalidText
from oarlock.corpus.records import Place, decode, first_flaw, read_record
from oarlock.corpus.sources import Source, damage_named, decompress, open_raw

SEGMENT_BYTES = 1 << 19
RECORD_LIMIT = 1 << 30
PARQUET_ROWS = 512
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BLANK_LINE = re.compile(rb"\r?\n[ \t\r\f\v]*\n")
LINE_END = re.compile(rb"\r?\n")


@dataclass(frozen=True)
class Reading:
    """How files are read."""

    documents: DocumentRule
    text_key: str
    on_invalid_utf8: InvalidText
    cut: Cut
    segment_bytes: int = SEGMENT_BYTES


def read_blocks(sources: list[Source], reading: Reading) -> Iterator[Block]:
    """All segments, so many at a time as make about `segment_bytes`."""
    held: list[Segment] = []
    index = held_bytes = 0
    for segment in read_segments(sources, reading):
        held.append(segment)
        held_bytes += len(segment.data)
        if held_bytes >= reading.segment_bytes // 2:
            yield Block(index, tuple(held))
            held, held_bytes, index = [], 0, index + 1
    if held:
        yield Block(index, tuple(held))


def read_segments(sources: list[Source], reading: Reading) -> Iterator[Segment]:
    """The segments of all files, in order.

    Raises ValueError where a file cannot be read, or where a large JSON record is not as it should be.
    """
    bytes_before = 0
    for index, source in enumerate(sources):
        with open_raw(source) as raw, damage_named(source):
            if source.format == "parquet":
                segments = _read_parquet(source, index, raw, bytes_before, reading)
            else:
                segments = _read_lines(source, index, raw, bytes_before, reading)
            yield from _leave_out_invalid(segments) if reading.on_invalid_utf8 == "skip" else segments
        bytes_before += source.size


def _read_lines(source: Source, index: int, raw: BinaryIO, bytes_before: int, reading: Reading) -> Iterator[Segment]:
    """Text and JSON lines."""
    reader = decompress(source, raw)
    rule: Rule = "json" if source.format == "json" else reading.documents
    size = reading.segment_bytes
    buffer, line, offset, continues = b"", 1, 0, False

    def segment(rule: Rule, data: bytes, **more: Any) -> Segment:
        return Segment(index, Place(source.path, line, offset), rule, data, bytes_before + raw.tell(), **more)

    while True:
        chunk = _fill(reader, size - len(buffer))
        at_end = len(buffer) + len(chunk) < size
        buffer += chunk
        taken = 0
        if offset == 0 and buffer.startswith(BYTE_ORDER_MARK):
            buffer, offset = buffer[len(BYTE_ORDER_MARK) :], len(BYTE_ORDER_MARK)
        if not buffer and not continues:
            return
        if continues:
            end, taken = _first_boundary(rule, buffer) or (len(buffer), len(buffer) if at_end else 0)
            if taken or at_end:
                yield segment("piece", buffer[:end], continues=True)
                continues = False
                if at_end and taken == len(buffer):
                    return
            else:
                taken = reading.cut(buffer)
                yield segment("piece", buffer[:taken], continues=True, unfinished=True)
        elif at_end:
            yield segment(rule, buffer)
            return
        elif taken := _last_boundary(rule, buffer):
            yield segment(rule, buffer[:taken])
        elif rule == "json":
            record, rest = _read_record_whole(source, line, reader, buffer, size)
            text = read_record(record, reading.text_key, reading.on_invalid_utf8, Place(source.path, line, offset))
            yield from _pieces((text.text or "").encode(), segment, reading, text.num_flaws, text.skipped)
            line, offset, buffer = line + 1, offset + len(record) + 1, rest
        else:
            taken = reading.cut(buffer)
            yield segment("piece", buffer[:taken], unfinished=True)
            continues = True
        line += buffer.count(b"\n", 0, taken)
        offset += taken
        buffer = buffer[taken:]


def _fill(reader: BinaryIO, size: int) -> bytes:
    """The next `size` bytes; fewer only at the end of the file."""
    data = reader.read(size) if size > 0 else b""
    while 0 < len(data) < size and (more := reader.read(size - len(data))):
        data += more
    return data


def _read_record_whole(source: Source, line: int, reader: BinaryIO, start: bytes, size: int) -> tuple[bytes, bytes]:
    """A line that begins with `start`, to its end, and what was read after it."""
    chunks, total = [start], len(start)
    while chunk := _fill(reader, size):
        chunk, end, rest = chunk.partition(b"\n")
        chunks.append(chunk)
        if end:
            return b"".join(chunks), rest
        total += len(chunk)
        if total > RECORD_LIMIT:
            raise ValueError(f"{source.path}, line {line}: a JSON record of over {RECORD_LIMIT:,} bytes; cut it up")
    return b"".join(chunks), b""


def _last_boundary(rule: Rule, data: bytes) -> int:
    """Where the last complete document ends, its separator included; 0 if there is none."""
    if rule == "blank":
        ends = [match.end() for match in BLANK_LINE.finditer(data)]
        return ends[-1] if ends else 0
    return 0 if rule == "file" else data.rfind(b"\n") + 1


def _first_boundary(rule: Rule, data: bytes) -> tuple[int, int] | None:
    """Where the document at the start of `data` ends, without and with its separator."""
    if rule == "file":
        return None
    match = (BLANK_LINE if rule == "blank" else LINE_END).search(data)
    return match.span() if match else None


def _read_parquet(source: Source, index: int, raw: BinaryIO, bytes_before: int, reading: Reading) -> Iterator[Segment]:
    """The text column of a parquet file."""
    import pyarrow  # slow to import, and seldom needed
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(raw)
        names = file.schema_arrow.names
        if reading.text_key not in names:
            raise ValueError(f"{source.path} has no column {reading.text_key!r} (it has: {', '.join(names)})")
        rows, num_rows = 0, max(file.metadata.num_rows, 1)
        for batch in file.iter_batches(PARQUET_ROWS, columns=[reading.text_key]):
            column = batch.column(0)
            if pyarrow.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            if not _is_text(column.type):
                raise ValueError(f"{source.path}: column {reading.text_key!r} holds {column.type}, not text")
            column = column.cast(pyarrow.large_binary()).fill_null(b"")
            bytes_read = bytes_before + source.size * (rows + len(column)) // num_rows

            def segment(rule: Rule, data: bytes, row: int = rows, read: int = bytes_read, **more: Any) -> Segment:
                return Segment(index, Place(source.path, row + 1, 0, "row"), rule, data, read, **more)

            yield from _divide_records(column.to_pylist(), rows, segment, reading)
            rows += len(column)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{source.path} cannot be read as parquet: {error}; is it whole?") from error


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    checks = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)
    return any(check(kind) for check in checks)


def _divide_records(
    documents: list[bytes], row: int, segment: Callable[..., Segment], reading: Reading
) -> Iterator[Segment]:
    """Documents of bounded size together, a larger one in pieces."""
    start = 0
    for index, document in enumerate([*documents, None]):
        if document is not None and len(document) <= reading.segment_bytes:
            continue
        together = documents[start:index]
        if together:
            ends = np.cumsum([len(member) for member in together], dtype=np.int64)
            yield segment("records", b"".join(together), row=row + start, ends=ends)
        if document is not None:
            yield from _pieces(document, partial(segment, row=row + index), reading)
        start = index + 1


def _pieces(
    data: bytes, segment: Callable[..., Segment], reading: Reading, num_flaws: int = 0, skipped: bool = False
) -> Iterator[Segment]:
    """A document in pieces of bounded size."""
    if skipped:
        yield segment("skipped", b"", num_flaws=num_flaws)
        return
    start = 0
    while len(data) - start > reading.segment_bytes:
        end = start + reading.cut(data[start : start + reading.segment_bytes])
        flaws = num_flaws if start == 0 else 0
        yield segment("piece", data[start:end], continues=start > 0, unfinished=True, num_flaws=flaws)
        start = end
    yield segment("piece", data[start:], continues=start > 0, num_flaws=num_flaws if start == 0 else 0)


def _leave_out_invalid(segments: Iterator[Segment]) -> Iterator[Segment]:
    """The segments without documents in pieces that are not valid UTF-8: of these only is known that they are skipped.

    Pieces wait on disk until the document's end, since the last may be the invalid one.
    """
    for segment in segments:
        if segment.rule != "piece":
            yield segment
            continue
        with tempfile.TemporaryFile() as spool:
            pieces: list[tuple[Segment, int]] = []
            num_flaws, first = 0, segment.place
            for piece in chain([segment], segments):
                flaws = decode(piece.data, "skip", piece.place).num_flaws
                if flaws and not num_flaws:
                    first = first_flaw(piece.data, piece.place)
                num_flaws += flaws
                pieces.append((replace(piece, data=b""), len(piece.data)))
                spool.write(piece.data)
                if not piece.unfinished:
                    break
            spool.seek(0)
            if num_flaws:
                yield replace(segment, rule="skipped", data=b"", unfinished=False, place=first, num_flaws=num_flaws)
            else:
                for piece, size in pieces:
                    yield replace(piece, data=spool.read(size))
