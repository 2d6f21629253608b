"""Laws to plan by: the published ones with their sources, and a user's own file. Their figures are in `laws/published`.

R rows: the law itself first, then laws spread by its published uncertainty; one row if none is published.
"""

import pathlib
import re
from collections.abc import Callable

import numpy as np

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.law.names import LAWS
from scalelab.laws.published import besiroglu, chinchilla, kaplan, muennighoff, porian
from scalelab.plan.budget import lawfile
from scalelab.plan.budget.book import LawBook, PowerLawSplit, constant_params, stack_draws

DEFAULT_LAW = "besiroglu"
DRAWS = 1000
FIGURE_4 = 1.3e22  # FLOPs of the dearest point of Hoffmann et al. 2022, fig. 4 (16B)
PF_DAY = 1e15 * 86400.0  # FLOPs
# Kaplan et al. 2020, table 5: the trend of the best size, N_e C_min^p_N with C_min in PF-days.
KAPLAN_SIZE, KAPLAN_EXPONENT = 1.3e9, 0.73
# Porian et al. 2024, RefinedWeb, tuned: N at the weighted middle of its budgets, from the stored optima by the authors'
# regression, and L = E + A/C^alpha refitted to them (the stored fit is its search's starting point). Ours, as computed
# by tests.
PORIAN_FLOPS, PORIAN_SIZE = 5.4298e17, 7.7198e7
PORIAN_LOSS = {"E": 1.97925, "A": 123.9985, "alpha": 0.1046405}
# Pairs (R_D*, R_N*) that Muennighoff's 182 runs can hardly distinguish: the published one, our minimum, and the ends of
# R_D*'s profile (90 %: 5.8 or more) with the best R_N* there. Ours, as computed by tests.
REPETITION = ((15.387756, 5.309743), (95.3652, 1.7059), (5.8, 15.2916), (1e6, 0.7421))


def load_law_book(name: str) -> LawBook:
    """A published law by its name, or the JSON that `scalelab fit --json` wrote. BadInput for neither.

    Names ignore case, `-` and `_`: chinchilla_3, Chinchilla-3; plain chinchilla is chinchilla_3.
    """
    plain = re.sub(r"[^a-z0-9.]", "", name.lower())
    for key, build in PUBLISHED.items():
        if plain in (key.replace("_", ""), key.removesuffix("_3")):
            return build()
    if pathlib.Path(name).is_file():
        return lawfile.read_law_file(pathlib.Path(name))
    raise BadInput(f"--law={name}: neither a file nor a published law{nearest_hint(name, PUBLISHED)}")


def _kaplan() -> LawBook:
    return LawBook(
        name="kaplan",
        source=f"{kaplan.SOURCE}; N by the trend of table 5, loss by L(N, D) of eq. 1.5",
        n_convention="non_embedding",
        interval="none: no standard errors are published",
        surface=LAWS["kaplan"],
        params=constant_params(kaplan.L_OF_N_D),
        split=PowerLawSplit(KAPLAN_SIZE, PF_DAY, (KAPLAN_EXPONENT,)),
        notes=(
            "N counts no embeddings, and C = 6ND is the least compute, at batches far below the critical one",
            "the minimum of its own L(N, D) is another trend, N ~ C^0.575 (`scalelab reproduce kaplan`)",
        ),
    )


def _chinchilla_power_law(approach: str) -> LawBook:
    """The law of approach 1 or 2: a power law through the printed table, turned by its exponent's interval."""
    (text, ends), _ = chinchilla.TABLE_2[approach]
    C = np.log(np.array(list(map(float, chinchilla.FLOPS[approach]))))
    slope, constant = np.polyfit(C, np.log(chinchilla.SIZES), 1)
    middle = float(np.exp(np.mean(np.log(chinchilla.BUDGETS))))
    split = PowerLawSplit(float(np.exp(constant + slope * np.log(middle))), middle, (float(slope), *ends))
    table = "table 3" if approach == "approach 1" else "table A3"
    return LawBook(
        name=f"chinchilla_{approach[-1]}",
        source=f"{chinchilla.SOURCE}; {approach}: power law through {table}, loss by approach 3",
        n_convention="total",
        interval=f"10th to 90th percentile of the exponent (table 2: {text}, {ends[0]} to {ends[1]}), turned about the "
        f"middle of the budgets measured ({middle:.2g} FLOPs); "
        "the coefficient's error is not published: at least so wide",
        surface=LAWS["chinchilla"],
        params=constant_params(besiroglu.HOFFMANN["Hoffmann's unrounded"]._asdict(), 1 + len(ends)),
        level=0.8,
        split=split,
        largest_flops=FIGURE_4,
        notes=(f"{approach} has no law of the loss: the loss is that of approach 3 there",),
    )


def _chinchilla_3() -> LawBook:
    return LawBook(
        name="chinchilla_3",
        source=f"{chinchilla.SOURCE}; approach 3",
        n_convention="total",
        interval="none: table 2's 0.454 to 0.455 for the exponent does not hold the law's own 0.4565, and such fits "
        "have a standard error of 0.02 (Besiroglu et al. 2024)",
        surface=LAWS["chinchilla"],
        params=constant_params(besiroglu.HOFFMANN["Hoffmann's unrounded"]._asdict()),
        notes=(
            "the coefficients have all digits of the LaTeX source: the printed ones (0.34, 0.28) give another optimum",
        ),
    )


def _besiroglu() -> LawBook:
    point = {name: float(text) for name, text in besiroglu.MLE_PARAMS.items()}
    return LawBook(
        name="besiroglu",
        source=besiroglu.SOURCE,
        n_convention="total",
        interval=f"{DRAWS} laws, spread and correlated as the authors' 4,000 resamples of 240 runs; "
        "the law's own error, without the noise of one run or a break beyond the data",
        surface=LAWS["chinchilla"],
        params=stack_draws(point, besiroglu.draw_params(DRAWS)),
        level=0.9,
        largest_flops=FIGURE_4,
    )


def _porian() -> LawBook:
    tuned = next(e for e in porian.EXPERIMENTS if (e.file, e.dataset, e.hparams) == ("summary_df", "rw", "tuned"))
    return LawBook(
        name="porian",
        source=f"{porian.SOURCE}; {tuned.name}",
        n_convention="with the head, without the embedding",
        interval=f"95 % interval of the exponent ({tuned.interval[0]} to {tuned.interval[1]}), turned about the middle "
        f"of the budgets measured ({PORIAN_FLOPS:.2g} FLOPs, where log N has a standard deviation of 0.03)",
        surface=LAWS["saturating"],
        params=constant_params(PORIAN_LOSS, 1 + len(tuned.interval)),
        level=0.95,
        split=PowerLawSplit(PORIAN_SIZE, PORIAN_FLOPS, (float(tuned.weighted), *tuned.interval)),
        largest_flops=2.56e19,
        notes=("the loss is our refit of L(C) to the stored optima: the stored fit is its search's starting point",),
    )


def _muennighoff() -> LawBook:
    return LawBook(
        name="muennighoff",
        source=muennighoff.SOURCE,
        n_convention="total",
        interval="none: no standard errors are published for the C4 law",
        surface=LAWS["chinchilla"],
        params=constant_params(muennighoff.HELD_PARAMS),
    )


PUBLISHED: dict[str, Callable[[], LawBook]] = {
    "kaplan": _kaplan,
    "chinchilla_1": lambda: _chinchilla_power_law("approach 1"),
    "chinchilla_2": lambda: _chinchilla_power_law("approach 2"),
    "chinchilla_3": _chinchilla_3,
    "besiroglu": _besiroglu,
    "porian": _porian,
    "muennighoff": _muennighoff,
}
