"""Tokenizers: ids against the libraries' own and by hand, bytes back again, and where a document ends."""

import base64
import dataclasses
import json

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from scalelab.data.prepare.prepared import load_run_tokenizer
from scalelab.data.sources.sources import DataConfig
from scalelab.data.tokenizers import hf_json, load
from scalelab.data.tokenizers import ranks as ranktokens
from scalelab.data.tokenizers.tokenizer import byte_tokenizer, id_tokenizer
from scalelab.errors import BadInput

TEXTS = ["def f(x):\n    return x + 1\n" * 20, "the cat sat on the mat, the naïve cat. 你好 " * 20, "x\ty\r\n" * 9]


@pytest.fixture(scope="module")
def trained():
    return hf_json.train_bpe(TEXTS, 280)


@pytest.fixture
def ranks(tmp_path):
    """256 bytes and three merges: in, ing, th."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"in", b"ing", b"th"]
    path = tmp_path / "own.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(tokens)))
    return path


def test_training_is_deterministic_and_fills_the_vocabulary(trained, tmp_path):
    assert hf_json.train_bpe(TEXTS, 280) == trained
    assert hf_json.train_bpe(reversed(TEXTS), 280) == trained  # counts of words decide, not where they stand
    tokenizer = hf_json.load_hf_json(trained, tmp_path / "tokenizer.json")
    assert tokenizer.vocab_size == 280 and tokenizer.separator == 0 and tokenizer.dtype == np.dtype("<u2")


def library_bpe(texts, vocab_size):
    """The tokenizer.json that the library trains by GPT-2's split alone."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>"]
    inner.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=special, initial_alphabet=letters, show_progress=False
        ),
    )
    return inner.to_str(pretty=False).encode()


def test_words_up_to_the_bound_are_trained_on_whole_and_longer_ones_in_pieces_and_encoded_whole(tmp_path):
    longest = hf_json.MOST_WORD_BYTES
    texts = [*TEXTS, "a" * longest, "\n" * longest, "é" * (longest // 2)]  # é has two bytes
    assert hf_json.train_bpe(texts, 300) == library_bpe(texts, 300)
    longer = "ab" * longest
    trained = hf_json.train_bpe([longer + "cd"], 280)
    assert trained == library_bpe(["ab" * (longest // 2) + " "] * 2 + ["cd"], 280)
    exact = tokenizers.Tokenizer.from_str(trained.decode()).encode(longer)
    tokenizer = hf_json.load_hf_json(trained, tmp_path / "tokenizer.json")
    assert tokenizer.encode(longer.encode()).tolist() == exact.ids
    assert tokenizer.decode(exact.ids) == longer.encode()


@pytest.mark.parametrize("text", [*TEXTS, "", "a <|endoftext|> b", "\u0000 \x7f é 🙂", "  spaces  \n\n"])
def test_json_tokens_come_back_as_the_same_bytes(trained, tmp_path, text):
    tokenizer = hf_json.load_hf_json(trained, tmp_path / "tokenizer.json")
    ids = tokenizer.encode(text.encode())
    assert tokenizer.decode(ids) == text.encode()
    assert 0 not in ids  # what spells the separator is text
    assert tokenizer.decode([0, *ids, 0]) == text.encode()


def test_half_a_letter_decodes_to_its_bytes(trained, tmp_path):
    tokenizer = hf_json.load_hf_json(trained, tmp_path / "tokenizer.json")
    ids = tokenizer.encode("ß".encode())
    assert len(ids) == 2
    assert [tokenizer.decode([i]) for i in ids] == [b"\xc3", b"\x9f"]


def test_a_files_prompt_settings_are_left_out(trained, tmp_path):
    content = json.loads(trained)
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    }
    changed = hf_json.load_hf_json(json.dumps(content).encode(), tmp_path / "tokenizer.json")
    plain = hf_json.load_hf_json(trained, tmp_path / "tokenizer.json")
    np.testing.assert_array_equal(changed.encode(TEXTS[0].encode()), plain.encode(TEXTS[0].encode()))
    assert changed.name != plain.name


def test_the_separator_is_found_or_said(trained, tmp_path):
    content = json.loads(trained)
    content["added_tokens"][0]["content"] = "<|stop|>"
    content["model"]["vocab"]["<|stop|>"] = content["model"]["vocab"].pop("<|endoftext|>")
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput, match=r"--separator=TOKEN"):
        load.load_tokenizer_file(path)
    assert load.load_tokenizer_file(path, "<|stop|>").separator == 0
    assert load.load_tokenizer_file(path, "7").separator == 7
    with pytest.raises(BadInput, match=r"--separator=<eos>: no token"):
        load.load_tokenizer_file(path, "<eos>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|stop|>"}}))
    assert load.load_tokenizer_file(path).separator == 0


def test_ranks_are_merged_lowest_first(ranks):
    tokenizer = load.load_tokenizer_file(ranks)
    # GPT-4's split gives "thing" and " in"; in -> 256, then in+g -> 257; th -> 258.
    assert tokenizer.encode(b"thing in").tolist() == [258, 257, 32, 256]
    assert tokenizer.decode([258, 257, 259, 32, 256]) == b"thing in"
    assert tokenizer.vocab_size == 260 and tokenizer.separator == 259
    text = "a <|endoftext|> b"
    assert tokenizer.decode(tokenizer.encode(text.encode())) == text.encode()


def test_published_splits_and_ends_are_tiktokens_own(monkeypatch):
    from tiktoken_ext import openai_public

    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *args, **kwargs: {})
    names = {50_256: "r50k_base", 50_280: "p50k_base", 100_256: "cl100k_base", 199_998: "o200k_base"}
    for n_ranks, name in names.items():
        ranks = {i.to_bytes(4, "big"): i for i in range(n_ranks)}
        theirs, ours = getattr(openai_public, name)(), ranktokens.find_published(ranks)
        assert ours.name.startswith(name) and ours.split == theirs["pat_str"]
        assert ours.end == theirs["special_tokens"]["<|endoftext|>"]
        assert ours.vocab_size == theirs.get("explicit_n_vocab", max(theirs["special_tokens"].values()) + 1)


# By hand: Qwen takes digits one by one and, until 3.5, marks for no letters; Llama 4, as GPT-4o, cuts where a capital
# begins.
@pytest.mark.parametrize(
    "n_ranks, pieces",
    [
        (128_000, ["in", " ", "202", "4", " नमस", "्त", "े", " aB"]),
        (151_643, ["in", " ", "2", "0", "2", "4", " नमस", "्त", "े", " aB"]),
        (200_000, ["in", " ", "202", "4", " नमस्ते", " a", "B"]),
        (248_044, ["in", " ", "2", "0", "2", "4", " नमस्ते", " aB"]),
    ],
)
def test_other_published_splits(n_ranks, pieces):
    import regex

    assert regex.findall(ranktokens.PUBLISHED_VOCABULARIES[n_ranks].split, "".join(pieces)) == pieces


def test_qwen_composes_letters_first(ranks, monkeypatch):
    qwen = dataclasses.replace(ranktokens.PUBLISHED_VOCABULARIES[151_643], end=259, vocab_size=260)
    monkeypatch.setitem(ranktokens.PUBLISHED_VOCABULARIES, 259, qwen)
    assert load.load_tokenizer_file(ranks).encode("e\u0301".encode()).tolist() == list("é".encode())


def test_an_unknown_files_separator_comes_after_its_last_rank(ranks):
    ranks.write_bytes(ranks.read_bytes().replace(b" 258\n", b" 259\n") + b"\n")
    tokenizer = load.load_tokenizer_file(ranks)
    assert (tokenizer.separator, tokenizer.vocab_size) == (260, 261) and tokenizer.decode([259, 260]) == b"th"


@pytest.mark.parametrize("line", [b"dGg= 256\n", b"YQ== 259\n", b"dGhl -1\n"])
def test_a_rank_or_token_that_stands_twice_is_named(ranks, line):
    ranks.write_bytes(ranks.read_bytes() + line)
    with pytest.raises(BadInput, match=r"own.tiktoken, line 260: token b'\w+' and rank -?\d+: each is to stand once"):
        load.load_tokenizer_file(ranks)


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "can't be read"),
        ("[]", "can't be read"),
        ('{"eos_token": {}}', "can't be read"),
        ('{"eos_token": "</s>"}', "its eos_token '</s>' is not a token of"),
        ('{"eos_token": ["x"]}', "is not a token of"),
    ],
)
def test_a_config_that_tells_no_separator_is_refused(trained, tmp_path, content, message):
    (tmp_path / "tokenizer.json").write_bytes(trained)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(BadInput, match=rf"tokenizer_config.json.*{message}.*--separator=TOKEN"):
        load.load_tokenizer_file(tmp_path / "tokenizer.json")
    assert load.load_tokenizer_file(tmp_path / "tokenizer.json", "5").separator == 5


@pytest.mark.parametrize(
    "content, message",
    [
        (b"hello\n", r"line 1: b'hello' is neither"),
        (b"YQ== 0\nYg== x\n", r"line 2: b'Yg== x'"),
        (b"YQ== 0\n", r"lacks byte b'\\x00'"),
        (b'{"a": 1}', r"is not a tokenizer.json"),
    ],
)
def test_files_that_are_no_tokenizer_are_refused(tmp_path, content, message):
    path = tmp_path / "tokenizer.bin"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        load.load_tokenizer_file(path)


def test_bytes_and_ids():
    tokenizer = byte_tokenizer()
    assert tokenizer.decode(tokenizer.encode("né".encode())) == "né".encode() and tokenizer.decode([65, 0, 66]) == b"AB"
    with pytest.raises(BadInput, match="can't be decoded to text"):
        id_tokenizer(10).decode([1])
    with pytest.raises(BadInput, match="token id 10 is outside the vocabulary of 10"):
        id_tokenizer(10).encode(np.array([3, 10, 11]))


def test_the_tokenizer_of_a_runs_data():
    assert load_run_tokenizer(DataConfig()).name == "bytes"
    with pytest.raises(BadInput, match="no text"):
        load_run_tokenizer(DataConfig(source="synthetic"))
