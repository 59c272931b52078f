"""The documents of a segment: where each begins and ends, and its text."""

import re
from dataclasses import dataclass, field

from oarlock.corpus.blocks import Segment
from oarlock.corpus.kinds import InvalidText
from oarlock.corpus.records import Place, Text, decode, first_flaw, read_record

BLANK_LINES = re.compile(rb"\r?\n(?:[ \t\r\f\v]*\n)+")


@dataclass
class Documents:
    """What a segment holds. A document's lines end in LF alone, and it neither starts nor ends with one."""

    texts: list[str] = field(default_factory=list)
    num_blank_lines: int = 0
    """Lines without text that were documents by the rule `line`."""
    num_skipped: int = 0
    """Documents left out because they were not valid."""
    num_flaws: int = 0
    """Places at which text was not valid."""
    first_flaw: Place | None = None

    def add(self, text: Text, place: Place) -> None:
        """Take in one document that began at `place`."""
        self.num_skipped += text.skipped
        if not text.skipped:
            self.texts.append(text.text or "")
        if text.num_flaws and not self.num_flaws:
            self.first_flaw = place
        self.num_flaws += text.num_flaws


def find_documents(segment: Segment, text_key: str, policy: InvalidText) -> Documents:
    """The documents of a segment.

    Raises ValueError, naming file, line and (for bytes) offset, where a record is not as it should be or, by policy
    `error`, where text is not valid.
    """
    found = Documents(num_flaws=segment.num_flaws, first_flaw=segment.place if segment.num_flaws else None)
    if segment.rule == "skipped":
        found.num_skipped = 1
        return found
    if segment.rule == "json":
        _read_records(found, segment, text_key, policy)
    else:
        parts = _divide(segment)
        try:
            found.texts = [part.decode() for part in parts]
        except UnicodeDecodeError:
            _decode_each(found, segment, parts, policy)
    if segment.rule == "line":
        found.num_blank_lines = segment.data.count(b"\n") + (segment.data[-1:] not in (b"\n", b"")) - len(found.texts)
    else:
        found.texts = [text.replace("\r\n", "\n") for text in found.texts]
        found.texts = [_strip(text, segment) for text in found.texts]
    return found


def _strip(text: str, segment: Segment) -> str:
    text = text if segment.continues else text.lstrip("\n")
    return text if segment.unfinished else text.rstrip("\n")


def _divide(segment: Segment) -> list[bytes]:
    """The bytes of each document; of text, without those that hold white space alone."""
    data = segment.data
    if segment.rule == "line":
        lines = data.split(b"\n")
        if b"\r\n" in data:
            lines = [line.removesuffix(b"\r") for line in lines[:-1]] + lines[-1:]
        return [line for line in lines if line.strip()]
    if segment.rule == "blank":
        return [part for part in BLANK_LINES.split(data) if part.strip()]
    if segment.rule == "records":
        assert segment.ends is not None
        ends = segment.ends.tolist()
        return [data[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    return [data]


def _decode_each(found: Documents, segment: Segment, parts: list[bytes], policy: InvalidText) -> None:
    """Decode where at least one document is not valid."""
    data, start = segment.data, segment.place
    position, line = 0, start.line
    for row, part in enumerate(parts):
        if segment.rule == "records":
            place = start._replace(line=start.line + row)
        else:
            begin = data.index(part, position)
            line += data.count(b"\n", position, begin)
            place = Place(start.path, line, start.offset + begin)
            position, line = begin + len(part), line + part.count(b"\n")
        text = decode(part, policy, place)
        found.add(text, first_flaw(part, place) if text.num_flaws else place)


def _read_records(found: Documents, segment: Segment, text_key: str, policy: InvalidText) -> None:
    path, line, offset, _ = segment.place
    for number, record in enumerate(segment.data.split(b"\n"), line):
        if record.strip():
            place = Place(path, number, offset)
            found.add(read_record(record, text_key, policy, place), place)
        offset += len(record) + 1
