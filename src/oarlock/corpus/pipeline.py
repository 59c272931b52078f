"""From documents to a data set: what `oarlock prepare` does."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from tokenizers import Tokenizer

from oarlock.corpus.blocks import Segment
from oarlock.corpus.build import SPLITS, build_splits, frame_of
from oarlock.corpus.cutting import cut_anywhere
from oarlock.corpus.data_report import DataReport
from oarlock.corpus.dataset import FORMAT, MANIFEST, REPORT, TOKENIZER, Manifest
from oarlock.corpus.documents import find_documents
from oarlock.corpus.huggingface import write_tokenizer
from oarlock.corpus.options import PrepareConfig
from oarlock.corpus.output import check_replaceable, finished_report, staged
from oarlock.corpus.progress import OnProgress, Progress
from oarlock.corpus.segments import Reading, read_segments
from oarlock.corpus.sources import Source, find_sources, hash_contents
from oarlock.corpus.summary import summarise
from oarlock.corpus.tally import Tally
from oarlock.corpus.tokenizer import LoadedTokenizer, describe, load_tokenizer
from oarlock.corpus.training import TRAINED_CONFIGS, TrainingJob, draw_sample, make_trainer
from oarlock.corpus.workers import map_in_order

SAMPLED_AT_ONCE = 1 << 16
# Options that decide what a data set holds; those of training only where a tokenizer is trained.
DECIDING = {
    *("documents", "text_key", "max_length", "validation_share", "min_tokens"),
    *("parse_special_tokens", "on_invalid_utf8", "seed"),
}
ONE_DOCUMENT = (
    "the input holds one document only, or copies of one, and training and validation need at least one each: "
    "give more text, or divide it by another rule: `line` or `blank` for documents"
)
DECIDING_TRAINING = {"train_tokenizer", "vocab_size", "lowercase", "tokenizer_sample"}


def prepare(config: PrepareConfig, on_progress: OnProgress | None = None) -> DataReport:
    """Tokenize documents and write a data set to `config.out`; a finished one that is the same is reused.

    The same inputs, options and tokenizer give the same bytes, whatever the number of workers. Nothing is at
    `config.out` before all is.

    Raises ValueError where inputs, tokenizer or options are not usable, naming file and line.
    """
    on_progress = on_progress or (lambda progress: None)
    sources = find_sources(config.inputs, config.out)
    total = sum(source.size for source in sources)
    if config.documents == "file" and [source.format for source in sources] == ["text"]:
        raise ValueError(ONE_DOCUMENT)
    check_replaceable(config.out)
    loaded = load_tokenizer(config.tokenizer, config.lowercase) if config.tokenizer else None
    if loaded:
        frame_of(loaded, config)
    fingerprint = _fingerprint(config, sources, loaded, on_progress)
    if report := finished_report(config.out, fingerprint):
        return report

    with staged(config.out) as folder:
        loaded = loaded or _train(config, sources, on_progress)
        tally = _build(folder, config, sources, loaded, on_progress)
        on_progress(Progress("writing", 0, total, tally.num_documents, tally.produced))
        report = summarise(config, sources, loaded, tally)
        if not tally.special_inside:
            for name in SPLITS:
                (folder / name / "maskable.npy").unlink()
        write_tokenizer(loaded, folder / TOKENIZER, config.max_length)
        (folder / REPORT).write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
        manifest = Manifest(
            format=FORMAT,
            fingerprint=fingerprint,
            vocab_size=loaded.vocab_size,
            max_length=config.max_length,
            prefix=loaded.prefix,
            suffix=loaded.suffix,
            special=loaded.special,
            unigram_baseline=report.unigram_baseline,
            train=report.train,
            validation=report.validation,
            maskable=tally.special_inside,
        )
        (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    on_progress(Progress("writing", total, total, tally.num_documents, tally.produced))
    return report


def _fingerprint(
    config: PrepareConfig, sources: list[Source], loaded: LoadedTokenizer | None, on_progress: OnProgress
) -> str:
    """Hash of everything that a data set follows from."""
    done, total = 0, sum(source.size for source in sources)

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        on_progress(Progress("checking the input", done, total))

    deciding: dict[str, Any] = {
        "format": FORMAT,
        "options": config.model_dump(include=DECIDING if loaded else DECIDING | DECIDING_TRAINING),
        "tokenizer": [loaded.tokenizer.to_str(), loaded.config] if loaded else None,
        "inputs": [(source.format, source.compression, hash_contents(source, on_bytes)) for source in sources],
    }
    return xxhash.xxh3_128_hexdigest(json.dumps(deciding, sort_keys=True).encode())


def _train(config: PrepareConfig, sources: list[Source], on_progress: OnProgress) -> LoadedTokenizer:
    """A tokenizer trained on a sample of the corpus."""
    total = sum(source.size for source in sources)
    size = min(SAMPLED_AT_ONCE, config.tokenizer_sample)
    reading = Reading(config.documents, config.text_key, "replace", cut_anywhere, size)

    def segments() -> Iterator[Segment]:
        for segment in read_segments(sources, reading):
            on_progress(Progress("sampling", segment.bytes_read, total))
            yield segment

    kept = draw_sample(segments(), config.tokenizer_sample, config.seed)
    texts = [text for segment in kept for text in find_documents(segment, config.text_key, "replace").texts]
    if not any(text.strip() for text in texts):
        raise ValueError(_nothing_found(config, sources))
    on_progress(Progress("training the tokenizer", 0, total))
    lowercase = config.train_tokenizer == "wordpiece" if config.lowercase is None else config.lowercase
    job = TrainingJob(config.train_tokenizer, config.vocab_size, lowercase, texts)
    with closing(map_in_order(make_trainer, [job], num_workers=1, threads=True)) as results:
        tokenizer = Tokenizer.from_str(next(results))
    on_progress(Progress("training the tokenizer", total, total))
    sample_bytes = sum(len(text.encode()) for text in texts)
    return describe(tokenizer, "trained on the input", TRAINED_CONFIGS[config.train_tokenizer], sample_bytes)


def _build(
    folder: Path, config: PrepareConfig, sources: list[Source], loaded: LoadedTokenizer, on_progress: OnProgress
) -> Tally:
    """Both splits, neither of them empty.

    Few documents may all hash to one side. Then the one closest to the limit is moved over it, by a second pass.
    """
    limit = np.uint64(int(config.validation_share * 2**64))
    tally = build_splits(folder, sources, loaded, config, limit, on_progress)
    if tally.train.documents and tally.validation.documents:
        return tally
    lowest, highest = tally.lowest_key, tally.highest_key
    if lowest is None or highest is None:
        raise ValueError(_nothing_found(config, sources))
    if lowest == highest:
        raise ValueError(ONE_DOCUMENT)
    limit = np.uint64(highest if tally.validation.documents else lowest + 1)
    return build_splits(folder, sources, loaded, config, limit, on_progress, "tokenizing again")


def _nothing_found(config: PrepareConfig, sources: list[Source]) -> str:
    return (
        f"no sequence of at least {config.min_tokens} ordinary tokens in {len(sources)} files "
        f"({', '.join(source.path for source in sources[:3])}{', ...' if len(sources) > 3 else ''}): are they empty?"
    )
