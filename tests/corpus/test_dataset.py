"""Opening a data set, and the width of its ids."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from oarlock.corpus import DataReport, open_dataset
from oarlock.corpus.dataset import narrowest_dtype

TEXT = "one two three\nfour five six seven\neight nine\n" * 5


@pytest.fixture
def folder(prepared: Callable[..., DataReport], tmp_path: Path) -> Path:
    prepared(TEXT, validation_share=0.3)
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("count", "width"),
    [(1, 1), (256, 1), (257, 2), (65_535, 2), (65_536, 2), (65_537, 4), (2**32, 4)],
)
def test_narrowest_dtype(count: int, width: int) -> None:
    dtype = narrowest_dtype(count)
    assert dtype.itemsize == width
    assert np.iinfo(dtype).max >= count - 1


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_535, np.uint16), (65_536, np.uint16), (65_537, np.uint32)])
def test_c25_width_of_ids(vocab_size: int, dtype: type, prepared: Callable[..., DataReport], tmp_path: Path) -> None:
    """The last id survives the way to the disk and back."""
    vocabulary = tmp_path / "vocab.txt"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(vocab_size - 5))]
    vocabulary.write_text("\n".join(tokens) + "\n")
    report = prepared(f"{tokens[-1]} w0 {tokens[-2]}\nw1 w2\n", tokenizer=str(vocabulary))
    data = open_dataset(str(tmp_path / "data"))
    assert data.manifest.vocab_size == report.tokenizer.vocab_size == vocab_size
    assert data.train.ids.dtype == data.validation.ids.dtype == dtype
    ids = [*data.train.ids.tolist(), *data.validation.ids.tolist()]
    assert [2, vocab_size - 1, 5, vocab_size - 2, 3] == ids[ids.index(vocab_size - 1) - 1 :][:5]


def test_arrays_are_memory_mapped_and_fit_together(folder: Path) -> None:
    data = open_dataset(str(folder))
    for split, counts in ((data.train, data.manifest.train), (data.validation, data.manifest.validation)):
        assert isinstance(split.ids, np.memmap)
        assert len(split) == counts.sequences == len(split.lengths)
        assert (np.diff(split.offsets) == split.lengths).all()
        assert split.lengths.sum() == counts.tokens
        assert split.lengths.max() == counts.longest
        assert split.maskable is None


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no data set at .*nowhere.*oarlock prepare"):
        open_dataset(str(tmp_path / "nowhere"))


def test_an_unfinished_folder_is_refused(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"has no manifest.json.*unfinished"):
        open_dataset(str(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"format": 99}, "format 99"), ({"vocab_size": "many"}, "vocab_size"), ({"new": 1}, "new")],
)
def test_a_manifest_of_another_version_is_refused(folder: Path, change: dict[str, object], message: str) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=rf"manifest.json.*(?s:.)*{message}"):
        open_dataset(str(folder))


@pytest.mark.parametrize("text", ["[]", "{", "", "null"])
def test_a_broken_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json"):
        open_dataset(str(folder))


@pytest.mark.parametrize("name", ["train/ids.npy", "validation/lengths.npy", "train/offsets.npy"])
@pytest.mark.parametrize("damage", ["cut", "gone", "dtype", "length", "pickle"])
def test_a_damaged_file_is_named(folder: Path, name: str, damage: str) -> None:
    path = folder / name
    array = np.load(path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "gone":
        path.unlink()
    elif damage == "dtype":
        np.save(path, array.astype(np.float32))
    elif damage == "length":
        np.save(path, array[:-1])
    else:
        np.save(path, np.asarray([{}] * len(array), object), allow_pickle=True)
    with pytest.raises(ValueError, match=path.name):
        open_dataset(str(folder))


@pytest.mark.parametrize("name", ["report.json", "tokenizer/tokenizer.json"])
@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"model": {', "\xff"])
def test_report_and_tokenizer_are_checked(folder: Path, name: str, text: str | None) -> None:
    """A run needs them only at its end, which is too late."""
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=rf"{name} is .*damaged.*run `oarlock prepare` again$"):
        open_dataset(str(folder))


def test_offsets_that_do_not_fit_are_refused(folder: Path) -> None:
    path = folder / "train" / "offsets.npy"
    np.save(path, np.load(path) + 1)
    with pytest.raises(ValueError, match=r"offsets\.npy.*does not fit"):
        open_dataset(str(folder))


def test_by_url(folder: Path) -> None:
    assert len(open_dataset(f"file://{folder}").train) == len(open_dataset(str(folder)).train)
