"""The model of the study of an incident: two blocks of width 32 on bytes, with outlier documents in sixteen batches.

    python -m experiments.incident --quick --workdir=runs/incident

Documents are cut to one window each, so that the study can plant documents into chosen batches.
"""

from ml_collections import ConfigDict

from scalelab.configs import base


def get_config() -> ConfigDict:
    """512 tokens a step, 400 steps of SGD with momentum at a high LR; all steps are logged."""
    config = base.get_config()
    config.model = base.llama(d_model=32, n_layers=2, n_heads=2)
    config.model.seq_len = 64
    config.data.source = "scalelab.experiments.incident:documents"
    config.data.path = "0:64:8"
    config.optim.name = "momentum"
    config.optim.peak_lr = 1.0
    config.optim.weight_decay = 0.0
    config.optim.clip_norm = 2.0
    config.schedule.name = "constant"
    config.schedule.warmup_steps = 100
    config.train.global_batch = 8
    config.train.steps = config.eval.every_steps = 400
    config.train.steps_per_dispatch = 50
    config.checkpoint.every_steps = 50
    config.checkpoint.keep_every = 50
    config.log.every_steps = 1
    return config
