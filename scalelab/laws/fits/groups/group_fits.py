"""One law fitted to several groups of rows: what `fit_groups.fit_groups` returns, and its JSON."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.laws.fits.groups.difference import ComputeFactor, Difference, compare_params, make_interval
from scalelab.laws.fits.groups.joint_problem import JointProblem
from scalelab.laws.fits.groups.pooling import Pooled
from scalelab.laws.fits.groups.support import SeparateTest
from scalelab.laws.law.law import Law
from scalelab.laws.read.finding import Finding
from scalelab.laws.solve.optimum import Certificate, Optimum
from scalelab.laws.trust.dependence import Dependence
from scalelab.laws.trust.discrepancy import Discrepancy
from scalelab.laws.trust.form import FormTest
from scalelab.laws.use.decision import Interval


@dataclasses.dataclass(frozen=True, eq=False)
class GroupFits:
    """A law of several groups, `names` in order, whose rows differ in column `by`; the first is `reference`.

    `exponents`: "shared", "separate" or "pooled"; `shared` names the parameters of all groups. `params` {group: {name:
    value}}; `draws` has the same for resamples [R] (empty without). `certificates` by group, or one of the joint fit
    under "". `test`: whether separate exponents are supported, None if that can't be told, for the reason `untested`.
    `pooled` {exponent: Pooled}. `compute` {C: {group: factor}}; `k` is that of C = k N D.
    """

    by: str
    names: tuple[str, ...]
    counts: tuple[int, ...]
    reference: str
    exponents: str
    joint: JointProblem
    best: Optimum
    params: dict[str, dict[str, float]]
    draws: dict[str, dict[str, np.ndarray]]
    carried: dict[str, dict[str, np.ndarray]]
    requested: int
    failed: dict[str, int]
    certificates: dict[str, Certificate]
    level: float
    k: float
    n_convention: str
    seed: int = 0
    dependence: Dependence | None = None
    form: FormTest | None = None
    misfit: Discrepancy | None = None
    test: SeparateTest | None = None
    untested: str = ""
    pooled: dict[str, Pooled] = dataclasses.field(default_factory=dict)
    compute: dict[float, dict[str, ComputeFactor]] = dataclasses.field(default_factory=dict)
    design: tuple[Finding, ...] = ()
    kept: tuple[Mapping[str, Any], ...] = ()
    excluded: tuple[dict[str, str], ...] = ()
    seconds: float = 0.0

    @property
    def law(self) -> Law:
        """The law of one group."""
        return self.joint.law

    @property
    def shared(self) -> tuple[str, ...]:
        """Parameters that all groups share."""
        return self.joint.shared

    @property
    def corrected(self) -> bool:
        """Whether intervals are corrected for bias: draws of pooled exponents are no refits."""
        return self.exponents != "pooled"

    @property
    def used(self) -> int:
        """Number of resamples that gave a fit."""
        return len(next(iter(self.draws[self.reference].values()))) if self.draws else 0

    def interval(self, group: str, name: str) -> Interval:
        """A parameter of a group with its interval (nan without resamples)."""
        draws, carried = self._draws(group, name)
        return make_interval(self.params[group][name], draws, self.level, self.corrected, carried)

    def difference(self, group: str, name: str, against: str | None = None) -> Difference:
        """A parameter of a group less (and over) that of another, by default the reference's, with intervals."""
        other = against or self.reference
        values = self.params[group][name], self.params[other][name]
        (draws, carried), (others, rivals) = self._draws(group, name), self._draws(other, name)
        return compare_params(*values, draws, others, self.level, self.corrected, (carried, rivals))

    def _draws(self, group: str, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(refits, those with what the law may get wrong), each [R]."""
        return (self.draws[group][name], self.carried[group][name]) if self.draws else (np.empty(0), np.empty(0))

    def named_dependence(self) -> dict[str, Any]:
        """`dependence` as JSON, with `A[muon]` for a group's own parameter."""
        assert self.dependence
        block = self.dependence.to_json()
        return block | {"design_effect": {self._readable(key): value for key, value in block["design_effect"].items()}}

    def _readable(self, place: str) -> str:
        """`A[muon]` for a group's own parameter of the joint law, `alpha` for a shared one."""
        name, bracket, rest = place.partition("[")
        return f"{name}[{self.names[int(rest[:-1])]}]" if bracket else name

    def to_json(self) -> dict[str, Any]:
        """The JSON that `scalelab fit --by=COLUMN --json` writes."""
        residuals = self.joint.problem.residuals(self._joint_params())
        return _plain({
            "law": self.law.name, "equation": self.law.equation, "by": self.by, "reference": self.reference,
            "exponents": self.exponents, "shared": list(self.shared), "n_rows": len(residuals),
            "groups": {name: self._group_json(name) for name in self.names},
            "objective": self.joint.problem.objective.to_json(self.best.value),
            "residual_rms": float(np.sqrt(np.mean(residuals**2))),
            "certificates": {name: each.to_json() for name, each in self.certificates.items()},
            "interval_level": self.level, "flops_per_param_token": self.k, "n_convention": self.n_convention,
            "bootstrap": {"requested": self.requested, "used": self.used, "failed": self.failed, "seed": self.seed},
            "dependence": self.named_dependence() if self.dependence else None,
            "form": self.form.to_json() if self.form else None,
            "misfit": self.misfit.to_json() if self.misfit else None,
            "separate_exponents": self.test._asdict() | {"supported": self.test.supported} if self.test else None,
            "untested": self.untested or None,
            "pooled": {name: each.to_json() for name, each in self.pooled.items()},
            "compute": {
                f"{C:g}": {name: {"loss": list(each.loss), "factor": list(each.factor)} for name, each in row.items()}
                for C, row in self.compute.items()
            },
            "design": [finding.to_json() for finding in self.design], "excluded": list(self.excluded),
            "seconds": self.seconds,
        })  # fmt: skip

    def _group_json(self, name: str) -> dict[str, Any]:
        count = self.counts[self.names.index(name)]
        block: dict[str, Any] = {"n_rows": count, "params": self.params[name]}
        block["intervals"] = {each: list(self.interval(name, each)[1:]) for each in self.law.params}
        if name != self.reference:
            differences = {each: self.difference(name, each) for each in self.law.params if each not in self.shared}
            block["less_reference"] = {each: list(both.difference) for each, both in differences.items()}
            block["over_reference"] = {each: list(both.ratio) for each, both in differences.items()}
        return block

    def _joint_params(self) -> dict[str, float]:
        """The joint law's parameters as reported: pooled ones where exponents are pooled."""
        law = self.joint.problem.law
        values = {}
        for place in law.params:
            name, bracket, rest = place.partition("[")
            group = self.names[int(rest[:-1])] if bracket else self.names[0]
            values[place] = self.params[group][name]
        return values


def _plain(value: Any) -> Any:
    """JSON values without nan and infinity: None."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
