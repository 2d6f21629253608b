"""python -m checks.gpu [--seconds=540] [--only=A,B] [--again=A,B] [--workdir=DIR] [--results=DIR] [--json[=PATH]]

Measure first on one GPU. A call asks questions in the order of their worth, for at most --seconds; a question is begun
only if it can still end. Each answer is on the disk before the next question is asked, so a call may be killed at any
moment: the next goes on after it. What failed or died twice is left out, with its last line. The parts, in order:

    doctor          versions, devices, one product, one step of a toy model
    124m-bf16       GPT-2 small: seconds, MFU, peak memory and kernels of a step, beside a plan that is written before
    124m-fp32, 124m-tf32, 124m-fp8
    resume          killed and resumed under train.deterministic: the same bits?
    1b-bf16         a Llama of 1 billion parameters
    attention       cuDNN and ours, with and without document masks
    packing         32 trials under vmap, and one after another
    torch-llama-1b  the same shape by transformers and torch.compile (left out where they are not installed)
    3b-bf16         and of 3 billion
    chunks-1b       the 1B model with other chunks of the loss
    tests           tests/accelerator
    profile-124m, profile-1b       the slowest operations of a step, and how long no kernel runs
    remat-1b, 1b-fp8, 3b-fp8, torch-gpt2-124m
    quickstart      the README's study
    reference-run, reference-grid      configs/reference_124m.py, and an IsoFLOP study of its family
    plan, processes                    plan --measure and --calibrate; 32 trials in processes of their own

--results (checks/results) takes gpu.jsonl, the ledger, and gpu.md, the page; elsewhere also gpu_logs.txt, the ends of
all logs. What the ledger in checks/results has of this chip is not asked again, but for the parts in --again (after a
change of the program that is measured). --workdir (runs/gpu) takes runs and
logs. At the end it lists what is missing, the most useful first.

--rehearse asks everything at toy sizes on the device that is here, with its ledger in --workdir; --kills=N kills that N
times, at random, and goes on. --compile[=CHIP,…] lowers and compiles the programs of the parts for absent chips (needs
the extra plan-cuda) and writes checks/results/gpu_compiled.*.

Exit code: 0 nothing is missing, 1 something is, 2 no GPU here or bad input, 75 stopped by a signal.

    python -m checks.gpu --seconds=540
"""

import pathlib
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from checks.gpu import ledger, page, rehearsal, session
from checks.gpu.parts import Call, list_parts, run_part
from checks.gpu.settings import FULL_SETTINGS, TOY_SETTINGS
from checks.shared import RESULTS, command_line
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path, print_status
from scalelab.errors import BadInput, nearest_hint
from scalelab.hardware import chips

LEAST_SECONDS, USUAL_SECONDS = 30.0, 540.0
LEDGER, PAGE, LOGS = "gpu.jsonl", "gpu.md", "gpu_logs.txt"


def main(argv: Sequence[str]) -> int:
    """Ask what is missing; exit codes in the module's docstring."""
    return guarded("gpu", _main, argv)


def _main(argv: Sequence[str]) -> int:
    options = _parse(argv)
    parts = list(list_parts(FULL_SETTINGS))
    names = _names(options.only) or parts
    for option, given in (("only", names), ("again", _names(options.again))):
        if unknown := [name for name in given if name not in parts]:
            raise BadInput(f"--{option}={unknown[0]}: not a part{nearest_hint(unknown[0], parts)}")
    if options.compile:
        return _compile(options, names)
    call = _make_call(options)
    if options.part:
        run_part(options.part, call)
        return 0
    if not options.toy and not options.rehearse:
        refuse_without_gpu()
    if options.rehearse:
        rehearsal.rehearse(argv, call, names, options.kills)
    else:
        stop = signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))  # the running part ends too
        try:
            session.run_session(call, names)
        except SystemExit:
            _end(call, names, options.json)
            raise
        finally:
            signal.signal(signal.SIGTERM, stop)
    return _end(call, names, options.json)


def _names(text: str | None) -> list[str]:
    return text.split(",") if text else []


def _parse(argv: Sequence[str]) -> Any:
    parser = command_line("gpu", __doc__)
    parser.add_argument("--seconds", type=float, default=USUAL_SECONDS, help="of this call at most (default: 540)")
    parser.add_argument("--only", metavar="A,B", help="these parts (default: all)")
    parser.add_argument("--again", metavar="A,B", help="ask these parts though they were answered")
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="runs and logs (default: runs/gpu)")
    parser.add_argument("--results", type=folder_path, metavar="DIR", help="ledger and page (checks/results)")
    parser.add_argument("--rehearse", action="store_true", help="toy sizes on the device that is here")
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="with --rehearse: kill it N times, at random")
    parser.add_argument("--compile", nargs="?", const="h100", metavar="CHIPS", help="compile the programs for CHIP,…")
    parser.add_argument("--part", metavar="PART", help="ask one part in this process (how the parts are started)")
    parser.add_argument("--between", metavar="BEGIN,END", help="with --part: when the call began, and when it ends")
    parser.add_argument("--toy", action="store_true", help="one call at toy sizes (what --rehearse starts)")
    options = parser.parse_args(list(argv))
    if not options.seconds >= LEAST_SECONDS:
        raise BadInput(f"--seconds={options.seconds:g} is too short for any part; at least {LEAST_SECONDS:g}")
    if options.kills and not options.rehearse:
        raise BadInput("--kills is for a rehearsal: add --rehearse")
    return options


def _make_call(options: Any) -> Call:
    toy = options.toy or options.rehearse
    folder = options.workdir or pathlib.Path("runs/gpu")
    results = options.results or (folder if toy else RESULTS)
    ledgers = [results / LEDGER] if toy else list(dict.fromkeys([RESULTS / LEDGER, results / LEDGER]))
    now = time.time()
    begin, end = map(float, options.between.split(",")) if options.between else (now, now + options.seconds)
    return Call(TOY_SETTINGS if toy else FULL_SETTINGS, folder, ledgers, begin, end, tuple(_names(options.again)))


def _end(call: Call, names: list[str], json_path: str | None) -> int:
    """Write the page, list what is missing; the exit code."""
    lines, missing = ledger.read(call.ledgers, ledger.chip_name()), list(session.list_missing(call, names))
    call.ledgers[-1].parent.mkdir(parents=True, exist_ok=True)
    text = page.format_page(lines, missing)
    call.ledgers[-1].with_name(PAGE).write_text(text)
    if call.ledgers[-1].parent not in (RESULTS, call.folder):  # what is brought home from a machine that is given back
        call.ledgers[-1].with_name(LOGS).write_text(session.collect_logs(call.folder))
    if json_path != "-":
        print(text)
    print_status(f"{len(missing)} questions are missing; {call.ledgers[-1]}" if missing else "nothing is missing")
    emit_json({"answers": ledger.answers(lines), "missing": [each._asdict() for each in missing]}, json_path)
    return 1 if missing else 0


def _compile(options: Any, names: list[str]) -> int:
    from checks.gpu import compiled

    return compiled.write_programs(options.compile.split(","), names, options.json)


def refuse_without_gpu() -> None:
    """BadInput without a GPU, or where this jax has no build for it; jax is not started."""
    if not ledger.gpu_driver()[0]:
        raise BadInput("no GPU is here (nvidia-smi lists none); --rehearse tries everything on any device")
    if not chips.expects_accelerator():
        raise BadInput("this jax has no build for a GPU: make setup ACCEL=cuda12, or PYTHON=… of one that has")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
