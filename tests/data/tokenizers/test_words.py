"""Ids by words are the library's, for any text, under the splits of published tokenizers."""

import json

import numpy as np
import pytest
import tokenizers

from scalelab.data.tokenizers import hf_json, words
from scalelab.evaluate import sample

POOLS = (
    *("abc XYZ", " \n\t\r", "'sd 'LL've", "0123", "你好世界", "éñßſK", "𝔄🙂👩‍½²Ⅷ٣", "กขค हिन्दी עברית"),
    "\u00a0\u2003\u3000\u0085\u200b\x1c",
)
ODD = "\u088f\u0c5c\u0558"  # letters of a version of Unicode that one of both engines lacks
LLAMA3 = (  # the split of its tokenizer.json
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def texts(count):
    """Of three, one in a single script, one in all, one with odd letters."""
    rng, made = np.random.default_rng(0), []
    for number in range(count):
        pools = (POOLS[:4], POOLS, [*POOLS, ODD])[number % 3]
        made.append("".join(rng.choice(list(pools[rng.integers(len(pools))])) for _ in range(120)))
    return made


@pytest.fixture(scope="module")
def gpt2():
    return json.loads(hf_json.train_bpe([*texts(40), "the cat sat on the mat " * 9], 400))


def with_split(content, pattern, behavior="Isolated"):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return content | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, last]}}


def library(content):
    inner = tokenizers.Tokenizer.from_str(json.dumps(content))
    inner.encode_special_tokens = True
    return inner


@pytest.mark.parametrize("pattern", [None, LLAMA3, r"\p{L}+|\s+"], ids=["gpt2", "llama3", "with gaps"])
def test_ids_are_the_librarys(gpt2, tmp_path, monkeypatch, pattern):
    monkeypatch.setattr(words, "MOST_LETTERS", 300)  # the table starts again all the time
    monkeypatch.setattr(words, "LONG_TEXT", 100)
    monkeypatch.setattr(words, "WORDS_AT_ONCE", 7)
    content = with_split(gpt2, pattern) if pattern else gpt2
    ours = hf_json.load_hf_json(json.dumps(content).encode(), tmp_path / "tokenizer.json")
    theirs = library(content)
    for text in [*texts(150), "", "the cat's <|endoftext|> 'S", "x" * 1000]:
        assert ours.encode(text.encode()).tolist() == theirs.encode(text, add_special_tokens=False).ids


def test_most_texts_are_encoded_by_words_and_letters_of_other_versions_of_unicode_are_not(gpt2):
    encode = words.make_word_encoder(library(gpt2), gpt2)
    assert [encode(text) is not None for text in texts(60)] == [True, True, False] * 20
    versions = words.WordEncoder(library(gpt2), r"\p{L}+|[^\p{L}]+")  # another split than the library's
    assert versions.encode("a cat") is None


def test_what_is_not_encoded_word_by_word_is_left_to_the_library(gpt2):
    added = {"id": 400, "content": "cat", "special": False, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": True}  # fmt: skip
    others = {
        "a normalizer": gpt2 | {"normalizer": {"type": "NFC"}},
        "a word of its own": gpt2 | {"added_tokens": [*gpt2["added_tokens"], added]},
        "a space in front": gpt2 | {"pre_tokenizer": gpt2["pre_tokenizer"] | {"add_prefix_space": True}},
        "another behaviour": with_split(gpt2, LLAMA3, "Removed"),
        "no steps": gpt2 | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": []}},
        "none": gpt2 | {"pre_tokenizer": None},
        "chance": gpt2 | {"model": gpt2["model"] | {"dropout": 0.5}},
    }
    for name, content in others.items():
        assert words.make_word_encoder(library(content), content) is None, name


def test_special_tokens_that_a_prompt_spells_are_the_librarys(gpt2, tmp_path):
    tokenizer = hf_json.load_hf_json(json.dumps(gpt2).encode(), tmp_path / "tokenizer.json")
    prompt = "the cat<|endoftext|>the mat"
    assert (
        hf_json.spelled_tokens(tokenizer, prompt) == ["<|endoftext|>"] and hf_json.spelled_tokens(tokenizer, "a") == []
    )
    inner = tokenizers.Tokenizer.from_str(json.dumps(gpt2))
    ids = sample.encode_prompt(tokenizer, prompt).tolist()
    assert ids == inner.encode(prompt, add_special_tokens=False).ids and 0 in ids
    assert 0 not in tokenizer.encode(prompt.encode())  # in a document it is text
    assert sample.encode_prompt(tokenizer, "a cat").tolist() == tokenizer.encode(b"a cat").tolist()
