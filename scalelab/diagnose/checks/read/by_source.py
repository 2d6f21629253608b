"""Judge losses by source: one that gets worse while the whole gets better, and sources that are never read."""

from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Findings, Gap, Verdict, asks, make_verdict

LEAST_EVALUATIONS = 4
WORSE = 0.3  # nats above a source's lowest loss
NEAR_BEST = 0.05  # nats above its lowest at which the whole loss counts as still good


@asks("losses, tokens and epochs by source")
def check_sources(evidence: Evidence) -> Findings | None:
    """Judge the validation loss of each source, and the tokens read of it."""
    names = sorted(
        {key.partition("/")[2] for row in evidence.evaluations for key in row if key.startswith("val_loss/")}
    )
    if len(names) < 2 or ";" in str(evidence.values["data.mixture"]):
        return None  # one source, or stages that leave sources on purpose
    lines = [row for row in evidence.evaluations if all(f"val_loss/{name}" in row for name in names)]
    if len(lines) < LEAST_EVALUATIONS:
        return [Gap("source_stuck", f"fewer than {LEAST_EVALUATIONS} validation losses", "eval.every_steps=100")]
    judged = (_judge_source(evidence, name, lines) for name in names)
    return [verdict for verdict in judged if verdict]


def _judge_source(evidence: Evidence, name: str, lines: list) -> Verdict | None:
    losses = [float(row[f"val_loss/{name}"]) for row in lines]
    whole = [float(row["val_loss"]) for row in lines]
    above, read, epochs = losses[-1] - min(losses), lines[-1].get(f"tokens/{name}"), lines[-1].get(f"epochs/{name}")
    if not above > WORSE or whole[-1] > min(whole) + NEAR_BEST:
        return None
    lowest = int(lines[losses.index(min(losses))]["step"])
    text = f"the validation loss of {name} is {losses[-1]:.4g}, {above:.2g} nats above its lowest at step {lowest}"
    text += f", while the whole loss is {whole[-1]:.4g}, near its lowest"
    text += f"; {read:,.0f} tokens of it were read, {epochs:.3g} epochs" if read is not None and epochs else ""
    knob = f"fewer epochs or a larger share of {name} in data.mixture" if (epochs or 0) > 1 else f"the data of {name}"
    confirm = f"scalelab diagnose {evidence.quoted} --batch={lowest}"
    return make_verdict("source_stuck", "symptom", above / WORSE, text, knob, confirm, (lowest, int(lines[-1]["step"])))


CHECKS = (check_sources,)
