"""One pair: a hostile thing is built, a command meets it, the canaries are compared, and the row says what happened."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

from checks.hostile.strangers import judge
from checks.hostile.strangers.commands import Reach, fill
from checks.hostile.strangers.edits import ESCAPED, Case, Site, clear
from checks.hostile.strangers.honest import BUCKET, ROOT, build_case, clear_tree, make_canaries, upload
from checks.hostile.strangers.processes import Warm, environment_of, run_real
from scalelab.errors import WorkFailed

HARM = {"canary", "code", "leak"}
CONTROL_S = 90.0  # of a line on an honest thing, which may be the first to compile its program


@dataclasses.dataclass(frozen=True)
class Pair:
    """A case and a command line, in a warm process or a real one."""

    case: Case
    reach: Reach
    half: str
    real: bool = False

    @property
    def key(self) -> str:
        """Its name in the file of rows."""
        return f"{self.case.kind}\0{self.case.name}\0{self.reach.text}\0{self.real}".encode("unicode_escape").decode()


class Slot:
    """A place where one pair at a time runs: work folder, canaries, caches and the warm process of one command."""

    def __init__(self, folder: pathlib.Path, honest: pathlib.Path, store: Mapping[str, str], fake: str = ""):
        self.folder, self.honest, self.store, self.fake = folder, honest, store, fake
        clear_tree(folder)
        for name in ("work", "cache", "tmp", "canary"):
            (folder / name).mkdir(parents=True)
        self.environment = environment_of(folder, store, ROOT)
        self.warm: Warm | None = None
        self.command, self.number = "", 0
        self.reset()

    def reset(self) -> None:
        """New canaries."""
        make_canaries(self.folder, self.honest)
        self.before = judge.snapshot(self.folder)

    def run(self, pair: Pair) -> dict[str, Any]:
        """The row of a pair. What is wrong without harm to a canary is tried again in a new process."""
        wrong, outcome = self.meet(pair)
        once = {}
        if wrong and not HARM & wrong.keys() and not outcome.idle and not self.fake:
            self.stop()
            again, outcome = self.meet(pair)
            wrong, once = again, {} if again else wrong
        return {
            "case": pair.case.name, "kind": pair.case.kind, "half": pair.half, "line": pair.reach.text,
            "real": pair.real, "wrong": wrong, "once": once, "code": outcome.code, "seconds": round(outcome.seconds, 2),
            "mib": outcome.bytes >> 20, "last": judge.last_line(outcome.output),
        }  # fmt: skip

    def meet(self, pair: Pair) -> tuple[dict[str, str], judge.Outcome]:
        """Build the thing, run the command (twice if the case changes), and judge."""
        try:
            beside = any(part == "." or "neighbour" in part for part in pair.reach.line)
            site = build_case(pair.case, self.folder, self.honest, beside)
        except (OSError, KeyError, ValueError, AttributeError, TypeError, StopIteration) as error:
            raise WorkFailed(f"the case {pair.case.name!a} can't be built: {error!r}") from error
        self._forget_stores()
        wrong, outcome = self._meet_once(pair, site, again=False)
        if pair.case.later and not wrong:
            pair.case.later(site)
            wrong, outcome = self._meet_once(pair, site, again=True)
        return wrong, outcome

    def _meet_once(self, pair: Pair, site: Site, again: bool) -> tuple[dict[str, str], judge.Outcome]:
        self.number += not again
        prefix = f"{self.folder.name}-{self.number}"
        if pair.case.kind.startswith("bucket"):
            upload(self.store["AWS_ENDPOINT_URL"], site.it, prefix, again)
        line = fill(pair.reach, pair.case, f"s3://{BUCKET}/{prefix}", site.pack)
        if pair.real:
            outcome = run_real(line, self.folder, self.environment, pair.reach.interrupt_s, pair.reach.serves)
        else:
            seconds = CONTROL_S if pair.half == "control" else judge.SECONDS
            outcome = self._warm(pair).run(line, site.work, pair.reach.interrupt_s, pair.reach.serves, seconds)
        touched = judge.changes(self.before, judge.snapshot(self.folder)) + judge.escapees(self.folder)
        wrong = judge.judge(outcome, touched, site.marker.exists())
        if outcome.code == 75 and "--executor=manifest" in line:  # the work is to be done elsewhere
            wrong.pop("exit", None)
        if pair.half == "control" and not outcome.killed:  # compilations take what they need
            wrong = {kind: text for kind, text in wrong.items() if kind not in ("time", "memory")}
        if touched or site.marker.exists():
            self.stop()
            self._forget_stores()
            clear_tree(self.folder / "tmp")
            (self.folder / "tmp").mkdir()
            site.marker.unlink(missing_ok=True)
            self._remove_strays()
            self.reset()
        return wrong, outcome

    def _remove_strays(self) -> None:
        strays = [path for path in self.folder.iterdir() if path.name not in ("work", "cache", "tmp", "canary")]
        for path in [*strays, *(parent / ESCAPED for parent in self.folder.parents)]:
            clear(path)

    def _forget_stores(self) -> None:
        clear_tree(self.folder / "cache")
        (self.folder / "cache").mkdir()

    def _warm(self, pair: Pair) -> Warm:
        if self.warm is None or self.command != pair.reach.command:
            self.stop()
            self.warm, self.command = Warm(self.folder, self.environment, self.fake), pair.reach.command
        return self.warm

    def stop(self) -> None:
        """End the warm process."""
        if self.warm is not None:
            self.warm.stop()
            self.warm = None


def hash_code(own: str = "**/*.py") -> str:
    """SHA-256 of scalelab, the configs and files of this study: what was made by other code is made again."""
    paths = [path for name in ("scalelab", "configs") for path in (ROOT / name).rglob("*.py")]
    sha = hashlib.sha256()
    for path in sorted([*paths, *pathlib.Path(__file__).resolve().parent.rglob(own)]):
        sha.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return sha.hexdigest()
