"""Chats by a tokenizer's template: ids and masks of transformers (tests/data/files/make.py), and what is predicted."""

import json
import pathlib
import re

import numpy as np
import pytest

from scalelab.data.prepare import corpus
from scalelab.data.prepare.request import Request
from scalelab.data.read import reading, text
from scalelab.data.tokenizers import chat, hf_json
from scalelab.errors import BadInput
from tests.data.files import make

HERE = pathlib.Path(make.__file__).parent
TOKENIZER = HERE / "chat" / "tokenizer.json"
CASES = json.loads((HERE / "chat" / "expected.json").read_text())["cases"]
TAGS = re.compile(r"\{%-? (?:end)?generation %\}")


def encode(template, tokens, messages):
    tokenizer = hf_json.load_hf_json(TOKENIZER.read_bytes(), TOKENIZER)
    return chat.make_chat_encoder(chat.ChatTemplate(template, tokens), tokenizer)(messages)


@pytest.mark.parametrize("case", CASES)
def test_ids_and_masks_are_those_of_transformers(case):
    ids = encode(case["template"], case["tokens"], case["messages"])
    assert chat.unmask_ids(ids).tolist() == case["input_ids"]
    assert (ids >= 0).astype(int).tolist() == case["assistant_masks"]


@pytest.mark.parametrize("case", CASES[:3])
def test_a_template_without_tags_has_the_targets_that_the_assistants_messages_add(case):
    plain = encode(TAGS.sub("", case["template"]), case["tokens"], case["messages"])
    assert chat.unmask_ids(plain).tolist() == case["input_ids"]
    # The same, and the line end that this template writes after each turn.
    added = np.flatnonzero((plain >= 0) != np.array(case["assistant_masks"], bool))
    newline = encode(case["template"], case["tokens"], case["messages"]).tolist()[added[0]]
    assert len(added) == sum(message["role"] == "assistant" for message in case["messages"])
    assert {int(token) for token in plain[added]} == {chat.MASKED - newline}


def refused(template, message, messages=make.CHATS[0]):
    with pytest.raises(ValueError, match=message) as refusal:
        encode(template, {}, messages)
    assert "\n" not in str(refusal.value)


def test_a_strangers_template_is_held_in_a_sandbox_and_its_refusals_are_one_line():
    refused("{{ ''.__class__.__mro__[1].__subclasses__() }}", "the chat template refuses it: access to attribute")
    refused("{{ messages.append(1) }}", "the chat template refuses it")
    refused("{{ raise_exception('no\nsystem') }}", "the chat template refuses it: no$")
    counts = "{% for m in messages %}{{ m.content }}{% endfor %}{{ messages|length }}"
    refused(counts, "writes message 1 in another way")
    refused(make.CHATML, "no message of the assistant", [{"role": "user", "content": "x"}])
    refused(make.CHATML, "private letter", [{"role": "assistant", "content": chat.BEGIN}])
    late = "{% for m in messages %}{% if m.role == 'user' or loop.last %}{{ m.content }}{% endif %}{% endfor %}"
    refused(late, "writes message 1 in another way once more messages follow", make.CHATS[1][1:])
    with pytest.raises(BadInput, match="is not a chat template"):
        chat._compile("{% for %}", "x")


def folder(tmp_path, **config):
    (tmp_path / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>", **config}))
    return tmp_path / "tokenizer.json"


def test_the_template_is_found_where_tokenizers_keep_it(tmp_path):
    path = folder(tmp_path, bos_token={"content": "<s>"}, chat_template=make.INST)
    found = chat.find_template(path, "")
    assert found.text == make.INST and found.tokens == {"bos_token": "<s>", "eos_token": "<|endoftext|>"}
    folder(tmp_path, chat_template=[{"name": "rag", "template": "x"}, {"name": "default", "template": make.CHATML}])
    assert chat.find_template(path, "").text == make.CHATML
    (tmp_path / "chat_template.jinja").write_text(make.INST)
    assert chat.find_template(path, "").text == make.INST
    (tmp_path / "chat_template.jinja").unlink()
    folder(tmp_path)
    with pytest.raises(
        BadInput, match=r"--chat: neither chat_template.jinja nor a chat_template in tokenizer_config.json"
    ):
        chat.find_template(path, "")
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff{{")
    with pytest.raises(BadInput, match=r"chat_template.jinja can't be read as a chat template: .*0xff"):
        chat.find_template(path, "")


def chats(tmp_path, n=40):
    lines = [{"messages": [*make.CHATS[i % 3][:-1], {"role": "assistant", "content": f"answer {i}"}]} for i in range(n)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"{tmp_path}/c.jsonl#messages"


def test_a_prepared_folder_predicts_the_assistants_turns_only(tmp_path):
    from scalelab.data.dataset import open_dataset
    from scalelab.data.sources.sources import DataConfig

    path, source = folder(tmp_path, chat_template=make.CHATML), chats(tmp_path)
    request = Request([source], str(path), tmp_path / "out", chat="")
    corpus.prepare_corpus(request)
    data = open_dataset(DataConfig(source="prepared", path=str(tmp_path / "out"), vocab_size=330))
    (part,) = data.parts
    tokens = np.concatenate([np.asarray(shard) for shard in (*part.train.shards, *part.val.shards)])
    tokenizer = hf_json.load_hf_json(TOKENIZER.read_bytes(), TOKENIZER)
    turns = tokenizer.decode(tokens[tokens >= 0]).decode().split("<|im_end|>")[:-1]
    last = [turn for turn in turns if turn.startswith("answer ")]
    assert sorted(last) == sorted(f"answer {i}" for i in range(40)) and set(turns) - set(last) == {"好 it is."}
    assert (chat.unmask_ids(tokens) == data.separator).sum() == 40 and (tokens == data.separator).sum() == 0
    assert part.train.n_targets + part.val.n_targets == (tokens >= 0).sum()
    val = np.concatenate([np.asarray(shard) for shard in part.val.shards])
    assert data.bytes_per_token == len(tokenizer.decode(val[val >= 0])) / (val >= 0).sum()
    with pytest.raises(BadInput, match=r"was begun with chat='[0-9a-f]{16}', now it is"):
        corpus.prepare_corpus(Request([source], str(path), tmp_path / "out"))


def test_a_separator_that_ends_turns_is_refused(tmp_path):
    path, source = folder(tmp_path, eos_token="<|im_end|>", chat_template=make.CHATML), chats(tmp_path)
    with pytest.raises(BadInput, match=r"writes '<\|im_end\|>' within a chat.*--separator='<\|endoftext\|>'"):
        corpus.prepare_corpus(Request([source], str(path), tmp_path / "out", chat=""))
    corpus.prepare_corpus(Request([source], str(path), tmp_path / "out", "<|endoftext|>", chat=""))
    late = make.CHATML + "{% if messages|length == 3 %}{{ '<|endoftext|>' }}{% endif %}"
    with pytest.raises(ValueError, match="holds token 0, which ends documents: --separator=TOKEN"):
        encode(late, {}, make.CHATS[1][:3])


def test_copies_of_chats_are_left_out_with_their_targets(tmp_path):
    from scalelab.data.prepare import prepared

    path, source = folder(tmp_path, chat_template=make.CHATML), chats(tmp_path)
    lines = (tmp_path / "c.jsonl").read_text()
    (tmp_path / "c.jsonl").write_text(lines + lines)
    (part,) = corpus.prepare_corpus(Request([source], str(path), tmp_path / "out", chat="", dedup="exact"))["parts"]
    assert part["dropped"] == 40
    _, splits = prepared.read_prepared(tmp_path / "out")
    for split in splits["c"].values():
        tokens = np.concatenate([np.asarray(shard) for shard in split.shards])
        assert split.n_targets == (tokens >= 0).sum() < split.n_tokens


def test_messages_without_chat_and_chats_without_a_tokenizers_file_are_refused(tmp_path):
    path, source = folder(tmp_path, chat_template=make.CHATML), chats(tmp_path)
    with pytest.raises(BadInput, match="'messages' is a list of messages, not a text: --chat renders it"):
        corpus.prepare_corpus(Request([source], str(path), tmp_path / "out"))
    with pytest.raises(BadInput, match="lists of messages, not text: --chat"):
        corpus.prepare_corpus(Request([f"{HERE}/saved/train#messages"], str(path), tmp_path / "out"))
    shared = {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]}
    (tmp_path / "s.jsonl").write_text(json.dumps(shared) + "\n")
    with pytest.raises(BadInput, match=r"line 1 .*'conversations' is a list of from and value \(ShareGPT\)"):
        corpus.prepare_corpus(Request([f"{tmp_path}/s.jsonl#conversations"], str(path), tmp_path / "s", chat=""))
    for tokenizer in ("bytes", "bpe:300"):
        with pytest.raises(BadInput, match=f"--chat needs a tokenizer.json.*, not {tokenizer}"):
            corpus.prepare_corpus(Request([source], tokenizer, tmp_path / "out", chat=""))
    saved = [[f"chats={HERE}/saved/{split}#messages"] for split in ("train", "test")]
    request = Request(saved[0], str(path), tmp_path / "arrow", val_fraction=0.0, val_sources=saved[1], chat="")
    (part,) = corpus.prepare_corpus(request)["parts"]
    assert (part["train_documents"], part["val_documents"]) == (9, 3)


def test_what_is_masked_is_read_and_not_predicted():
    import jax.numpy as jnp

    from scalelab.diagnose.probes.reference.batch import read_batch
    from scalelab.model.attention import documents

    ids = np.array([[5, 6, 7, 0, 8, 9, 0, 3], [4, 0, 1, 2, 3, 0, 5, 5]])
    masked = np.array([[1, 1, 0, 1, 1, 0, 0, 1], [1, 1, 1, 1, 1, 1, 1, 0]], bool)
    stored = chat.mask_ids(ids, masked)
    for ends, separator in ((None, None), (documents.DocumentEnds(jnp.int32(0)), 0)):
        split = documents.split_inputs_targets(jnp.asarray(stored), ends)
        plain = documents.split_inputs_targets(jnp.asarray(ids), ends)
        np.testing.assert_array_equal(split.inputs_BS, ids[:, :-1])
        expected = np.where(masked[:, 1:] | (np.asarray(plain.targets_BS) < 0), -1, ids[:, 1:])
        np.testing.assert_array_equal(np.maximum(split.targets_BS, -1), expected)
        reading = read_batch(stored, separator)
        np.testing.assert_array_equal(reading.targets, expected)
        np.testing.assert_array_equal(reading.inputs, ids[:, :-1])
        if ends is not None:
            np.testing.assert_array_equal(split.packed.segment_BS, plain.packed.segment_BS)
            np.testing.assert_array_equal(split.packed.segment_BS, reading.segment)


def test_tools_are_refused_by_name():
    """Beside the messages, and in a message whose template would leave them out."""
    chat = {"messages": make.CHATS[0], "tools": [{"type": "function", "function": {"name": "add"}}]}
    seen = reading.Reading("messages", is_chat=True, render_chat=lambda messages: np.arange(3))
    assert "'tools' stands beside the messages" in text._text(chat, seen)
    assert "'functions' stands beside" in text._text(
        {"a": {"m": make.CHATS[0], "functions": [1]}}, reading.Reading("a.m")
    )
    assert text._text(chat | {"tools": None}, seen).tolist() == [0, 1, 2]
    called = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]}]
    refused(
        "{% for message in messages %}{{ message.content }}{% endfor %}",
        "has tool_calls, and the chat template",
        called,
    )
