"""What is asked of a run before it starts: one small check for each room that has a say, in the order of CHECKS.

A check raises BadInput for what may not start, and returns notes on the rest. It writes nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax

from scalelab import config as config_lib
from scalelab import set_by
from scalelab.config import optimizer_defaults
from scalelab.config.checks import interplay
from scalelab.config.steps import schedule_steps
from scalelab.data.dataset import Dataset
from scalelab.data.prepare.validation import question_held_out
from scalelab.data.sources.sources import text_files
from scalelab.hardware import host_memory
from scalelab.hardware.compiler_options import collective_options, refuse_other_values
from scalelab.hardware.tactics import switch
from scalelab.model.attention import kernels
from scalelab.optim import schedules
from scalelab.optim.chain import check_optimizer_options
from scalelab.parallel import rules
from scalelab.precision.policy import POLICIES, warnings_for
from scalelab.train import formats_found
from scalelab.train.lineage.spec import TrainSpec
from scalelab.train.run import sources
from scalelab.train.step.state import host_bytes


class Candidate(NamedTuple):
    """A run that is to start; `trials`: how many of its pack share the host's memory."""

    spec: TrainSpec
    dataset: Dataset
    trials: int = 1


class Note(NamedTuple):
    """A line about the start, for logbook and terminal, or "" for none; `facts` go into the record.

    `kind` is the event's: "chosen" tells what was chosen, every other one warns.
    """

    kind: str
    text: str
    facts: Mapping[str, Any] = {}


def check_optimizer(run: Candidate) -> Iterable[Note]:
    """Refuse a schedule of the user's own that is not one, and options that the optimizer can't have."""
    schedules.check_user_schedule(run.spec.config)
    check_optimizer_options(run.spec.static)
    return ()


def check_metrics(run: Candidate) -> Iterable[Note]:
    """Refuse metrics of the user's own that can't be traced or logged."""
    formats_found.check_user_metrics(run.spec.static, tuple(config_lib.flatten_hparams(run.spec.hparams)))
    return ()


def describe_choices(run: Candidate) -> Iterable[Note]:
    """Values of the optimizer and who set them, and the schedule in words."""
    config, who = run.spec.config, run.spec.origins
    yield Note("chosen", optimizer_defaults.describe_optim_defaults(config.optim, who))
    yield Note("chosen", set_by.describe_origins(who, config_lib.leaves(config)))
    yield Note("chosen", schedule_steps.describe_schedule(config))


def check_sources(run: Candidate) -> Iterable[Note]:
    """Refuse a mixture or a cap that doesn't fit the data; how much is held out, and read of each source."""
    facts, text = sources.plan_sources(run.spec.config, run.dataset)
    return [Note("chosen", sources.describe_split(run.dataset)), Note("chosen", text, facts)]


def warn_of_held_out_names(run: Candidate) -> Iterable[Note]:
    """Ask about files of data.source=text whose names say that they are a validation set."""
    data = run.spec.config.data
    if data.source == "text":
        yield Note("data", question_held_out(data.path, [str(path) for path in text_files(data.path)]))


def warn_of_values(run: Candidate) -> Iterable[Note]:
    """Values that are unusual, or have no effect beside others."""
    config = run.spec.config
    yield from _notes("schedule", schedule_steps.schedule_warnings(config))
    yield from _notes("no_effect", interplay.effect_warnings(config))
    yield from _notes("LR", optimizer_defaults.lr_warnings(config.optim, run.spec.origins))


def check_layout(run: Candidate) -> Iterable[Note]:
    """Refuse a layout that can't divide the run, or a step that this machine would never finish."""
    static = run.spec.static
    warnings = rules.check_layout(static, static.layout)
    rules.check_layout_runtime(static, static.layout)
    return _notes("layout", warnings)


def describe_model(run: Candidate) -> Iterable[Note]:
    """The kernel that model.attention=auto stands for here, and the policy chosen for model.remat=auto."""
    config, static, backend = run.spec.config, run.spec.static, jax.default_backend()
    if config.model.attention == "auto":
        kernel = kernels.program_kernel(kernels.step_kernel(static), config.model.attention)
        documents = kernels.documents_limit(static, backend)
        where = f"{backend}, {config.model.seq_len:,} tokens"
        yield Note("chosen", f"attention: {kernel} ({where})" + f"; {documents}" * bool(documents))
    if config.log.remat:
        yield Note("chosen", f"remat: {config.model.remat} ({config.log.remat})")


def describe_parts(run: Candidate) -> Iterable[Note]:
    """In how many parts sequences are gathered, where nobody set it."""
    parts = rules.parts_of_sequences(run.spec.static, jax.default_backend())
    if parts > 1 and not run.spec.static.layout.parts:
        yield Note("chosen", f"sequences are gathered in {parts} parts, beside products (parallel.parts)")


def check_machine(run: Candidate) -> Iterable[Note]:
    """Refuse flags against the compiler's options of a step on several devices; tactics that are off; memory in use."""
    if options := collective_options(jax.default_backend(), run.spec.static.layout.devices):
        refuse_other_values(options)
        text = f"XLA's options: {', '.join(f'{name}={value}' for name, value in options.items())}"
        yield Note("chosen", text, {"compiler_options": options})
    if off := switch.tactics_off():
        text = f"without tactics for compilers: {', '.join(off)} ({switch.VARIABLE})"
        yield Note("chosen", text, {"tactics_off": list(off)})
    if pinned := host_bytes(run.spec.static) * run.trials:
        reserved = host_memory.reserved_facts(pinned)
        yield Note("chosen", host_memory.describe_reserved(reserved), {"host_memory": reserved})


def warn_of_precision(run: Candidate) -> Iterable[Note]:
    """The harm of a precision policy, and what of it is emulated here."""
    return _notes("precision", warnings_for(POLICIES[run.spec.config.precision.name], jax.default_backend()))


def _notes(kind: str, texts: Iterable[str]) -> list[Note]:
    return [Note(kind, text) for text in texts]


Check = Callable[[Candidate], Iterable[Note]]
# In this order they refuse, and their notes stand in the logbook.
CHECKS: tuple[Check, ...] = (
    check_optimizer,  # before the metrics, for which a step with that optimizer is traced
    check_metrics,
    describe_choices,
    check_sources,
    warn_of_held_out_names,
    warn_of_values,
    check_layout,
    describe_model,
    describe_parts,
    check_machine,
    warn_of_precision,
)


def run_checks(run: Candidate) -> tuple[list[Note], dict[str, Any]]:
    """(the notes that have a text, the facts for the record) of all CHECKS."""
    notes = [note for check in CHECKS for note in check(run)]
    return [note for note in notes if note.text], {key: value for note in notes for key, value in note.facts.items()}
