"""What in a data report a person should look at before training, in sentences that say what to do."""

from collections.abc import Iterator

from oarlock.corpus.data_report import DataReport
from oarlock.corpus.options import PrepareConfig

DUPLICATED = 0.10
UNKNOWN = 0.01
UNKNOWN_IN_FILE = 0.10
REMOVED = 0.001
SHORT_DOCUMENT = 32
HUGE_DOCUMENT = 1_000_000
MANY_LINES = 50


def find_warnings(report: DataReport, config: PrepareConfig) -> tuple[str, ...]:
    """All warnings, the most important first."""
    return (
        *_about_documents(report, config),
        *_about_duplicates(report),
        *_about_characters(report),
        *_about_tokens(report, config),
    )


def _about_documents(report: DataReport, config: PrepareConfig) -> Iterator[str]:
    documents = report.documents
    if config.documents in documents.rule:
        if config.documents == "line" and documents.median_tokens < SHORT_DOCUMENT:
            yield (
                f"Half of the documents have at most {documents.median_tokens:.0f} tokens. Every line was taken for a "
                "document: where documents go over several lines, choose `blank` or `file` for documents."
            )
        if config.documents == "blank" and documents.mean_lines > MANY_LINES:
            yield (
                f"A document has {documents.mean_lines:,.0f} lines on average. Only a blank line ended one: where "
                "every line is a document, choose `line` for documents."
            )
        if config.documents == "file" and documents.longest_tokens > HUGE_DOCUMENT:
            yield (
                f"The longest document has {documents.longest_tokens:,} tokens. Every file was taken for one document: "
                "where a file holds many, choose `blank` or `line` for documents."
            )
    if documents.skipped:
        yield f"Left out because their text is not valid UTF-8: {_plural(documents.skipped, 'document')}."


def _about_duplicates(report: DataReport) -> Iterator[str]:
    shares = {"documents": report.duplicates.documents, "lines": report.duplicates.lines}
    for name, share in shares.items():
        if share >= DUPLICATED:
            yield (
                f"{share:.1%} of the {name} repeat earlier ones, so the model sees them more often than others: "
                "consider removing them."
            )


def _about_characters(report: DataReport) -> Iterator[str]:
    effect = report.normalizer
    if effect.meaning_lost:
        first = next(shown for shown in effect.characters if shown.carries_meaning)
        yield (
            f"The tokenizer's normaliser loses {effect.meaning_lost:,} joiners, vowel signs or other marks without "
            f"which a word can be another, such as {first.code_point} {first.name}: {first.before!r} becomes "
            f"{first.after!r}. Take a tokenizer that does not strip accents or control characters."
        )
    elif effect.removed > REMOVED * report.documents.characters:
        yield f"The tokenizer's normaliser removes {_plural(effect.removed, 'character')}; see which in the report."
    if report.undecodable.count:
        first_file = report.undecodable.files[0]
        yield (
            f"Text is not valid UTF-8 at {_plural(report.undecodable.count, 'place')}, in {first_file.path} first on "
            f"line {first_file.first_line:,} (byte {first_file.first_offset:,})."
        )


def _about_tokens(report: DataReport, config: PrepareConfig) -> Iterator[str]:
    unknown = report.unknown
    worst = unknown.files[0] if unknown.files else None
    if unknown.share >= UNKNOWN or (worst and worst.share >= UNKNOWN_IN_FILE):
        assert worst
        yield (
            f"{unknown.share:.2%} of the tokens are unknown to the tokenizer (worst: {worst.path}, {worst.share:.1%}): "
            "is it made for this language and this case of letters?"
        )
    literals = sum(report.special_tokens_in_text.values())
    if literals:
        names = ", ".join(f"{name} {count:,} times" for name, count in report.special_tokens_in_text.items())
        treated = "were read as special tokens" if config.parse_special_tokens else "stayed text"
        yield f"Special tokens are written out in the text ({names}); they {treated}."
    if report.tokens.dropped:
        sequences = _plural(report.tokens.dropped_sequences, "sequence")
        yield (
            f"{_plural(report.tokens.dropped, 'token')} dropped with {sequences} of fewer than "
            f"{_plural(config.min_tokens, 'ordinary token')}."
        )
    if config.tokenizer is None and report.tokenizer.vocab_size < config.vocab_size:
        yield (
            f"The text yields a vocabulary of {report.tokenizer.vocab_size:,} entries only, not the "
            f"{config.vocab_size:,} that were asked for."
        )


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
