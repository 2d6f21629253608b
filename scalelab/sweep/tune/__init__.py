"""Tune a config: `space` (what is searched), `search` (rounds of points), `optimum` (where the best lies, how surely),
`stability` (unstable LR, warm-up, clipping), `stages` (the configs of every stage), `study` (the folder and its runs),
`conduct` (train all of it), `verdict` (the gain over fresh seeds), `wording`. After the Deep Learning Tuning Playbook
(Godbole et al. 2023).
"""
