"""The sides of `experiments/ablations.py`: a plain baseline on bytes, and one change each.

Every function returns a config, for `scalelab ablate --baseline=MODULE:FUNCTION --variant=MODULE:FUNCTION`.
"""

from ml_collections import ConfigDict

from scalelab.configs import quickstart


def plain() -> ConfigDict:
    """The quickstart's models with GELU, AdamW with weight decay on all matrices, and a cosine to a tenth of the LR."""
    config = quickstart.get_config()
    config.model.mlp = "gelu"
    config.schedule.name = "cosine"
    config.schedule.decay_share = None
    config.schedule.final_share = 0.1
    config.optim.peak_lr = 3e-3
    config.optim.weight_decay = 0.1
    return config


def muon() -> ConfigDict:
    """Muon for hidden matrices, AdamW for the rest, with the defaults of its authors."""
    config = plain()
    config.optim.name = "muon"
    config.optim.peak_lr = 2e-2
    config.optim.rest_lr = 3e-3
    return config


def qk_norm() -> ConfigDict:
    """An RMSNorm on queries and keys."""
    config = plain()
    config.model.qk_norm = True
    return config


def swiglu() -> ConfigDict:
    """SwiGLU; its width follows from d_model so that the MLP has about as many parameters, and FLOPs a token."""
    config = plain()
    config.model.mlp = "swiglu"
    return config


def wsd() -> ConfigDict:
    """WSD with a linear decay to zero over the last 30 %, for the cosine."""
    config = plain()
    config.schedule.name = "wsd"
    config.schedule.decay_share = 0.3
    config.schedule.final_share = 0.0
    return config


def z_loss() -> ConfigDict:
    """PaLM's z-loss of 1e-4."""
    config = plain()
    config.train.z_loss = 1e-4
    return config


def embeddings_kept() -> ConfigDict:
    """No weight decay on the embedding."""
    config = plain()
    config.optim.decay_embeddings = False
    return config


def batch_x2() -> ConfigDict:
    """Twice the batch, half the steps."""
    config = plain()
    config.train.global_batch = 2 * config.train.global_batch
    return config


def other_rounding() -> ConfigDict:
    """Nothing: the same attention summed in another order. The verdict must be that no difference is shown."""
    config = plain()
    config.model.attention = "blockwise"
    return config
