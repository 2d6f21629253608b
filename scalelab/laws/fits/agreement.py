"""One verdict for the two intervals of a parameter: that of its profile and the one that is quoted, of the resamples.

The profile asks what these residuals allow, resamples what other draws of runs would have given. A parameter that a
likely draw of runs would not determine is not identified, however narrow its profile.
"""

import dataclasses
from collections.abc import Mapping

from scalelab.laws.law.law import Law
from scalelab.laws.trust.profile import ParamProfile, judge_interval
from scalelab.laws.trust.uncertainty import Bootstrap, param_intervals


def agree_with_resamples(
    profiles: Mapping[str, ParamProfile], law: Law, params: Mapping[str, float], boot: Bootstrap | None, level: float
) -> dict[str, ParamProfile]:
    """The profiles, with the verdict "not identified" and the wider interval where the resamples' does not bear it."""
    quoted = param_intervals(boot, params, level) if boot else {}
    return {
        name: _agree(each, law.params[name].how, params[name], quoted[name]["bca"]) if name in quoted else each
        for name, each in profiles.items()
    }


def _agree(profile: ParamProfile, how: str, value: float, quoted: tuple[float, float]) -> ParamProfile:
    if profile.verdict != "identified" or judge_interval(how, value, quoted) == "identified":
        return profile
    low, high = profile.interval
    ends = [end for end in (low, high, *quoted) if end is not None]
    return dataclasses.replace(profile, verdict="not identified", interval=(min(ends), max(ends)))
