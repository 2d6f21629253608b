"""`scalelab reproduce textbook`: what each number is, worked out by hand, and which of the stated ones are wrong."""

import json

import pytest

from scalelab.__main__ import main
from scalelab.plan.textbook import taught

# name begins with: (stated, ours by hand, verdict)
BY_HAND = {
    "7B in fp32 with AdamW": (112, 7 * (4 + 4 + 8), "match"),
    "70B, moments": (800, 70 * 8, "wrong"),
    "7B, state of adamw": (56, 56, "match"),
    "7B, state of adafactor": (21, 0.0118, "wrong"),  # rows and columns of Llama 2 7B's matrices
    "7B, state of adam8bit": (21, 7 * 2 * (1 + 4 / 256), "wrong"),  # a code a number, an fp32 scale for 256 of them
    "7B, state of lion": (35, 28, "wrong"),
    "cosine": (1.65e-4, 1.69327e-4, "wrong"),  # 3e-5 + 2.7e-4 (1 + cos(pi 48/98)) / 2
    "WSD": (1.65e-4, 1.65e-4, "match"),
    "gradient 3.0": (0.75, 0.75, "match"),
    "Adam's first moment": (0.1, 0.1, "match"),
    "the same, bias corrected": (1, 1, "match"),
    "largest number of fp8 e4m3": (448, 1.75 * 2**8, "match"),
    "largest number of fp8 e5m2": (57344, 1.75 * 2**15, "match"),
    "1,000 lost steps": (3600, 4000, "wrong"),
    "tokens a parameter, chinchilla_1": (20, 1.415e12 / 6.78e10, "match"),
    "tokens a parameter, chinchilla_2": (20, 23.87, "within_interval"),
    "tokens a parameter, chinchilla_3": (20, 2.38e12 / 4.04e10, "wrong"),
    "tokens a parameter, besiroglu": (20, 1.3268e12 / 7.2356e10, "match"),
    "H100: bf16 over fp32 products in TF32": (4, 989.4 / 494.7, "wrong"),
    "H100: bf16 over fp32 in 32 bits": (4, 989.4 / 66.9, "wrong"),
}


def test_every_number_by_hand(tmp_path, capsys):
    assert main(["reproduce", "textbook", f"--json={tmp_path / 'out.json'}"]) == 0
    printed, result = capsys.readouterr().out, json.loads((tmp_path / "out.json").read_text())
    assert len(result["rows"]) == len(BY_HAND)
    for row, (name, (stated, ours, verdict)) in zip(result["rows"], BY_HAND.items(), strict=True):
        assert row["name"].startswith(name) and row["name"] in printed and row["paper"] == "textbook"
        assert (row["stated"], row["verdict"]) == (stated, verdict)
        assert row["ours"] == pytest.approx(ours, rel=2e-3)
    assert " stated " in printed and " published " not in printed
    (wrong,) = [finding["text"] for finding in result["findings"] if finding["text"].startswith("WRONG")]
    assert wrong.count("is stated") == sum(verdict == "wrong" for *_, verdict in BY_HAND.values())
    assert any("840 GB" in finding["text"] for finding in result["findings"])


def test_the_verdicts():
    assert taught(111.6, 112, 0.5) == "match" and taught(111.4, 112, 0.5) == "wrong"
    assert taught(24, 20, 2, (11, 38)) == "within_interval" and taught(24, 20, 2, (21, 38)) == "wrong"
