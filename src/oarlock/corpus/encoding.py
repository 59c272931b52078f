"""Tokenizing a block: what worker processes do. Returns arrays and counts, never text (a few examples aside)."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import numpy as np
import xxhash
from numpy.typing import NDArray
from tokenizers import Tokenizer

from oarlock.corpus.blocks import Block, Segment
from oarlock.corpus.characters import Change, change_of, context_of, count_code_points
from oarlock.corpus.documents import find_documents
from oarlock.corpus.kinds import SHOWN_CHANGES, InvalidText
from oarlock.corpus.records import Place

# Documents given to the tokenizer at once: enough to spread its overhead, few enough to stay in the cache.
TEXTS_AT_ONCE = 256
# The split follows from the start of a document, so that it is known before a large one was read to its end.
KEY_CHARACTERS = 1 << 16


@dataclass(frozen=True)
class EncodingJob:
    """What a worker has to know."""

    tokenizer: str
    """JSON of the tokenizer."""
    width: np.dtype[np.unsignedinteger]
    """Type of the ids."""
    unknown: int | None
    """Id of the unknown token."""
    special_tokens: tuple[str, ...]
    """Looked for in the text."""
    parse_special_tokens: bool
    text_key: str
    on_invalid_utf8: InvalidText
    seed: int
    """Of the hashes of documents and lines."""


@dataclass
class FileCounts:
    """What one segment adds to the counts of its file."""

    source: int
    documents: int
    tokens: int
    unknown: int
    num_flaws: int
    first_flaw: Place | None


@dataclass
class Encoded:
    """A tokenized block. A document (or a piece of one) is a row of the arrays."""

    index: int
    bytes_read: int
    ids: NDArray[np.unsignedinteger]
    """Of all documents end to end, without framing special tokens."""
    num_tokens: NDArray[np.int64]
    """Per document."""
    keys: NDArray[np.uint64]
    """Hash of each document's start."""
    hashes: NDArray[np.uint64]
    """Hash of each document."""
    continues: NDArray[np.bool_]
    """Documents that go on with the one before, which may be of the block before."""
    unfinished: bool
    """Whether the last document goes on in the next block."""
    line_hashes: NDArray[np.uint64]
    """Of every line with text."""
    num_lines: int
    """Lines with text."""
    num_blank_lines: int
    num_skipped: int
    num_characters: int
    code_points: NDArray[np.int64]
    code_counts: NDArray[np.int64]
    examples: dict[int, str]
    """For code points that this worker saw for the first time, and that the normaliser changes: text around one."""
    literals: Counter[str]
    """Special tokens written out in the text."""
    files: list[FileCounts] = field(default_factory=list)


def make_encoder(job: EncodingJob) -> Callable[[Block], Encoded]:
    """The function from a block to what it holds."""
    tokenizer = Tokenizer.from_str(job.tokenizer)
    tokenizer.encode_special_tokens = not job.parse_special_tokens
    normalizer = tokenizer.normalizer
    digest = partial(_digests, seed=job.seed)
    longest_first = sorted(job.special_tokens, key=len, reverse=True)
    literal = re.compile("|".join(map(re.escape, longest_first)))
    changes: dict[int, Change | None] = {}

    def encode_texts(texts: list[str]) -> tuple[NDArray[np.unsignedinteger], list[int]]:
        ids: list[NDArray[np.unsignedinteger]] = [np.empty(0, job.width)]
        counts: list[int] = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            encodings = tokenizer.encode_batch_fast(texts[start : start + TEXTS_AT_ONCE], add_special_tokens=False)
            lengths = list(map(len, encodings))
            flat = chain.from_iterable(encoding.ids for encoding in encodings)
            ids.append(np.fromiter(flat, job.width, sum(lengths)))
            counts += lengths
        return np.concatenate(ids), counts

    def find_examples(points: NDArray[np.int64], text: str) -> dict[int, str]:
        examples: dict[int, str] = {}
        for point in points.tolist():
            if point not in changes:
                changes[point] = change = change_of(chr(point), normalizer.normalize_str)
                if change and change.kind in SHOWN_CHANGES:
                    examples[point] = context_of(chr(point), text)
        return examples

    def encode(block: Block) -> Encoded:
        texts: list[str] = []
        owners: list[Segment] = []
        files: list[FileCounts] = []
        num_blank_lines = num_skipped = 0
        for segment in block.segments:
            found = find_documents(segment, job.text_key, job.on_invalid_utf8)
            texts += found.texts
            owners += [segment] * len(found.texts)
            num_blank_lines += found.num_blank_lines
            num_skipped += found.num_skipped
            counts = FileCounts(segment.source, len(found.texts), 0, 0, found.num_flaws, found.first_flaw)
            files.append(counts)
        ids, num_tokens = encode_texts(texts)
        _count_unknown(files, ids, num_tokens, job.unknown)

        whole = "\n".join(texts)
        points, point_counts = count_code_points(whole)
        lines = [line for line in whole.split("\n") if line.strip()]
        keys = digest(text[:KEY_CHARACTERS] for text in texts)
        longest = max(map(len, texts), default=0)
        return Encoded(
            index=block.index,
            bytes_read=block.segments[-1].bytes_read,
            ids=ids,
            num_tokens=np.asarray(num_tokens, np.int64),
            keys=keys,
            hashes=digest(texts) if longest > KEY_CHARACTERS else keys,
            continues=np.asarray([owner.continues for owner in owners], np.bool_),
            unfinished=bool(owners) and owners[-1].unfinished,
            line_hashes=digest(lines),
            num_lines=len(lines),
            num_blank_lines=num_blank_lines,
            num_skipped=num_skipped,
            num_characters=sum(map(len, texts)),
            code_points=points,
            code_counts=point_counts,
            examples={} if normalizer is None else find_examples(points, whole),
            literals=Counter(literal.findall(whole)),
            files=files,
        )

    return encode


def _digests(texts: Iterable[str], seed: int) -> NDArray[np.uint64]:
    return np.fromiter((xxhash.xxh3_64_intdigest(text.encode(), seed) for text in texts), np.uint64)


def _count_unknown(
    files: list[FileCounts], ids: NDArray[np.unsignedinteger], num_tokens: list[int], unknown: int | None
) -> None:
    """Tokens and unknown tokens of each segment, whose documents follow one another."""
    ends = np.cumsum([0, *num_tokens])
    document = 0
    for counts in files:
        start, end = ends[document], ends[document + counts.documents]
        counts.tokens = int(end - start)
        counts.unknown = int(np.count_nonzero(ids[start:end] == unknown)) if unknown is not None else 0
        document += counts.documents
