"""Training a tokenizer on a bounded sample of the corpus.

WordPiece and BPE come out equal for equal text, Unigram all but always (see `_settle_unigram`): a data set can be
made again from its corpus alone.
"""

import heapq
import json
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from oarlock.corpus.blocks import Segment
from oarlock.corpus.kinds import TokenizerKind
from oarlock.corpus.tokenizer import BERT_CONFIG, frame_with

WORDPIECE_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, normalized=False, special=True)]
ROBERTA_CONFIG = {"bos_token": "<s>", "eos_token": "</s>"}
TRAINED_CONFIGS: dict[TokenizerKind, dict[str, Any]] = {
    "wordpiece": BERT_CONFIG,
    "bpe": ROBERTA_CONFIG,
    "unigram": ROBERTA_CONFIG,
}
MIN_FREQUENCY = 2
# A longer run without white space (no language's word) would make the trainers' time grow with its square.
LONGEST_WORD = 200
TOO_LONG = re.compile(rf"(\S{{{LONGEST_WORD}}})(?=\S)")
UNIGRAM_DIGITS = 5


@dataclass(frozen=True)
class TrainingJob:
    """What to train, on what."""

    kind: TokenizerKind
    vocab_size: int
    lowercase: bool
    texts: list[str]


def draw_sample(segments: Iterable[Segment], budget: int, seed: int) -> list[Segment]:
    """A random choice of segments, at most `budget` bytes in all, in the order of the corpus.

    Every segment draws a random priority and those with the lowest are kept: one pass, bounded memory.
    """
    generator = random.Random(seed)
    kept: list[tuple[float, int, Segment]] = []
    total = 0
    for index, segment in enumerate(segments):
        heapq.heappush(kept, (-generator.random(), index, segment))
        total += len(segment.data)
        while total > budget and len(kept) > 1:
            total -= len(heapq.heappop(kept)[2].data)
    return [segment for _, _, segment in sorted(kept, key=lambda item: item[1])]


def make_trainer() -> Callable[[TrainingJob], str]:
    """For a worker process: the training can be interrupted there, and gives its memory back."""
    return train_tokenizer


def train_tokenizer(job: TrainingJob) -> str:
    """Train a tokenizer; returns its JSON. Uses all cores."""
    texts = [TOO_LONG.sub(r"\1 ", line) for text in job.texts for line in text.split("\n")]
    match job.kind:
        case "wordpiece":
            tokenizer = _train_wordpiece(texts, job.vocab_size, job.lowercase)
        case "bpe":
            tokenizer = _train_bpe(texts, job.vocab_size)
        case "unigram":
            tokenizer = _train_unigram(texts, job.vocab_size)
    return str(tokenizer.to_str())


def _train_wordpiece(texts: list[str], vocab_size: int, lowercase: bool) -> Tokenizer:
    """BERT's tokenizer, but accents stay: stripping them also strips the vowel signs of Indic scripts."""

    def empty(vocabulary: dict[str, int]) -> Tokenizer:
        tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.Sequence(
            [
                normalizers.NFC(),
                normalizers.BertNormalizer(
                    clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=lowercase
                ),
            ]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer

    def trained(lines: Iterable[str], size: int, first: list[str]) -> Tokenizer:
        tokenizer = empty({})
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            min_frequency=MIN_FREQUENCY,
            limit_alphabet=vocab_size // 4,
            special_tokens=first,
            show_progress=False,
        )
        tokenizer.train_from_iterator(lines, trainer)
        return tokenizer

    # The trainer numbers the pieces `##x` in the order of a hash map, which is another in each process, and breaks
    # ties by these numbers. Naming them beforehand, in order, settles it; a run of no merges finds out which they are.
    words = {word for text in texts for word in text.split()}
    pieces = sorted(token for token in trained(words, 0, WORDPIECE_SPECIAL).get_vocab() if token.startswith("##"))
    vocabulary = trained(texts, vocab_size, WORDPIECE_SPECIAL + pieces).get_vocab()
    tokenizer = empty(vocabulary)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in WORDPIECE_SPECIAL])
    frame_with(tokenizer, "[CLS]", "[SEP]", double=False)
    return tokenizer


def _train_bpe(texts: list[str], vocab_size: int) -> Tokenizer:
    """RoBERTa's tokenizer: byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=ROBERTA_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    frame_with(tokenizer, "<s>", "</s>", double=True)
    return tokenizer


def _train_unigram(texts: list[str], vocab_size: int) -> Tokenizer:
    """A Unigram tokenizer as XLM-RoBERTa's, with NFC as its normaliser."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=ROBERTA_SPECIAL, unk_token="<unk>", show_progress=False
    )
    try:
        tokenizer.train_from_iterator(texts, trainer)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"cannot train a Unigram tokenizer of {vocab_size} entries on this text: {error}") from error
    tokenizer = _settle_unigram(tokenizer)
    frame_with(tokenizer, "<s>", "</s>", double=True)
    return tokenizer


def _settle_unigram(tokenizer: Tokenizer) -> Tokenizer:
    """Remove from a trained Unigram model what depends on the order of a hash map, which is another in each process.

    That is the last bits of the scores, the order of equal scores, and which of the characters that were pruned and
    put back gets which of the scores just above the lowest.
    """
    values: dict[str, Any] = json.loads(tokenizer.to_str())
    vocabulary: list[tuple[str, float]] = [
        (token, round(score, UNIGRAM_DIGITS)) for token, score in values["model"]["vocab"]
    ]
    special, pieces = vocabulary[: len(ROBERTA_SPECIAL)], vocabulary[len(ROBERTA_SPECIAL) :]
    lowest = min(score for _, score in pieces)
    characters = [(token, score) for token, score in pieces if len(token) == 1]
    put_back = {token for token, score in characters if score - lowest < 1e-4 * len(characters)}
    settled = [(token, lowest if token in put_back else score) for token, score in pieces]
    values["model"]["vocab"] = special + sorted(settled, key=lambda item: (-item[1], item[0]))
    return Tokenizer.from_str(json.dumps(values, ensure_ascii=False))
