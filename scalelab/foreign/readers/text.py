r"""Text logs: lines with a step and values, as nanoGPT, modded-nanogpt, nanotron, torchtitan and OLMo-core print them.

iter 250: loss 2.1004, time 41.50ms, mfu 12.30%       step 250: train loss 1.9, val loss 2.0      (nanoGPT)
step:125/1770 val_loss:4.5726 train_time:18245ms       250 train 3.281                             (modded, build-)
iteration: 10 / 500 | consumed_tokens: 2.62M | lm_loss: 9.1 | lr: 3e-05 | grad_norm: 1.2          (nanotron)
step: 10  loss: 8.13  grad_norm: 1.57  tps: 3,386                                                 (torchtitan)
[step=10/1000] and below it lines of `    train/CE loss=9.1`                                      (OLMo-core)
[batch=10/1000]: and below it lines of `     Train loss/train/total: 9.1`                           (composer)
s:250 tel:3.2841    s:251 trl:3.3120 lr:0.000600 norm:0.41                                          (llm.c)
"""

import math
import pathlib
import re
from typing import Any

from scalelab.errors import BadInput
from scalelab.foreign.run import ForeignRun, columns_of_rows
from scalelab.untrusted.files import read_bytes

MOST_BYTES = 2**29
LONGEST_LINE = 2000  # letters of a line of values; logs that hold their program have longer ones
FEWEST_LINES = 2
ANSI = re.compile(r"\x1b\[[0-9;]*m")
NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)"
STEP = re.compile(
    r"(?:^|[\s\]|>\[])(?:global[_ ]?step|step|iteration|iter)(?:\s*[:=]\s*|\s+)"
    r"(\d[\d,]*)(?:\s*/\s*(\d[\d,]*))?(?![\d.])",
    re.IGNORECASE,
)
NAMED = re.compile(
    rf"([A-Za-z][\w/()%.-]*(?: [A-Za-z(][\w/()%.-]*){{0,5}})\s*[:=]\s*({NUMBER})([KMBT]?)(?![\w.])|"
    rf"([A-Za-z][\w/()%.-]*(?: [A-Za-z(][\w/()%.-]*){{0,5}})\s*[:=]?\s*({NUMBER})(?:ms|s|%|GiB|GB)\b|"
    rf"((?:train |val |valid |eval )?(?:loss|ppl|lr|norm|grad_norm))\s+({NUMBER})()"
)
SHORT = re.compile(rf"(\d+) (train|val) ({NUMBER})\s*")
BRIEF = re.compile(rf"s:(\d+)((?: [a-z]+:{NUMBER})+)\s*")  # llm.c's
BRIEF_NAMES = {"tel": "val loss", "trl": "train loss", "eval": "hellaswag"}
HEAD = re.compile(r"\[(?:step|batch)=(\d+)(?:/(\d+))?[^\]]*\]:?\s*$")  # above a block of values
EVAL_HEAD = re.compile(r"\[Eval batch=\d+/\d+\]")  # composer's: batches of the evaluation, not steps
BLOCK = re.compile(rf"\s+(?:(?:Train|Eval) )?([A-Za-z][^=]{{0,120}}?)(?:=|: )({NUMBER})([KMBT]?)\s*")
MULTIPLIERS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
FACTS = {  # what a log says once, and the config key it becomes
    "params": re.compile(r"number of parameters:\s*([\d.,]+)([KMBT]?)"),
    "tokens_per_step": re.compile(r"tokens per iteration will be:\s*([\d.,]+)([KMBT]?)"),
}


def read_text_log(path: pathlib.Path) -> ForeignRun:
    """Read a text log. BadInput for a file in which fewer than two lines have a step and a value."""
    text = read_bytes(path, MOST_BYTES, follow=True).decode(errors="replace")
    rows, planned = parse_lines(text)
    if len(rows) < FEWEST_LINES:
        raise BadInput(
            f"{str(path)!r}: no lines with a step and values (`step 10: loss 3.2`, `iteration: 10 | loss: …`)"
        )
    config: dict[str, Any] = {}
    for name, pattern in FACTS.items():
        if match := pattern.search(text):
            config[name] = _number(match[1]) * MULTIPLIERS[match[2]]
    columns, texts = columns_of_rows(rows)
    state = None
    if planned:
        config["max_steps"] = planned
        state = "finished" if max(row["step"] for row in rows) >= planned - 1 else "running"
    return ForeignRun(path.stem, "text log", [path], columns, config, texts, state)


def parse_lines(text: str) -> tuple[list[dict[str, float]], int]:
    """(rows of `step` and the values of each line that has both, the planned steps or 0)."""
    rows, planned, step, block = list[dict[str, float]](), 0, 0.0, dict[str, float]()
    for line in text.splitlines():
        if len(line) > LONGEST_LINE:
            continue
        line = ANSI.sub("", line)
        if block and (match := BLOCK.fullmatch(line)):
            block[match[1].strip()] = _number(match[2]) * MULTIPLIERS[match[3]]
            continue
        if len(block) > 1:
            rows.append(block)
        block = {}
        if match := SHORT.fullmatch(line):
            rows.append({"step": float(match[1]), f"{match[2]} loss": _number(match[3])})
        elif match := BRIEF.fullmatch(line):
            pairs = [pair.split(":") for pair in match[2].split()]
            rows.append({"step": float(match[1])} | {BRIEF_NAMES.get(k, k): _number(v) for k, v in pairs})
        elif match := HEAD.search(line):
            planned, step = int(match[2]) if match[2] else planned, float(match[1])
            block = {"step": step}
        elif EVAL_HEAD.search(line):
            block = {"step": step}
        elif match := STEP.search(line):
            values = _values(line[match.end() :])
            planned = int(match[2].replace(",", "")) if match[2] else planned
            block = {"step": _number(match[1])}
            if values:
                rows.append(block | values)
                block = {}
    return rows + ([block] if len(block) > 1 else []), planned


def _values(text: str) -> dict[str, float]:
    """The values of a line by name, as it writes them."""
    values = {}
    for match in NAMED.finditer(text):
        name = match[1] or match[4] or match[6]
        number = match[2] or match[5] or match[7]
        values[name.strip()] = _number(number) * MULTIPLIERS[match[3] or ""]
    return values


def _number(text: str) -> float:
    try:
        return float(text.rstrip(",").replace(",", ""))
    except ValueError:
        return math.nan
