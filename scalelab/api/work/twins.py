"""The learning rate of a large recipe from Python, as `scalelab proxy` finds it on a small twin."""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from scalelab import git
from scalelab.api.arguments import (
    ANY_PATH,
    ANYTHING,
    FOLDER,
    POSITIVE,
    Facts,
    Path,
    check_arguments,
    optional,
    several,
    whole,
)
from scalelab.api.door import (
    Display,
    Overrides,
    Progress,
    Stop,
    cache_programs,
    config_path,
    load_config,
    never,
    plain_display,
    silent,
)
from scalelab.errors import BadInput
from scalelab.record import lock
from scalelab.sweep import status
from scalelab.sweep.forks import write_forks
from scalelab.sweep.run import run_sweep
from scalelab.sweep.scaling import proxy as proxy_lib

if TYPE_CHECKING:
    from scalelab.sweep.scaling.proxy import Proxy


class ProxyFound(NamedTuple):
    """A recipe's learning rate by its twin: the content of the command's --json, and the twin's planned sweep."""

    facts: Facts
    plan: "Proxy"
    is_interior: bool


@check_arguments(
    config=ANYTHING, flops=POSITIVE, workdir=FOLDER, out=optional(ANY_PATH), seeds=whole(1), lrs=several(POSITIVE)
)
def proxy(
    config: Path, flops: float, workdir: Path, overrides: Overrides | None = None, *, out: Path | None = None,
    seeds: int = 3, lrs: Sequence[float] = (), progress: Progress = silent, stop: Stop = never,
    display: Display | None = None,
) -> ProxyFound | None:  # fmt: skip
    """Find a large recipe's learning rate on a small twin (`scalelab proxy`); None if the sweep was stopped.

    `flops`: the sweep's budget; `out`: the target's config file (default: target.py in `workdir`); `lrs`: at least
    three learning rates of the twin.
    """
    file, folder = config_path(config), pathlib.Path(workdir)
    target_file = pathlib.Path(out or folder / "target.py")
    if target_file.suffix != ".py" or target_file.resolve() == pathlib.Path(file).resolve():
        raise BadInput(f"--out={target_file} must be a new file that ends in .py")
    if lrs and len(set(lrs)) < 3:
        given = ",".join(f"{rate:g}" for rate in lrs)
        raise BadInput(f"--lrs={given}: three learning rates or more, each above zero, e.g. --lrs=1e-3,2e-3,4e-3")
    resolved = load_config(file, overrides)
    rates = sorted(set(lrs)) or [resolved.optim.peak_lr * 2.0**i for i in proxy_lib.LR_OCTAVES]
    numbers = range(resolved.train.seed, resolved.train.seed + seeds)
    plan = proxy_lib.plan_proxy(resolved, flops, len(rates) * len(numbers))
    runs = proxy_lib.proxy_trials(plan, rates, numbers)
    cost = f"sweep: {len(runs)} runs, {plan.sweep_flops:.3g} FLOPs in all"
    progress({"note": "\n".join([*plan.lines(), cost])})
    cache_programs()
    title = f"{len(runs)} trials"
    with (
        lock.undo_if_refused(folder, "twin.py"),
        (display or plain_display(progress, stop))(title, {title: plan.twin.train.steps}) as shown,
    ):
        write_forks(folder, file, {"twin": plan.twin}, {"twin": f"The small twin of {file}."})
        verdicts = run_sweep(folder, runs, progress=shown.progress, stop=shown.stop, code=git.code_state(file))
    if status.exit_code(verdicts.values()) == 75:
        return None
    target, optimum = proxy_lib.fill_target(plan, status.read_trial_rows(folder), rates, numbers)
    if optimum.interior:
        line = f"{file} with the learning rate of a twin of width {plan.twin.model.d_model} ({folder})."
        write_forks(target_file.parent, file, {target_file.stem: target}, {target_file.stem: line})
    facts = {
        "peak_lr": target.optim.peak_lr,
        "peak_lr_interval90": optimum.interval and [2**end * plan.lr_factor for end in optimum.interval],
        "no_interval": optimum.refusal or None,
        "interior": optimum.interior,
        "twin_loss": optimum.loss,
        "twin": {key: plan.twin.model[key] for key in ("d_model", "n_layers", "n_heads", "d_head", "d_ff")}
        | {"steps": plan.twin.train.steps, "global_batch": plan.twin.train.global_batch},
        "parametrization": target.parametrization.to_dict(),
        "lr_factor": plan.lr_factor,
        "sweep_flops": plan.sweep_flops,
        "lrs": rates,
        "trials": verdicts,
        "out": str(target_file) if optimum.interior else None,
        "twin_peak_lr": 2**optimum.log2_lr,
    }
    return ProxyFound(facts, plan, optimum.interior)
