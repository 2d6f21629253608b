"""Pages of sweeps and studies.

`sweep` (a folder of runs), `isoflop` (prediction and score of a scaling study) with its `verdict`, `ablation` (does a
change hold at scale) with its `ablation_figures`, `tuning` (good values for a config).
"""
