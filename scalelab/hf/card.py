"""The model card of an export, README.md: what the model is, what it was trained on and with, from the run's record.

Numbers are the record's; what it does not know is left out. No path of the machine is named.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scalelab.config import ModelShape
from scalelab.git import VERSION
from scalelab.hf.formats import Format
from scalelab.model.count import count_parameters

HEADER = "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- scalelab\n---\n"
USE = """## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForCausalLM.from_pretrained("FOLDER")
inputs = tokenizer("a text", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, do_sample=False)[0]))
```
"""
BEGINS = "\nThe tokenizer puts the token that ends a document in front of a text, as a document began in training.\n"


class CardFacts(NamedTuple):
    """What a card tells of: the run's `config` and `record`, the exported weights' `origin`, and their `scores`."""

    config: Mapping[str, Any]
    record: Mapping[str, Any]
    origin: Mapping[str, Any]
    scores: Sequence[Mapping[str, Any]]  # rows of evaluations.jsonl


def write_card(form: Format, shape: ModelShape, facts: CardFacts, begins: bool, dtype: str) -> str:
    """The card in markdown. `begins`: whether the tokenizer puts the token in front that ends a document."""
    name = pathlib.Path(str(facts.origin.get("run", form.name))).name
    parts = [f"{HEADER}\n# {name}\n", _table("Model", _model_rows(form, shape, dtype))]
    imported = facts.record.get("init_from") or {}
    if facts.record.get("steps"):
        parts.append(_table("Training", _training_rows(facts)))
        parts.append(_table("Data", _data_rows(facts)))
    if imported.get("format"):
        parts.append(f"The weights began as a {imported['format']} of another author.\n")
    parts += [_table("Scores", _score_rows(facts))] if facts.scores else []
    parts.append(USE + (BEGINS if begins else ""))
    parts.append(_table("Origin", _origin_rows(facts)))
    return "\n".join(part for part in parts if part)


def _table(title: str, rows: Mapping[str, Any]) -> str:
    lines = [f"| {key} | {value} |" for key, value in rows.items() if value not in (None, "")]
    return "\n".join([f"## {title}\n", "| what | value |", "|---|---|", *lines, ""]) if lines else ""


def _model_rows(form: Format, shape: ModelShape, dtype: str) -> dict[str, Any]:
    counts = count_parameters(shape)
    rows = {"family": f"{form.name} ({form.architecture})"}
    rows |= {f"parameters, {kind}": f"{counts[kind]:,}" for kind in ("total", "non_embedding", "kaplan", "chinchilla")}
    rows |= {"parameters, active": f"{counts['active']:,}"} if shape.n_experts else {}
    rows |= {"layers x width": f"{shape.n_layers} x {shape.d_model}", "heads": f"{shape.n_heads} ({shape.n_kv_heads})"}
    return rows | {"vocabulary": f"{shape.vocab_size:,}", "length": f"{shape.seq_len:,} tokens", "dtype": dtype}


def _training_rows(facts: CardFacts) -> dict[str, Any]:
    record, config, step = facts.record, facts.config, facts.origin.get("step")
    train, optim, schedule = (config.get(group) or {} for group in ("train", "optim", "schedule"))
    last = step == record["steps"]
    rows = {"step": f"{step:,}" if last else f"{step:,} of {record['steps']:,}", "weights": facts.origin.get("weights")}
    if last:
        flops, total = record.get("flops") or {}, (record.get("params") or {}).get("total")
        rows |= {"tokens": f"{record['tokens']:,}", "tokens a parameter": total and f"{record['tokens'] / total:.2f}"}
        rows |= {f"training FLOPs, {kind}": f"{flops[kind]:.4g}" for kind in ("exact", "6ND") if kind in flops}
        if facts.origin.get("weights") == "trained":
            rows |= {"validation loss": _number(record.get("val_loss"), "nats a token")}
            rows |= {"bits a byte": _number(record.get("bpb"), "")}
    rows |= {"batch": f"{train.get('global_batch')} sequences", "optimizer": optim.get("name")}
    rows |= {"peak LR": optim.get("peak_lr"), "schedule": schedule.get("name")}
    rows |= {"precision": (config.get("precision") or {}).get("name"), "seed": train.get("seed")}
    return rows | {"parametrization": (config.get("parametrization") or {}).get("name")}


def _data_rows(facts: CardFacts) -> dict[str, Any]:
    data, config = facts.record.get("data") or {}, facts.config.get("data") or {}
    rows = {"source": data.get("source"), "tokenizer": data.get("tokenizer"), "fingerprint": data.get("fingerprint")}
    counts = ("train_tokens", "val_tokens", "train_documents", "val_documents")
    rows |= {key.replace("_", " "): f"{data[key]:,}" for key in counts if isinstance(data.get(key), int)}
    rows |= {"bytes a token": _number(data.get("bytes_per_token"), ""), "mixture": config.get("mixture")}
    return rows | {"attention across documents": {"mask": "no", "cross": "yes"}.get(str(config.get("documents")))}


def _score_rows(facts: CardFacts) -> dict[str, Any]:
    rows = {}
    for row in facts.scores:
        if (row["step"], row["weights"]) == (facts.origin.get("step"), facts.origin.get("weights")):
            metrics = row["metrics"]
            what = ("loss", "bpb") if row["kind"] == "data" else ("acc", "acc_se", "bpb")
            rows[row["set"]] = ", ".join(f"{key} {metrics[key]:.4f}" for key in what if metrics.get(key) is not None)
    return rows


def _origin_rows(facts: CardFacts) -> dict[str, Any]:
    git = ((facts.record.get("git") or {}).get("scalelab") or {}).get("commit")
    rows = {"written by": f"scalelab {VERSION}", "trained by": (facts.origin.get("versions") or {}).get("scalelab")}
    return rows | {"commit": git, "run's identity": facts.origin.get("identity"), "digest": facts.origin.get("digest")}


def _number(value: Any, unit: str) -> str | None:
    return None if value is None else f"{value:.4f} {unit}".strip()
