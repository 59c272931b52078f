"""Cutting into windows, against a plain loop."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.corpus.encoding import Encoded
from oarlock.corpus.windows import Framing, WindowCutter

SPECIAL = {0, 1, 2, 3}
VOCAB_SIZE = 20
EMPTY = Encoded(
    index=0,
    bytes_read=0,
    ids=np.empty(0, np.uint8),
    num_tokens=np.empty(0, np.int64),
    keys=np.empty(0, np.uint64),
    hashes=np.empty(0, np.uint64),
    continues=np.empty(0, np.bool_),
    unfinished=False,
    line_hashes=np.empty(0, np.uint64),
    num_lines=0,
    num_blank_lines=0,
    num_skipped=0,
    num_characters=0,
    code_points=np.empty(0, np.int64),
    code_counts=np.empty(0, np.int64),
    examples={},
    literals={},
)


def framing(body: int, min_tokens: int = 1, prefix: tuple[int, ...] = (1,), suffix: tuple[int, ...] = (2,)) -> Framing:
    special_V = np.zeros(VOCAB_SIZE, np.bool_)
    special_V[list(SPECIAL)] = True
    return Framing(body + len(prefix) + len(suffix), prefix, suffix, special_V, min_tokens)


def block(rows: list[list[int]], keys: list[int], *, continues: bool = False, unfinished: bool = False) -> Encoded:
    continuing = np.zeros(len(rows), np.bool_)
    if rows:
        continuing[0] = continues
    return replace(
        EMPTY,
        ids=np.asarray([id_ for row in rows for id_ in row], np.uint8),
        num_tokens=np.asarray(list(map(len, rows)), np.int64),
        keys=np.asarray(keys, np.uint64),
        hashes=np.asarray([hash(tuple(row)) % 2**64 for row in rows], np.uint64),
        continues=continuing,
        unfinished=unfinished,
    )


def plain_windows(document: list[int], frame: Framing) -> list[list[int]]:
    bodies = [document[start : start + frame.body] for start in range(0, len(document), frame.body)]
    kept = [body for body in bodies if sum(id_ not in SPECIAL for id_ in body) >= frame.min_tokens]
    return [[*frame.prefix, *body, *frame.suffix] for body in kept]


documents = st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=25), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(documents=documents, body=st.integers(1, 7), min_tokens=st.integers(1, 3), pieces=st.data())
def test_windows_equal_a_plain_loop(
    documents: list[list[int]], body: int, min_tokens: int, pieces: st.DataObject
) -> None:
    """Whatever the blocks, and with any document in pieces over several of them."""
    frame = framing(body, min_tokens)
    cutter = WindowCutter(frame)
    found, keys, tokens, kept = [], [], [], []
    waiting: list[tuple[int, list[int]]] = []
    dropped = 0

    def feed(encoded: Encoded) -> None:
        nonlocal dropped
        windows = cutter.cut(encoded)
        parts = np.split(windows.ids, np.cumsum(windows.lengths_W)[:-1]) if len(windows.lengths_W) else []
        found.extend(part.tolist() for part in parts)
        keys.extend(windows.keys_W.tolist())
        tokens.extend(windows.num_tokens_D.tolist())
        kept.extend(windows.kept_D.tolist())
        dropped += windows.num_dropped_tokens
        maskable = [sum(id_ not in SPECIAL for id_ in part.tolist()) for part in parts]
        assert windows.maskable_W.tolist() == maskable
        framed = len(frame.prefix) + len(frame.suffix)
        assert windows.special_inside == any(
            number < len(part) - framed for number, part in zip(maskable, parts, strict=True)
        )

    for number, document in enumerate(documents):
        cuts = sorted(pieces.draw(st.lists(st.integers(0, len(document)), max_size=3)))
        if not cuts:
            waiting.append((number, document))
            continue
        ends = [*cuts, len(document)]
        parts = [document[start:end] for start, end in zip([0, *cuts], ends, strict=True)]
        rows = [*[row for _, row in waiting], parts[0]]
        feed(block(rows, [*[key for key, _ in waiting], number], unfinished=True))
        for part in parts[1:-1]:
            feed(block([part], [99], continues=True, unfinished=True))
        feed(block([parts[-1]], [99], continues=True))
        waiting = []
    feed(block([row for _, row in waiting], [key for key, _ in waiting]))

    expected = [plain_windows(document, frame) for document in documents]
    assert found == [window for windows in expected for window in windows]
    assert keys == [number for number, windows in enumerate(expected) for _ in windows]
    assert tokens == list(map(len, documents))
    assert kept == [bool(windows) for windows in expected]
    placed = sum(len(window) - 2 for window in found)
    assert placed + dropped == sum(map(len, documents))


def test_longer_prefix_and_suffix() -> None:
    frame = framing(2, prefix=(1, 3), suffix=(3, 2))
    windows = WindowCutter(frame).cut(block([[7, 8, 9]], [5]))
    assert windows.ids.tolist() == [1, 3, 7, 8, 3, 2, 1, 3, 9, 3, 2]
    assert windows.lengths_W.tolist() == [6, 5]
    assert windows.ids.dtype == np.uint8


def test_hash_of_a_document_in_pieces_depends_on_all_of_them() -> None:
    def digest(pieces: list[list[int]]) -> int:
        cutter = WindowCutter(framing(4))
        for number, piece in enumerate(pieces):
            encoded = block([piece], [1], continues=number > 0, unfinished=number < len(pieces) - 1)
            windows = cutter.cut(encoded)
        return int(windows.hashes_D[0])

    same, other = [[5, 6], [7], [8]], [[5, 6], [7], [9]]
    assert digest(same) == digest(same) != digest(other)


def test_a_document_left_open_must_go_on() -> None:
    cutter = WindowCutter(framing(4))
    cutter.cut(block([[5]], [1], unfinished=True))
    with pytest.raises(AssertionError):
        cutter.cut(block([[5]], [1]))
