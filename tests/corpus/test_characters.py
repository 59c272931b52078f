"""What a normaliser does to characters."""

from collections import Counter

import pytest
from tokenizers import normalizers

from oarlock.corpus.characters import carries_meaning, change_of, context_of, count_code_points

UNCASED = normalizers.BertNormalizer(lowercase=True)
CASED = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
PLAIN = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "▁")])


@pytest.mark.parametrize(
    ("character", "kind", "becomes"),
    [
        ("\u200d", "removed", ""),
        ("\u200c", "removed", ""),
        ("\u0941", "removed", ""),  # Devanagari vowel sign u
        ("\u0301", "removed", ""),
        ("\x00", "removed", ""),
        ("é", "accent stripped", "e"),
        ("É", "accent stripped", "e"),
        ("A", "lowercased", "a"),
        ("Ω", "lowercased", "ω"),
    ],
)
def test_uncased_bert(character: str, kind: str, becomes: str) -> None:
    assert change_of(character, UNCASED.normalize_str) == (kind, becomes)


@pytest.mark.parametrize("character", ["a", "漢", " ", "\t", "\u2028", "\u00a0", "\u093f", ".", "ß", "q"])
def test_left_by_uncased_bert(character: str) -> None:
    assert change_of(character, UNCASED.normalize_str) is None


@pytest.mark.parametrize("character", ["\u0301", "é", "É", "\u0941", "A", " "])
def test_left_by_other_normalisers(character: str) -> None:
    """Composition is no loss, nor is another form of a space."""
    assert change_of(character, PLAIN.normalize_str) is None
    assert change_of(character, CASED.normalize_str) is None


def test_replaced() -> None:
    assert change_of("ﬁ", normalizers.NFKC().normalize_str) == ("replaced", "fi")
    assert change_of("x", normalizers.Replace("x", "y").normalize_str) == ("replaced", "y")


def test_hangul_that_is_only_decomposed_is_left() -> None:
    assert change_of("한", UNCASED.normalize_str) is None


def test_what_carries_meaning() -> None:
    assert all(map(carries_meaning, ["\u200d", "\u0941", "\u05b8", "\u0958"]))  # the last is ka with a nukta
    assert not any(map(carries_meaning, ["é", "\u0301", "\x00", "a", "\u200b"]))


@pytest.mark.parametrize("text", ["", "abca", "aé漢\U0001f600é", "\U0010ffff"])
def test_count_code_points(text: str) -> None:
    points, counts = count_code_points(text)
    assert dict(zip(map(chr, points), counts, strict=True)) == Counter(text)


def test_context() -> None:
    assert context_of("x", "x") == "x"
    assert context_of("x", "a" * 50 + "x" + "b" * 50 + "x") == "a" * 20 + "x" + "b" * 20
