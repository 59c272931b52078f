"""Training tokenizers: the same text gives the same tokenizer, in bounded time."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from oarlock.corpus.blocks import Segment
from oarlock.corpus.records import Place
from oarlock.corpus.training import TrainingJob, draw_sample, make_trainer
from oarlock.corpus.workers import map_in_order

KINDS = ["wordpiece", "bpe", "unigram"]
DEVANAGARI = "हिन्दी भाषा की मात्राएँ कुछ और शब्द\n" * 20


def trained(jobs: list[TrainingJob]) -> list[str]:
    """Each job in a process of its own: hash maps have another order in each."""
    return [next(map_in_order(make_trainer, [job], 1, threads=True)) for job in jobs]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_gives_the_same_tokenizer(kind: str, some_text: str) -> None:
    job = TrainingJob(kind, 400, True, [some_text, DEVANAGARI])
    first, second = trained([job, job])
    assert first == second
    tokenizer = Tokenizer.from_str(first)
    assert tokenizer.get_vocab_size() == 400
    assert sorted(tokenizer.get_vocab().values()) == list(range(400))


@pytest.mark.parametrize("kind", KINDS)
def test_c24_training_on_endless_words(kind: str, some_text: str) -> None:
    """Trainers take time that grows with the square of a word's length, unless it is cut."""
    endless = ["x" * 300_000, "abcdefghij" * 30_000, "漢字" * 50_000]
    (text,) = trained([TrainingJob(kind, 400, True, [some_text, *endless])])
    assert Tokenizer.from_str(text).get_vocab_size() <= 400


def test_trained_wordpiece_keeps_vowel_signs(some_text: str) -> None:
    job = TrainingJob("wordpiece", 400, True, [some_text, DEVANAGARI])
    tokenizer = Tokenizer.from_str(trained([job])[0])
    pieces = tokenizer.encode("हिन्दी", add_special_tokens=False).tokens
    assert "".join(pieces).replace("##", "") == "हिन्दी"
    assert tokenizer.normalizer.normalize_str("Cafe\u0301") == "café"


def test_lowercase_is_a_choice(some_text: str) -> None:
    lower, cased = trained([TrainingJob("wordpiece", 400, lower, [some_text]) for lower in (True, False)])
    assert not any(token.lower() != token for token in json.loads(lower)["model"]["vocab"] if token[0] != "[")
    assert any(token.lower() != token for token in json.loads(cased)["model"]["vocab"] if token[0] != "[")


def test_byte_level_bpe_knows_every_byte(some_text: str) -> None:
    tokenizer = Tokenizer.from_str(trained([TrainingJob("bpe", 400, False, [some_text])])[0])
    text = "漢字 \U0001f600 é \x00"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def segments(sizes: list[int]) -> list[Segment]:
    place = Place("a", 1, 0)
    return [Segment(0, place, "line", bytes([number]) * size, 0) for number, size in enumerate(sizes)]


def test_a_sample_is_bounded_seeded_and_in_order() -> None:
    all_segments = segments([100] * 200)
    first = draw_sample(all_segments, 2000, seed=1)
    assert sum(len(segment.data) for segment in first) == 2000
    numbers = [segment.data[0] for segment in first]
    assert numbers == sorted(numbers)
    assert draw_sample(all_segments, 2000, seed=1) == first
    assert draw_sample(all_segments, 2000, seed=2) != first
    assert draw_sample(all_segments, 20_000, seed=1) == all_segments
    assert len(draw_sample(segments([100]), 10, seed=1)) == 1, "never nothing"


def test_a_sample_is_from_everywhere() -> None:
    all_segments = segments([100] * 200)
    counts = [0] * 200
    for seed in range(200):
        for segment in draw_sample(all_segments, 2000, seed):
            counts[segment.data[0]] += 1
    assert min(counts) > 4
    assert max(counts) < 45
    assert abs(sum(counts[:100]) - 2000) < 200


def test_the_size_of_the_sample_is_reported(prepared, some_text: str, tmp_path: Path) -> None:
    """In all, when the corpus is smaller than the bound; at most the bound otherwise."""
    whole = prepared(some_text, tokenizer=None, vocab_size=400)
    assert whole.tokenizer.trained_on_bytes == len(some_text.replace("\n", "").encode())
    part = prepared(some_text, tokenizer=None, vocab_size=400, tokenizer_sample=8192, out=str(tmp_path / "part"))
    assert 4096 < part.tokenizer.trained_on_bytes <= 8192
