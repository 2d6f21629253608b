"""`scalelab study`: the list, and how the command becomes a study."""

import json
import subprocess
import sys

from scalelab.__main__ import main


def test_the_list_has_every_study_with_what_it_costs_and_finds(capsys):
    assert main(["study", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"isoflop", "grokking", "mup_transfer"} <= set(rows) and rows["grokking"]["cpu_s"] > 0
    assert main(["study"]) == 0
    assert f"grokking  ({rows['grokking']['cpu_s']:.0f} CPU s)" in capsys.readouterr().out


def test_the_command_becomes_the_study(tmp_path):
    command = [sys.executable, "-m", "scalelab", "study", "grokking", "--qick"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 2 and not refused.stdout
    assert refused.stderr.startswith("grokking: ") and refused.stderr.count("\n") == 1
