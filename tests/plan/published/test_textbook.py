"""`scalelab reproduce textbook`: what each number is, worked out by hand, and which of the stated ones are wrong."""

import json

import numpy as np
import pytest

from scalelab.__main__ import main
from scalelab.plan.published import claims
from scalelab.plan.published.errata import ERRATA
from scalelab.plan.published.textbook import judge_taught

# Of each sentence, by the words it begins with: rows in order, (stated, ours by hand, verdict).
BY_HAND = {
    "In fp32 with AdamW": [(112, 7 * (4 + 4 + 8), "match")],
    "AdamW's moments of a 70B": [(800, 70 * 8, "wrong")],
    "For 7B, AdamW keeps": [
        (56, 56, "match"),
        (21, 0.0118, "wrong"),  # rows and columns of Llama 2 7B's matrices
        (21, 7 * 2 * (1 + 4 / 256), "wrong"),  # a code a number, an fp32 scale for 256 of them
        (35, 28, "wrong"),
    ],
    "At step 50,000": [
        (1.65e-4, 1.69327e-4, "wrong"),  # 3e-5 + 2.7e-4 (1 + cos(pi 48/98)) / 2
        (1.65e-4, 1.65e-4, "match"),  # the section's other formula: half way
    ],
    "At step 90,000": [(1.65e-4, 1.65e-4, "match")],
    "The best ratio is 20": [
        (20, 1.415e12 / 6.78e10, "match"),
        (20, 23.87, "within_interval"),
        (20, 1.3268e12 / 7.2356e10, "match"),
    ],
    "bf16 is four times": [(4, 989.4 / 494.7, "wrong"), (4, 989.4 / 66.9, "wrong"), (4, 1978.9 / 494.7, "match")],
    "A 7B takes 14 GB": [(14, 7 * 2, "match"), (4, (4 + 4 + 8) / 4, "match")],
    "A gradient of norm 4": [(0.25, 1 / 4, "match"), (0.75, 3 / 4, "match")],
    "A first gradient of 1": [(0.1, 0.1, "match"), (1, 1, "match")],
    "An average with beta": [(10, 1 / 0.1, "match"), (20, 1 / 0.05, "match"), (1000, 1 / 0.001, "match")],
    "Formats differ": [
        (n, n, "match") for n in (8, 23, 5, 10, 8, 7, 4, 3, 5, 2)
    ],  # IEEE 754; bfloat16; Micikevicius 2022
    "e4m3 reaches": [(448, 1.75 * 2**8, "match"), (57344, 1.75 * 2**15, "match")],
    # Ours counts the step that is taken: (step + 1) / 2,000 of the peak; at the end 3e-5 + 2.7e-4 (pi / 98,000 / 2)^2.
    "A listing prints": [
        (0, 3e-4 / 2000, "match"),
        (1.5e-4, 3e-4 * 1001 / 2000, "match"),
        (3e-4, 3e-4, "match"),
        (3e-5, 3e-5, "match"),
    ],
    # 12 L d^2 and biases, 13 d a layer, a last norm, embedding and positions
    "muP carried": [
        (size, 32 * (12 * d * d + 13 * d) + 2 * d + (50_257 + 2048) * d, "match")
        for size, d in ((40e6, 256), (6.7e9, 4096))
    ],
    # Without correction m = 1 - b1^t and v = 1 - b2^t on a gradient of 1: the first step, and the largest (steps 20 and
    # 12).
    "Without bias correction": [
        (1, 0.1 / 0.05**0.5, "wrong"),
        (2, (1 - 0.9**20) / (1 - 0.95**20) ** 0.5, "wrong"),
        (1, 0.1 / 0.001**0.5, "match"),
        (2, (1 - 0.9**12) / (1 - 0.999**12) ** 0.5, "match"),
    ],
    "Without warm-up, bias": [(1, 1, "wrong")],  # m / sqrt(v) = g / |g|
    "Every parameter moves by about": [(1, (0.1 / 1.9) ** 0.5, "wrong")],
    "Forgetting to divide": [(8, 8, "match"), (8, 1, "wrong"), (8, 1, "wrong")],  # norms near 11: all are clipped to 1
    "Leaving embeddings out": [(1, 4.47, "wrong")],  # below: `test_noise_by_its_random_walk`
    "Every parameter moves by exactly": [(1, 1 + 0.1, "wrong")],
    "Newton-Schulz drives": [(1, 0.6818, "wrong"), (1, 1.1344, "wrong")],
    "The update preserves the magnitude": [(1000, 1, "wrong")],
    "The update preserves the orthogonality": [(0, 0.126, "wrong")],  # below: `test_rows_do_not_stay_orthogonal`
    # 1.5e-4 (1 + cos(pi 48/98)); 7.7e-14: 3e-4 (pi / 98000 / 2)^2
    "get_cosine_schedule": [(1.65e-4, 1.5480784e-4, "wrong"), (3e-5, 0, "wrong")],
    "Llama 3, DeepSeek": [(1, 0.01 + 0.99 * (1 + np.cos(np.pi * 886_069 / 1_780_139)) / 2, "wrong")],
    "An optimizer takes three": [(3, 8 / 4, "wrong"), (3, 8 / 2, "wrong")],
    # Moments of embedding and head are AdamW's: 2 V d of all parameters
    "Muon halves": [
        (0.5, 0.5 + 0.5 * 2 * 32_000 * 4096 / 6_738_415_616, "match"),
        (0.5, 0.5 + 0.5 * 2 * 50_304 * 768 / 162.22e6, "wrong"),
    ],
    "8-bit states": [(0.75, 1 - (1 + 4 / 256) / 4, "match")],
    "Lion needs half": [(0.5, 4 / 8, "match")],
    "The 20-token rule": [(20, 2e12 / 6_738_415_616, "wrong"), (20, 2e12 / 68_976_648_192, "wrong")],
    # a = beta / (alpha + beta) of the unrounded law; D ~ C^(1 - a)
    "Kaplan's law was off": [(1, 1000 ** (0.33917084 / (0.33917084 + 0.2849083) - 0.27), "wrong")],
    "With QK-norm": [(0.9, np.exp(128**0.5) / (np.exp(128**0.5) + 2047), "wrong")],
    "GaLore makes": [(1, 5.81, "wrong")],  # 140e9 tokens at the plan's 763 a second
}


@pytest.mark.full
def test_every_number_by_hand(tmp_path, capsys):
    assert main(["reproduce", "textbook", f"--json={tmp_path / 'out.json'}"]) == 0
    printed, result = capsys.readouterr().out, json.loads((tmp_path / "out.json").read_text())
    rows = iter(result["rows"])
    for begin, expected in BY_HAND.items():
        for stated, ours, verdict in expected:
            row = next(rows)
            assert row["sentence"].startswith(begin) and row["place"] and row["paper"] == "textbook", row
            assert row["sentence"] in printed and row["name"] in printed
            assert (row["stated"], row["verdict"]) == (stated, verdict), row
            # Noise is drawn: 19,000 correlated steps scatter by 1 %. A cosine's end is lost in float32.
            assert row["ours"] == pytest.approx(ours, rel=0.03 if "noise" in row["name"] else 2e-3, abs=1e-9), row
    assert next(rows, None) is None
    assert " stated " in printed and " published " not in printed
    assert any("840 GB" in finding["text"] for finding in result["findings"])
    # What was said before: that no reading gives 4, that 20 is stated of approach 3, and a step for the other formula's
    # 1.65e-4.
    assert "no reading gives 4" not in printed and "sparse rate with a dense one" in printed
    assert "chinchilla_3" not in printed and "92.6 by its printed digits" in printed
    assert "cosine over all 100,000 steps" in printed
    # What no code of ours could make come out otherwise has no row and no verdict.
    for place, sentence, truth in ERRATA:
        assert f'{place}: "{sentence}" No verdict: {truth}' in printed
    for words in ("3.16", "84 GB", "Schedule-Free", "Adafactor trained"):
        assert not any(words in row["name"] for row in result["rows"])


@pytest.mark.full
def test_noise_by_its_random_walk():
    """Adam's steps on noise have RMS s and are correlated over 1 / (1 - beta1) steps: a walk without decay grows with
    sqrt(T), one with decay lr w ends at 1 / sqrt(2 lr w) steps."""
    steps, pull = claims.NOISY_STEPS, 0.1 * 0.1  # LR times decay
    walk = np.sqrt(steps / ((1 - np.exp(-2 * pull * steps)) / (2 * pull)))
    kept = {"optim.name": "adamw", "optim.weight_decay": 0.1}
    ours = claims.noisy_norm(kept | {"optim.decay_embeddings": False}) / claims.noisy_norm(kept)
    assert ours == pytest.approx(walk, rel=0.1)  # 256 walks: 1 / sqrt(2 x 256), and beta1's 10 steps of 100


def test_rows_do_not_stay_orthogonal():
    """Updates of random directions: 100 of LR .02 with entries of 1 / sqrt(32) give two rows a cosine of about .04."""
    rng = np.random.default_rng(0)
    w = np.eye(16, 32)
    for gradient in rng.normal(size=(100, 16, 32)):
        u, _, vt = np.linalg.svd(gradient, full_matrices=False)
        w -= 0.02 * u @ vt
    rows = w / np.linalg.norm(w, axis=1, keepdims=True)
    exact = np.abs(rows @ rows.T - np.eye(16)).max()
    assert claims.row_cosine() == pytest.approx(exact, rel=0.25) and exact > 0.05  # singular values of .68 to 1.13


def newton_schulz_range():
    """Five turns of Jordan's polynomial, in float64, on singular values of .01 to 1 of the norm."""
    s = np.linspace(0.01, 1.0, 100_000)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return s.min(), s.max()


def test_newton_schulz_by_its_polynomial():
    assert claims.singular_values() == pytest.approx(newton_schulz_range(), rel=2e-3)


def test_the_verdicts():
    assert judge_taught(111.6, 112, 0.5) == "match" and judge_taught(111.4, 112, 0.5) == "wrong"
    assert judge_taught(24, 20, 2, (11, 38)) == "within_interval" and judge_taught(24, 20, 2, (21, 38)) == "wrong"
