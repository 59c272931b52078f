import pytest

from oarlock.report.data_facts import changed_characters, data_facts, length_shares, visible
from oarlock.testing.runs import fake_data_report


def facts(report):
    return {fact.name: (fact.value, fact.note) for fact in data_facts(report)}


def changed(section, **values):
    report = fake_data_report()
    return fake_data_report(**{section: {**getattr(report, section).model_dump(), **values}})


def test_every_token_is_accounted_for():
    value, note = facts(fake_data_report())["Tokens"]
    assert value == "2,715,059 placed + 13 dropped = 2,715,072 produced"
    assert note == "11 sequences too short to keep; 105,690 special tokens around the sequences"


def test_what_a_document_was_taken_to_be_is_told():
    value, note = facts(fake_data_report())["Documents"]
    assert value == "21,480"
    assert note.startswith("a line is a document; tokens: median 104, mean 126, longest 1,912; 1.0 lines on average")
    _, note = facts(changed("documents", empty=0, skipped=2))["Documents"]
    assert note.endswith("2 skipped as invalid")


@pytest.mark.parametrize(
    "name, value, note",
    [
        ("Input", "3 files, 12.3 MB", "1 without a document"),
        ("Tokenizer", "WordPiece, 4,096 entries", "trained on the input, on 12.3 MB"),
        ("Validation split", "28,116 tokens", "541 sequences from 215 documents, longest 64"),
        ("Padding avoided", "1.20 times the tokens", "had every sequence been padded to 64 (1.20 to the longest)"),
        ("Duplicates", "12.3 % of lines, 12.3 % of documents", ""),
        ("Unknown tokens", "0.004 % of tokens", "most in speeches/1790.txt 2.3 %, speeches/1941.txt 0.002 %"),
        ("Invalid text", "2 places", "speeches/1823.txt from line 40"),
        ("Special tokens in text", "[SEP] 3 times", "kept as text"),
    ],
)
def test_facts(name, value, note):
    assert facts(fake_data_report())[name] == (value, note)


def test_the_unigram_baseline_is_told():
    assert facts(fake_data_report())["Unigram baseline"][0] == "6.469 nats"


def test_a_clean_corpus():
    clean = facts(
        fake_data_report(
            unknown={"count": 0, "share": 0.0, "files": []},
            undecodable={"count": 0, "files": []},
            normalizer={"removed": 0, "replaced": 0, "accents_stripped": 0, "lowercased": 0, "characters": []},
            special_tokens_in_text={},
        )
    )
    for name in ("Unknown tokens", "Invalid text", "Characters changed", "Special tokens in text"):
        assert clean[name][0] == "none"


def test_estimates_and_reuse_are_told():
    assert facts(changed("duplicates", exact=False))["Duplicates"][1] == "estimated from a sample"
    assert data_facts(fake_data_report(reused=True))[0].value == "reused"


@pytest.mark.parametrize("most, bars", [(3, 3), (4, 4), (8, 8), (100, 8)])
def test_length_shares_add_up_however_they_are_grouped(most, bars):
    report = fake_data_report()
    shares = length_shares(report, most)
    assert len(shares) == bars
    assert sum(share.sequences for share in shares) == pytest.approx(1.0)
    assert sum(share.tokens for share in shares) == pytest.approx(1.0)
    assert shares[0].lengths.startswith("1 to ")
    assert shares[-1].lengths.endswith(" to 64")


def test_lengths_of_an_empty_corpus():
    assert length_shares(fake_data_report(lengths=[]), 8) == []
    (share,) = length_shares(fake_data_report(lengths=[{"low": 5, "high": 5, "sequences": 0, "tokens": 0}]), 8)
    assert (share.lengths, share.sequences) == ("5", 0.0)


def test_lowercasing_is_no_change_worth_an_example():
    assert [one.code_point for one in changed_characters(fake_data_report(), 5)] == ["U+200D", "U+00E9"]
    assert changed_characters(fake_data_report(), 0) == []


def test_what_cannot_be_seen_is_written_out():
    assert visible("a\u200db\x1b[31m\u202e é") == "a‹U+200D›b‹U+001B›[31m‹U+202E› é"
