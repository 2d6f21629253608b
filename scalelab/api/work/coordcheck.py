"""Which activations grow with width or depth, as `scalelab coordcheck` finds it."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scalelab.api.arguments import ANY_PATH, Facts, Path, check_arguments, several, whole
from scalelab.api.door import (
    Config,
    Display,
    Overrides,
    Progress,
    cache_programs,
    load_config,
    never,
    plain_display,
    silent,
)
from scalelab.errors import BadInput
from scalelab.sweep.scaling.resize import resize_config, width_unit
from scalelab.train import coordcheck as coordcheck_lib
from scalelab.train.single import load_run_dataset

if TYPE_CHECKING:
    from ml_collections import ConfigDict


DEFAULT_WIDTHS = (64, 128, 256, 512, 1024)


@check_arguments(widths=several(whole(1)), depths=several(whole(1)), steps=whole(1), seeds=whole(1), batch=whole(1))
def coordcheck(
    config: Config,
    overrides: Overrides | None = None,
    *,
    widths: Sequence[int] = (),
    depths: Sequence[int] = (),
    steps: int = 4,
    seeds: int = 2,
    batch: int = 4,
    progress: Progress = silent,
    display: Display | None = None,
) -> Facts:
    """Train a few steps at several sizes: which activations grow with width or depth (`scalelab coordcheck --json`)."""
    resolved = load_config(config, overrides)
    sizes = _sizes(resolved, widths, depths)
    cache_programs()
    data, numbers = load_run_dataset(resolved), range(resolved.train.seed, resolved.train.seed + seeds)
    checks = []
    for axis, configs in sizes.items():
        tokens = f"{batch} x {resolved.model.seq_len} tokens"
        names = ", ".join(map(str, configs))
        progress({"note": f"{axis} {names}: {steps} steps of {tokens}, {len(numbers)} seed(s) each"})
        title = f"coordcheck over {axis}"
        with (display or plain_display(progress, never))(title, {title: len(configs) * len(numbers)}) as shown:
            tell = shown.progress
            rows = coordcheck_lib.run_coordinate_check(
                configs,
                data,
                steps,
                numbers,
                batch,
                lambda done, tell=tell: tell({"step": done}),  # type: ignore[misc]
            )
        verdict = coordcheck_lib.growth_verdict(rows)
        checks.append({"axis": axis, "sizes": list(configs), "verdict": verdict, "rows": list(map(_check_row, rows))})
    facts = {"optimizer": resolved.optim.name, "peak_lr": resolved.optim.peak_lr} | resolved.parametrization.to_dict()
    return facts | {"steps": steps, "seeds": list(numbers), "batch": batch, "checks": checks}


def _sizes(config: "ConfigDict", widths: Sequence[int], depths: Sequence[int]) -> dict[str, dict[int, "ConfigDict"]]:
    """Configs to train, {axis: {size: config}}; by default of DEFAULT_WIDTHS, or the least widths that heads divide."""
    if not widths and not depths:
        unit = width_unit(config)
        divided = not any(width % unit for width in DEFAULT_WIDTHS)
        widths = DEFAULT_WIDTHS if divided else [unit * 2**i for i in range(len(DEFAULT_WIDTHS))]
    sizes = {"d_model": {d: resize_config(config, d) for d in widths}} if widths else {}
    return sizes | ({"n_layers": {n: resize_config(config, n_layers=n) for n in depths}} if depths else {})


def _check_row(row: Any) -> Facts:
    """One activation's row as JSON; `rms` and `change` are means over seeds after each step, [steps + 1][sizes]."""
    names = ("activation", "verdict", "slope", "slope_error", "change_slope", "change_slope_error")
    means = {name: getattr(row, name).mean(0).T.tolist() for name in ("rms", "change")}
    return {name: getattr(row, name) for name in names} | means


@check_arguments(plot=ANY_PATH)
def draw_coordcheck(result: Facts, plot: Path) -> list[str]:
    """Draw the RMS over sizes of a `coordcheck`, as .png or .pdf (`scalelab coordcheck --plot`); returns the paths."""
    from scalelab.report.figures.coordplots import write_coordinate_check

    if not isinstance(result, dict) or "checks" not in result:
        raise BadInput(f"result={str(result)[:60]} is not what `scalelab.api.coordcheck` returns")
    return [str(path) for path in write_coordinate_check(os.fspath(plot), result)]
