"""Pairs of features of `prepare`: chats with splits, copies and lossy tokenizers; keys and filters with validation."""

import json

import numpy as np
import pytest

from scalelab import api
from scalelab.data.dataset import open_dataset
from scalelab.data.prepare import corpus, prepared
from scalelab.data.prepare.request import Request
from scalelab.data.sources.sources import DataConfig
from scalelab.data.tokenizers import chat
from scalelab.diagnose import sample
from scalelab.diagnose.checks.read.again.shingles import find_nearest, find_shingles, take_documents
from scalelab.errors import BadInput
from tests.data import corpora
from tests.data.files import make
from tests.data.tokenizers.test_chat import folder


def turns(question, answer):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def write_rows(path, rows):
    return corpora.write(path, "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def write_chats(path, *chats, **fields):
    rows = [{"messages": each} | {key: values[i] for key, values in fields.items()} for i, each in enumerate(chats)]
    return f"{write_rows(path, rows)}#messages"


def replace_model(tokenizer, **model):
    """Give a tokenizer.json a model of single printable letters of ASCII, without steps before it."""
    content = json.loads(tokenizer.read_text())
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    letters = {chr(i): i + 500 for i in range(32, 127)} | {"\n": 499}
    cut = {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False}
    content |= {"pre_tokenizer": cut, "decoder": None, "post_processor": None}
    content["model"] = model | {"vocab": added | letters | model.get("vocab", {})}
    tokenizer.write_text(json.dumps(content))
    return tokenizer


def prepare(out, *sources, tokenizer, **options):
    options = {"val_fraction": 0.0 if options.get("val_sources") else 0.1, "chat": ""} | options
    return corpus.prepare_corpus(Request(sources, str(tokenizer), out, **options))


def stored(out):
    """{part: {split: its ids, as they are stored}}."""
    _, parts = prepared.read_prepared(out)
    return {
        name: {side: np.concatenate(split.shards) for side, split in sides.items() if split.shards}
        for name, sides in parts.items()
    }


def test_a_few_long_chats_are_never_cut(tmp_path):
    tokenizer = folder(tmp_path, chat_template=make.CHATML)
    texts = corpora.texts(8, seed=3)
    source = write_chats(tmp_path / "c.jsonl", *(turns(" ".join(texts), f"{i} " + " ".join(texts)) for i in range(5)))
    with pytest.raises(BadInput, match=r"c.jsonl#messages, whose chats are never cut, at .*--val-source=SPEC, or use"):
        prepare(tmp_path / "out", source, tokenizer=tokenizer, split_seed=1)
    held = write_chats(tmp_path / "held.jsonl", turns("one", "two"))
    (part,) = prepare(tmp_path / "out", source, tokenizer=tokenizer, val_sources=[f"c={held}"])["parts"]
    assert (part["train_documents"], part["val_documents"]) == (5, 1)


def test_unknown_letters_of_chats_are_counted_where_they_are_read_and_left_out_with_their_copies(tmp_path):
    """The tokenizer has an unknown token; half of the chats ask in letters that it lacks, and occur twice."""
    tokenizer = folder(tmp_path, chat_template=make.CHATML)
    replace_model(tokenizer, type="WordLevel", vocab={"<unk>": 990}, unk_token="<unk>")
    asked = [turns("你好" if i % 2 else "hello", f"answer {i}") for i in range(40)]
    source = write_chats(tmp_path / "c.jsonl", *asked, *asked[1::2])
    held = write_chats(tmp_path / "held.jsonl", turns("hello", "held"))
    with pytest.raises(BadInput, match=r"has no tokens for .* of the text"):
        prepare(tmp_path / "out", source, tokenizer=tokenizer, val_sources=[held])
    result = prepare(tmp_path / "out", source, tokenizer=tokenizer, val_sources=[held], dedup="exact", lossy=True)
    assert sum(part["dropped"] for part in result["parts"]) == 20
    ids = stored(tmp_path / "out")["c"]["train"]
    unknown = chat.MASKED - 990
    assert result["round_trip"]["unknown_ids"] == np.count_nonzero(ids == unknown) == 2 * 20  # questions are masked
    assert not np.count_nonzero(ids == 990)


def test_a_chat_that_a_tokenizer_would_shorten_is_refused(tmp_path):
    """BPE without an unknown token drops letters that it lacks, in chats as in texts."""
    tokenizer = replace_model(folder(tmp_path, chat_template=make.CHATML), type="BPE", merges=[], unk_token=None)
    source = write_chats(tmp_path / "c.jsonl", turns("hello", "ß"))
    held = write_chats(tmp_path / "held.jsonl", turns("one", "two"))
    with pytest.raises(BadInput, match=r"the vocabulary lacks 'ß' \(U\+00DF\)"):
        prepare(tmp_path / "out", source, tokenizer=tokenizer, val_sources=[held])


def test_one_file_gives_both_sides_by_filters_and_stats_count_what_is_predicted(tmp_path):
    tokenizer = folder(tmp_path, chat_template=make.CHATML)
    texts = corpora.texts(60, seed=5)
    sides = ["train" if i % 4 else "val" for i in range(60)]
    source = write_chats(tmp_path / "c.jsonl", *(turns(text, text[::-1]) for text in texts), split=sides)
    result = prepare(
        tmp_path / "out", f"{source}?split=train", tokenizer=tokenizer, val_sources=[f"{source}?split=val"]
    )
    (part,) = result["parts"]
    assert (part["train_documents"], part["val_documents"]) == (45, 15)
    rows = {row.split: row for row in api.data_stats(tmp_path / "out").splits}
    for side, ids in stored(tmp_path / "out")["c"].items():
        assert (rows[side].tokens, rows[side].targets) == (len(ids), np.count_nonzero(ids >= 0))
    held = [text for text, side in zip(texts, sides, strict=True) if side == "val"]
    answers = sum(len(text.encode()) + len("<|im_end|>") for text in held)
    assert rows["val"].bytes_per_token * rows["val"].targets == pytest.approx(answers, abs=1e-6)
    for train, val in (("", "?split=val"), ("?split=train", ""), ("?split=val", "?split=val&sample=0.5")):
        with pytest.raises(BadInput, match=r"c.jsonl is in --source=.* and in --val-source="):
            prepare(tmp_path / "x", source + train, tokenizer=tokenizer, val_sources=[source + val])


def test_faults_of_both_kinds_of_sources_are_listed_at_once(tmp_path):
    web = corpora.write(tmp_path / "web.jsonl", corpora.json_lines(corpora.texts(9)))
    corpora.write(tmp_path / "d" / "test.jsonl", corpora.json_lines(corpora.texts(9)))
    with pytest.raises(BadInput) as refusal:
        prepare(
            tmp_path / "out",
            f"{tmp_path}/no.txt",
            web,
            f"{tmp_path}/d/*.jsonl?lang=en",
            tokenizer="bytes",
            chat=None,
            val_sources=[f"{tmp_path}/none.txt", f"v={web}"],
        )
    text = str(refusal.value)
    assert text.startswith("4 faults: ") and f"--source={tmp_path}/no.txt matches no file" in text
    assert f"--val-source={tmp_path}/none.txt matches no file" in text and "web.jsonl is in --source=" in text
    assert f"--val-source='{tmp_path}/d/test.jsonl?lang=en' and another --source makes it" in text


def test_a_side_that_is_left_empty_is_refused(tmp_path):
    rows = [{"text": text, "lang": "en"} for text in corpora.texts(20)]
    web = write_rows(tmp_path / "web.jsonl", rows)
    with pytest.raises(BadInput, match=r"--source=.*web.jsonl\?lang=de is empty: .*20 left out by \?lang=de"):
        prepare(tmp_path / "o", f"a={web}?lang=de", tokenizer="bytes", chat=None, val_sources=[f"a={web}?lang=en"])
    copy = write_rows(tmp_path / "copy.jsonl", rows)
    with pytest.raises(BadInput, match=r"web.jsonl is empty: no document .*, the others left out by --dedup=exact"):
        prepare(tmp_path / "o", web, tokenizer="bytes", chat=None, val_sources=[f"v={copy}"], dedup="exact")


def test_diagnosis_compares_chats_by_what_is_read(tmp_path):
    """An answer that is another chat's question is a copy of it, though the one is predicted and the other is not."""
    tokenizer = folder(tmp_path, chat_template=make.CHATML)
    long = " ".join(corpora.texts(12, seed=7))
    source = write_chats(tmp_path / "c.jsonl", turns(long, "yes"))
    other = write_chats(tmp_path / "held.jsonl", turns("say it", long))
    prepare(tmp_path / "out", source, tokenizer=tokenizer, val_sources=[f"c={other}"])
    data = open_dataset(DataConfig("prepared", str(tmp_path / "out"), vocab_size=330))
    (part,) = data.parts
    train, val = (find_shingles(take_documents(split, 10_000), 8) for split in (part.train, part.val))
    assert find_nearest(val, train).share.max() > 0.9
    assert sample.fingerprint_documents(data).size
    assert data.description["val_sources"]


@pytest.mark.full
def test_a_run_on_chats_is_read_again_as_it_was_read(tmp_path):
    """Windows shorter than a question have no target, and are sequences all the same."""
    tokenizer = folder(tmp_path, chat_template=make.CHATML)
    texts = corpora.texts(40, seed=8)
    source = write_chats(tmp_path / "c.jsonl", *(turns(text * 3, text) for text in texts))
    prepare(tmp_path / "out", source, tokenizer=tokenizer, val_fraction=0.2)
    size = {"model.seq_len": 16, "model.d_model": 16, "model.n_heads": 2, "model.n_layers": 1, "model.vocab_size": 330}
    steps = {"train.steps": 12, "train.global_batch": 4, "schedule.warmup_steps": 1, "eval.batches": 1}
    api.train("tiny", tmp_path / "run", {"data.source": "prepared", "data.path": str(tmp_path / "out")} | size | steps)
    causes = {verdict.cause for verdict in api.diagnose(tmp_path / "run", fast=True).diagnosis.verdicts}
    assert "no_targets" in causes
    assert not causes & {"tokens_per_step", "tokens_lost", "other_rows", "val_in_train", "val_of_another_kind"}
