"""Small tokenizers and texts for the tests of the corpus room."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from oarlock.corpus import DataReport, LoadedTokenizer, PrepareConfig, load_tokenizer, prepare
from oarlock.corpus.huggingface import write_tokenizer
from oarlock.corpus.tokenizer import describe
from oarlock.corpus.training import TRAINED_CONFIGS, TrainingJob, make_trainer
from oarlock.corpus.workers import map_in_order

KINDS = ("wordpiece", "bpe", "unigram")
SYLLABLES = [a + b for a in "bdfgklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "is")]

Preparing = Callable[..., DataReport]


def make_text(num_lines: int, seed: int = 0) -> str:
    """Lines of invented words, some of which are frequent."""
    generator = random.Random(seed)
    words = ["".join(generator.choices(SYLLABLES, k=generator.randint(1, 3))) for _ in range(400)]
    weights = [1 / (rank + 1) for rank in range(len(words))]

    def line() -> str:
        chosen = generator.choices(words, weights, k=generator.randint(3, 30))
        return f"{chosen[0].capitalize()} {' '.join(chosen[1:])}, {generator.randint(0, 99)}."

    return "".join(f"{line()}\n" for _ in range(num_lines))


@pytest.fixture(scope="session")
def some_text() -> str:
    """400 lines of invented words, about 40 kB."""
    return make_text(400)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A Hugging Face folder with a trained tokenizer of each kind."""
    root = tmp_path_factory.mktemp("tokenizers")
    texts = [make_text(400), "ABCDEFGHIJKLMNOPQRSTUVWXYZ abcdefghijklmnopqrstuvwxyz <>[]/ é ü 漢 字"]
    jobs = [TrainingJob(kind, 500, kind == "wordpiece", texts) for kind in KINDS]
    for job, trained in zip(jobs, map_in_order(make_trainer, jobs, 1), strict=True):
        loaded = describe(Tokenizer.from_str(trained), job.kind, TRAINED_CONFIGS[job.kind])
        write_tokenizer(loaded, root / job.kind, 512)
    return {kind: root / kind for kind in KINDS}


@pytest.fixture(scope="session")
def loaded(folders: dict[str, Path]) -> dict[str, LoadedTokenizer]:
    """The same tokenizers, loaded."""
    return {kind: load_tokenizer(str(folder)) for kind, folder in folders.items()}


@pytest.fixture
def prepared(tmp_path: Path, folders: dict[str, Path]) -> Preparing:
    """Prepare a text, or the files named by `inputs`, into `tmp_path`/data, in this process unless told otherwise."""

    def run(text: str | bytes = "", kind: str = "wordpiece", **options: object) -> DataReport:
        if "inputs" not in options:
            path = tmp_path / "text.txt"
            path.write_bytes(text.encode() if isinstance(text, str) else text)
            options["inputs"] = (str(path),)
        defaults = {"out": str(tmp_path / "data"), "tokenizer": str(folders[kind]), "workers": 0}
        return prepare(PrepareConfig(**{**defaults, **options}))

    return run
