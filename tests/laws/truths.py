"""Published parameters of every law, or plausible ones, and columns for it: the truth of synthetic studies."""

import numpy as np
from scipy.stats import qmc

from scalelab.laws.law.names import LAWS
from scalelab.testing.law import COLUMN_RANGES

TRUTHS = {
    "chinchilla": {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28},  # Hoffmann et al. 2022
    "chinchilla_gamma": {"E": 1.6, "A": 900.0, "B": 1200.0, "alpha": 0.42, "beta": 0.4, "gamma": 0.7},
    "kaplan": {"N_c": 6.4e13, "D_c": 1.8e13, "alpha_N": 0.076, "alpha_D": 0.103},  # Kaplan et al. 2020, Table 2
    "saturating": {"E": 1.5, "A": 1500.0, "alpha": 0.155},
    # Muennighoff et al. 2023.
    "data_constrained": {
        "E": float(np.exp(0.6254804)), "A": float(np.exp(6.255414)), "B": float(np.exp(7.3049974)), "alpha": 0.3526596,
        "beta": 0.3526596, "R_D_star": 15.387756, "R_N_star": 5.309743,
    },
    "overtraining": {"E": 1.51, "a": 141.3, "b": 189.5, "eta": 0.1212},  # Gadre et al. 2024, C4
    "downstream": {"epsilon": 0.85, "k": 2.08, "gamma": 0.756},  # Gadre et al. 2024, C4
    "farseer": {
        "a1": -0.5, "b1": -0.7, "alpha": 0.12, "a2": 0.6, "b2": -1.0, "beta": -0.1,
        "a3": -0.3, "b3": 0.6, "gamma": 0.17,
    },
    "farseer_counts": {
        "a1": -0.124, "b1": 0.424, "alpha": 0.123, "a2": 88.0, "b2": -5.83, "beta": -0.1,
        "a3": -0.021, "b3": 0.091, "gamma": 0.169,
    },
    "step_law_lr": {"c": 1.79, "alpha": -0.713, "beta": 0.307},  # Li et al. 2025
    "step_law_batch": {"c": 0.58, "beta": 0.571},
    "broken_power": {"E": 1.2, "A": 400.0, "alpha": 0.12, "shift": 0.15, "C_break": 1e20, "sharpness": 0.4},
    "width_depth": {
        "E": 1.5, "W": 20.0, "P": 1.5, "A": 300.0, "B": 1200.0, "w": 0.7, "p": 0.9, "alpha": 0.36, "beta": 0.38,
    },
    "precision": {
        "E": 1.8, "A": 4000.0, "B": 18000.0, "alpha": 0.45, "beta": 0.5,
        "gamma_w": 2.7, "gamma_a": 2.2, "gamma_kv": 1.0,
    },
    "vocabulary": {"E": 0.6, "A": 300.0, "V": 20.0, "B": 900.0, "alpha": 0.36, "nu": 0.3, "beta": 0.34},
    "broken_power_2": {
        "E": 1.2, "A": 400.0, "alpha": 0.12, "shift_1": 0.15, "C_1": 1e19, "sharpness_1": 0.4, "shift_2": -0.2,
        "apart": 1e3, "sharpness_2": 0.4,
    },
    "parscale": {"E": 0.691, "A": 1.13e7, "alpha": 0.189, "k": 0.393},  # Chen et al. 2025, Stack-V2-Python
    "critical_batch": {"S_min": 2500.0, "B_crit": 300.0},
    "timescale": {"c": 1.084, "m": -0.527},  # of the size of Bergsma et al. 2025
    "weight_decay": {"c": 1.084, "m": -0.527},
    "vocabulary_normalised": {
        "E": 5.533, "A": 1.831 * 1e6**0.447, "V": 0.196 * 1e6**0.671, "B": 2.124 * 1e9**0.447,
        "alpha": 0.447, "nu": 0.671, "beta": 0.447,
    },
    # Clark et al. 2022, table 3, S-BASE.
    "routed": {"a": -0.082, "b": -0.108, "c": 0.009, "d": 1.104, "E_start": 1.847, "E_max": 314.478},
    "granularity": {  # Krajewski et al. 2024, table 1
        "c": 0.47, "a": 18.1, "g": 2.1, "b": 30.8, "alpha": 0.115, "gamma": 0.58, "beta": 0.147,
    },
    "expert_count": {  # Ludziejewski et al. 2025, table 3
        "c": 1.3637, "a": 35.91, "b": 35.98, "alpha": -0.1889, "delta": -0.2285, "gamma": 0.0098, "beta": -0.1775,
        "omega": 0.5529, "zeta": -0.0259, "E_start": 2.0732, "E_max": 290.4521,
    },
    "sparsity": {  # Abnar et al. 2025, table 3
        "e": 0.94, "a": 16612.5, "b": 5455.67, "c": 0.4598, "d": 17.26, "alpha": 0.5962, "beta": 0.3954, "lam": -0.1666,
        "delta": 0.1603, "gamma": 0.1595,
    },
    "leverage": {"a": 1.23, "d": -0.0761, "gamma": 0.0167, "beta": -0.117, "A_start": 0.0163},  # Tian 2025, table 2
    "mixture": {"c": 1.5, "t1": -2.0, "t2": 0.3, "t3": -0.6},
}  # fmt: skip


def columns_for(name: str, rows: int = 32) -> dict[str, np.ndarray]:
    """Plausible columns of a law, [rows] each."""
    wanted = LAWS[name].columns
    unit = qmc.Sobol(len(wanted), seed=2).random(rows)
    return {
        c: COLUMN_RANGES[c][0] * (COLUMN_RANGES[c][1] / COLUMN_RANGES[c][0]) ** unit[:, i] for i, c in enumerate(wanted)
    }
