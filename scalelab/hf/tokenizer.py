"""Write a tokenizer as files that `transformers` and `tokenizers` load: tokenizer.json, tokenizer_config.json, ….

All our tokenizers but bare ids can be written. A document begins after the token that ended the one before, so that
token is both bos and eos, and stands in front of a text where it stood in training. A special token spelled in a text
is only text.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from scalelab.data.tokenizers import ranks as ranktokens
from scalelab.data.tokenizers.hf_json import byte_letters, token_names
from scalelab.data.tokenizers.load import TOKENIZER_FILES
from scalelab.data.tokenizers.tokenizer import Tokenizer
from scalelab.untrusted.documents import parse_json

TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, GENERATION_FILE = (
    TOKENIZER_FILES["json"],
    "tokenizer_config.json",
    "generation_config.json",
)
PAD_NAMES = (
    "<pad>",
    "[PAD]",
    "<|pad|>",
    "<|padding|>",
    "<|finetune_right_pad_id|>",
)  # names of a vocabulary's own padding token
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    """Special ids; None: unknown. `pad` is the vocabulary's own padding, which few have."""

    end: int | None
    pad: int | None = None

    def of_model(self) -> dict[str, int | None]:
        """What config.json says; without ids transformers would assume another model's. An end is not padding there: a
        Llama's padding row gets no gradient."""
        ids = {"bos_token_id": self.end, "eos_token_id": self.end}
        return ids if self.pad is None else ids | {"pad_token_id": self.pad}

    def of_generation(self, max_length: int) -> dict[str, Any]:
        """Content of generation_config.json; without a padding token, the end token pads shorter texts."""
        pad = self.end if self.pad is None else self.pad
        return self.of_model() | {"pad_token_id": pad, "max_length": max_length}


def tokenizer_files(
    tokenizer: Tokenizer, max_length: int, begins: bool = False
) -> tuple[dict[str, dict[str, Any]], SpecialIds]:
    """Make `{file name: its JSON}` of a tokenizer and its special ids; {} for bare ids.

    `begins`: whether the token that ends a document is put in front of a text.
    """
    if tokenizer.kind == "ids":
        return {}, SpecialIds(tokenizer.separator)
    content = {"json": _given, "ranks": _from_ranks, "bytes": _from_bytes}[tokenizer.kind](tokenizer)
    names = token_names(content)
    pad = next((number for number, name in sorted(names.items()) if name in PAD_NAMES), None)
    end = names.get(tokenizer.separator)
    if begins and end is not None:
        content |= {"post_processor": _put_in_front(tokenizer.separator, end)}
    says = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": end, "eos_token": end,
        "pad_token": end if pad is None else names[pad], "model_max_length": max_length,
        "clean_up_tokenization_spaces": False, "split_special_tokens": True,
    }  # fmt: skip
    return {TOKENIZER_FILE: content, TOKENIZER_CONFIG_FILE: says}, SpecialIds(tokenizer.separator, pad)


def _put_in_front(number: int, name: str) -> dict[str, Any]:
    """Make the template of a text after this token."""
    token = {"SpecialToken": {"id": name, "type_id": 0}}
    first, second = ({"Sequence": {"id": which, "type_id": 0}} for which in "AB")
    return {
        "type": "TemplateProcessing", "single": [token, first], "pair": [token, first, second],
        "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]}},
    }  # fmt: skip


def _given(tokenizer: Tokenizer) -> dict[str, Any]:
    """A tokenizer.json without truncation, padding and tokens around a text, none of which is used here."""
    return parse_json(tokenizer.content) | {"truncation": None, "padding": None, "post_processor": None}


def _from_bytes(tokenizer: Tokenizer) -> dict[str, Any]:
    """Make the tokenizer of bytes: the id is the byte; byte 0, which no text holds, is the end."""
    letters = byte_letters()
    vocabulary = {letters[byte]: byte for byte in range(256) if byte != tokenizer.separator}
    return _byte_level(vocabulary, [], tokenizer.separator, "<|endoftext|>", [], None)


def _from_ranks(tokenizer: Tokenizer) -> dict[str, Any]:
    """Convert a ranks file to merges: every pair of tokens whose join is a token, ordered by the join's rank.

    A word that is a token is taken whole (`ignore_merges`), as tiktoken does.
    """
    ranks = ranktokens.parse_ranks(tokenizer.content, pathlib.Path(tokenizer.name))
    known, letters = ranktokens.find_published(ranks), byte_letters()
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        pairs = [(left, right) for left, right in pairs if left in ranks and right in ranks]
        merges += [f"{spelled[a]} {spelled[b]}" for a, b in sorted(pairs, key=lambda p: (ranks[p[0]], ranks[p[1]]))]
    split = [
        {"type": "Split", "pattern": {"Regex": to_oniguruma(known.split)}, "behavior": "Isolated", "invert": False}
    ]
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()}
    end = "<|end_of_text|>" if known.name.startswith("Llama") else "<|endoftext|>"
    return _byte_level(vocabulary, merges, tokenizer.separator, end, split, {"type": "NFC"} if known.nfc else None)


def to_oniguruma(split: str) -> str:
    r"""Convert a word-splitting pattern for `tokenizers`, where {n,m}+ repeats (not possessive) and $ ends any line."""
    return split.replace(r"\p{N}{1,3}+", r"(?>\p{N}{1,3})").replace("$", r"\z")


def _byte_level(
    vocabulary: Mapping[str, int], merges: list[str], end: int, end_name: str, split: list[dict], normalizer: Any
) -> dict[str, Any]:
    """Make the tokenizer.json of a byte-level BPE; the end gets a name unless it is a token of the vocabulary."""
    added = [] if end in vocabulary.values() else [_special(end, end_name)]
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
        "vocab": {**vocabulary, **{token["content"]: token["id"] for token in added}}, "merges": merges,
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*split, BYTE_LEVEL]}, "post_processor": None,
        "decoder": BYTE_LEVEL, "model": model,
    }  # fmt: skip


def _special(number: int, name: str) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": name, **plain, "special": True}
