from oarlock.report.facts import Guess, Sample, SampleTarget
from oarlock.report.html.samples import MOST_GUESSES, MOST_SAMPLES, pictures


def target(truth, *tokens):
    return SampleTarget(truth=truth, predictions=tuple(Guess(token=token, probability=0.5) for token in tokens))


def test_guesses_stand_in_their_place():
    sample = Sample(text="the [MASK] of [MASK] .", targets=(target("state", "state", "end"), target("affairs", "war")))
    (picture,) = pictures((sample,))
    assert [(piece.text, piece.gap and piece.gap.guess) for piece in picture.pieces] == [
        ("the ", "state"),
        (" of ", "war"),
        (" .", None),
    ]
    assert [gap.right for gap in picture.gaps] == [True, False]
    assert picture.right == 1


def test_a_text_that_says_mask_itself_is_shown_as_it_is():
    sample = Sample(text="type [MASK] for a [MASK]", targets=(target("mask", "gap"),))
    (picture,) = pictures((sample,))
    assert [(piece.text, piece.gap) for piece in picture.pieces] == [(sample.text, None)]
    assert len(picture.gaps) == 1


def test_a_target_without_predictions():
    (picture,) = pictures((Sample(text="a [MASK]", targets=(target("b"),)),))
    assert picture.gaps[0].guess == "?"
    assert not picture.gaps[0].right


def test_blank_tokens_are_named():
    (picture,) = pictures((Sample(text="[MASK]", targets=(target("\u200d", " ", "\t"),)),))
    assert picture.gaps[0].truth == "U+200D"
    assert [bar.token for bar in picture.gaps[0].bars] == ["U+0020", "U+0009"]


def test_shows_a_bounded_number():
    sample = Sample(text="[MASK]", targets=(target("a", *"abcdefghij"),))
    shown = pictures((sample,) * 50)
    assert len(shown) == MOST_SAMPLES
    assert len(shown[0].gaps[0].bars) == MOST_GUESSES
    assert pictures((Sample(text="no target"),)) == []
