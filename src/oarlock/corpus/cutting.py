"""Where a document too large for one piece is cut: at a place where its tokens stay what they are."""

import re
from collections.abc import Callable, Iterator, Sequence

# Tried in this order, each from the end of the text backwards: before a single space between letters, before any
# white space, before any character.
PLACES = tuple(
    re.compile(pattern)
    for pattern in (
        rb"(?<=[A-Za-z\x80-\xff])(?= [A-Za-z\xc2-\xf4])",
        rb"(?=\s)",
        rb"(?=[\x00-\x7f\xc2-\xf4])",
    )
)
SEARCHED = 8192
CONTEXT = 256
TRIES = 8

Cut = Callable[[bytes], int]


def cut_anywhere(data: bytes) -> int:
    """Where to cut `data` (the start of a document) so that at least no character is cut."""
    return next(_places(data, PLACES[-1]), len(data))


def cut_between_tokens(encode: Callable[[str], Sequence[int]]) -> Cut:
    """A `Cut` that tries places near the end until the text around one has the same tokens whole and cut.

    Where none has (a word of a million letters), it cuts as `cut_anywhere` does.
    """

    def cut(data: bytes) -> int:
        for pattern in PLACES:
            for _, place in zip(range(TRIES), _places(data, pattern), strict=False):
                left = data[max(place - CONTEXT, 0) : place].decode(errors="ignore")
                right = data[place : place + CONTEXT].decode(errors="ignore")
                if [*encode(left), *encode(right)] == list(encode(left + right)):
                    return place
        return cut_anywhere(data)

    return cut


def _places(data: bytes, pattern: re.Pattern[bytes]) -> Iterator[int]:
    """Places near the end of `data`, last first; none between CR and LF."""
    start, end = max(len(data) - SEARCHED, 1), len(data) - min(CONTEXT, len(data) // 2)
    found = [match.start() for match in pattern.finditer(data, start, end)]
    return reversed([place for place in found if data[place - 1 : place + 1] != b"\r\n"])
