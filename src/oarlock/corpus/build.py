"""One pass over the corpus: blocks are tokenized, cut into windows, counted and written."""

import os
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from oarlock.corpus.cutting import cut_between_tokens
from oarlock.corpus.dataset import narrowest_dtype
from oarlock.corpus.encoding import EncodingJob, make_encoder
from oarlock.corpus.options import PrepareConfig
from oarlock.corpus.progress import OnProgress, Phase, Progress
from oarlock.corpus.segments import Reading, read_blocks
from oarlock.corpus.sources import Source
from oarlock.corpus.tally import Tally
from oarlock.corpus.tokenizer import LoadedTokenizer, without_special_tokens
from oarlock.corpus.windows import Framing, WindowCutter
from oarlock.corpus.workers import map_in_order
from oarlock.corpus.writing import SplitWriter

SPLITS = ("train", "validation")
# Below this, starting processes takes longer than what they would save.
SMALL_INPUT = 2 << 20


def frame_of(loaded: LoadedTokenizer, config: PrepareConfig) -> Framing:
    """The shape of the sequences. Raises ValueError where they are too short to hold anything."""
    special_V = np.zeros(loaded.vocab_size, np.bool_)
    special_V[list(loaded.special.all)] = True
    framing = Framing(config.max_length, loaded.prefix, loaded.suffix, special_V, config.min_tokens)
    if framing.body < config.min_tokens:
        raise ValueError(
            f"max_length {config.max_length} less {config.max_length - framing.body} special tokens leaves room for "
            f"{max(framing.body, 0)} tokens, and min_tokens asks for {config.min_tokens}: raise max_length"
        )
    return framing


def build_splits(
    folder: Path,
    sources: list[Source],
    loaded: LoadedTokenizer,
    config: PrepareConfig,
    limit: np.uint64,
    on_progress: OnProgress,
    phase: Phase = "tokenizing",
) -> Tally:
    """Write the arrays of both splits into `folder`, in place of what is there; returns what was counted.

    Documents whose key is below `limit` are held out.
    """
    total = sum(source.size for source in sources)
    framing = frame_of(loaded, config)
    job = EncodingJob(
        tokenizer=loaded.tokenizer.to_str() if config.parse_special_tokens else without_special_tokens(loaded),
        width=narrowest_dtype(loaded.vocab_size),
        unknown=loaded.special.unknown,
        special_tokens=tuple(loaded.special_tokens),
        parse_special_tokens=config.parse_special_tokens,
        text_key=config.text_key,
        on_invalid_utf8=config.on_invalid_utf8,
        seed=config.seed,
    )
    cut = cut_between_tokens(lambda text: loaded.tokenizer.encode(text, add_special_tokens=False).ids)
    blocks = read_blocks(sources, Reading(config.documents, config.text_key, config.on_invalid_utf8, cut))
    tally = Tally(len(sources), loaded.vocab_size, config.max_length)
    cutter = WindowCutter(framing)
    for name in SPLITS:
        shutil.rmtree(folder / name, ignore_errors=True)
    with (
        SplitWriter(folder / "train", loaded.vocab_size, config.max_length) as train,
        SplitWriter(folder / "validation", loaded.vocab_size, config.max_length) as validation,
        closing(map_in_order(partial(make_encoder, job), blocks, _count_workers(config, total))) as results,
    ):
        for encoded in results:
            windows = cutter.cut(encoded)
            held_W = windows.keys_W < limit
            validation.append(windows, held_W)
            tally.add(encoded, windows, limit, train.append(windows, ~held_W))
            on_progress(Progress(phase, encoded.bytes_read, total, tally.num_documents, tally.produced))
    on_progress(Progress(phase, total, total, tally.num_documents, tally.produced))
    return tally


def _count_workers(config: PrepareConfig, num_bytes: int) -> int:
    if config.workers is not None:
        return config.workers
    return 0 if num_bytes <= SMALL_INPUT else len(os.sched_getaffinity(0))
