"""Weights alone, without an optimizer: out of any run's checkpoint or a foreign folder, and into a folder of their own.

In a notebook:

    weights = load_run_weights("runs/tiny@300")
    logits_BSV = transformer.next_token_logits(weights.shape, weights.params, tokens_BS)
"""

import dataclasses
import functools
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.config import Layout, ModelShape, Static
from scalelab.data.tokenizers.load import TOKENIZER_FILES, load_tokenizer_file
from scalelab.data.tokenizers.tokenizer import Tokenizer
from scalelab.errors import BadInput
from scalelab.hf import read
from scalelab.model import count
from scalelab.model.declare import named_leaves, with_variables, without_variables
from scalelab.optim.registry import find_optimizer
from scalelab.precision.policy import POLICIES
from scalelab.precision.rounding import cast_for_storage
from scalelab.record import records
from scalelab.train.checkpoints.checkpoint import Checkpoints
from scalelab.train.checkpoints.manifest import find_saved_steps
from scalelab.train.lineage.facts import config_from_facts, package_versions
from scalelab.train.resume.handover import load_ema_params, load_evaluation_params
from scalelab.train.resume.start import find_checkpoint
from scalelab.train.run.run import IMPORTED_STATUS
from scalelab.train.step import state
from scalelab.train.step.variables import MODEL, ModelVariables


class Weights(NamedTuple):
    """Parameters (fp32, on the host), the resolved config whose model they are, and where they come from."""

    config: ConfigDict
    params: Any
    origin: dict[str, Any]

    @property
    def shape(self) -> ModelShape:
        """The shape of their model."""
        return config_lib.static(self.config).model


def load_run_weights(source: str, ema: bool = False, last: int = 1) -> Weights:
    """The weights of RUN (its last step) or RUN@STEP, checked to the last bit; of the optimizer's average where it has
    one.

    With `ema` the run's own average (train.ema); with `last` = K the plain mean over that checkpoint and the K - 1 kept
    before it (Izmailov et al. 2018, and near the end of pretraining Sanyal et al. 2023), taken in fp64 and given in
    fp32.

    BadInput where there is no such run or step, no such average or fewer checkpoints, DamagedCheckpoint where a step
    is.
    """
    if last != 1:
        return _mean_weights(source, ema, last)
    folder, step, checkpoints, name = find_checkpoint(source)
    checked = checkpoints.load(None, at=step)
    assert checked is not None
    facts = checked.facts[name]
    config = config_from_facts(facts)
    alone = dataclasses.replace(config_lib.static(config), layout=Layout())
    if ema and not alone.ema:
        raise BadInput(f"{folder} keeps no average of its weights (train.ema=0): average its last checkpoints instead")
    leaves = jax.device_get((load_ema_params if ema else load_evaluation_params)(checkpoints, checked, name, alone))
    origin = {"run": str(folder), "step": checked.step, "weights": "ema" if ema else "trained"}
    origin |= {"digest": state.params_digest(leaves)}
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), leaves)
    return Weights(config, params, origin | {key: facts[key] for key in ("identity", "data", "versions")})


def weights_of_state(static: Static, config: ConfigDict, whole: state.TrainState) -> Any:
    """The parameters that `load_run_weights` reads from a checkpoint of this state; `static`: of one device."""
    if find_optimizer(static.optim.name).evaluated is None:  # moments, often twice the weights, stay where they are
        whole = whole._replace(opt_state=())
    whole = jax.device_get(whole._replace(ema=()))
    point = jax.jit(functools.partial(state.evaluation_point, static, h=config_lib.hparams(config)))
    params = cast_for_storage(point(whole), POLICIES[static.precision].parameters)
    leaves = jax.device_get(with_variables(params, state.model_variables(whole)))
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), leaves)


def _mean_weights(source: str, ema: bool, last: int) -> Weights:
    folder, step, *_ = find_checkpoint(source)
    steps = sorted(saved for saved in find_saved_steps(folder) if step is None or saved <= step)
    if ema or not 1 < last <= len(steps):
        why = "an average of averages" if ema else f"kept up to there: {', '.join(map(str, steps))}"
        most = f"; nearest: {min(max(last, 1), len(steps))}" if not ema else ": ask for one of the two"
        raise BadInput(f"{last} checkpoints of {source}: {why}{most} (checkpoint.keep_last, keep_every keep more)")
    total: Any = None
    for saved in steps[-last:]:
        one = load_run_weights(f"{folder}@{saved}")
        wide = jax.tree.map(lambda leaf: leaf.astype(np.float64), one.params)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
    params = jax.tree.map(lambda leaf: (leaf / last).astype(np.float32), total)
    origin = one.origin | {"weights": f"mean{last}", "steps": steps[-last:], "digest": state.params_digest(params)}
    return Weights(one.config, params, origin)


def load_hf_weights(folder: pathlib.Path) -> Weights:
    """The weights of a model in transformers' files (`hf.FORMATS`); BadInput for whatever else is there."""
    source = read.examine_folder(folder)
    params = read.load_params(source)
    return Weights(source.config, params, source.origin() | {"digest": state.params_digest(params)})


def load_hf_tokenizer(folder: pathlib.Path, vocab_size: int) -> tuple[Tokenizer | None, str]:
    """The tokenizer.json beside weights for so many ids; None, and why, where there is none that fits them."""
    path = folder / TOKENIZER_FILES["json"]
    if not path.is_file():
        return None, f"{folder} holds no {path.name}"
    try:
        tokenizer = load_tokenizer_file(path)
    except BadInput as mistake:
        return None, str(mistake)
    if tokenizer.vocab_size > vocab_size:
        return None, f"{path} has ids up to {tokenizer.vocab_size - 1}, the model up to {vocab_size - 1}"
    return tokenizer, ""


def write_weights(folder: pathlib.Path, weights: Weights, tokenizer: Tokenizer | None = None) -> None:
    """Write weights as a folder that `--init-from` and `export` can name: checkpoint 0, without optimizer and data.

    With its `tokenizer` prompts and tasks can be read, and data of other ids are refused.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} exists and is not an empty folder: name another, or delete it")
    config, params, origin = weights
    facts: dict[str, Any] = {
        "identity": config_lib.identity(config),
        "config": config.to_dict(),
        "data": {"fingerprint": None, "tokenizer": tokenizer and tokenizer.name},
        "versions": package_versions(),
    }
    if tokenizer:
        facts["data"] |= {"kept": tokenizer.entry}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TOKENIZER_FILES[tokenizer.kind]).write_bytes(tokenizer.content)
    checkpoints = Checkpoints(folder / "checkpoints", facts={"run": facts})
    params, variables = _split_variables(config, params)
    checkpoints.save(0, {"run": {"params": params} | variables})
    checkpoints.close()
    record = {"name": folder.name, "status": IMPORTED_STATUS, "steps": 0, "tokens": 0, "val_loss": None}
    record |= {"init_from": origin, "identity": facts["identity"], "params": count.count_parameters(weights.shape)}
    records.write_json(folder / "record.json", record | {"versions": facts["versions"]})
    records.write_json(folder / "config.json", config.to_dict())  # last: it is what makes the folder a run's


def _split_variables(config: ConfigDict, weights: Any) -> tuple[Any, dict[str, Any]]:
    """(parameters, the field `variables` of a state, where the model has any); a mean over one value is the value."""
    static = dataclasses.replace(config_lib.static(config), layout=Layout())
    like = state.state_shapes(static).part(MODEL.name)
    if not isinstance(like, ModelVariables):
        return weights, {}
    params, values = without_variables(weights, like.values)
    newest = named_leaves(values)
    return params, {"variables": {MODEL.name: ModelVariables(values, {name: newest[name] for name in like.means})}}
