"""How long warm-up and decay are: said in steps, in tokens or as a share of the run, kept in steps."""

from ml_collections import ConfigDict

from scalelab.errors import BadInput

WARMUP_SHARE, WARMUP_MOST = 0.05, 2000  # where nothing is said: 5 % of the run, at most the 2000 steps of Llama
DECAY_SHARE = 0.2  # where nothing is said: Hägele et al. 2024, section 4


def resolve(config: ConfigDict) -> None:
    """Fill in schedule.warmup_steps and schedule.decay_steps. BadInput where two ways of saying one disagree."""
    schedule = config.schedule
    said = _steps(config, "warmup", least=1)
    schedule.warmup_steps = default_warmup(config) if said is None else said
    if all(schedule[f"decay_{unit}"] is None for unit in ("steps", "tokens", "share")):
        schedule.decay_share = DECAY_SHARE
    schedule.decay_steps = _steps(config, "decay", least=0)


def forget(config: ConfigDict) -> None:
    """Unset the steps that tokens or a share came to: before a resolved config gets another length or batch."""
    for what in ("warmup", "decay"):
        if any(config.schedule[f"{what}_{unit}"] is not None for unit in ("tokens", "share")):
            config.schedule[f"{what}_steps"] = None


def default_warmup(config: ConfigDict) -> int:
    """The warm-up, in steps, of a run that says nothing about it."""
    return min(WARMUP_MOST, max(1, round(WARMUP_SHARE * config.train.steps)))


def tokens_per_step(config: ConfigDict) -> int:
    """Tokens predicted in a step, over all devices."""
    return config.train.global_batch * config.model.seq_len


def _steps(config: ConfigDict, what: str, least: int) -> int | None:
    """None where nothing is said. `least` is the shortest that a share may come to, also a share of 0."""
    schedule, found = config.schedule, {}
    if schedule[f"{what}_steps"] is not None:
        found[f"{what}_steps"] = schedule[f"{what}_steps"]
    if (tokens := schedule[f"{what}_tokens"]) is not None:
        found[f"{what}_tokens"] = max(round(tokens / tokens_per_step(config)), int(tokens > 0))
    if (share := schedule[f"{what}_share"]) is not None:
        found[f"{what}_share"] = max(round(share * config.train.steps), least)
    if len(set(found.values())) > 1:
        said = " and ".join(f"schedule.{key}={schedule[key]} ({steps} steps)" for key, steps in found.items())
        raise BadInput(f"{said} are given at once and disagree: keep one, set the others to none")
    return next(iter(found.values()), None)
