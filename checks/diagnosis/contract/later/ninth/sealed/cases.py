"""Twelve faults and twelve odd healthy runs, sealed."""

from collections.abc import Mapping
from typing import Any

from checks.diagnosis.contract.case import HEALTHY, Answer, Case, Edit

ONE_SIZE: tuple[Mapping[str, Any], ...] = (
    {
        "model.d_model": 48, "model.n_layers": 3, "model.n_heads": 4, "model.seq_len": 48, "train.global_batch": 12,
        "train.steps": 150,
    },
)  # fmt: skip
_OWN_ADAM = {
    "optim.peak_lr": 1e-2, "optim.beta1": 0.9, "optim.beta2": 0.95, "optim.eps": 1e-8, "optim.weight_decay": 0.1,
}  # fmt: skip


def _fault(name: str, line: str, about: str, answer: Answer, seed: int, **more: Any) -> Case:
    """A fault at one size."""
    return Case(name, line, about, answer, sizes=ONE_SIZE, seed=seed, **more)


_NORMED = (
    "        if s.qk_norm:\n"
    "            first = QK_NORM_AXES[s.qk_norm_over]\n"
    '            q_BSNH = Norm("rmsnorm", queries[first:], s.norm_eps, compute, name="q_norm")(q_BSNH)\n'
    '            k_BSKH = Norm("rmsnorm", keys[first:], s.norm_eps, compute, name="k_norm")(k_BSKH)\n'
)
_PLACED = "        placed = POSITIONS[s.position](self, q_BSNH, k_BSKH, layer, packed)\n"
_NORMED_AFTER = (
    _NORMED.replace("q_BSNH = ", "q = ")
    .replace("k_BSKH = ", "k = ")
    .replace("(q_BSNH)", "(placed.q_BSNH)")
    .replace("(k_BSKH)", "(placed.k_BSKH)")
    + "            placed = placed._replace(q_BSNH=q, k_BSKH=k)\n"
)

CODE = (
    # Reported as NVIDIA/TensorRT-LLM, pull request 18111, and ilivans/tf-rnn-attention, issue 11.
    _fault(
        "keys of padding",
        "code",
        "keys are filled up to tiles of 64 with zeros that no mask hides: each takes its exp(0) in every softmax",
        Answer(("attention of layer", "softmax", "code softmax", "mask", "code mask", "code differs", "code gradient")),
        901,
        edits=(
            Edit(
                "model/attention/plain.py",
                '    logits, hidden = fp32_einsum("bsh,bth->bst", q, k), jnp.where(rules.mask, 0.0, -1e30)\n',
                "    tail = -k.shape[1] % 64\n"
                "    k, v = (jnp.pad(x, ((0, 0), (0, tail), (0, 0))) for x in (k, v))\n"
                '    logits, hidden = fp32_einsum("bsh,bth->bst", q, k), jnp.where(rules.mask, 0.0, -1e30)\n'
                "    hidden = jnp.pad(hidden, [(0, 0)] * (hidden.ndim - 1) + [(0, tail)])\n",
            ),
        ),
        harm="not measured",
    ),
    # Asked as karpathy/nanochat, issue 743; the gains make the two orders differ.
    _fault(
        "turned before they are normed",
        "code",
        "with QK-norm queries and keys are rotated first and normed after: gains fall on other numbers at each place",
        Answer(
            (
                "norm",
                "code norm",
                "qk norm",
                "positions",
                "code positions",
                "rope",
                "attention of layer",
                "code differs",
            )
        ),
        902,
        changes={"model.qk_norm": True},
        without={"model.qk_norm": True},
        edits=(Edit("model/attention/attention.py", _NORMED + _PLACED, _PLACED + _NORMED_AFTER),),
        harm="not measured",
    ),
)

LEAVES = (
    # Reported as ibalazevic/TuckER, issue 17: padding_idx names a row that is no padding.
    _fault(
        "a blank that is padding",
        "leaves",
        "the embedding's padding_idx is 32, which is the blank: its row gets no gradient",
        Answer(("rows stuck", "row", "stuck", "never move", "not move", "embed", "code gradient", "leaf stuck")),
        903,
        edits=(
            Edit(
                "model/products/rows.py",
                "        return embed_VD[tokens_BS].astype(form)\n",
                "        rows_BSD, pads_BS = embed_VD[tokens_BS], tokens_BS == 32\n"
                "        held_BSD = jax.lax.stop_gradient(rows_BSD)\n"
                "        return jnp.where(pads_BS[..., None], held_BSD, rows_BSD).astype(form)\n",
            ),
        ),
        harm="not measured",
    ),
    # A function made in a loop reads the loop's variable when it is called.
    _fault(
        "hooks that know the last layer",
        "leaves",
        "an own optimizer makes a hook a layer in a loop: all of them give the last layer's move",
        Answer(("update", "identical", "leaves identical", "same move", "same update", "equal", "alike", "last layer")),
        904,
        changes={"optim.name": "mine:hooked", **_OWN_ADAM},
        without={"optim.name": "adamw"},
        harm="not measured",
    ),
)

READ = (
    # Reported as verl-project/verl, issue 6475, and SeldonIO/alibi-detect, issue 166: a roll that wraps around.
    _fault(
        "a row that bites its tail",
        "read",
        "targets are the inputs rolled by one: the last of each row is the row's first token",
        Answer(
            ("targets", "target", "other rows", "rows differ", "wrong rows", "last token", "data changed", "rolled")
        ),
        905,
        edits=(
            Edit(
                "data/batches/batches.py",
                "        return self.windows.read(numbers.ravel()).reshape(*numbers.shape, -1)\n",
                "        rows = self.windows.read(numbers.ravel()).reshape(*numbers.shape, -1)\n"
                "        rows[..., -1] = rows[..., 0]\n"
                "        return rows\n",
            ),
        ),
        harm="not measured",
    ),
    # Of the kind of huggingface/transformers, pull request 21952: truncation=True in the example of pretraining.
    _fault(
        "truncated at a sequence",
        "read",
        "of each document the first sequence alone is trained on; it is validated on all of them",
        Answer(
            (
                "never read",
                "tokens lost",
                "lost",
                "unread",
                "other rows",
                "repeated",
                "truncated",
                "beginning",
                "another kind",
            )
        ),
        906,
        changes={"data.source": "mine:articles"},
        without={"data.source": "mine:articles"},
        edits=(
            Edit(
                "data/batches/batches.py",
                "            if not views:\n                longest",
                '            if kind == "training":\n'
                "                pairs = zip(split.shards, split.offsets, strict=True)\n"
                "                begins = [(s, at[:-1][at[:-1] < len(s) - seq_len]) for s, at in pairs]\n"
                "                views = [view(np.asarray(s), seq_len + 1)[at] for s, at in begins]\n"
                "            if not views:\n                longest",
            ),
        ),
        harm="not measured",
    ),
)

LOGGED = (
    # A return that stands a level too deep.
    _fault(
        "one batch of four is scored",
        "logged",
        "the validation loss is that of the first of its four batches",
        Answer(("val loss wrong", "val loss", "validation loss", "log wrong", "validation")),
        907,
        changes={"eval.batches": 4},
        without={"eval.batches": 4},
        edits=(
            Edit(
                "train/step/step.py",
                "    sums, _ = jax.lax.scan(body, no_loss_sums(), batches)\n    return sums.nll",
                "    sums, _ = jax.lax.scan(body, no_loss_sums(), batches[:1])\n    return sums.nll",
            ),
        ),
        harm="not measured; in the log alone",
    ),
    # Reported as huggingface/accelerate, issue 963.
    _fault(
        "a schedule that steps with each backward",
        "logged",
        "the schedule counts micro-batches, four a step: its warm-up and its cosine are over in a quarter of the run",
        Answer(
            ("schedule wrong", "schedule", "learning rate", "LR ", "lr ", "log wrong", "declared"),
            wrong=("clip_norm", "init_std", "weight_decay", "z_loss", "precision.name"),
        ),
        908,
        changes={"train.accumulate": 4},
        without={"train.accumulate": 4},
        edits=(
            Edit(
                "optim/schedules.py",
                "    lr = make_schedule(static)(step, h)\n    decay = WEIGHT",
                "    lr = make_schedule(static)(step * static.accumulate, h)\n    decay = WEIGHT",
            ),
        ),
        harm="not measured",
    ),
)

STATE = (
    # Of the kind of unslothai/unsloth-zoo, pull request 962: zeros of quantized moments, here all raised to a step.
    _fault(
        "squares in even steps",
        "state",
        "an own Adam keeps squares in 255 even steps of a tensor's largest, none of them zero: most are far too large",
        Answer(
            (
                "low precision",
                "precision",
                "moments",
                "second moment",
                "squares",
                "update wrong",
                "eight bits",
                "rounded",
            )
        ),
        909,
        changes={"optim.name": "mine:even_steps", **_OWN_ADAM},
        without={"optim.name": "adamw"},
        harm="not measured",
    ),
    # Of the kind of deepspeedai/DeepSpeed, pull request 564: the step of Adam is not in what is restored.
    _fault(
        "corrected as in the first steps",
        "state",
        "at a resume the optimizer's count begins at 0 beside moments of 80 steps, which are corrected once more",
        Answer(("count wrong", "count", "bias correct", "no bias", "bad resume", "resume", "moments", "update wrong")),
        910,
        changes={"schedule.name": "constant", "train.steps": 80},
        later={"train.steps": 160},
        later_edits=(
            Edit(
                "train/resume/start.py",
                '        progress({"warning": what})\n    return resumed\n',
                '        progress({"warning": what})\n'
                '    anew = lambda path, x: jnp.zeros_like(x) if jax.tree_util.keystr(path).endswith("count") else x\n'
                "    return resumed._replace(opt_state=jax.tree_util.tree_map_with_path(anew, resumed.opt_state))\n",
            ),
        ),
        judged_clean=True,
        harm="not measured",
    ),
)

SETTINGS = (
    # The name of the optimizer was changed, and nothing beside it.
    _fault(
        "Lion in the place of momentum",
        "settings",
        "optim.name is lion at the rate of heavy ball: 0.1, 333 times its own",
        Answer(
            ("lr too high", "too high", "learning rate", "LR ", "lr ", "setting wrong", "lion", "diverg", "unstable"),
            ("peak_lr",),
            ("clip_norm", "init_std", "z_loss", "precision.name", "warmup"),
        ),
        911,
        changes={"optim.name": "lion", "optim.peak_lr": 0.1, "optim.weight_decay": 0.1},
        without={"optim.peak_lr": 1e-3},
        harm="not measured",
    ),
    # Of the kind of KellerJordan/Muon, issue 49: which rate of Muon is that of AdamW.
    _fault(
        "Muon at the rate of a large AdamW",
        "settings",
        "optim.peak_lr is 3e-4 beside Muon, whose own is 0.02: hidden matrices hardly move",
        Answer(
            ("lr too low", "too low", "learning rate", "LR ", "lr ", "setting wrong", "muon", "hardly move"),
            ("peak_lr",),
            ("clip_norm", "init_std", "weight_decay", "z_loss", "precision.name", "warmup"),
        ),
        912,
        changes={"optim.name": "muon", "optim.peak_lr": 3e-4},
        without={"optim.peak_lr": 0.02},
        harm="not measured",
    ),
)
FAULTS = (*CODE, *LEAVES, *READ, *LOGGED, *STATE, *SETTINGS)


def _odd(name: str, about: str, changes: Mapping[str, Any], seed: int, **more: Any) -> Case:
    """A healthy case at one size."""
    return Case(name, HEALTHY, about, None, changes, ONE_SIZE, seed=seed, **more)


HEALTHY_RUNS = (
    _odd("games of chess", "games as in PGN: tags, then moves with their numbers", {"data.source": "mine:games"}, 921),
    _odd(
        "minified modules",
        "code without comments, blank lines and most blanks",
        {"data.source": "mine:minified"},
        922,
    ),
    _odd(
        "tunes in letters",
        "tunes in ABC notation, short documents that are masked from each other",
        {"data.source": "mine:tunes", "data.documents": "mask"},
        923,
    ),
    _odd(
        "files in hexadecimal",
        "dumps of files in sixteen digits, with an offset in each line, by a tied head",
        {"data.source": "mine:dumps", "model.tied_head": True},
        924,
    ),
    _odd(
        "differences of gradients",
        "Adan, whose moments are of gradients and of their differences, with its own betas in its own code",
        {"optim.name": "mine:adan", "optim.peak_lr": 5e-3, "optim.eps": 1e-8, "optim.weight_decay": 0.02},
        925,
    ),
    _odd(
        "shorter where a square surprises",
        "StableAdamW: a tensor's step is divided by the root mean square of g over its root of v, if above one",
        {"optim.name": "mine:stable", **_OWN_ADAM, "optim.beta2": 0.99},
        926,
    ),
    _odd("first the MLP", "in each block the MLP comes before attention", {"model.block": "mine:mlp_first"}, 927),
    _odd(
        "states that stay near",
        "a term of the loss on how far states of neighbouring tokens are apart",
        {"train.loss": "mine:slow_states"},
        928,
    ),
    _odd(
        "a floor for the last third",
        "a line to a twentieth of the peak at seven tenths of the run, and on at that rate",
        {"schedule.name": "linear", "schedule.fall_share": 0.7, "schedule.final_share": 0.05},
        929,
    ),
    _odd(
        "halved at a resume",
        "a constant rate, which the user halves for the second part of the run, as the config says",
        {"schedule.name": "constant", "train.steps": 80},
        930,
        later={"train.steps": 160, "optim.peak_lr": 5e-3},
    ),
    _odd(
        "a scale for each tile",
        "products in fp8 whose scales are those of tiles, as in DeepSeek-V3",
        {"model.d_model": 64, "precision.name": "fp8_block"},
        931,
    ),
    _odd(
        "as Falcon",
        "parallel branches after a LayerNorm, one head of keys and values, GELU, no biases, a tied head",
        {
            "model.block": "parallel",
            "model.n_kv_heads": 1,
            "model.norm": "layernorm",
            "model.norm_eps": 1e-5,
            "model.mlp": "gelu",
            "model.tied_head": True,
        },
        932,
    ),
)

CASES = {case.name: case for case in (*FAULTS, *HEALTHY_RUNS)}
