"""Tokenizers that lose text: what the library drops is an error, what it calls unknown is counted. Real files of it."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from scalelab.data.dataset import open_dataset
from scalelab.data.prepare import corpus
from scalelab.data.prepare.request import Request
from scalelab.data.sources.sources import DataConfig
from scalelab.data.tokenizers import lacking
from scalelab.data.tokenizers.hf_json import train_bpe
from scalelab.data.tokenizers.load import load_tokenizer_file
from scalelab.data.tokenizers.roundtrip import try_round_trip
from scalelab.errors import BadInput
from tests.data import corpora

ENGLISH = ["the loss of a model falls with its scale and its tokens"] * 3
CHINESE = ["语言模型的损失随规模而下降", "数据和参数都要增加", "训练需要很多计算"] * 30


def saved(path, model, trainer, split=None, **more):
    """The file of a tokenizer that the library trained on English."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = split or pre_tokenizers.Whitespace()
    for name, value in more.items():
        setattr(tokenizer, name, value)
    tokenizer.train_from_iterator(ENGLISH, trainer)
    tokenizer.save(str(path))
    return load_tokenizer_file(path)


def bpe(path, unknown=None, **more):
    tokens = ["</s>"] + ([unknown] if unknown else [])
    return saved(
        path, models.BPE(unk_token=unknown), trainers.BpeTrainer(special_tokens=tokens, show_progress=False), **more
    )


def chinese(folder):
    """A source of different Chinese documents."""
    documents = [f"{text} {i}" for i, text in enumerate(CHINESE)]
    return corpora.write(folder / "zh.jsonl", corpora.json_lines(documents))


def words(path):
    return saved(path, models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer(special_tokens=["</s>", "<unk>"]))


def test_a_bpe_that_drops_what_it_lacks_raises(tmp_path):
    tokenizer = bpe(tmp_path / "tokenizer.json")
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("the 损失 loss").tokens == [
        "the",
        "loss",
    ]  # it does
    assert tokenizer.decode(tokenizer.encode(b"the loss")) and tokenizer.unknown is None
    for text in ("the 损失 loss", "the loss€", "Xx the"):
        with pytest.raises(ValueError, match=r"the vocabulary lacks '.' \(U\+[0-9A-F]{4}\)"):
            tokenizer.encode(text.encode())
    source = corpora.write(tmp_path / "zh.jsonl", corpora.json_lines([*ENGLISH * 20, "the 损失"]))
    with pytest.raises(BadInput, match=r"zh.jsonl: the document .* begins with b'the .*: the vocabulary lacks '损'"):
        corpus.prepare_corpus(Request([source], str(tmp_path / "tokenizer.json"), tmp_path / "out"))


def test_the_cure_that_is_named_for_a_bpe_that_lacks_letters_cures_it(tmp_path):
    pieces, letters = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.ByteLevel.alphabet()
    trainers_ = [
        trainers.BpeTrainer(special_tokens=["</s>"], show_progress=False, **more)
        for more in ({}, {"initial_alphabet": letters})
    ]
    lacking_one, whole = (saved(tmp_path / f"{i}.json", models.BPE(), each, pieces) for i, each in enumerate(trainers_))
    with pytest.raises(ValueError, match=r"lacks 'é'.*pre_tokenizers\.ByteLevel, and initial_alphabet=ByteLevel"):
        lacking_one.encode("café".encode())
    assert len(whole.encode("café".encode())) >= 5


def test_normalised_text_is_no_dropped_text(tmp_path):
    steps = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    tokenizer = bpe(tmp_path / "tokenizer.json", normalizer=steps)
    assert tokenizer.encode("The Löss".encode()).size  # is lowered: each letter has a token
    trip = try_round_trip(tokenizer, [b"the loss", "The Löss".encode()])
    assert (trip.documents, trip.changed, trip.unknown_bytes) == (
        2,
        1,
        0,
    ) and "'The Löss' comes back as" in trip.example


def test_bytes_and_byte_fallback_lose_nothing(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(train_bpe(ENGLISH, 300))
    tokenizer = load_tokenizer_file(tmp_path / "tokenizer.json")
    trip = try_round_trip(tokenizer, [text.encode() for text in [*CHINESE, "a\n\n b\t"]])
    assert (trip.changed, trip.unknown_bytes, tokenizer.unknown) == (0, 0, None)
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"</s>": 256}
    fallback = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="</s>"))
    fallback.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    fallback.save(str(tmp_path / "fallback.json"))
    tokenizer = load_tokenizer_file(tmp_path / "fallback.json")
    assert tokenizer.unknown is None and not try_round_trip(tokenizer, [text.encode() for text in CHINESE]).changed
    content = json.loads((tmp_path / "fallback.json").read_text())
    assert not lacking.drops_letters(content, vocabulary, {})


def test_bytes_without_all_their_letters_drop(tmp_path):
    tokenizer = bpe(tmp_path / "tokenizer.json", split=pre_tokenizers.ByteLevel(add_prefix_space=False))
    assert tokenizer.encode(b"the loss").size
    with pytest.raises(ValueError, match=r"the vocabulary lacks '损' \(U\+635F\)"):
        tokenizer.encode("the 损失".encode())


@pytest.mark.parametrize("make", [words, lambda path: bpe(path, "<unk>")])
def test_a_tokenizer_that_destroys_the_text_is_refused_or_marked(tmp_path, make):
    make(tmp_path / "tokenizer.json")
    source = chinese(tmp_path)
    request = Request([source], str(tmp_path / "tokenizer.json"), tmp_path / "out")
    with pytest.raises(BadInput, match=r"has no tokens for (9\d|100)\.\d% of the text .* --lossy takes it"):
        corpus.prepare_corpus(request)
    notes = []
    lossy = Request([source], str(tmp_path / "tokenizer.json"), tmp_path / "out", lossy=True)
    result = corpus.prepare_corpus(lossy, lambda facts: notes.append(facts.get("note", "")))
    assert result["round_trip"]["lossy"] and result["round_trip"]["unknown_share"] > 0.9
    assert any("Bits per byte are a lower bound" in note for note in notes)
    vocabulary = load_tokenizer_file(tmp_path / "tokenizer.json").vocab_size
    data = open_dataset(DataConfig("prepared", str(tmp_path / "out"), vocab_size=vocabulary))
    assert data.description["bpb_bound"] == "lower"


def test_a_tokenizer_that_fits_is_not_marked(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(train_bpe(ENGLISH, 300))
    source = chinese(tmp_path)
    result = corpus.prepare_corpus(Request([source], str(tmp_path / "tokenizer.json"), tmp_path / "out"))
    assert not result["round_trip"]["lossy"] and result["round_trip"]["unknown_ids"] == 0
    data = open_dataset(DataConfig("prepared", str(tmp_path / "out"), vocab_size=300))
    assert "bpb_bound" not in data.description


def test_unknown_text_beyond_the_sample_is_found_by_its_ids(tmp_path, monkeypatch):
    from scalelab.data.prepare import job

    monkeypatch.setattr(job, "TRIED_BYTES", 200)
    words(tmp_path / "tokenizer.json")
    english = [ENGLISH[0] + " the" * i for i in range(120)]
    source = corpora.write(tmp_path / "mixed.jsonl", corpora.json_lines([*english, *CHINESE]))
    tokenizer = str(tmp_path / "tokenizer.json")
    with pytest.raises(BadInput, match=r"made \d+.\d% of all ids its unknown token: .* with --lossy goes on"):
        corpus.prepare_corpus(Request([source], tokenizer, tmp_path / "out"))
    assert corpus.prepare_corpus(Request([source], tokenizer, tmp_path / "out", lossy=True))["round_trip"]["lossy"]
