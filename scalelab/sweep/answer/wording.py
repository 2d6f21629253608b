"""The answer of a sweep for people and files: a table, sentences, and plain JSON."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scalelab.index.grids import describe_left_out
from scalelab.numbers.gaps import LEVEL
from scalelab.numbers.shared_noise import Noise
from scalelab.sweep.answer.best_lr import INTERVAL_LEVEL
from scalelab.sweep.answer.method import describe_design, describe_method, name_equals
from scalelab.sweep.answer.ranking import (
    BEST,
    DESIGN,
    NOT_APART,
    NOT_COMPARED,
    UNRANKED,
    WORSE,
    LrOptimum,
    RankedSetting,
    SweepAnswer,
)
from scalelab.sweep.answer.texts import (
    DECIMALS,
    count_words,
    format_value,
    is_number,
    mean_text,
    name_setting,
    name_several,
    p_text,
    with_error,
)

TABLE_COLUMNS = {"seeds": "seeds", "mean": "mean loss ± s.e.", "gap": "above the best", "verdict": "verdict"}


def answer_columns(answer: SweepAnswer) -> dict[str, str]:
    """{key: heading} of `answer_cells`."""
    return {key: key for key in answer.keys} | TABLE_COLUMNS


def answer_cells(answer: SweepAnswer) -> list[dict[str, str]]:
    """One row of texts per setting: its values, finished seeds of all, mean, gap to the best, and verdict."""
    return [
        {key: format_value(ranked.setting.values[key]) for key in answer.keys}
        | {
            "seeds": f"{len(ranked.setting.losses)} of {ranked.setting.trials}",
            "mean": mean_text(ranked.setting),
            "gap": with_error(ranked.gap.mean, ranked.gap.error, "+") if ranked.gap else "-",
            "verdict": describe_verdict(ranked),
        }
        for ranked in answer.settings
    ]


def answer_records(answer: SweepAnswer) -> list[dict[str, Any]]:
    """One flat row of numbers per setting, for files."""
    return [
        ranked.setting.values
        | {
            "rank": ranked.rank,
            "seeds": len(ranked.setting.losses),
            "trials": ranked.setting.trials,
            "mean_loss": _finite(ranked.setting.mean),
            "standard_error": ranked.setting.error,
            **{f"gap_{key}": getattr(ranked.gap, name, None) for key, name in GAP_FIELDS.items()},
            "gap_p": ranked.p,
            "verdict": ranked.verdict,
            **dict(Counter(ranked.setting.lost.values())),
        }
        for ranked in answer.settings
    ]


GAP_FIELDS = {"mean": "mean", "standard_error": "error", "low": "low", "high": "high", "paired": "paired"}


def answer_json(answer: SweepAnswer) -> dict[str, Any]:
    """The answer as plain values: `by`, `design`, `settings`, `best`, `noise`, `optima`, `sentences`, and more."""
    best = answer.best
    return {
        "by": list(answer.keys),
        "design": list(answer.design),
        "settings": [_setting_json(ranked) for ranked in answer.settings],
        "best": best.values if best else None,
        "not_told_apart": [setting.values for setting in answer.with_verdict(NOT_APART, NOT_COMPARED)],
        "level": LEVEL,
        "noise": answer.noise and _noise_json(answer.noise),
        "optima": [_optimum_json(optimum) for optimum in answer.optima],
        "unassigned": answer.unassigned,
        "left_out": list(answer.left_out),
        "sentences": describe_answer(answer),
    }


def _noise_json(noise: Noise) -> dict[str, Any]:
    return {"sd": noise.sd, "freedom": noise.freedom, "by_seed": noise.blocks, "equal_variances_p": noise.equal}


def _setting_json(ranked: RankedSetting) -> dict[str, Any]:
    setting = ranked.setting
    return {
        "values": setting.values,
        "losses": {str(seed): loss for seed, loss in setting.by_seed.items()},
        "lost": {str(seed): reason for seed, reason in setting.lost.items()},
        "pending": setting.pending,
        "mean": _finite(setting.mean),
        "standard_error": setting.error,
        "rank": ranked.rank,
        "gap": ranked.gap and ranked.gap._asdict() | {"p": ranked.p},
        "verdict": ranked.verdict,
    }


def _optimum_json(optimum: LrOptimum) -> dict[str, Any]:
    best = optimum.best
    facts = {"values": optimum.values, "lrs": list(optimum.lrs), "seeds": list(optimum.seeds)}
    if best is None:
        return facts | {"peak_lr": None, "interval90": None, "no_interval": "no seed was run at every LR"}
    interval = best.interval and [2**end for end in best.interval]
    return facts | {
        "peak_lr": 2**best.log2_lr,
        "interior": best.interior,
        "loss": _finite(best.loss),
        "interval90": interval,
        "no_interval": best.refusal or None,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def describe_answer(answer: SweepAnswer) -> list[str]:
    """The answer in sentences: the best, what is not told apart from it, how, what was lost, where the LR is best."""
    lines = [*_best_lines(answer), *_comparison_lines(answer), *_lost_lines(answer)]
    return [*lines, *_size_lines(answer), *_edge_lines(answer), *map(_optimum_line, answer.optima)]


def list_warnings(answer: SweepAnswer) -> list[str]:
    """Those sentences of the answer that warn: nothing is best, seeds were lost, or an optimum is at an edge."""
    optima = [each for each in answer.optima if each.best is None or not each.best.interior]
    nothing = [] if answer.best or answer.with_verdict(BEST, DESIGN) else [NOTHING_RANKED]
    return [*nothing, *_lost_lines(answer), *_size_lines(answer), *_edge_lines(answer), *map(_optimum_line, optima)]


NOTHING_RANKED = "No setting has finished without a lost seed."


def _best_lines(answer: SweepAnswer) -> list[str]:
    if answer.design:
        return describe_design(answer)
    best = answer.best
    if best is None:
        return [NOTHING_RANKED]
    seeds = _seed_words(best.seeds)
    one = "run" if best.seeds == (None,) else "seed"
    loss = f"{best.mean:.{DECIMALS}f} nats/token with {seeds}. One {one}: no interval, and its luck is unknown"
    if best.error is not None:
        loss = f"{with_error(best.mean, best.error)} nats/token, mean and standard error over {seeds}"
    missing = f"; {best.pending} of its seeds not finished" if best.pending else ""
    if not answer.keys:
        return [f"Nothing but seeds was swept: validation loss {loss}{missing}."]
    return [f"Best: {name_setting(best.values)}, with validation loss {loss}{missing}{name_equals(answer, best)}."]


def _seed_words(seeds: Sequence[Any]) -> str:
    """Name the seeds of a setting; a run whose config has none counts as one more."""
    known = [str(seed) for seed in seeds if seed is not None]
    words = [f"seed{'s' * (len(known) > 1)} {', '.join(known)}"] if known else []
    return " and ".join([*words, *(["no seed"] if None in seeds else [])])


def _comparison_lines(answer: SweepAnswer) -> list[str]:
    ranked = [each for each in answer.settings if each.rank is not None]
    if len(ranked) < 2:
        return []
    kinds = {NOT_APART: "Not told apart from it", NOT_COMPARED: "Not compared (one seed)", WORSE: "Worse"}
    named = {words: answer.with_verdict(verdict) for verdict, words in kinds.items()}
    lines = [f"{words}: {name_several(settings)}." for words, settings in named.items() if settings]
    return [*([" ".join(lines)] if lines and not answer.design else []), *describe_method(answer)]


def _lost_lines(answer: SweepAnswer) -> list[str]:
    lost = Counter(reason for ranked in answer.settings for reason in ranked.setting.lost.values())
    pending = sum(ranked.setting.pending for ranked in answer.settings)
    repeated = sum(ranked.setting.repeated for ranked in answer.settings)
    lines = []
    if lost:
        without = [ranked.setting for ranked in answer.settings if ranked.setting.lost]
        trials, counts, names = sum(len(setting.lost) for setting in without), count_words(lost), name_several(without)
        lines.append(
            f"{trials} trial{'s have' if trials > 1 else ' has'} no result ({counts}): a setting that lost a seed is "
            f"ranked last, and never by the mean of its other seeds{': ' if names else ''}{names}."
        )
    if pending:
        lines.append(f"Not finished: {pending} trial{'s' * (pending > 1)}.")
    if repeated:
        lines.append(f"Left out: {repeated} run{'s' * (repeated > 1)} of a setting and seed that was here already.")
    if answer.left_out:
        lines.append(f"{describe_left_out(answer.left_out)}.")
    if len({frozenset(ranked.setting.seeds) for ranked in answer.settings if ranked.rank is not None}) > 1:
        lines.append("Settings have different seeds: their means are over different luck, which gaps set aside.")
    if answer.unassigned:
        lines.append(
            f"In no setting: {answer.unassigned} trial{'s' * (answer.unassigned > 1)}, damaged or not started."
        )
    return lines


def _size_lines(answer: SweepAnswer) -> list[str]:
    if not answer.unequal or sum(each.rank is not None for each in answer.settings) < 2:
        return []
    names = " and ".join({"N": "parameters (N)", "D": "tokens (D)", "C": "FLOPs (C)"}[each] for each in answer.unequal)
    return [f"Settings that are compared differ in {names} too: a gap may come from these alone."]


def _edge_lines(answer: SweepAnswer) -> list[str]:
    """Say that the best sits at an edge of what was swept; of learning rates `_optimum_line` says more."""
    best, reported = answer.best, {"optim.peak_lr"} if answer.optima else set()
    keys = [key for key in answer.keys if best and key not in reported and at_edge(answer, key)]
    if not keys:
        return []
    return [
        f"Its {' and '.join(keys)} {'sits' if len(keys) == 1 else 'sit'} at the edge of the sweep: the best may lie "
        "outside."
    ]


def at_edge(answer: SweepAnswer, key: str) -> bool:
    """Whether the best setting has the smallest or largest of three values or more of `key`."""
    values = {ranked.setting.values[key] for ranked in answer.settings if is_number(ranked.setting.values[key])}
    return answer.best is not None and len(values) > 2 and answer.best.values[key] in (min(values), max(values))


def _optimum_line(optimum: LrOptimum) -> str:
    """The best LR of one curve, with its interval or why there is none."""
    where = f"With {name_setting(optimum.values)}: the" if optimum.values else "The"
    best = optimum.best
    if best is None:
        return f"{where} best learning rate is not known: no seed was run at every LR."
    if not best.interior:
        return f"{where} best learning rate is not known, and has no interval: {best.refusal}. Try more beyond it."
    text = f"{where} best learning rate by a parabola in log LR: {2**best.log2_lr:.3g} (loss {best.loss:.{DECIMALS}f})"
    if best.interval is None:
        return f"{text}; no interval: {best.refusal}."
    low, high = (2**end for end in best.interval)
    beyond = ", beyond the LRs tried" if low < optimum.lrs[0] or high > optimum.lrs[-1] else ""
    level = f"{100 * INTERVAL_LEVEL:.0f} % interval"
    return f"{text}, {level} {low:.3g} to {high:.3g}{beyond}, over {len(optimum.seeds)} seeds."


def describe_verdict(ranked: RankedSetting) -> str:
    """The verdict of one setting in words; of an unranked one, how many trials it lacks and why."""
    setting = ranked.setting
    if ranked.verdict == UNRANKED:
        if setting.lost:
            return f"ranked last: {count_words(Counter(setting.lost.values()))}"
        return f"not ranked yet: {setting.pending} not finished"
    if ranked.verdict == DESIGN:
        return "no verdict: another size or budget"
    if ranked.verdict == NOT_COMPARED or (ranked.verdict == BEST and setting.error is None):
        one = "one seed: no interval" if len(setting.losses) == 1 else "the best has one seed: no interval"
        return f"best, {one}" if ranked.verdict == BEST else one
    return f"{ranked.verdict} ({p_text(ranked.p)})" if ranked.p is not None else ranked.verdict
