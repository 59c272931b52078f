"""From what was counted to the data report."""

import json
import unicodedata
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oarlock.corpus.advice import find_warnings
from oarlock.corpus.characters import Change, Normalize, carries_meaning, change_of
from oarlock.corpus.data_report import (
    CHARACTERS_SHOWN,
    FILES_SHOWN,
    ChangedCharacter,
    DataReport,
    DocumentStatistics,
    Duplicates,
    FileUndecodable,
    FileUnknown,
    InputSummary,
    LengthBin,
    NormalizerEffect,
    PaddingCost,
    TokenAccounts,
    TokenizerSummary,
    Undecodable,
    UnknownTokens,
)
from oarlock.corpus.kinds import SHOWN_CHANGES, CharacterChange
from oarlock.corpus.options import PrepareConfig
from oarlock.corpus.sources import Source
from oarlock.corpus.tally import STEPS_PER_OCTAVE, Tally
from oarlock.corpus.tokenizer import LoadedTokenizer

LENGTH_BINS = 32


def unigram_baseline(counts_V: NDArray[np.int64]) -> float:
    """Entropy in nats of the frequencies of V tokens: -sum(p log p), the cross entropy of predicting p itself."""
    counts = counts_V[counts_V > 0].astype(np.float64)
    total = counts.sum()
    return float(np.log(total) - (counts * np.log(counts)).sum() / total) if total else 0.0


def summarise(config: PrepareConfig, sources: list[Source], loaded: LoadedTokenizer, tally: Tally) -> DataReport:
    """The data report of a corpus."""
    special = list(loaded.special.all)
    ordinary_V = tally.unigrams_V.copy()
    ordinary_V[special] = 0
    sequences = tally.train.sequences + tally.validation.sequences
    tokens = tally.train.tokens + tally.validation.tokens
    framing = sequences * (len(loaded.prefix) + len(loaded.suffix))
    longest = max(tally.train.longest, tally.validation.longest)
    report = DataReport(
        reused=False,
        input=InputSummary(
            files=len(sources),
            bytes_on_disk=sum(source.size for source in sources),
            empty_files=int(np.count_nonzero(tally.file_documents == 0)),
        ),
        tokenizer=_describe_tokenizer(loaded),
        max_length=config.max_length,
        documents=_describe_documents(config, sources, tally),
        train=tally.train.counts(),
        validation=tally.validation.counts(),
        tokens=TokenAccounts(
            produced=tally.produced,
            placed=tokens - framing,
            dropped=tally.dropped,
            dropped_sequences=tally.dropped_sequences,
            framing=framing,
        ),
        lengths=_length_bins(tally.lengths),
        padding=PaddingCost(
            to_max_length=sequences * config.max_length / tokens, to_longest=sequences * longest / tokens
        ),
        duplicates=Duplicates(
            lines=tally.line_duplicates.share(),
            documents=tally.document_duplicates.share(),
            exact=tally.line_duplicates.exact and tally.document_duplicates.exact,
        ),
        unknown=_describe_unknown(sources, tally),
        normalizer=_describe_characters(loaded, tally),
        undecodable=_describe_undecodable(tally),
        special_tokens_in_text=dict(sorted(tally.literals.items())),
        special_tokens_parsed=config.parse_special_tokens,
        unigram_baseline=unigram_baseline(ordinary_V),
        warnings=(),
    )
    return report.model_copy(update={"warnings": find_warnings(report, config)})


def _describe_tokenizer(loaded: LoadedTokenizer) -> TokenizerSummary:
    values = json.loads(loaded.tokenizer.to_str())
    return TokenizerSummary(
        source=loaded.source,
        model=values["model"]["type"],
        normalizer=_describe_step(values["normalizer"]),
        pre_tokenizer=_describe_step(values["pre_tokenizer"]),
        vocab_size=loaded.vocab_size,
        special_tokens=loaded.special_tokens,
        trained_on_bytes=loaded.trained_on_bytes,
    )


def _describe_step(step: dict[str, Any] | None) -> str:
    """`NFC, BertNormalizer(lowercase=True)` for the JSON of a normaliser or pre-tokenizer."""
    if step is None:
        return "none"
    members = step.get("normalizers") or step.get("pretokenizers")
    if members:
        return ", ".join(map(_describe_step, members))
    settings = [f"{name}={value}" for name, value in step.items() if isinstance(value, bool | int)]
    return str(step["type"]) + (f"({', '.join(settings)})" if settings else "")


def _describe_documents(config: PrepareConfig, sources: list[Source], tally: Tally) -> DocumentStatistics:
    rules = {config.documents if source.format == "text" else "record" for source in sources}
    count = max(tally.num_documents, 1)
    half = np.searchsorted(np.cumsum(tally.document_steps), (tally.num_documents + 1) // 2)
    return DocumentStatistics(
        rule=" or ".join(sorted(rules)),
        count=tally.num_documents,
        empty=tally.num_empty,
        skipped=tally.num_skipped,
        mean_tokens=tally.produced / count,
        median_tokens=float(np.round(2 ** (half / STEPS_PER_OCTAVE))),
        longest_tokens=tally.longest_document,
        mean_lines=tally.num_lines / count,
        lines=tally.num_lines,
        blank_lines=tally.num_blank_lines,
        characters=tally.num_characters,
    )


def _length_bins(sequences: NDArray[np.int64]) -> tuple[LengthBin, ...]:
    """At most LENGTH_BINS + 1 bins of equal width up to the longest length possible, which has its own."""
    longest = len(sequences) - 1
    width = max(-(-(longest - 1) // LENGTH_BINS), 1)
    edges = [*range(1, longest, width), longest, longest + 1]
    tokens = sequences * np.arange(len(sequences))
    return tuple(
        LengthBin(low=low, high=end - 1, sequences=int(sequences[low:end].sum()), tokens=int(tokens[low:end].sum()))
        for low, end in pairwise(edges)
    )


def _describe_unknown(sources: list[Source], tally: Tally) -> UnknownTokens:
    shares = tally.file_unknown / np.maximum(tally.file_tokens, 1)
    worst = [index for index in np.argsort(-shares, kind="stable")[:FILES_SHOWN] if tally.file_unknown[index]]
    count = int(tally.file_unknown.sum())
    return UnknownTokens(
        count=count,
        share=count / max(tally.produced, 1),
        files=tuple(
            FileUnknown(
                path=sources[index].path,
                tokens=int(tally.file_tokens[index]),
                unknown=int(tally.file_unknown[index]),
                share=float(shares[index]),
            )
            for index in worst
        ),
    )


def _describe_undecodable(tally: Tally) -> Undecodable:
    worst = [index for index in np.argsort(-tally.file_flaws, kind="stable")[:FILES_SHOWN] if tally.file_flaws[index]]
    return Undecodable(
        count=int(tally.file_flaws.sum()),
        files=tuple(
            FileUndecodable(
                path=tally.first_flaws[index].path,
                count=int(tally.file_flaws[index]),
                first_line=tally.first_flaws[index].line,
                first_offset=tally.first_flaws[index].offset,
            )
            for index in map(int, worst)
        ),
    )


def _describe_characters(loaded: LoadedTokenizer, tally: Tally) -> NormalizerEffect:
    normalizer = loaded.tokenizer.normalizer
    totals: Counter[CharacterChange] = Counter()
    changed: dict[CharacterChange, list[ChangedCharacter]] = {kind: [] for kind in SHOWN_CHANGES}
    for point in np.flatnonzero(tally.code_points).tolist() if normalizer is not None else ():
        if change := change_of(chr(point), normalizer.normalize_str):
            totals[change.kind] += int(tally.code_points[point])
            if change.kind in changed:
                changed[change.kind].append(_show(point, change, tally, normalizer.normalize_str))
    for members in changed.values():
        members.sort(key=lambda shown: (not shown.carries_meaning, -shown.count))
    return NormalizerEffect(
        removed=totals["removed"],
        replaced=totals["replaced"],
        accents_stripped=totals["accent stripped"],
        lowercased=totals["lowercased"],
        meaning_lost=sum(shown.count for members in changed.values() for shown in members if shown.carries_meaning),
        characters=tuple(shown for members in changed.values() for shown in members[:CHARACTERS_SHOWN]),
    )


def _show(point: int, change: Change, tally: Tally, normalize: Normalize) -> ChangedCharacter:
    example = tally.examples[point]
    return ChangedCharacter(
        character=chr(point),
        code_point=f"U+{point:04X}",
        name=unicodedata.name(chr(point), "unnamed"),
        change=change.kind,
        becomes=change.becomes,
        count=int(tally.code_points[point]),
        carries_meaning=carries_meaning(chr(point)),
        before=example,
        after=normalize(example),
    )
