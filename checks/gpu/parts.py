"""The parts of `make gpu`, in the order of their worth, and the process that asks one part's questions."""

import functools
import math
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from checks.gpu import ledger
from checks.gpu.measures import (
    attention,
    commands,
    packing,
    profile,
    reference,
    resume,
    torch_models,
    utilisation,
)
from checks.gpu.question import Context, OutOfTime, Question
from checks.gpu.settings import Settings
from scalelab.hardware.device_memory import reserve_gpu_memory

START_S = 12.0  # of a part's process: Python, jax, the device
FP8 = "fp8_delayed"
Parts = dict[str, list[Question]]


class Call(NamedTuple):
    """One call of the command: sizes, a folder for files, ledgers (the last is written), its begin and its end."""

    settings: Settings
    folder: pathlib.Path
    ledgers: list[pathlib.Path]
    begun_at: float  # seconds since the epoch
    ends_at: float
    again: tuple[str, ...] = ()  # parts that are asked in this call though an earlier one answered them


def list_parts(settings: Settings) -> Parts:
    """{part: its questions}. A part is one process; the seconds are estimates for one H100, most of them compiling."""
    step = utilisation.ask_step
    return {
        "doctor": commands.ask_doctor(15, 15),
        "124m-bf16": step("124m", "bf16", 35),
        "124m-fp32": step("124m", "fp32", 30),
        "124m-tf32": step("124m", "tf32", 30),
        "124m-fp8": step("124m", FP8, 40),
        "resume": resume.ask_resume(75),
        "1b-bf16": step("1b", "bf16", 40),
        "attention": attention.ask_attention(15),
        "packing": packing.ask_packing(20),
        "torch-llama-1b": torch_models.ask_torch("1b", 60),
        "3b-bf16": step("3b", "bf16", 45),
        "chunks-1b": utilisation.ask_chunks(settings, "1b", 25),
        "tests": commands.ask_tests(90),
        "profile-124m": profile.ask_profile("124m", "bf16", 30),
        "profile-1b": profile.ask_profile("1b", "bf16", 30),
        "remat-1b": utilisation.ask_remat("1b", 30),
        "1b-fp8": step("1b", FP8, 50),
        "3b-fp8": step("3b", FP8, 55),
        "torch-gpt2-124m": torch_models.ask_torch("124m", 50),
        "quickstart": commands.ask_quickstart(240),
        "reference-run": reference.ask_run(360),
        "reference-grid": reference.ask_grid(240),
        "plan": commands.ask_plan(120),
        "processes": packing.ask_processes(120),
    }


def read_lines(call: Call) -> list[ledger.Row]:
    """The ledgers' lines of this chip, without those before this call of parts that it asks again."""
    lines = ledger.read(call.ledgers, ledger.chip_name())
    return [line for line in lines if line["part"] not in call.again or line["time"] >= call.begun_at]


def asked_cost_s(settings: Settings, question: Question) -> float:
    """Seconds that a question takes at these sizes."""
    return settings.cost_share * question.cost_s


def missing_questions(
    lines: list[ledger.Row], part: str, questions: Iterable[Question], since: float = math.inf
) -> list[Question]:
    """The questions without an answer that were not left out after MOST_TRIES, nor failed or died after `since`."""
    answered = ledger.answers(lines).get(part, {})

    def is_open(row: str) -> bool:
        ends = ledger.tries(lines, part, row)
        return len(ends) < ledger.MOST_TRIES and all(line["time"] < since for line in ends)

    return [each for each in questions if each.row not in answered and is_open(each.row)]


def run_part(name: str, call: Call) -> None:
    """Ask a part's missing questions in this process; each answer is in the ledger before the next is asked."""
    reserve_gpu_memory()
    chip = ledger.chip_name()
    lines = read_lines(call)
    rows = dict(ledger.answers(lines).get(name, {}))
    write = functools.partial(ledger.append, call.ledgers[-1])
    (call.folder / name).mkdir(parents=True, exist_ok=True)
    for question in missing_questions(lines, name, list_parts(call.settings)[name], call.begun_at):
        if time.time() + asked_cost_s(call.settings, question) > call.ends_at:
            return
        write(ledger.BEGUN, chip, name, question.row)
        start = time.perf_counter()
        event, values = _ask(question.answer, Context(call.settings, call.folder / name, rows, call.ends_at))
        line = {"seconds": time.perf_counter() - start} | values
        write(event, chip, name, question.row, **line)
        if event == ledger.ANSWERED:
            rows[question.row] = line


def _ask(answer: Callable, context: Context) -> tuple[str, dict]:
    """(event, its values): an answer, a stop in order, or the last line of a failure."""
    try:
        return ledger.ANSWERED, {"answer": answer(context)}
    except OutOfTime as stop:
        return ledger.STOPPED, {"why": str(stop)}
    except Exception as failure:  # one question's fault is not the next one's: it is written down
        text = str(failure).strip() or type(failure).__name__
        return ledger.FAILED, {"why": f"{type(failure).__name__}: {text.splitlines()[0]}"[:500]}
