"""An exported folder alone, by the real libraries: texts, ids, ends and likelihoods are those of our own commands.

`make test-lm-eval` installs transformers, torch and lm_eval and runs this.
"""

import importlib.util
import json
import pathlib
import random

import numpy as np
import pytest

from scalelab import api
from scalelab.__main__ import main

if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "lm_eval")):
    pytest.skip("torch, transformers or lm_eval is not installed: make test-lm-eval does", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("default")  # what the libraries warn of is not ours
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
WORDS = [*NUMBERS, "éa", "naïve", "数", "x=1;", "<|endoftext|>"]
PROMPTS = ("one", "three four", "naïve", "x=1; 数")
NEW_TOKENS = 40


def documents(count, seed):
    """Short documents, so that a small model soon learns to end one; some have what tokenizers trip over."""
    chance = random.Random(seed)
    return [chance.choice([" ", "", "\n"]).join(chance.choices(WORDS, k=chance.randint(1, 3))) for _ in range(count)]


def command(*argv):
    assert main([*argv]) == 0, argv


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on a corpus with a tokenizer of its own, and its export."""
    folder = tmp_path_factory.mktemp("folder")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in documents(6000, 0))
    (folder / "corpus.jsonl").write_text(lines)
    prepared = f"{folder}/prepared"
    command("prepare", f"--source={folder}/corpus.jsonl", "--tokenizer=bpe:300", f"--out={prepared}")
    data = ["--config.data.source=prepared", f"--config.data.path={prepared}", "--config.model.vocab_size=320"]
    command("train", "--config=configs/tiny.py", f"--workdir={folder}/run", "--config.train.steps=150", *data)
    command("export", "hf", f"{folder}/run", f"--out={folder}/hf")
    return folder / "run", folder / "hf"


@pytest.fixture(scope="module")
def theirs(run):
    """(their model, their tokenizer) of the folder alone."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(run[1])
    return model.eval(), transformers.AutoTokenizer.from_pretrained(run[1])


def test_greedy_texts_and_their_ends_are_those_of_sample(run, theirs):
    model, tokenizer = theirs
    ended = []
    for prompt in PROMPTS:
        drawn = api.sample(run[0], prompt, tokens=NEW_TOKENS, temperature=0.0)
        inputs = tokenizer(prompt, return_tensors="pt")
        assert inputs["input_ids"][0, 0] == tokenizer.bos_token_id
        out = model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS, max_length=None)
        ids = out[0, inputs["input_ids"].shape[1] :].tolist()
        ours = drawn.samples[0].ids + [tokenizer.eos_token_id] * drawn.samples[0].ended
        assert ids == ours
        assert tokenizer.decode(ids, skip_special_tokens=True) == drawn.texts[0]
        ended.append(drawn.samples[0].ended)
    assert any(ended)  # generate stopped by itself, at the end of the text


def test_a_batch_of_prompts_of_several_lengths_goes_on_alike(run, theirs):
    model, tokenizer = theirs
    tokenizer.padding_side = "left"
    drawn = api.sample(run[0], list(PROMPTS), tokens=NEW_TOKENS, temperature=0.0)
    inputs = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
    out = model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS, max_length=None)
    texts = [tokenizer.decode(row[inputs["input_ids"].shape[1] :], skip_special_tokens=True) for row in out]
    assert drawn.texts == texts


def test_ids_and_texts_of_500_documents_agree(run, theirs):
    ours, (_, tokenizer) = load_tokenizer(run[0]), theirs
    for text in documents(500, 1):
        ids = ours.encode(text.encode()).tolist()
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids
        assert tokenizer(text)["input_ids"] == [ours.separator, *ids]
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False).encode() == ours.decode(ids)


def load_tokenizer(folder):
    from scalelab.evaluate.subject import load_evaluated_model, load_model_tokenizer

    return load_model_tokenizer(load_evaluated_model(str(folder)))


def write_tasks(folder):
    """Multiple choice and cloze, without spaces between context and choice, which lm_eval moves."""
    chance, choice, cloze = random.Random(2), [], []
    for _ in range(60):
        words = chance.sample(NUMBERS, 5)
        context = {"context": " ".join(words[:2])}
        choice.append(context | {"choices": [f" {word}" for word in words[2:]], "answer": chance.randrange(3)})
        cloze.append(context | {"completion": f" {words[2]}"})
    for name, rows in (("choice", choice), ("cloze", cloze)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "choice.jsonl", folder / "cloze.jsonl"


def their_task(path, **more):
    """The task of a file of ours, as docs/tasks.md says it for lm_eval."""
    return {
        "task": path.stem, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}},
        "test_split": "test", "doc_to_text": "{{context}}", "target_delimiter": "", **more,
    }  # fmt: skip


def test_lm_eval_has_the_numbers_of_eval(run, tmp_path, monkeypatch):
    """acc by bytes, acc of whole choices, and of a cloze greedy matches and the nats of each item."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    choice, cloze = write_tasks(tmp_path)
    rows = {row["set"]: row["metrics"] for row in api.evaluate(run[0], tasks=[choice, cloze]).rows}
    tasks = [
        their_task(
            choice,
            output_type="multiple_choice",
            doc_to_choice="{{choices}}",
            doc_to_target="answer",
            metric_list=[{"metric": "acc"}, {"metric": "acc_norm"}],
        ),
        their_task(
            cloze,
            output_type="loglikelihood",
            doc_to_target="{{completion}}",
            metric_list=[{"metric": "acc"}, {"metric": "perplexity"}],
        ),
    ]
    model = HFLM(pretrained=str(run[1]), dtype="float32", batch_size=7, device="cpu")
    answer = lm_eval.simple_evaluate(model, tasks=tasks, log_samples=True, bootstrap_iters=0)
    got = answer["results"]
    assert got["choice"]["acc,none"] == pytest.approx(rows["choice"]["acc_raw"], abs=1e-4)
    assert got["choice"]["acc_norm,none"] == pytest.approx(rows["choice"]["acc"], abs=1e-4)
    assert got["cloze"]["acc,none"] == pytest.approx(rows["cloze"]["acc"], abs=1e-4)
    likelihoods = [float(sample["filtered_resps"][0][0]) for sample in answer["samples"]["cloze"]]
    lines = [json.loads(line) for line in pathlib.Path(cloze).read_text().splitlines()]
    bits = [-nats / np.log(2) / len(line["completion"].encode()) for nats, line in zip(likelihoods, lines, strict=True)]
    assert np.mean(bits) == pytest.approx(rows["cloze"]["bpb"], abs=1e-4)
    assert np.mean(np.exp(likelihoods)) == pytest.approx(rows["cloze"]["p_correct"], abs=1e-4)
    assert 0.05 < rows["choice"]["acc"] < 1 and rows["cloze"]["p_correct"] > 1e-4  # numbers that could differ
