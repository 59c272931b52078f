"""The data report in words: what the terminal and the HTML report both say of it."""

from dataclasses import dataclass

from oarlock.corpus.data_report import ChangedCharacter, DataReport, LengthBin
from oarlock.corpus.dataset import SplitCounts
from oarlock.report import formats

CHANGES_WORTH_SHOWING = ("removed", "replaced", "accent stripped")


@dataclass(frozen=True)
class Fact:
    """One thing to know of a corpus."""

    name: str
    value: str
    note: str


@dataclass(frozen=True)
class LengthShare:
    """One bar of the histogram of lengths; shares are of 1."""

    lengths: str
    sequences: float
    tokens: float


def data_facts(report: DataReport) -> list[Fact]:
    """What a person should know, in the order in which it is asked."""
    facts = [
        _input(report),
        _tokenizer(report),
        _documents(report),
        _split("Training split", report.train),
        _split("Validation split", report.validation),
        _tokens(report),
        _padding(report),
        _duplicates(report),
        _unknown(report),
        _normalizer(report),
        _invalid(report),
        _special_tokens(report),
        Fact(
            "Unigram baseline",
            f"{formats.loss(report.unigram_baseline)} nats",
            "the loss of a model that knows only token frequencies; a run stuck there has learned no more",
        ),
    ]
    reused = Fact("Data set", "reused", "input, tokenizer and options are those of the finished one")
    return [reused, *facts] if report.reused else facts


def length_shares(report: DataReport, most: int) -> list[LengthShare]:
    """The histogram of lengths in at most `most` bars, each of as many of the report's bins."""
    size = -(-len(report.lengths) // most) or 1
    groups = [report.lengths[start : start + size] for start in range(0, len(report.lengths), size)]
    sequences = sum(part.sequences for part in report.lengths) or 1
    tokens = sum(part.tokens for part in report.lengths) or 1
    return [
        LengthShare(
            _range(group),
            sum(part.sequences for part in group) / sequences,
            sum(part.tokens for part in group) / tokens,
        )
        for group in groups
    ]


def changed_characters(report: DataReport, most_of_a_kind: int) -> list[ChangedCharacter]:
    """The characters that text loses or that become others, lowercasing aside; the most frequent of each kind."""
    return [
        character
        for kind in CHANGES_WORTH_SHOWING
        for character in [one for one in report.normalizer.characters if one.change == kind][:most_of_a_kind]
    ]


def visible(text: str) -> str:
    """Text from a corpus with what cannot be seen (or would steer a terminal) written out, as `‹U+200D›`."""
    return "".join(one if one.isprintable() else f"‹U+{ord(one):04X}›" for one in text)


def _input(report: DataReport) -> Fact:
    read = report.input
    value = f"{_plural(read.files, 'file')}, {formats.size(read.bytes_on_disk)}"
    return Fact("Input", value, f"{read.empty_files:,} without a document" if read.empty_files else "")


def _tokenizer(report: DataReport) -> Fact:
    tokenizer = report.tokenizer
    trained = tokenizer.trained_on_bytes
    note = tokenizer.source + ("" if trained is None else f", on {formats.size(trained)}")
    return Fact("Tokenizer", f"{tokenizer.model}, {tokenizer.vocab_size:,} entries", visible(note))


def _documents(report: DataReport) -> Fact:
    documents = report.documents
    notes = [
        documents.rule,
        f"tokens: median {formats.count(documents.median_tokens)}, mean {formats.count(documents.mean_tokens)}, "
        f"longest {formats.count(documents.longest_tokens)}",
        f"{documents.mean_lines:,.1f} lines on average",
        f"{documents.empty:,} without text" if documents.empty else "",
        f"{documents.skipped:,} skipped as invalid" if documents.skipped else "",
    ]
    return Fact("Documents", f"{documents.count:,}", _notes(notes))


def _split(name: str, split: SplitCounts) -> Fact:
    note = (
        f"{_plural(split.sequences, 'sequence')} from {_plural(split.documents, 'document')}, longest {split.longest:,}"
    )
    return Fact(name, f"{split.tokens:,} tokens", note)


def _tokens(report: DataReport) -> Fact:
    tokens = report.tokens
    value = f"{tokens.placed:,} placed + {tokens.dropped:,} dropped = {tokens.produced:,} produced"
    notes = [
        f"{_plural(tokens.dropped_sequences, 'sequence')} too short to keep" if tokens.dropped_sequences else "",
        f"{tokens.framing:,} special tokens around the sequences",
    ]
    return Fact("Tokens", value, _notes(notes))


def _padding(report: DataReport) -> Fact:
    padding = report.padding
    note = f"had every sequence been padded to {report.max_length:,} ({padding.to_longest:.2f} to the longest)"
    return Fact("Padding avoided", f"{padding.to_max_length:.2f} times the tokens", note)


def _duplicates(report: DataReport) -> Fact:
    duplicates = report.duplicates
    value = f"{formats.percent(duplicates.lines)} of lines, {formats.percent(duplicates.documents)} of documents"
    return Fact("Duplicates", value, "" if duplicates.exact else "estimated from a sample")


def _unknown(report: DataReport) -> Fact:
    unknown = report.unknown
    worst = [f"{visible(file.path)} {formats.percent(file.share)}" for file in unknown.files[:3] if file.unknown]
    value = f"{formats.percent(unknown.share)} of tokens" if unknown.count else "none"
    return Fact("Unknown tokens", value, f"most in {', '.join(worst)}" if worst else "")


def _normalizer(report: DataReport) -> Fact:
    effect = report.normalizer
    counts = {
        "removed": effect.removed,
        "replaced": effect.replaced,
        "accents stripped": effect.accents_stripped,
        "lowercased": effect.lowercased,
    }
    total = max(report.documents.characters, 1)
    changed = [f"{count:,} {name} ({formats.percent(count / total)})" for name, count in counts.items() if count]
    return Fact(
        "Characters changed",
        ", ".join(changed) or "none",
        f"by the tokenizer's normaliser: {report.tokenizer.normalizer}",
    )


def _invalid(report: DataReport) -> Fact:
    places = [f"{visible(file.path)} from line {file.first_line:,}" for file in report.undecodable.files[:3]]
    value = _plural(report.undecodable.count, "place") if report.undecodable.count else "none"
    return Fact("Invalid text", value, ", ".join(places))


def _special_tokens(report: DataReport) -> Fact:
    found = [f"{visible(token)} {count:,} times" for token, count in report.special_tokens_in_text.items()]
    fate = "read as special tokens" if report.special_tokens_parsed else "kept as text"
    return Fact("Special tokens in text", ", ".join(found) or "none", fate if found else "")


def _range(group: tuple[LengthBin, ...]) -> str:
    low, high = group[0].low, group[-1].high
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _notes(notes: list[str]) -> str:
    return "; ".join(note for note in notes if note)
