"""The commands that reach each kind of hostile thing: every one that reads a folder, bucket, table or file.

`{it}` is the hostile thing in the work folder, `{url}` its bucket; `neighbour` is an honest run beside it. A command
that waits by design ends by ctrl-C after some seconds; `--serve` is asked for its pages first.
"""

import dataclasses
import zlib
from collections.abc import Mapping, Sequence

from checks.hostile.strangers.edits import Case
from checks.hostile.strangers.honest import ABLATE, PREPARE, TUNE

CONFIG = "--config=small.py"


@dataclasses.dataclass(frozen=True)
class Reach:
    """One command line, whether it computes on a model, and after how many seconds ctrl-C ends it."""

    line: tuple[str, ...]
    heavy: bool = False
    interrupt_s: float = 0.0
    serves: bool = False

    @property
    def command(self) -> str:
        """The first word: all pairs of a command share a warm process."""
        return self.line[0]

    @property
    def owns(self) -> bool:
        """Whether the hostile thing is the folder that it works in, and writes to."""
        return "--workdir={it}" in self.line and "--status" not in self.line

    @property
    def text(self) -> str:
        """The line as it is read."""
        return " ".join(self.line)


def _reach(*lines: str, heavy: bool = False, interrupt_s: float = 0.0, serves: bool = False) -> list[Reach]:
    return [Reach(tuple(line.split()), heavy, interrupt_s, serves) for line in lines]


LIVE = [
    *_reach("sweep --status --follow --workdir={it}", interrupt_s=1.0),
    *_reach("sweep --status --serve=0 --workdir={it}", interrupt_s=9.0, serves=True),
]
TABLES = _reach(
    "runs {it}",
    "runs {it} --json",
    "runs {it} --csv",
    "runs {it} --parquet=out.parquet",
    "runs .",
    "runs {it} --by=optim.peak_lr",
    "fit {it} --bootstrap=0",
    "fit {it} neighbour --law=multi_power --predict-run={it}",
    "sweep --status --workdir={it}",
    "sweep --status --json --workdir={it}",
    "checkpoint list {it}",
    "checkpoint show {it}",
    "checkpoint verify {it}",
    "watch {it} --once",
    "report {it} --style=paper",
)
RUN = [
    *TABLES,
    *LIVE,
    *_reach(
        "watch {it} --score", "watch . --once", "compare {it} neighbour", "compare neighbour {it}", "diagnose {it}",
        "diagnose {it} --json", "diagnose {it} --against=neighbour", "diagnose neighbour --against={it}",
        "note {it} text", f"plan {CONFIG} --hardware=cpu --calibrate={{it}}", "fit honest.csv {it} --bootstrap=0",
    ),
    *_reach(
        "report {it}", "report {it} neighbour --output=two.html", "compare {it} neighbour --html=page.html",
        "diagnose {it} --batch=20", "diagnose {it} --live", "replay {it}@20..21 --after=1", "noise {it} --batches=2",
        "eval {it} --sequences=2", "eval {it}@12 --sequences=2 --ema", "sample {it} --tokens=2",
        "export hf {it} --out=out",
        f"train {CONFIG} --workdir={{it}}", f"train {CONFIG} --workdir={{it}} --fallback",
        f"train {CONFIG} --init-from={{it}} --workdir=new",
        "train --branch-from={it}@12 --config.schedule.decay_tokens=64 --workdir=new", heavy=True,
    ),
]  # fmt: skip
TRIAL = "{it}/runs/d_model=8-seed=0"
SWEEP = [
    *TABLES,
    *LIVE,
    *_reach(f"diagnose {TRIAL}", f"compare {TRIAL} neighbour", f"note {TRIAL} text", "compare {it} {it}",
            f"plan {CONFIG} --hardware=cpu --calibrate={{it}}", "ablate --workdir={it} --status",
            f"sweep {CONFIG} --workdir={{it}} --cancel"),
    *_reach("report {it}", f"sweep {CONFIG} --workdir={{it}}", "sweep --workdir={it} --pack=PACK",
            f"eval {TRIAL} --sequences=2", f"sample {TRIAL} --tokens=2", heavy=True),
]  # fmt: skip
MANIFEST = [
    *_reach("runs {it}", "sweep --status --workdir={it}", "report {it}", "checkpoint list {it}",
            f"sweep {CONFIG} --workdir={{it}} --executor=manifest", f"sweep {CONFIG} --workdir={{it}} --cancel"),
    *_reach("sweep --workdir={it} --pack=PACK", heavy=True),
    *LIVE,
]  # fmt: skip
TUNING = [
    *_reach(" ".join([*TUNE, "--workdir={it}"]), "tune --workdir={it} --status", "runs {it}", "report {it}"),
    *_reach("sweep --status --workdir={it}"),
    *LIVE,
]
ABLATION = [
    *_reach(" ".join([*ABLATE, "--workdir={it}"]), "ablate --workdir={it} --status", "runs {it}", "report {it}"),
    *_reach("sweep --status --workdir={it}", " ".join([*ABLATE, "--workdir={it}", "--next"])),
]
BUCKET = [
    *_reach(
        "runs {url}",
        "runs {url} --json",
        "fit {url} --bootstrap=0",
        "checkpoint verify {url}",
        "report {url}",
        "checkpoint list {url}",
        "sweep --status --workdir={url}",
    ),
    *_reach(f"train {CONFIG} --workdir={{url}}", heavy=True),
]
COLUMNS = "--columns=N=N,D=D,loss=val_loss"
PREPARED = "--config.data.source=prepared --config.data.val_fraction=0.1 --config.model.vocab_size=280"
REACHES: Mapping[str, Sequence[Reach]] = {
    "run": RUN,
    "sweep": SWEEP,
    "manifest": MANIFEST,
    "tune": TUNING,
    "ablate": ABLATION,
    "bucket_run": BUCKET,
    "bucket_corpus": [
        *_reach(" ".join([*PREPARE, "--out={url}"])),
        *_reach(f"train {CONFIG} --workdir=new {PREPARED} --config.data.path={{url}}", heavy=True),
    ],
    "prepared": [
        *_reach(" ".join([*PREPARE, "--out={it}"]), "eval neighbour --data={it} --sequences=2"),
        *_reach(f"train {CONFIG} --workdir=new {PREPARED} --config.data.path={{it}}", heavy=True),
    ],
    "law": _reach(
        "plan --flops=1e18 --law={it}", "plan --sweep=small.py --hardware=cpu --law={it}", "watch . --once --law={it}",
        "plan --params=1e9 --tokens=1e10 --law={it} --json", " ".join([*ABLATE, "--plan", "--rule=fitted:{it}"]),
    ),
    "table": _reach(
        "fit {it} --bootstrap=0", f"fit {{it}} --bootstrap=0 {COLUMNS}", f"fit {{it}} --bootstrap=5 {COLUMNS} --json",
        f"fit {{it}} --bootstrap=0 {COLUMNS} --figures=figures", "fit {it} --best-of=lr --per=N,D",
        "fit {it} --law=multi_power", "fit {it} --by=role --bootstrap=0", "ablate {it} --baseline=fit",
        "ablate {it} --baseline=fit --columns=side=role,C=C,loss=val_loss", "fit {it} --accuracy",
        f"fit {{it}} --where=N>1 --bootstrap=0 {COLUMNS}",
        "fit neighbour --grid={it} --next-runs=1 --target-flops=1e12",
        "prepare --source={it} --tokenizer=bytes --out=out --workers=1 --text-key=name",
    ),
    "tokenizer": _reach(
        "prepare --source=text/*.txt --tokenizer={it} --out=out --workers=1 --val-fraction=.3",
    ),
    "hf": [
        *_reach("import hf {it}", "import hf {it} --out=out"),
        *_reach(f"train {CONFIG} --init-from=hf:{{it}} --workdir=new", heavy=True),
    ],
    "tasks": _reach("eval neighbour --sequences=2 --tasks={it}"),
    "hardware": _reach(f"plan {CONFIG} --hardware={{it}}", f"plan {CONFIG} --hardware={{it}} --json"),
    "source": _reach(
        "prepare --source={it} --tokenizer=bytes --out=out --workers=1 --val-fraction=.3",
        "prepare --source={it} --tokenizer=bpe:280 --out=out --workers=1 --val-fraction=.3 --skip-bad",
        "prepare --source={it} --tokenizer=ids:300 --out=out --workers=1 --val-fraction=.3",
    ),
    "papers": _reach("reproduce chinchilla --data={it}", "reproduce besiroglu --data={it}"),
    "outputs": _reach(
        "demo --out={it}", "fit honest.csv --bootstrap=0 --figures={it}", "export hf neighbour --out={it}",
        "init it", f"train {CONFIG} --workdir={{it}}", f"sweep {CONFIG} --workdir={{it}} --executor=manifest",
        " ".join([*PREPARE, "--out={it}"]), " ".join([*TUNE, "--workdir={it}"]),
        "report neighbour --output={it}/page.html",
    ),
}  # fmt: skip
LINES_EACH, LINES_DEEP = 1, 2


def reaches(case: Case) -> list[Reach]:
    """The lines that a case meets: one of each command, chosen by its name; all of the command that was seen.

    A case about what a model is read from meets two lines of each command that computes.
    """
    chosen = []
    for command in dict.fromkeys(reach.command for reach in REACHES[case.kind]):
        lines = [reach for reach in REACHES[case.kind] if reach.command == command and not (case.linked and reach.owns)]
        lines.sort(key=lambda reach: zlib.crc32(f"{case.name}\0{reach.text}".encode()))
        chosen += lines if command == case.seen else lines[: LINES_DEEP if case.deep and lines[0].heavy else LINES_EACH]
    return chosen


def fill(reach: Reach, case: Case, url: str, pack: str) -> list[str]:
    """The arguments of `scalelab` for a pair."""
    return [part.replace("{it}", case.place).replace("{url}", url).replace("PACK", pack) for part in reach.line]
