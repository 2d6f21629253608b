"""The tokenizer of an exported folder, as `tokenizers` reads it, gives our ids; and which ids have a meaning."""

import base64
import dataclasses
import json
import pathlib
import random
import unittest.mock

import pytest
import tokenizers as theirs
from tokenizers import decoders, models, pre_tokenizers

from scalelab.data.tokenizers import hf_json
from scalelab.data.tokenizers import ranks as ranktokens
from scalelab.data.tokenizers.tokenizer import Tokenizer, byte_tokenizer, id_tokenizer
from scalelab.hf import tokenizer as exported
from scalelab.hf.write import WriteOptions, write_model
from tests.data import corpora
from tests.hf import examples
from tests.hf.oracle.make import HERE, text_digest

LETTERS = (
    "abcdefgh ABCXYZ 0123456789 '\"-_.,!?()[]{}<>|/\\ \t\n\r\x0b\x0c\x85\u00a0\u2003\u2028\u3000 "
    "éüßñçÅ \u0301\u0308 αβγДЖщ שלום العربية हिन्दी 中文字符 日本語 한국어 🙂👩‍👩‍👧 ①²½ǅʰ \u200b\ufeff"
)
PIECES = [
    "'s",
    "'RE",
    "'ll",
    "'D",
    "don't",
    "I'VE",
    "  ",
    "   \n",
    "\r\n",
    "\n\n  \n",
    " 12345",
    "1234567",
    "\tint x;",
    "...\n",
    "://",
    "<|endoftext|>",
    "<|end_of_text|>",
    "é",
    "ﬁ",
    "Å",
    "Hello",
    "world",
    "HTTPServer",
    "ſ",
    "K",
    "'ſ",
    " \u3000 x",
]


def texts(n=400, seed=0):
    chance = random.Random(seed)
    made = ["".join(chance.choices(PIECES + list(LETTERS), k=chance.randint(0, 30))) for _ in range(n)]
    return [*made, "", " ", "\n", "  \n  ", "a \n  ", "a  ", "aaaaaaaaaaaaa", "1" * 20, *corpora.texts(20)]


def loaded(content):
    """As `transformers` uses it, by tokenizer_config.json's split_special_tokens."""
    inner = theirs.Tokenizer.from_str(json.dumps(content))
    inner.encode_special_tokens = True
    return inner


def agree(tokenizer: Tokenizer, max_length=64):
    files, specials = exported.tokenizer_files(tokenizer, max_length)
    inner, says = loaded(files["tokenizer.json"]), files["tokenizer_config.json"]
    for text in texts():
        ids = tokenizer.encode(text.encode())
        assert inner.encode(text).ids == ids.tolist(), text
        assert inner.decode(ids.tolist()).encode() == tokenizer.decode(ids) or "\ufffd" in inner.decode(ids.tolist())
    assert specials.end == tokenizer.separator and says["bos_token"] == says["eos_token"]
    assert inner.token_to_id(says["eos_token"]) == tokenizer.separator and says["split_special_tokens"]
    assert says["model_max_length"] == max_length
    return inner, says, specials


def small_ranks(n=900, seed=1):
    """A ranks file as it is made: bytes, then the merges of a BPE trained on our texts."""
    inner = theirs.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = theirs.trainers.BpeTrainer(
        vocab_size=n, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    inner.train_from_iterator([*texts(300, seed), *corpora.texts(100, seed)] * 3, trainer)
    byte_of = {letter: byte for byte, letter in hf_json.byte_letters().items()}
    table = {number: bytes(byte_of[letter] for letter in token) for token, number in inner.get_vocab().items()}
    return "".join(f"{base64.b64encode(table[i]).decode()} {i}\n" for i in range(len(table))).encode()


def kinds():
    """(name, tokenizer) of every kind that can be exported; the published splits of ranks files, of few ranks."""
    yield "bytes", byte_tokenizer()
    yield "bpe", hf_json.load_hf_json(hf_json.train_bpe(corpora.texts(200), 400), pathlib.Path("x"))
    ranks = small_ranks()
    for n in (50_256, 128_000, 151_643, 199_998):
        known = dataclasses.replace(ranktokens.PUBLISHED_VOCABULARIES[n], end=903, vocab_size=909)
        with unittest.mock.patch.object(ranktokens, "PUBLISHED_VOCABULARIES", {len(ranks.splitlines()): known}):
            yield known.name.split()[0], ranktokens.load_ranks(ranks, pathlib.Path("x"))


@pytest.fixture(scope="module")
def ranks():
    return small_ranks()


def test_bytes_and_a_bpe_trained_here(tmp_path):
    inner, says, _ = agree(byte_tokenizer())
    assert says["eos_token"] == "<|endoftext|>" and inner.encode("aé").ids == [97, 195, 169]
    content = hf_json.train_bpe(corpora.texts(200), 400)
    _, says, specials = agree(hf_json.load_hf_json(content, tmp_path / "tokenizer.json"))
    assert (says["pad_token"], specials.pad) == ("<|endoftext|>", None)
    assert specials.of_model() == {"bos_token_id": 0, "eos_token_id": 0}
    assert specials.of_generation(64) == {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "max_length": 64}


@pytest.mark.parametrize("name", [known.name for known in ranktokens.PUBLISHED_VOCABULARIES.values()] + ["another"])
def test_ranks_under_every_published_split(ranks, name, tmp_path, monkeypatch):
    n = len(ranks.splitlines())
    for known in ranktokens.PUBLISHED_VOCABULARIES.values():
        if known.name == name:
            mine = ranktokens.PublishedVocabulary(
                name, known.split, n + 3, n + 9, known.nfc
            )  # ids between the ranks and the end
            monkeypatch.setattr(ranktokens, "PUBLISHED_VOCABULARIES", {n: mine})
    tokenizer = ranktokens.load_ranks(ranks, tmp_path / "x.tiktoken")
    assert tokenizer.separator == (n if name == "another" else n + 3)
    _, says, specials = agree(tokenizer)
    assert says["eos_token"] == ("<|end_of_text|>" if name.startswith("Llama") else "<|endoftext|>")
    assert specials.of_model()["eos_token_id"] == tokenizer.separator


def test_an_end_that_is_a_rank_keeps_its_name(ranks, tmp_path):
    tokenizer = ranktokens.load_ranks(ranks, tmp_path / "x.tiktoken", str(ord("!")))
    files, specials = exported.tokenizer_files(tokenizer, 9)
    assert specials.end == 33 and files["tokenizer_config.json"]["eos_token"] == "B"
    assert files["tokenizer.json"]["added_tokens"] == []


def test_a_tokenizer_json_loses_what_stands_around_a_text_and_keeps_its_padding(tmp_path):
    inner = theirs.Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "</s>": 3, "<pad>": 4}, unk_token="<unk>"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    inner.add_special_tokens(["</s>", "<pad>"])
    inner.post_processor = theirs.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 3)])
    inner.enable_truncation(2)
    inner.enable_padding(length=8, pad_id=4, pad_token="<pad>")
    tokenizer = hf_json.load_hf_json(inner.to_str().encode(), tmp_path / "tokenizer.json")
    files, specials = exported.tokenizer_files(tokenizer, 9)
    assert loaded(files["tokenizer.json"]).encode("a b a b").ids == [1, 2, 1, 2]
    assert (specials.end, specials.pad) == (3, 4) and files["tokenizer_config.json"]["pad_token"] == "<pad>"
    assert specials.of_model() == {"bos_token_id": 3, "eos_token_id": 3, "pad_token_id": 4}


def test_bare_ids_have_no_files_but_their_end():
    assert exported.tokenizer_files(id_tokenizer(50_257, 50_256), 9) == ({}, exported.SpecialIds(50_256))


def test_transformers_reads_our_ids_and_what_they_mean(tmp_path):
    asked = json.loads((HERE / "tokenizers.json").read_text())["asked"]
    shape = examples.shape("llama_tied", vocab_size=1024)
    params = examples.params(shape)
    for name, tokenizer in kinds():
        write_model(tmp_path / name, shape, params, {}, WriteOptions(begins=True), tokenizer)
        answer, end = asked.pop(name), tokenizer.separator
        assert text_digest(tmp_path / name) == answer["files"], "run tests/hf/oracle/make.py again"
        assert answer["ids"] == [tokenizer.encode(text.encode()).tolist() for text in texts(12)]
        assert answer["begun"] == [[end, *ids] for ids in answer["ids"][:3]]  # as a document begins
        assert answer["tokenizer"] == [end, end, end, shape.seq_len] and answer["config"] == [end, end, None]
        assert answer["generation"] == [end, end, end, shape.seq_len]
    assert not asked
