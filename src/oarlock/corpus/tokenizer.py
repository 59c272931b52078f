"""Tokenizers: loading one, and what the rest of the package has to know of it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from oarlock.config.folders import fetch
from oarlock.corpus.dataset import SpecialIds

# Names by which the roles are known where no configuration names them; the first that the vocabulary has is taken.
ROLE_NAMES = {
    "pad_token": ("[PAD]", "<pad>", "<|padding|>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>", "<cls>"),
    "sep_token": ("[SEP]", "</s>", "<sep>", "<eos>"),
    "mask_token": ("[MASK]", "<mask>"),
}
ROLES = {**ROLE_NAMES, "bos_token": (), "eos_token": ()}
BERT_CONFIG = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
PROBES = ("a", "A", "1", ".")
# Put before a special token's name where text must not match it: noncharacters, which text does not hold.
UNMATCHABLE = "\ufdd0oarlock\ufdd1"


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer, checked to be fit for masked-LM pretraining."""

    tokenizer: Tokenizer
    source: str
    """Where it came from, in words."""
    vocab_size: int
    """Largest id + 1."""
    prefix: tuple[int, ...]
    """Special ids that open every sequence."""
    suffix: tuple[int, ...]
    """Special ids that close every sequence."""
    special: SpecialIds
    special_tokens: dict[str, int]
    """Every special token and its id."""
    config: dict[str, Any]
    """Contents of `tokenizer_config.json`."""
    trained_on_bytes: int | None = None
    """Bytes of text it was trained on, where Oarlock trained it."""


def load_tokenizer(source: str, lowercase: bool | None = None) -> LoadedTokenizer:
    """Load a Hugging Face tokenizer folder, a tokenizer.json or a vocab.txt (path or URL).

    `lowercase` is for a vocab.txt; None reads it from tokenizer_config.json beside it, else from the vocabulary.
    Raises ValueError where there is none, or where it lacks a mask, padding, start or end token.
    """
    path = fetch(source)
    folder = path if path.is_dir() else path.parent
    config = _read_config(folder) if path.is_dir() or path.name in ("tokenizer.json", "vocab.txt") else {}
    file = next((folder / name for name in ("tokenizer.json", "vocab.txt") if (folder / name).is_file()), None)
    if not path.is_dir():
        file = path if path.is_file() else None
    if file is None:
        raise ValueError(
            f"no tokenizer at {source}: give a folder with tokenizer.json or vocab.txt, or one of these files "
            "(AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER) makes one from the Hugging Face hub)"
        )
    if file.suffix == ".txt":
        return _from_vocabulary(file, config, lowercase, source)
    if lowercase is not None:
        raise ValueError(f"lowercase={lowercase} cannot be changed in {file}: its own normaliser decides; leave it out")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises nothing narrower, and its panics are no Exception
        raise ValueError(f"{file} is not a tokenizer.json that `tokenizers` reads: {error}") from error
    return describe(tokenizer, source, config)


def describe(
    tokenizer: Tokenizer, source: str, config: dict[str, Any], trained_on_bytes: int | None = None
) -> LoadedTokenizer:
    """Work out ids, prefix and suffix of a tokenizer. Truncation and padding are switched off in it.

    Raises ValueError where it lacks a token that pretraining needs, or puts more than a frame around a text.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    prefix, suffix = _frame(tokenizer, source)
    roles = _roles(config, vocabulary)
    missing = [name for name in ("mask_token", "pad_token") if name not in roles]
    if missing:
        raise ValueError(
            f"the tokenizer {source} has no {' and no '.join(missing)}, which masked-LM pretraining needs: add it "
            f"(for example {ROLE_NAMES[missing[0]][0]}) and name it in tokenizer_config.json, or take another tokenizer"
        )
    if not prefix or not suffix:
        raise ValueError(
            f"the tokenizer {source} puts no special token {'before' if not prefix else 'after'} a text, and every "
            "sequence needs a start and an end token: give its tokenizer.json a TemplateProcessing post-processor "
            "such as `[CLS] $A [SEP]`"
        )
    names = {id_: token for token, id_ in vocabulary.items()}
    frame = {"cls_token": names[prefix[0]], "sep_token": names[suffix[-1]]}
    roles |= {role: name for role, name in frame.items() if role not in config}
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    special_ids = {vocabulary[name] for name in added | set(roles.values())} | set(prefix) | set(suffix)
    special = SpecialIds(
        pad=vocabulary[roles["pad_token"]],
        unknown=vocabulary[roles["unk_token"]] if "unk_token" in roles else None,
        start=prefix[0],
        end=suffix[-1],
        mask=vocabulary[roles["mask_token"]],
        all=tuple(sorted(special_ids)),
    )
    others = {"pad": special.pad, "unknown": special.unknown, "start": special.start, "end": special.end}
    same = [role for role, id_ in others.items() if id_ == special.mask]
    if same or special.mask in (*prefix, *suffix):
        raise ValueError(
            f"the mask token of the tokenizer {source}, {names[special.mask]!r}, is also its "
            f"{' and '.join(same) or 'frame'} token, so masked places could not be told apart: give it a mask token "
            "of its own and name it in tokenizer_config.json"
        )
    return LoadedTokenizer(
        tokenizer=tokenizer,
        source=source,
        vocab_size=max(vocabulary.values()) + 1,
        prefix=prefix,
        suffix=suffix,
        special=special,
        special_tokens={names[id_]: id_ for id_ in sorted(special_ids)},
        config={**config, **{role: config.get(role, name) for role, name in roles.items()}},
        trained_on_bytes=trained_on_bytes,
    )


def without_special_tokens(loaded: LoadedTokenizer) -> str:
    """JSON of a tokenizer with the same ids, for which special tokens written out in a text are text.

    `encode_special_tokens` of the library does not see to that: a Unigram model, or a WordPiece model behind a
    pre-tokenizer that splits on white space only, still finds `<mask>` in its vocabulary. So they are renamed there.
    """
    values = json.loads(loaded.tokenizer.to_str())
    model = values["model"]

    def renamed(token: str) -> str:
        return UNMATCHABLE + token if token in loaded.special_tokens else token

    for token in values["added_tokens"]:
        token["content"] = renamed(token["content"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {renamed(token): id_ for token, id_ in model["vocab"].items()}
    else:  # Unigram: pairs of token and score, in the order of the ids
        model["vocab"] = [(renamed(token), score) for token, score in model["vocab"]]
    if model.get("unk_token"):
        model["unk_token"] = renamed(model["unk_token"])
    return json.dumps(values | {"post_processor": None}, ensure_ascii=False)


def frame_with(tokenizer: Tokenizer, start: str, end: str, *, double: bool) -> None:
    """Give a tokenizer the post-processor `start A end`, and for pairs `start A end [end] B end`.

    `double` is RoBERTa's form of a pair: two end tokens between, and no token types.
    """
    pair = f"{start} $A {end} {end} $B {end}" if double else f"{start} $A {end} $B:1 {end}:1"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=pair,
        special_tokens=[(start, tokenizer.token_to_id(start)), (end, tokenizer.token_to_id(end))],
    )


def _read_config(folder: Path) -> dict[str, Any]:
    """What a Hugging Face folder says of its tokenizer: tokenizer_config.json over special_tokens_map.json."""
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        if path.is_file():
            try:
                config |= dict(json.loads(path.read_bytes()))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path} is not a JSON object: {error}") from error
    return config


def _roles(config: dict[str, Any], vocabulary: dict[str, int]) -> dict[str, str]:
    """Names of the special tokens by role, as far as the vocabulary has them."""
    roles: dict[str, str] = {}
    for role, names in ROLES.items():
        given = config.get(role)
        candidates = (given["content"],) if isinstance(given, dict) else (given,) if given else names
        if found := next((name for name in candidates if name in vocabulary), None):
            roles[role] = found
    return roles


def _frame(tokenizer: Tokenizer, source: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the post-processor puts before and after a text, which must stay whole, and stand there once."""
    # A template drops or doubles a text also where special tokens are not asked for.
    bare = Tokenizer.from_str(json.dumps(json.loads(tokenizer.to_str()) | {"post_processor": None}))
    for probe in PROBES:
        with _panic_named(source):
            text = bare.encode(probe, add_special_tokens=False).ids
            framed = tokenizer.encode(probe)
        if text:
            ordinary = [index for index, special in enumerate(framed.special_tokens_mask) if not special]
            first, end = (ordinary[0], ordinary[-1] + 1) if ordinary else (0, 0)
            if framed.ids[first:end] != text:
                raise ValueError(
                    f"the post-processor of the tokenizer {source} makes {' '.join(framed.tokens)!r} of the text "
                    f"{probe!r}, which must stand in it once and whole: give its tokenizer.json a TemplateProcessing "
                    "post-processor such as `[CLS] $A [SEP]`"
                )
            return tuple(framed.ids[:first]), tuple(framed.ids[end:])
    return (), ()


@contextmanager
def _panic_named(source: str) -> Iterator[None]:
    """Turn an error of the `tokenizers` library, whose panics are no `Exception`, into a ValueError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ValueError(
            f"the tokenizer {source} cannot encode a text, the `tokenizers` library says {str(error)!r}: its "
            "post-processor may name a token that its special tokens or its vocabulary lack"
        ) from error


def _from_vocabulary(path: Path, config: dict[str, Any], lowercase: bool | None, source: str) -> LoadedTokenizer:
    """BERT's WordPiece tokenizer from a file with a token a line."""
    try:
        tokens = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text with a token a line: {error}") from error
    vocabulary = {token.removesuffix("\r"): id_ for id_, token in enumerate(tokens)}
    roles = _roles(config, vocabulary)
    missing = [ROLE_NAMES[role][0] for role in ROLE_NAMES if role not in roles]
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}: a WordPiece vocabulary needs them, one token a line")
    if lowercase is None:
        ordinary = vocabulary.keys() - set(roles.values())
        lowercase = config.get("do_lower_case", all(token == token.lower() for token in ordinary))
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token=roles["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=lowercase,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in roles.values()])
    frame_with(tokenizer, roles["cls_token"], roles["sep_token"], double=False)
    return describe(tokenizer, source, {**BERT_CONFIG, **config, "do_lower_case": lowercase})
