"""Study of the exponents of Kaplan et al. and Hoffmann et al.: `python -m experiments.studies.kaplan_vs_chinchilla`."""
