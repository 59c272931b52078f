"""Loading tokenizers, and writing them as Hugging Face folders."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from oarlock.corpus import LoadedTokenizer, load_tokenizer
from oarlock.corpus.huggingface import write_tokenizer
from oarlock.corpus.tokenizer import without_special_tokens

KINDS = ["wordpiece", "bpe", "unigram"]
LITERALS = "a [MASK] b [SEP]<s> </s><mask>x<pad> [UNK]<unk>, [CLS] [PAD]."
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", "!"]


def write_vocabulary(folder: Path, tokens: list[str] = VOCABULARY, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def tokens(loaded: LoadedTokenizer, text: str) -> list[str]:
    return list(loaded.tokenizer.encode(text, add_special_tokens=False).tokens)


def test_ids_of_trained_tokenizers(loaded: dict[str, LoadedTokenizer]) -> None:
    bert = loaded["wordpiece"]
    assert bert.special_tokens == {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    assert (bert.prefix, bert.suffix) == ((2,), (3,))
    for kind in ("bpe", "unigram"):
        roberta = loaded[kind]
        assert roberta.special_tokens == {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4}
        assert (roberta.prefix, roberta.suffix) == ((0,), (2,))
        special = roberta.special
        assert (special.start, special.pad, special.end, special.unknown, special.mask) == (0, 1, 2, 3, 4)
        assert special.all == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_loads_the_folder(folders: dict[str, Path], loaded: dict[str, LoadedTokenizer], kind: str) -> None:
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folders[kind]), loaded[kind]
    assert theirs.is_fast
    special = ours.special
    found = (theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id)
    assert found == (special.pad, special.unknown, special.start, special.end, special.mask)
    assert len(theirs) == ours.vocab_size
    assert sorted(theirs.all_special_ids) == list(special.all)
    for text in ("Some words, 42 of them.", "é 漢字 \n\n x", f"a {theirs.mask_token} b"):
        assert theirs(text)["input_ids"] == ours.tokenizer.encode(text).ids
    if kind != "wordpiece":
        assert theirs.convert_ids_to_tokens(theirs("a <mask>")["input_ids"])[-2] == "<mask>"
        assert (theirs.bos_token_id, theirs.eos_token_id) == (special.start, special.end)
        assert theirs("a", "b")["input_ids"].count(special.end) == 3
    else:
        assert theirs("a", "b")["token_type_ids"] == [0, 0, 0, 1, 1]
        assert (folders[kind] / "vocab.txt").read_text().split("\n")[:5] == list(ours.special_tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_folder_loads_as_it_was(folders: dict[str, Path], tmp_path: Path, kind: str) -> None:
    first = load_tokenizer(str(folders[kind]))
    write_tokenizer(first, tmp_path / "copy", 128)
    second = load_tokenizer(str(tmp_path / "copy"))
    assert second.tokenizer.to_str() == first.tokenizer.to_str()
    assert (second.prefix, second.suffix, second.special) == (first.prefix, first.suffix, first.special)
    alone = load_tokenizer(str(folders[kind] / "tokenizer.json"))
    assert alone.special == first.special


@pytest.mark.parametrize("kind", KINDS)
def test_c12_literal_special_tokens_stay_text(loaded: dict[str, LoadedTokenizer], kind: str) -> None:
    text_only = Tokenizer.from_str(without_special_tokens(loaded[kind]))
    text_only.encode_special_tokens = True
    ids = text_only.encode(LITERALS, add_special_tokens=False).ids
    special = set(loaded[kind].special.all) - {loaded[kind].special.unknown}
    assert not special & set(ids)
    for text in ("Some words, 42 of them.", "é 漢字 \n\n x"):
        ordinary = loaded[kind].tokenizer.encode(text, add_special_tokens=False).ids
        assert text_only.encode(text, add_special_tokens=False).ids == ordinary


def test_c12_literal_special_tokens_where_a_word_is_looked_up_whole(tmp_path: Path) -> None:
    """A pre-tokenizer that splits on white space alone hands `[MASK]` to the model as a word."""
    ids = {token: id_ for id_, token in enumerate([*VOCABULARY, "[", "##M", "##A", "##S", "##K", "##]"])}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text_only = Tokenizer.from_str(without_special_tokens(load_tokenizer(str(tmp_path / "tokenizer.json"))))
    text_only.encode_special_tokens = True
    assert text_only.encode("hello [MASK]", add_special_tokens=False).ids == [5, 9, 10, 11, 12, 13, 14]


def test_vocabulary_file(tmp_path: Path) -> None:
    folder = write_vocabulary(tmp_path / "v")
    for source in (folder, folder / "vocab.txt"):
        loaded = load_tokenizer(str(source))
        assert (loaded.prefix, loaded.suffix, loaded.vocab_size) == ((2,), (3,), 9)
        assert tokens(loaded, "Hello worlds !") == ["hello", "world", "##s", "!"], "no capital: lowercased"


@pytest.mark.parametrize(
    ("vocabulary", "config", "option", "expected"),
    [
        ([*VOCABULARY, "Hello"], {}, None, "Hello"),
        (VOCABULARY, {"do_lower_case": False}, None, "[UNK]"),
        ([*VOCABULARY, "Hello"], {"do_lower_case": True}, None, "hello"),
        (VOCABULARY, {}, False, "[UNK]"),
        ([*VOCABULARY, "Hello"], {}, True, "hello"),
    ],
)
def test_case_of_a_vocabulary(
    tmp_path: Path, vocabulary: list[str], config: dict[str, Any], option: bool | None, expected: str
) -> None:
    folder = write_vocabulary(tmp_path / "v", vocabulary, **config)
    loaded = load_tokenizer(str(folder), option)
    assert tokens(loaded, "Hello") == [expected]
    write_tokenizer(loaded, tmp_path / "copy", 64)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert theirs.tokenize("Hello") == [expected]


def test_vocabulary_with_other_names_and_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"<pad>\r\n<unk>\r\n<cls>\r\n<sep>\r\n<mask>\r\nhello\r\n")
    loaded = load_tokenizer(str(path))
    assert loaded.special_tokens == {"<pad>": 0, "<unk>": 1, "<cls>": 2, "<sep>": 3, "<mask>": 4}
    assert loaded.tokenizer.encode("hello").ids == [2, 5, 3]


def test_truncation_and_padding_of_a_file_are_switched_off(loaded: dict[str, LoadedTokenizer], tmp_path: Path) -> None:
    """Files for sentence embeddings cut at 128 tokens; that would lose text."""
    tokenizer = Tokenizer.from_str(loaded["wordpiece"].tokenizer.to_str())
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    again = load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert len(again.tokenizer.encode("word " * 100).ids) > 100
    assert len(again.tokenizer.encode("a").ids) == 3


def small(*special: str, template: str = "[CLS] $A [SEP]") -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({token: id_ for id_, token in enumerate([*special, "a"])}, special[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(special))
    used = [(name, tokenizer.token_to_id(name)) for name in template.split() if name != "$A"]
    if used:
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (small("[UNK]", "[CLS]", "[SEP]", "[PAD]"), r"has no mask_token.*for example \[MASK\]"),
        (small("[UNK]", "[CLS]", "[SEP]", "[MASK]"), r"has no pad_token"),
        (small("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", template="$A [SEP]"), "no special token before a text"),
        (small("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", template="[CLS] $A"), "no special token after a text"),
        (small("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", template="$A"), r"before a text.*TemplateProcessing"),
    ],
)
def test_a_tokenizer_that_lacks_a_token_is_refused(tmp_path: Path, tokenizer: Tokenizer, message: str) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    with pytest.raises(ValueError, match=rf"tokenizer\.json.*{message}"):
        load_tokenizer(str(path))


def test_a_mask_that_is_another_token_too_is_refused(tmp_path: Path) -> None:
    small("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]").save(str(tmp_path / "tokenizer.json"))
    for token, role in (("[PAD]", "pad"), ("[UNK]", "unknown"), ("[CLS]", "start"), ("[SEP]", "end")):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"mask_token": token}))
        with pytest.raises(ValueError, match=rf"mask token .* is also its {role} token.*of its own"):
            load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("template", ["[CLS] $A [SEP] $A [SEP]", "[CLS] $A $A [SEP]", "[CLS] [SEP]"])
def test_a_text_doubled_or_dropped_is_refused(tmp_path: Path, template: str) -> None:
    small("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", template=template).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"tokenizer\.json makes .*\[CLS\].* of the text 'a'.*once and whole"):
        load_tokenizer(str(tmp_path / "tokenizer.json"))


def test_a_panic_of_the_library_is_a_message(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    small("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]").save(str(path))
    values = json.loads(path.read_text())
    del values["post_processor"]["special_tokens"]["[SEP]"]
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot encode a text.*names? a token"):
        load_tokenizer(str(path))


def test_a_vocabulary_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "\n".join(VOCABULARY).encode())
    assert load_tokenizer(str(path)).special.pad == 0


def test_roles_named_by_the_configuration(tmp_path: Path) -> None:
    tokenizer = small("[UNK]", "?gap?", "!pad!", "(", ")", template="( $A )")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    mask = {"content": "?gap?", "lstrip": True}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"mask_token": mask, "pad_token": "!pad!"}))
    loaded = load_tokenizer(str(tmp_path))
    special = loaded.special
    assert (special.mask, special.pad, special.start, special.end, special.unknown) == (1, 2, 3, 4, 0)
    write_tokenizer(loaded, tmp_path / "copy", 64)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert (theirs.mask_token, theirs.pad_token, theirs.cls_token, theirs.sep_token) == ("?gap?", "!pad!", "(", ")")


@pytest.mark.parametrize("name", ["bert-base-uncased", "folder", "other.json", "binary.txt"])
def test_what_is_no_tokenizer_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=name):
        load_tokenizer(str(tmp_path / name))


def test_a_vocabulary_without_special_tokens_is_refused(tmp_path: Path) -> None:
    folder = write_vocabulary(tmp_path / "v", ["[PAD]", "[UNK]", "hello"])
    with pytest.raises(ValueError, match=r"vocab\.txt has no \[CLS\], \[SEP\], \[MASK\]"):
        load_tokenizer(str(folder))


def test_case_is_no_option_of_a_whole_tokenizer(folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="lowercase=True cannot be changed"):
        load_tokenizer(str(folders["bpe"]), lowercase=True)


def test_special_tokens_beyond_the_model_keep_their_ids(tmp_path: Path) -> None:
    """Added tokens, special or not, whose ids follow the model's."""
    tokenizer = small("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]")
    tokenizer.add_special_tokens(["<extra>"])
    tokenizer.add_tokens([AddedToken("ordinary", normalized=False)])
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.vocab_size == 8
    assert loaded.special.all == (0, 1, 2, 3, 4, 6)
    text_only = Tokenizer.from_str(without_special_tokens(loaded))
    text_only.encode_special_tokens = True
    assert text_only.encode("a ordinary", add_special_tokens=False).ids == [5, 7]
    assert 6 not in text_only.encode("<extra>", add_special_tokens=False).ids
