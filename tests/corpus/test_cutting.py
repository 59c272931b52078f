"""Where a large document is cut."""

import pytest

from oarlock.corpus import LoadedTokenizer
from oarlock.corpus.cutting import cut_anywhere, cut_between_tokens

PROSE = "The boat, they said, was lost; nobody (not even she) knew where it lay. " * 8


def encode(loaded: LoadedTokenizer, text: str) -> list[int]:
    return list(loaded.tokenizer.encode(text, add_special_tokens=False).ids)


TEXTS = {
    "prose": PROSE,
    "lines": PROSE.replace(" ", "\n"),
    "cyrillic": "Ёлка стоит в лесу, " * 40,
    "devanagari": "नमस्ते दुनिया " * 30,
    "ideographs": "漢字字漢" * 90,
}


KINDS = ("wordpiece", "bpe", "unigram")
# A Unigram tokenizer puts a mark before every text: without a space there is no place where a cut adds none.
CASES = [(kind, text) for kind in KINDS for text in TEXTS if (kind, text) != ("unigram", "ideographs")]


@pytest.mark.parametrize(("kind", "text"), CASES)
def test_tokens_stay_as_they_are(loaded: dict[str, LoadedTokenizer], kind: str, text: str) -> None:
    cut = cut_between_tokens(lambda part: encode(loaded[kind], part))
    data = TEXTS[text].encode()
    for length in range(len(data) - 40, len(data)):
        place = cut(data[:length])
        assert 0 < place < length
        left, right = data[:place].decode(), data[place:].decode()
        assert encode(loaded[kind], left) + encode(loaded[kind], right) == encode(loaded[kind], TEXTS[text])


def test_a_word_without_end_is_cut_between_characters() -> None:
    data = "é".encode() * 1000
    for length in (1000, 999, 998):
        place = cut_anywhere(data[:length])
        assert 0 < place <= length
        assert place % 2 == 0


def test_bytes_that_are_no_text_are_cut_somewhere() -> None:
    for data in (b"\x80" * 5000, b"\xff" * 5000, b"\x80"):
        assert 0 < cut_between_tokens(lambda text: [ord(one) for one in text])(data) <= len(data)


def test_no_cut_between_carriage_return_and_line_feed() -> None:
    data = b"\r\n" * 600
    for length in range(1000, 1010):
        place = cut_anywhere(data[:length])
        assert data[place - 1 : place + 1] != b"\r\n"
