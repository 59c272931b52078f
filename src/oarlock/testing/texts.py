"""Small texts and the data sets made of them."""

import random
from pathlib import Path

from oarlock.corpus import PrepareConfig, prepare

TEXT = """the river runs past a mill where old boats wait for rain and every spring the water climbs over its banks to
carry off what people left there ropes baskets letters one red chair"""
WORDS = TEXT.split()


def write_text(path: Path, num_documents: int = 300, seed: int = 0) -> Path:
    """A text file, one document a line, in which words follow each other in a loose order that can be learned."""
    generator = random.Random(seed)
    lines = []
    for _ in range(num_documents):
        start, length = generator.randrange(len(WORDS)), generator.randint(1, 60)
        words = [WORDS[(start + i + (generator.random() < 0.1)) % len(WORDS)] for i in range(length)]
        lines.append(" ".join(words))
    path.write_text("\n".join(lines) + "\n")
    return path


def prepare_text(folder: Path, num_documents: int = 300, max_length: int = 48) -> Path:
    """A prepared data set with a tokenizer of its own, in `folder`/data."""
    text = write_text(folder / "text.txt", num_documents)
    config = PrepareConfig(
        inputs=(str(text),),
        out=str(folder / "data"),
        vocab_size=300,
        max_length=max_length,
        validation_share=0.1,
        workers=0,
    )
    prepare(config)
    return folder / "data"
