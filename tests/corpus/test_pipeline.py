"""`prepare` from end to end."""

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pytest

from oarlock.corpus import DataReport, Dataset, LoadedTokenizer, PrepareConfig, Progress, Split, open_dataset, prepare

Preparing = Callable[..., DataReport]


def samples(split: Split) -> list[list[int]]:
    return [split.ids[start:end].tolist() for start, end in zip(split.offsets, split.offsets[1:], strict=False)]


def opened(tmp_path: Path) -> Dataset:
    return open_dataset(str(tmp_path / "data"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_document_is_there_once(
    prepared: Preparing, tmp_path: Path, loaded: dict[str, LoadedTokenizer], some_text: str
) -> None:
    """In the order of the corpus, cut into windows, with both ends marked; in one split or the other."""
    report = prepared(some_text, max_length=10, validation_share=0.2)
    data, tokenizer = opened(tmp_path), loaded["wordpiece"]
    expected = []
    for line in some_text.splitlines():
        ids = tokenizer.tokenizer.encode(line, add_special_tokens=False).ids
        expected += [[2, *ids[start : start + 8], 3] for start in range(0, len(ids), 8)]
    train, validation = samples(data.train), samples(data.validation)
    assert sorted(train + validation) == sorted(expected)
    remaining = iter(expected)
    assert all(sample in remaining for sample in train), "in order"
    assert report.train.documents + report.validation.documents == report.documents.count == 400
    assert 40 < report.validation.documents < 130
    assert data.manifest.train == report.train
    assert data.manifest.max_length == report.max_length == 10


def test_c27_every_token_is_accounted_for(prepared: Preparing, tmp_path: Path, some_text: str) -> None:
    report = prepared(some_text + "☃ ☃\n☃ ba\n", max_length=12, min_tokens=4)
    tokens = report.tokens
    assert tokens.placed + tokens.dropped == tokens.produced
    assert tokens.dropped > 0
    assert tokens.dropped_sequences > 0
    data = opened(tmp_path)
    assert tokens.placed + tokens.framing == len(data.train.ids) + len(data.validation.ids)
    ordinary = [sum(id_ > 4 for id_ in sample) for sample in samples(data.train) + samples(data.validation)]
    assert min(ordinary) == 4
    assert any(" dropped with " in warning for warning in report.warnings)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_c12_literal_special_token(prepared: Preparing, tmp_path: Path, kind: str, some_text: str) -> None:
    text = some_text + "Then [MASK] and [SEP] or <s> and </s> <mask>.\n" * 3
    report = prepared(text, kind)
    data = opened(tmp_path)
    special = set(data.manifest.special.all) - {data.manifest.special.unknown}
    inside = [id_ for sample in samples(data.train) + samples(data.validation) for id_ in sample[1:-1]]
    assert not special & set(inside)
    names = ("[MASK]", "[SEP]") if kind == "wordpiece" else ("<s>", "</s>", "<mask>")
    assert report.special_tokens_in_text == dict.fromkeys(sorted(names), 3)
    assert not report.special_tokens_parsed
    assert any("[MASK] 3 times" in warning or "<mask> 3 times" in warning for warning in report.warnings)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_c12_literal_special_token_parsed(prepared: Preparing, tmp_path: Path, kind: str, some_text: str) -> None:
    """Then it is a special token that the masking never chooses: not counted as maskable."""
    name = "[MASK]" if kind == "wordpiece" else "<mask>"
    report = prepared(some_text + f"Then {name} and {name}.\n" * 3, kind, parse_special_tokens=True)
    data = opened(tmp_path)
    assert data.manifest.maskable
    found = 0
    for split in (data.train, data.validation):
        assert split.maskable is not None
        for sample, maskable in zip(samples(split), split.maskable, strict=True):
            assert maskable == sum(id_ not in data.manifest.special.all for id_ in sample)
            found += sample.count(data.manifest.special.mask)
    assert found == 6
    assert report.special_tokens_parsed
    assert report.special_tokens_in_text == {name: 6}


def test_unknown_tokens_are_no_targets(prepared: Preparing, tmp_path: Path, some_text: str) -> None:
    """Nor is a sequence kept that holds nothing else."""
    prepared(some_text + "ba ☃ bo\n☃\n☃ ☃ ☃\n", validation_share=0.5)
    data = opened(tmp_path)
    assert data.manifest.maskable
    counts = Counter(
        (sample.count(data.manifest.special.unknown), int(maskable) > 0)
        for split in (data.train, data.validation)
        for sample, maskable in zip(samples(split), split.maskable if split.maskable is not None else [], strict=True)
    )
    assert counts == {(0, True): 400, (1, True): 1}


@pytest.mark.parametrize("documents", ["line", "file"])
def test_c20_one_invalid_byte(prepared: Preparing, tmp_path: Path, documents: str, some_text: str) -> None:
    """In a file of several blocks; the document is a line in it, or the whole file, which comes in pieces."""
    data = bytearray(some_text.encode() * 40)
    offset = data.index(b"\n", 1_200_000) - 5
    data[offset] = 0xFF
    line = data[:offset].count(b"\n") + 1
    (tmp_path / "bad.txt").write_bytes(data)
    (tmp_path / "good.txt").write_text(some_text)
    (tmp_path / "good2.txt").write_text(some_text.swapcase())
    run = {"inputs": (str(tmp_path / "*.txt"),), "documents": documents}
    with pytest.raises(ValueError, match=rf"bad\.txt, line {line}: byte {offset} \(0xff\)"):
        prepared(**run)
    assert not (tmp_path / "data").exists()

    sound = {"line": 400 * 41 + 400, "file": 3}[documents]
    report = prepared(**run, on_invalid_utf8="replace")
    assert report.documents.count == sound
    (found,) = report.undecodable.files
    assert (found.path, found.count) == (str(tmp_path / "bad.txt"), 1)
    assert (found.first_line, found.first_offset) == (line, offset)

    report = prepared(**run, on_invalid_utf8="skip")
    assert (report.documents.count, report.documents.skipped) == (sound - 1, 1)
    assert report.undecodable.count == 1
    assert report.undecodable.files[0].first_offset == offset
    assert report.tokens.placed == report.tokens.produced


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"text": "fine"}\n{"text": "cut in the m', r"a\.jsonl, line 2: not valid JSON"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": "\\ud800"}\n', r"a\.jsonl, line 2: half of a surrogate pair"),
        ("a.txt", b"", "no sequence of at least 1 ordinary token"),
        ("a.txt", b"\n \r\n\n", "no sequence of at least 1 ordinary token"),
        ("a.jsonl", b'{"text": ""}\n{"text": null}\n\n', "no sequence of at least 1 ordinary token"),
    ],
)
@pytest.mark.parametrize("own", [True, False])
def test_c21_broken_input_is_refused(
    prepared: Preparing, tmp_path: Path, name: str, data: bytes, message: str, own: bool
) -> None:
    (tmp_path / name).write_bytes(data)
    training = {} if own else {"tokenizer": None, "vocab_size": 300}
    with pytest.raises(ValueError, match=message):
        prepared(inputs=(str(tmp_path / name),), **training)
    assert not (tmp_path / "data").exists()


def test_c21_empty_files_beside_others(prepared: Preparing, tmp_path: Path, some_text: str) -> None:
    for name, text in (("a.txt", ""), ("b.txt", some_text), ("c.jsonl", "\n\n"), ("d.txt", "\n \n")):
        (tmp_path / name).write_text(text)
    report = prepared(inputs=(str(tmp_path),))
    assert (report.input.files, report.input.empty_files) == (4, 3)
    assert report.documents.count == 400


def test_c22_documents_are_what_the_user_said(prepared: Preparing, tmp_path: Path, some_text: str) -> None:
    lines = some_text.splitlines()
    poem = "\n\n".join("\n".join(lines[start : start + 4]) for start in range(0, 400, 4)) + "\n"
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(poem if name == "one.txt" else poem[:-9])
    run = {"inputs": (str(tmp_path / "*.txt"),)}
    counts = {rule: prepared(**run, documents=rule).documents for rule in ("line", "blank", "file")}
    assert [counts[rule].count for rule in ("line", "blank", "file")] == [800, 200, 2]
    assert [counts[rule].mean_lines for rule in ("line", "blank", "file")] == [1, 4, 400]
    assert counts["line"].blank_lines == 99 * 2
    assert counts["line"].mean_tokens * 4 == pytest.approx(counts["blank"].mean_tokens)
    assert counts["blank"].rule == "blank"
    assert counts["file"].longest_tokens > 5000


def test_c22_a_wrong_choice_shows(prepared: Preparing) -> None:
    wrapped = "".join(f"ba bo {number}\n" for number in range(300))
    assert any("Every line was taken for a document" in warning for warning in prepared(wrapped).warnings)
    halves = wrapped.replace("150\n", "150\n\n")
    assert any("Only a blank line ended one" in warning for warning in prepared(halves, documents="blank").warnings)


def test_median_of_documents(prepared: Preparing, loaded: dict[str, LoadedTokenizer], some_text: str) -> None:
    encoder = loaded["wordpiece"].tokenizer
    lengths = [len(encoder.encode(line, add_special_tokens=False).ids) for line in some_text.splitlines()]
    documents = prepared(some_text).documents
    assert documents.median_tokens == pytest.approx(np.median(lengths), rel=0.03)
    assert documents.mean_tokens == pytest.approx(np.mean(lengths))
    assert documents.longest_tokens == max(lengths)


@pytest.mark.parametrize(("copies", "share", "warned"), [(39, 0.0875, False), (60, 60 / 460, True)])
def test_c23_duplicates(prepared: Preparing, some_text: str, copies: int, share: float, warned: bool) -> None:
    lines = some_text.splitlines()
    report = prepared("\n".join(lines + lines[:copies]))
    assert report.duplicates.documents == pytest.approx(copies / (400 + copies))
    assert report.duplicates.lines == pytest.approx(copies / (400 + copies))
    assert report.duplicates.exact
    assert any("repeat earlier ones" in warning for warning in report.warnings) == warned
    assert report.duplicates.documents == pytest.approx(share, abs=0.002)


def test_c23_duplicated_lines_of_different_documents(prepared: Preparing, some_text: str) -> None:
    parts = [f"{line}\nThe same last line." for line in some_text.splitlines()]
    report = prepared("\n\n".join(parts), documents="blank")
    assert report.duplicates.documents == 0.0
    assert report.duplicates.lines == pytest.approx(399 / 800)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("letters", ["x", "abcdefghij", "漢字"])
def test_c24_endless_words(prepared: Preparing, tmp_path: Path, kind: str, letters: str, some_text: str) -> None:
    (tmp_path / "usual.txt").write_text(some_text)
    (tmp_path / "odd.txt").write_text("b" * 101 + "\n" + letters * (1_000_000 // len(letters)) + "\n")
    report = prepared("", kind, inputs=(str(tmp_path / "*.txt"),))
    assert report.documents.count >= 401
    assert report.tokens.placed + report.tokens.dropped == report.tokens.produced
    if kind == "wordpiece" and letters == "x":
        assert report.unknown.count == 3  # the word of 101 letters, and each piece of the endless one
        (odd,) = report.unknown.files
        assert (odd.path, odd.tokens, odd.unknown, odd.share) == (str(tmp_path / "odd.txt"), 3, 3, 1.0)
        assert any("odd.txt, 100.0%" in warning for warning in report.warnings)
        assert report.documents.count == 402


def test_c26_the_number_of_workers_changes_nothing(prepared: Preparing, tmp_path: Path, some_text: str) -> None:
    """Byte for byte, with large documents, oddities and a tokenizer trained on the way."""
    lines = some_text * 20 + "word " * 300_000 + "\nnot\u200dfar \x01[SEP]\n" + some_text[::-1] * 20
    folders = []
    for workers in (0, 1, 3):
        out = tmp_path / f"data{workers}"
        report = prepared(lines, tokenizer=None, vocab_size=400, workers=workers, out=str(out))
        assert not report.reused
        folders.append(contents(out))
    assert folders[0].keys() == folders[1].keys() == folders[2].keys()
    for name, data in folders[0].items():
        assert data == folders[1][name] == folders[2][name], name


@pytest.mark.parametrize("name", ["train/ids.npy", "tokenizer/tokenizer.json", "report.json", "manifest.json"])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9])])
def test_c26_a_damaged_data_set_is_built_again(
    prepared: Preparing, tmp_path: Path, name: str, damage: Callable[[Path], object], some_text: str
) -> None:
    prepared(some_text)
    before = contents(tmp_path / "data")
    damage(tmp_path / "data" / name)
    assert not prepared(some_text).reused
    assert contents(tmp_path / "data") == before


CHANGES = {
    "documents": "blank",
    "max_length": 100,
    "validation_share": 0.02,
    "min_tokens": 2,
    "parse_special_tokens": True,
    "on_invalid_utf8": "skip",
    "seed": 1,
}


def test_c26_the_same_data_set_is_reused(prepared: Preparing, tmp_path: Path, some_text: str) -> None:
    first = prepared(some_text)
    before = contents(tmp_path / "data")
    again = prepared(some_text, workers=1)
    assert again == first.model_copy(update={"reused": True})
    assert contents(tmp_path / "data") == before
    (tmp_path / "elsewhere.txt").write_text(some_text)
    assert prepared(inputs=(str(tmp_path / "elsewhere.txt"),)).reused, "contents count, not names"


@pytest.mark.parametrize("option", CHANGES)
def test_c26_a_data_set_of_other_options_is_built(
    prepared: Preparing, tmp_path: Path, option: str, some_text: str
) -> None:
    text = some_text.replace(".\n", ".\n\n")
    prepared(text)
    assert not prepared(text, **{option: CHANGES[option]}).reused
    assert not prepared(text).reused, "the other was replaced"


def test_c26_other_contents_tokenizer_or_training(
    prepared: Preparing, folders: dict[str, Path], some_text: str
) -> None:
    prepared(some_text)
    assert not prepared(some_text[1:]).reused
    assert not prepared(some_text[1:], "bpe").reused
    training = {"tokenizer": None, "vocab_size": 400}
    assert not prepared(some_text, **training).reused
    assert prepared(some_text, **training).reused
    assert not prepared(some_text, **training, train_tokenizer="bpe").reused
    assert not prepared(some_text, **training, tokenizer_sample=4096).reused


def test_c26_a_file_edited_in_place_is_noticed(prepared: Preparing, tmp_path: Path, some_text: str) -> None:
    path = tmp_path / "own.txt"
    path.write_text(some_text)
    run = {"inputs": (str(path),)}
    prepared(**run)
    path.write_text(some_text.swapcase())
    assert not prepared(**run).reused


@pytest.mark.parametrize("num_documents", [2, 3, 5, 20])
@pytest.mark.parametrize("share", [0.0001, 0.01, 0.5, 0.9999])
def test_no_split_is_empty(
    prepared: Preparing, tmp_path: Path, num_documents: int, share: float, some_text: str
) -> None:
    lines = "\n".join(some_text.splitlines()[:num_documents])
    report = prepared(lines, validation_share=share)
    assert min(report.train.documents, report.validation.documents) >= 1
    assert report.train.documents + report.validation.documents == num_documents
    data = opened(tmp_path)
    assert len(samples(data.train)) == report.train.sequences
    assert report.tokens.placed == report.tokens.produced, "counted once, though it took two passes"


def test_documents_without_tokens_do_not_fill_a_split(prepared: Preparing, some_text: str) -> None:
    lines = [*some_text.splitlines()[:2], *["\u200d" * number for number in range(1, 300)]]
    report = prepared("\n".join(lines), validation_share=0.5)
    assert (report.train.documents, report.validation.documents) == (1, 1)
    assert (report.documents.count, report.documents.empty) == (2, 299)


@pytest.mark.parametrize("text", ["only one document", "twice\ntwice\ntwice\n"])
def test_one_document_cannot_be_split(prepared: Preparing, text: str) -> None:
    with pytest.raises(ValueError, match="one document only"):
        prepared(text)


def test_one_file_as_a_document_is_refused_at_once(prepared: Preparing, some_text: str) -> None:
    with pytest.raises(ValueError, match=r"one document only.*`line` or `blank`"):
        prepared(some_text, documents="file")


def test_the_split_follows_the_document(prepared: Preparing, tmp_path: Path, some_text: str) -> None:
    """Not its place, file or format."""
    prepared(some_text, validation_share=0.3)
    held_out = sorted(samples(opened(tmp_path).validation))
    lines = some_text.splitlines()[::-1]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    prepared(inputs=(str(tmp_path / "a.jsonl"),), validation_share=0.3)
    assert sorted(samples(opened(tmp_path).validation)) == held_out


def test_unigram_baseline(prepared: Preparing, tmp_path: Path, some_text: str) -> None:
    report = prepared(some_text + "ba ☃\n" * 9)
    data = opened(tmp_path)
    counts = Counter(id_ for id_ in data.train.ids.tolist() if id_ not in data.manifest.special.all)
    total = sum(counts.values())
    entropy = -sum(count / total * math.log(count / total) for count in counts.values())
    assert report.unigram_baseline == data.manifest.unigram_baseline == pytest.approx(entropy)


def test_lengths_and_padding(prepared: Preparing, tmp_path: Path, some_text: str) -> None:
    report = prepared(some_text, max_length=70)
    data = opened(tmp_path)
    lengths = np.concatenate([data.train.lengths, data.validation.lengths]).astype(int)
    for part in report.lengths:
        inside = lengths[(lengths >= part.low) & (lengths <= part.high)]
        assert (part.sequences, part.tokens) == (len(inside), inside.sum())
    assert sum(part.sequences for part in report.lengths) == len(lengths)
    assert (report.lengths[0].low, report.lengths[-1].low, report.lengths[-1].high) == (1, 70, 70)
    assert report.padding.to_max_length == pytest.approx(70 * len(lengths) / lengths.sum())
    assert report.padding.to_longest == pytest.approx(lengths.max() * len(lengths) / lengths.sum())


def test_characters_lost_are_shown_by_example(prepared: Preparing, tmp_path: Path, some_text: str) -> None:
    """By an uncased BERT vocabulary: what it does to Hindi."""
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ba", "bo"]))
    report = prepared("ba bo\nbo ba कुछ\u200d, Café ba\nकु\n", tokenizer=str(vocabulary))
    effect = report.normalizer
    shown = {character.character: character for character in effect.characters}
    assert (effect.removed, effect.accents_stripped, effect.lowercased) == (3, 1, 1)
    assert effect.meaning_lost == 3
    sign = shown["\u0941"]
    assert (sign.count, sign.change, sign.name) == (2, "removed", "DEVANAGARI VOWEL SIGN U")
    assert sign.before == "ba bo\nbo ba कुछ\u200d, Café ba\nकु"
    assert sign.after == "ba bo bo ba कछ, cafe ba क"
    assert shown["\u200d"].code_point == "U+200D"
    assert (shown["é"].change, shown["é"].becomes) == ("accent stripped", "e")
    assert any("DEVANAGARI VOWEL SIGN U" in warning for warning in report.warnings)


def test_the_report_is_written_beside_the_data(prepared: Preparing, tmp_path: Path, some_text: str) -> None:
    report = prepared(some_text)
    text = (tmp_path / "data" / "report.json").read_text()
    assert DataReport.model_validate_json(text) == report
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        *("manifest.json", "report.json", "tokenizer", "train", "validation")
    ]


def test_trained_tokenizer_of_a_small_text(prepared: Preparing, some_text: str) -> None:
    report = prepared(some_text[:2000], tokenizer=None, vocab_size=30_000)
    assert report.tokenizer.source == "trained on the input"
    assert report.tokenizer.vocab_size < 30_000
    assert any("entries only" in warning for warning in report.warnings)


@pytest.mark.parametrize("workers", [0, 2])
def test_progress_runs_to_the_end(
    tmp_path: Path, folders: dict[str, Path], workers: int, some_text: str, prepared: Preparing
) -> None:
    (tmp_path / "a.txt").write_text(some_text * 20)
    (tmp_path / "b.txt").write_text("word " * 200_000)
    seen: list[Progress] = []
    config = PrepareConfig(
        inputs=(str(tmp_path / "*.txt"),), out=str(tmp_path / "out"), vocab_size=300, workers=workers
    )
    report = prepare(config, seen.append)
    phases = list(dict.fromkeys(state.phase for state in seen))
    assert phases == ["checking the input", "sampling", "training the tokenizer", "tokenizing", "writing"]
    total = (tmp_path / "a.txt").stat().st_size + 1_000_000
    for phase in phases:
        states = [state for state in seen if state.phase == phase]
        done = [state.bytes_done for state in states]
        assert done == sorted(done)
        assert done[-1] == total
        assert {state.bytes_total for state in states} == {total}
    assert (seen[-1].documents, seen[-1].tokens) == (report.documents.count, report.tokens.produced)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 5, "min_tokens": 4}, "leaves room for 3 tokens, and min_tokens asks for 4"),
        ({"inputs": ("nowhere/*.txt",)}, "no file at 'nowhere"),
        ({"tokenizer": "nowhere"}, "no tokenizer at nowhere"),
        ({"lowercase": True}, "lowercase=True cannot be changed"),
        ({"tokenizer": None, "train_tokenizer": "bpe", "lowercase": True}, "lowercase is for WordPiece"),
        ({"tokenizer": None, "vocab_size": 10}, "vocab_size 10 is too small"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    prepared: Preparing, tmp_path: Path, options: dict[str, object], message: str, some_text: str
) -> None:
    with pytest.raises(ValueError, match=message):
        prepared(some_text, **options)
    assert not (tmp_path / "data").exists()


def test_a_folder_of_someone_else_is_left_alone(prepared: Preparing, tmp_path: Path, some_text: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match=r"thesis\.tex"):
        prepared(some_text)
    assert contents(tmp_path / "data") == {"thesis.tex": b"x"}


def test_to_a_url_and_from_one(
    prepared: Preparing, tmp_path: Path, some_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fsspec.filesystem("memory").pipe("/texts/a.txt", some_text.encode())
    run = {"inputs": ("memory://texts",), "out": "memory://prepared"}
    report = prepared(**run)
    local = prepared(some_text)
    assert report.tokens == local.tokens
    data = open_dataset("memory://prepared")
    assert samples(data.train) == samples(opened(tmp_path).train)
    assert prepared(**run).reused
    assert not prepared(**run, seed=5).reused
    assert open_dataset("memory://prepared").manifest.fingerprint != data.manifest.fingerprint
