"""Options that cannot be meant are refused before anything is read."""

import pytest

from oarlock.cli import main
from oarlock.corpus import PrepareConfig

HUGE = 99999999999999999999999


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": HUGE}, r"vocab_size(?s:.)*less than or equal to 16777216"),
        ({"vocab_size": 9_999_999_999}, "less than or equal to 16777216"),
        ({"vocab_size": 10}, "vocab_size 10 is too small to train a tokenizer.*at least 300"),
        ({"max_length": 5_000_000_000}, "less than or equal to 1048576"),
        ({"max_length": 2}, "greater than or equal to 3"),
        ({"max_length": 10, "min_tokens": HUGE}, "leaves room for 8 tokens, and min_tokens asks for"),
        ({"tokenizer_sample": HUGE}, "less than or equal to"),
        ({"out": ""}, "--out is empty"),
        ({"out": "bad\udcff"}, r"--out 'bad\\udcff' is not valid UTF-8"),
        ({"tokenizer": "bad\udcff"}, "--tokenizer .* is not valid UTF-8"),
    ],
)
def test_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrepareConfig(**{"inputs": ("a",), "out": "b", **options})


def test_a_vocabulary_that_is_not_trained_may_be_of_any_size() -> None:
    assert PrepareConfig(inputs=("a",), out="b", tokenizer="c", vocab_size=10).vocab_size == 10


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--out", "data", "--vocab-size", str(HUGE)], "vocab_size is 99999999999999999999999, but should be less"),
        (["--out", ""], "--out is empty"),
        (["--out", "bad\udcff"], "--out 'bad"),
    ],
)
def test_the_command_ends_with_2(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "nowhere.txt", *flags]) == 2
    assert message in capsys.readouterr().err
