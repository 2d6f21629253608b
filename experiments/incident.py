"""An incident in small: outlier documents in sixteen batches, and five ways to go on from the checkpoint before them.

    python -m experiments.incident --quick --workdir=runs/incident [--price=X] [--json[=PATH]]

A run trains on documents of one window each; in the batches of steps 221 to 236 six of eight are repeated n-grams,
which OLMo 2 found behind many spikes. Then `scalelab replay` takes the window again from the checkpoint of step 200: as
it was, without those batches, with the LR times .7, with the clip 2 -> 1, and with fresh moments; and `diagnose
--batch` ranks the documents of the first such batch. With --quick five seeds, else ten: each plants into batches of its
own order. Arms are compared with the one that ends lowest on average, seed by seed. Writes
results/incident.{json,md,png} beside this file with --quick, else into the workdir. Run it again to resume.

    scalelab study incident --quick --workdir=runs/incident
"""

import functools
import hashlib
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from scipy import special

from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import folder_path
from scalelab.data.batches.order import window_numbers
from scalelab.data.dataset import held_out_documents
from scalelab.data.sources.sources import DataConfig, open_source
from scalelab.diagnose.batch import describe_batch
from scalelab.diagnose.evidence import gather_evidence
from scalelab.diagnose.replay.judge import end_means
from scalelab.diagnose.replay.report import replay_window
from scalelab.diagnose.replay.what_ifs import parse_what_ifs
from scalelab.errors import BadInput
from scalelab.experiments.shared import (
    RESULTS,
    command_line,
    markdown_table,
    publish_result,
    result_header,
    train_trials,
)
from scalelab.experiments.studies import outcome
from scalelab.plan.sweep.sweep import PlannedStudy
from scalelab.report.figures.raceplot import plot_replay
from scalelab.report.figures.style import write_figure

ROOT = pathlib.Path(__file__).parent.parent
FIRST, LAST = 221, 236  # steps whose batches are planted
PLANTED_SHARE = 0.75  # of the rows of each of these batches
AFTER = 150
DOCUMENTS = 6_000
VAL_FRACTION = 0.1
LEVEL = 0.05  # of all intervals of differences together
N_GRAM = b"\xf0\x9f\x92\xa9"  # repeated through a planted document
ARMS = {"go on": "", "skip the batches": f"skip={FIRST}..{LAST}", "LR x .7": "lr*=.7", "clip 2 -> 1": "clip=1",
        "reset the moments": "moments=reset"}  # fmt: skip


def documents(path: str) -> Iterator[bytes]:
    """`data.source`: pieces of Python's own files, each one window long; `path`: "SEED:SEQ_LEN:BATCH" plants outliers.

    A piece and its separator are seq_len tokens, so the n-th training document is the n-th window.
    """
    seed, seq_len, batch = map(int, path.split(":"))
    pieces = _clean_pieces(seq_len)
    for number in planted_documents(seed, seq_len, batch, pieces):
        pieces[number] = _planted_piece(number, seq_len - 1)
    yield from pieces


def _clean_pieces(seq_len: int) -> list[bytes]:
    """Distinct pieces of seq_len - 1 bytes, in the order of Python's files."""
    pieces: dict[bytes, None] = {}
    for document in open_source(DataConfig(source="stdlib")).documents():
        text, size = bytes(document), seq_len - 1
        pieces |= dict.fromkeys(text[i : i + size] for i in range(0, len(text) - size + 1, size))
        if len(pieces) >= DOCUMENTS:
            break
    return [*pieces][:DOCUMENTS]


def planted_documents(seed: int, seq_len: int, batch: int, pieces: Sequence[bytes]) -> list[int]:
    """The numbers of the pieces that the batches of the planted steps read, from the closed form of the order."""
    digests = [hashlib.sha256(piece).digest() for piece in pieces]
    held_out = held_out_documents(dict.fromkeys(digests, seq_len - 1), VAL_FRACTION, 0)
    training = [i for i, digest in enumerate(digests) if digest not in held_out]
    positions = np.arange((FIRST - 1) * batch, LAST * batch)
    positions = positions[positions % batch < PLANTED_SHARE * batch]
    # The last document has no window of its own: a window ends with the first token of the next document.
    return [training[window] for window in window_numbers(positions, len(training) - 1, seed)]


def _is_planted(excerpt: str) -> bool:
    """Whether an escaped excerpt is of a planted document."""
    return excerpt.count(N_GRAM.decode().encode("unicode_escape").decode()) > 2


def _planted_piece(number: int, size: int) -> bytes:
    """An outlier with its number, whose hash keeps it in the training split as the piece that it replaces."""
    for salt in range(256):
        tail = number.to_bytes(3, "big") + bytes([salt])
        piece = (N_GRAM * size)[: size - len(tail)] + tail
        if hashlib.sha256(b"0:" + hashlib.sha256(piece).digest()).digest()[0] >= 128:
            return piece
    raise AssertionError("half of all hashes are high enough")


def make_trials(base: ConfigDict, seeds: Sequence[int]) -> dict[str, ConfigDict]:
    """{name: config} of the runs with the incident, one a seed: each plants into its own order of batches."""
    size, batch = base.model.seq_len, base.train.global_batch
    values = {seed: {"train.seed": seed, "data.path": f"{seed}:{size}:{batch}"} for seed in seeds}
    return {f"seed{seed}": config_lib.resolve(config_lib.override(base, values[seed])) for seed in seeds}


def measure_incident(folder: pathlib.Path, seed: int, price: float | None) -> dict[str, Any]:
    """The arms from the checkpoint before the incident, and which documents `diagnose --batch` names first."""
    what_ifs = parse_what_ifs([text for text in ARMS.values() if text])
    replayed = replay_window(folder, FIRST, LAST, what_ifs, AFTER, price)
    _, sequences = describe_batch(gather_evidence(folder), FIRST)  # by gradient norm
    is_planted = [_is_planted(sequence.excerpt) for sequence in sequences]
    verdicts = {verdict["name"]: verdict for verdict in replayed["verdicts"]}
    start = FIRST - 1 - replayed["origin"]["step"]
    ends = {name: float(end_means(np.array([curve[start:]]))[0]) for name, curve in replayed["curves"].items()}
    names = {arm: text or "original" for arm, text in ARMS.items()}
    arms = [{"arm": arm, "end": ends[name]} | verdicts[name] for arm, name in names.items()]
    return {
        "seed": seed, "arms": arms, "cure": replayed["cure"], "reproduced": replayed["reproduced"],
        "planted": sum(is_planted), "named_first": sum(is_planted[: sum(is_planted)]), "replay": replayed,
    }  # fmt: skip


def format_page(result: Mapping[str, Any]) -> str:
    """Format the result in Markdown."""
    columns = ("arm", "seeds cured", "last losses (nats/token), mean", "by seed", "above the lowest", "largest",
               "steps again", "batches lost", "cost")  # fmt: skip
    paragraphs = [
        "# An incident: outlier documents in sixteen batches, and five ways to go on",
        f"`{result['command']}`, {result['date']}: {result['machine']}",
        result["finding"],
        result["what"],
        "\n".join(markdown_table(columns, (_cells(arm, result["incidents"]) for arm in ARMS))),
        "\n".join(result["answers"]),
        "![Training losses of the arms](incident.png)",
        result["limits"],
    ]
    return "\n\n".join(paragraphs) + "\n"


def _cells(arm: str, incidents: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [row for incident in incidents for row in incident["arms"] if row["arm"] == arm]
    costs = [row["cost"] for row in rows if row["cost"] is not None]
    ends = [row["end"] for row in rows]
    above = above_lowest(incidents).get(arm)
    return [
        arm, f"{sum(row['works'] for row in rows)} of {len(rows)}", f"{np.mean(ends):.3f}",
        ", ".join(f"{end:.3f}" for end in ends), _interval(*above) if above else "-",
        f"{max(row['peak'] for row in rows):.3g}", str(rows[0]["steps"]), str(rows[0]["batches"]),
        f"{np.mean(costs):.2g}" if costs else "-",
    ]  # fmt: skip


def _interval(nats: float, error: float | None) -> str:
    if nats == 0:
        return "the lowest"
    return f"{nats:.3f}" if error is None else f"{nats:.3f} ± {error:.3f}"


def above_lowest(incidents: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float | None]]:
    """{arm that works in a seed at least: (nats above the one that ends lowest on average, half its interval)}.

    Differences are within a seed, so what a seed does to all is not noise. Student's intervals of all pairs of arms
    hold together with 95 % (Bonferroni); None of one seed.
    """
    rows = [row for one in incidents for row in one["arms"]]
    working = {row["arm"]: None for row in rows if row["works"]}
    ends = {arm: np.array([row["end"] for row in rows if row["arm"] == arm]) for arm in working}
    lowest, seeds, pairs = min(ends.values(), key=np.mean), len(incidents), max(1, len(ends) * (len(ends) - 1) / 2)
    quantile = special.stdtrit(seeds - 1, 1 - LEVEL / (2 * pairs)) if seeds > 1 else None
    errors = {
        arm: None if quantile is None else float(quantile * np.std(each - lowest, ddof=1) / seeds**0.5)
        for arm, each in ends.items()
    }
    return {arm: (float(np.mean(each - lowest)), errors[arm]) for arm, each in ends.items()}


def ranking(incidents: Sequence[Mapping[str, Any]]) -> str:
    """Which arms work, which end above the lowest beyond noise, and which can't be told from it, as text."""
    above = above_lowest(incidents)
    lowest = min(above, key=lambda arm: above[arm][0])
    others = {arm: pair for arm, pair in above.items() if arm != lowest}
    text = f"{lowest} ends lowest"
    if any(error is None for _, error in others.values()):
        return f"{text}; one seed tells no noise"
    apart = [f"{arm} (by {_interval(*pair)})" for arm, pair in others.items() if pair[0] > pair[1]]
    tied = [f"{arm} ({_interval(*pair)})" for arm, pair in others.items() if pair[0] <= pair[1]]
    text += f"; {', '.join(apart)} above it beyond noise" if apart else "; none above it beyond noise"
    text += f"; not told from it: {', '.join(tied)}" if tied else ""
    failing = [arm for arm in ARMS if arm not in above]
    return text + (f"; in no seed works: {', '.join(failing)}" if failing else "")


def answers(incidents: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each seed's replay says."""
    lines = []
    for one in incidents:
        made = one["reproduced"]
        same = f"{made['equal']} of {made['lines']} logged steps replayed bit for bit"
        named = f"of the batch of step {FIRST}, the {one['planted']} largest gradient norms are {one['named_first']} "
        named += "of the planted documents"
        lines.append(f"- seed {one['seed']}: {same}; cheapest that works: {one['cure'] or 'none'}; {named}")
    return lines


def conclude(incidents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was found, in one sentence, and its numbers beside what is known."""
    rows = [row for incident in incidents for row in incident["arms"]]
    last = {arm: float(np.mean([row["end"] for row in rows if row["arm"] == arm])) for arm in ARMS}
    cured = {arm: sum(row["works"] for row in rows if row["arm"] == arm) for arm in ARMS}
    equal, lines = (sum(each["reproduced"][key] for each in incidents) for key in ("equal", "lines"))
    named, planted = (sum(each[key] for each in incidents) for key in ("named_first", "planted"))
    return {
        "finding": f"After outliers in {LAST - FIRST + 1} batches five arms end at "
        + ", ".join(f"{loss:.2f} ({arm})" for arm, loss in last.items())
        + f" nats over {len(incidents)} seeds; {ranking(incidents)}; "
        f"{named} of {planted} planted documents have the largest gradients of their batch.",
        "checks": [
            outcome.compare_with(1, "exact replay", "logged steps replayed bit for bit, share", equal / lines, 1, 1),
            outcome.compare_with(1, "planted by this study", "planted documents named first, share",
                                 named / planted, 0.8, 1),
            outcome.compare_with(1, "PaLM (Chowdhery et al. 2022)", "seeds cured by skipping the batches, share",
                                 cured["skip the batches"] / len(incidents), 1, 1),
        ],
    }  # fmt: skip


def plan(arguments: Sequence[str]) -> PlannedStudy:
    """The runs of this study (default: --quick), before any of them runs (for `scalelab plan --sweep`)."""
    base, seeds, _ = parse_arguments(arguments or ["--quick"])
    return PlannedStudy(make_trials(base, seeds))


def parse_arguments(argv: Sequence[str]) -> tuple[ConfigDict, Sequence[int], Any]:
    """Parse arguments into (config, seeds, options)."""
    parser = command_line("incident", __doc__)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="where the runs go; again to resume")
    parser.add_argument("--quick", action="store_true", help="five seeds: five minutes on two cores (else: ten)")
    parser.add_argument("--price", type=float, metavar="X", help="price of a device-hour, in any currency")
    options = parser.parse_args(argv)
    return config_lib.load(ROOT / "configs" / "incident.py", {}), range(5 if options.quick else 10), options


def main(argv: Sequence[str]) -> int:
    """Run the study. Exit code: 0 measured (whatever the result), 1 a run failed, 2 bad input, 75 stopped."""
    return guarded("incident", _main, argv)


def _main(argv: Sequence[str]) -> int:
    base, seeds, options = parse_arguments(argv)
    if options.workdir is None:
        raise BadInput("--workdir=DIR is needed: where the runs go")
    options.workdir.mkdir(parents=True, exist_ok=True)
    incidents = []
    with outcome.count_seconds(options.workdir):
        made = make_trials(base, seeds)
        train_trials(options.workdir, made)
        for seed, name in zip(seeds, made, strict=True):
            print(f"{name}: five arms of {LAST + AFTER - 200} steps", file=sys.stderr, flush=True)
            settings = {"seed": seed, "price": options.price, "steps": [FIRST, LAST, AFTER], "arms": [*ARMS.values()]}
            run = options.workdir / "runs" / name
            measure = functools.partial(measure_incident, run, seed, options.price)
            incidents.append(outcome.measure_once(options.workdir, name, settings, measure))
    shown, *_ = [incident.pop("replay") for incident in incidents]
    result = result_header("incident", argv) | outcome.read_seconds(options.workdir) | conclude(incidents)
    result |= {
        "what": f"{base.model.n_layers} blocks of width {base.model.d_model}, {base.optim.name} at a constant LR of "
        f"{base.optim.peak_lr:g}, clip {base.optim.clip_norm:g}; {PLANTED_SHARE:.0%} of the batches of steps {FIRST} "
        f"to {LAST} is planted. "
        f"Each arm starts at step {shown['origin']['step']} and ends at step {shown['end']}; last losses: mean of the "
        f"last quarter from step {FIRST} on. Above the lowest: differences within seeds, Student's intervals of all "
        "pairs of arms together (95 %).",
        "incidents": incidents,
        "answers": answers(incidents),
        "limits": "One small model at a learning rate where a spike does not heal. At larger sizes the rates, the time "
        "to heal and the ranking of the arms may differ: what it shows is how they are compared. Arms that end at a "
        "lower LR (x .7, and 150 steps of warm-up after a reset) gain from that alone.",
    }
    place = RESULTS if options.quick else options.workdir
    first = shown["origin"]["step"] + 1
    curves = [(arm, enumerate(curve, first)) for arm, curve in shown["curves"].items()]
    numbers = [{"arm": arm, "step": step, "loss": loss} for arm, losses in curves for step, loss in losses]
    write_figure(str(place / "incident.png"), plot_replay(shown), numbers)
    return publish_result(place, "incident", result, format_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
