"""What a worker finds in a block."""

from collections import Counter

import numpy as np
import pytest

from oarlock.corpus import LoadedTokenizer
from oarlock.corpus.blocks import Block, Segment
from oarlock.corpus.dataset import narrowest_dtype
from oarlock.corpus.encoding import KEY_CHARACTERS, Encoded, EncodingJob, make_encoder
from oarlock.corpus.records import Place
from oarlock.corpus.tokenizer import without_special_tokens


def job(loaded: LoadedTokenizer, *, parse: bool = False, seed: int = 0) -> EncodingJob:
    return EncodingJob(
        tokenizer=loaded.tokenizer.to_str() if parse else without_special_tokens(loaded),
        width=narrowest_dtype(loaded.vocab_size),
        unknown=loaded.special.unknown,
        special_tokens=tuple(loaded.special_tokens),
        parse_special_tokens=parse,
        text_key="text",
        on_invalid_utf8="error",
        seed=seed,
    )


def block(*texts: str, index: int = 0) -> Block:
    """Each text a file, each line of it a document."""
    segments = [
        Segment(number, Place(f"{number}.txt", 1, 0), "line", text.encode(), 10 * (number + 1))
        for number, text in enumerate(texts)
    ]
    return Block(index, tuple(segments))


def encode(loaded: LoadedTokenizer, *texts: str, parse: bool = False) -> Encoded:
    return make_encoder(job(loaded, parse=parse))(block(*texts))


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_ids_are_those_of_the_tokenizer(loaded: dict[str, LoadedTokenizer], kind: str, some_text: str) -> None:
    found = encode(loaded[kind], some_text, "one more file\n")
    lines = [*some_text.split("\n")[:-1], "one more file"]
    expected = [loaded[kind].tokenizer.encode(line, add_special_tokens=False).ids for line in lines]
    assert found.ids.tolist() == [id_ for ids in expected for id_ in ids]
    assert found.num_tokens.tolist() == list(map(len, expected))
    assert found.ids.dtype == np.uint16
    assert found.bytes_read == 20
    assert found.num_characters == sum(map(len, lines))
    assert found.num_lines == len(lines) == len(found.line_hashes)


def test_unknown_tokens_are_counted_by_file(loaded: dict[str, LoadedTokenizer]) -> None:
    found = encode(loaded["wordpiece"], "ba ☃ bo\n☃\n", "", "ba\n")
    assert [(file.documents, file.unknown) for file in found.files] == [(2, 2), (0, 0), (1, 0)]
    assert sum(file.tokens for file in found.files) == len(found.ids)


def test_hashes_tell_documents_apart(loaded: dict[str, LoadedTokenizer]) -> None:
    start = "x" * KEY_CHARACTERS
    found = encode(loaded["bpe"], f"same\nother\nsame\n{start}a\n{start}b\n")
    assert len(set(found.hashes.tolist())) == 4
    assert len(set(found.keys.tolist())) == 3, "the split of a large document follows from its start"
    assert found.hashes[0] == found.hashes[2]
    seeded = make_encoder(job(loaded["bpe"], seed=1))(block("same\n"))
    assert seeded.keys[0] != found.keys[0]


def test_c12_literal_special_tokens_are_counted(loaded: dict[str, LoadedTokenizer]) -> None:
    text = "a [SEP] b[SEP] [MASK]\n<s>\n"
    assert encode(loaded["wordpiece"], text).literals == Counter({"[SEP]": 2, "[MASK]": 1})
    assert encode(loaded["bpe"], text).literals == Counter({"<s>": 1})
    special = loaded["wordpiece"].special
    assert special.mask not in encode(loaded["wordpiece"], text).ids
    parsed = encode(loaded["wordpiece"], text, parse=True)
    assert np.count_nonzero(parsed.ids == special.mask) == 1
    assert np.count_nonzero(parsed.ids == special.end) == 2


def test_examples_are_given_once(loaded: dict[str, LoadedTokenizer]) -> None:
    encoder = make_encoder(job(loaded["wordpiece"]))
    first = encoder(block("one two\u200dthree four\u200d\n"))
    second = encoder(block("again\u200d\x00\n", index=1))
    assert first.examples == {0x200D: "one two\u200dthree four\u200d"}
    assert list(second.examples) == [0]
    assert dict(zip(first.code_points.tolist(), first.code_counts.tolist(), strict=True))[0x200D] == 2


def test_a_block_without_documents(loaded: dict[str, LoadedTokenizer]) -> None:
    found = encode(loaded["wordpiece"], "\n\n")
    assert len(found.ids) == len(found.num_tokens) == 0
    assert found.num_blank_lines == 2
    assert not found.unfinished
