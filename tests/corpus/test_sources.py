"""Which files are read, in which order, and how they are opened."""

import bz2
import gzip
import lzma
import os
from pathlib import Path

import fsspec
import pyarrow
import pytest

from oarlock.corpus.sources import Source, damage_named, decompress, find_sources, hash_contents, open_raw


def names(inputs: list[Path | str], out: str = "elsewhere") -> list[str]:
    return [Path(source.path).name for source in find_sources(tuple(map(str, inputs)), out)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt", "sub/c.jsonl", "sub/deeper/d", ".hidden/e.txt", "sub/.f.txt", "x[1].txt"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "tree"


def test_a_folder_stands_for_its_files_in_the_order_of_their_names(tree: Path) -> None:
    assert names([tree]) == ["a.txt", "b.txt", "c.jsonl", "d", "x[1].txt"]


def test_patterns(tree: Path) -> None:
    assert names([tree / "*.txt"]) == ["a.txt", "b.txt", "x[1].txt"]
    assert names([tree / "**" / "*"]) == ["a.txt", "b.txt", "c.jsonl", "d", "x[1].txt"]
    assert names([tree / "x[1].txt"]) == ["x[1].txt"], "a file's own name is no pattern"


def test_each_file_once_in_the_order_of_the_inputs(tree: Path) -> None:
    assert names([tree / "b.txt", tree, tree / "a.txt"]) == ["b.txt", "a.txt", "c.jsonl", "d", "x[1].txt"]


def test_a_folder_is_read_without_the_output_in_it(tree: Path) -> None:
    assert names([tree], out=str(tree / "sub")) == ["a.txt", "b.txt", "x[1].txt"]


def test_an_input_that_names_nothing_is_refused(tree: Path) -> None:
    for missing in (tree / "no.txt", tree / "*.csv", "memory://nothing/here"):
        with pytest.raises(ValueError, match="no file at"):
            names([tree, missing])
    with pytest.raises(ValueError, match="no-such-protocol"):
        names(["no-such-protocol://x/y"])


def test_what_is_no_regular_file_is_refused(tree: Path) -> None:
    os.mkfifo(tree / "sub" / "pipe")
    for given in (tree, tree / "sub" / "pipe", tree / "**" / "*", f"file://{tree}", f"file://{tree}/sub/pipe"):
        with pytest.raises(ValueError, match=r"sub/pipe is not a regular file.*write it to a file first"):
            names([given])
    for device in ("/dev/zero", "/dev/null"):
        with pytest.raises(ValueError, match=f"{device} is not a regular file"):
            names([device])
    reading, writing = os.pipe()
    with pytest.raises(ValueError, match="is not a regular file"):
        names([f"/dev/fd/{reading}"])
    os.close(reading)
    os.close(writing)


def test_links_to_folders_are_followed(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "far" / "below").mkdir(parents=True)
    (tmp_path / "far" / "below" / "g.txt").write_text("g")
    (tree / "link").symlink_to(tmp_path / "far")
    assert names([tree]) == ["a.txt", "b.txt", "g.txt", "c.jsonl", "d", "x[1].txt"]
    (tmp_path / "far" / "up").symlink_to(tree)
    (tree / "again").symlink_to("sub")
    assert sorted(names([tree])) == ["a.txt", "b.txt", "c.jsonl", "d", "g.txt", "x[1].txt"], "no loop, and each once"
    assert "d" not in names([tree], out=str(tree / "sub")), "the output, by a link to it"


def test_a_file_is_read_once_whatever_it_is_called(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    (tree / "l.txt").symlink_to("a.txt")
    ways = ["a.txt", tree / "a.txt", "sub/../a.txt", "l.txt", f"file://{tree}/a.txt"]
    assert names(ways) == ["a.txt"]


@pytest.mark.parametrize("target", ["nowhere", "broken.txt"])
def test_a_broken_link_is_named(tree: Path, target: str) -> None:
    (tree / "broken.txt").symlink_to(target)
    for given in (tree, tree / "broken.txt", tree / "b*", f"file://{tree}/br*"):
        with pytest.raises(ValueError, match=r"broken\.txt is a broken link"):
            names([given])


def test_a_name_that_is_no_text_is_refused(tree: Path) -> None:
    Path(os.fsdecode(bytes(tree / "sub") + b"/bad\xff")).write_text("x")
    with pytest.raises(ValueError, match=r"bad\\udcff' is not valid UTF-8"):
        names([tree])


def test_urls() -> None:
    file_system = fsspec.filesystem("memory")
    for name in ("z.txt", "y.txt.gz", "more/x.parquet", ".cache/w.txt"):
        file_system.pipe(f"/room/{name}", b"text")
    found = find_sources(("memory://room",), "out")
    assert [(source.path, source.size) for source in found] == [
        ("memory:///room/more/x.parquet", 4),
        ("memory:///room/y.txt.gz", 4),
        ("memory:///room/z.txt", 4),
    ]
    assert names(["memory://room/*.txt"]) == ["z.txt"]
    assert names(["memory://room/z.txt"]) == ["z.txt"]
    with open_raw(found[-1]) as raw:
        assert raw.read() == b"text"


@pytest.mark.parametrize(
    ("name", "kind", "compression"),
    [
        ("a", "text", "none"),
        ("a.txt", "text", "none"),
        ("a.TXT.GZ", "text", "gzip"),
        ("a.jsonl", "json", "none"),
        ("a.json.bz2", "json", "bz2"),
        ("a.ndjson.xz", "json", "xz"),
        ("a.zst", "text", "zstd"),
        ("a.parquet", "parquet", "none"),
    ],
)
def test_format_by_name(tmp_path: Path, name: str, kind: str, compression: str) -> None:
    (tmp_path / name).write_text("x")
    (source,) = find_sources((str(tmp_path / name),), "out")
    assert (source.format, source.compression) == (kind, compression)


COMPRESSORS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_compressed_files_of_several_members(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt.{suffix}"
    parts = [b"first\n" * 1000, b"second\n" * 1000]
    path.write_bytes(b"".join(map(COMPRESSORS[suffix], parts)))
    (source,) = find_sources((str(path),), "out")
    with open_raw(source) as raw:
        reader = decompress(source, raw)
        contents = b""
        while chunk := reader.read(1 << 16):
            contents += chunk
    assert contents == b"".join(parts)


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_truncated_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt.{suffix}"
    path.write_bytes(COMPRESSORS[suffix](bytes(range(256)) * 1000)[:-9])
    (source,) = find_sources((str(path),), "out")

    def read_all() -> None:
        with open_raw(source) as raw, damage_named(source):
            reader = decompress(source, raw)
            while reader.read(1 << 16):
                pass

    with pytest.raises(ValueError, match=rf"a\.txt\.{suffix} cannot be read.*is it whole"):
        read_all()


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*gone\.txt"):
        open_raw(Source(str(tmp_path / "gone.txt"), "text", "none", 1))


def test_hash_is_of_the_contents(tmp_path: Path) -> None:
    digests = []
    for name, text in (("a", "same"), ("b", "same"), ("c", "other")):
        (tmp_path / name).write_text(text)
        read: list[int] = []
        digests.append(hash_contents(Source(str(tmp_path / name), "text", "none", 4), read.append))
        assert sum(read) == len(text)
    assert digests[0] == digests[1] != digests[2]
