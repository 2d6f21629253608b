"""The default tree: every key that exists, with its meaning, unit and, where it is a published default, its source.

A config file starts from here and changes what it studies:

    from configs import base
    def get_config():
        config = base.get_config()
        config.model = base.llama(d_model=512, n_layers=8, n_heads=8)
        return config

`None` means "derived": `scalelab.config.resolve` fills it in, and the run's config.json shows the value that was chosen.
Values that are traced (they change without recompiling, and trials that differ only in them are packed) are marked [h].
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    """The whole tree with its defaults."""
    return ConfigDict(
        {
            "model": llama(),
            "data": data(),
            "optim": optim(),
            "schedule": schedule(),
            "parametrization": {
                "name": "standard",  # standard | mup (Yang et al. 2022, Table 8) | completep (Dey et al. 2025, Table 1)
                "base_width": 64,  # mup, completep: the d_model at which everything equals standard's
                "base_layers": 2,  # completep: the n_layers at which everything equals standard's
                "base_d_head": placeholder(float),  # mup, completep: d_head at base_width; None: as many heads there
            },
            "precision": {
                # fp32 | tf32 | bf16 | fp16 (dynamic loss scaling) | fp8 (e4m3, gradients e5m2, a scale a tensor) | fp8_delayed
                # (the scale from the last 16 steps) | fp8_block (tiles of 128: DeepSeek-V3).
                # Harmful, to show it: bf16_master; warned of: fp16_unscaled | bf16_moments (results/precision.md)
                "name": "fp32",  # formats of activations and products; every format of each stands in precision/policy.py
            },
            "parallel": parallel(),
            "train": train(),
            "eval": {
                "every_steps": 100,  # steps between validation losses; the last step always has one
                "batches": 8,  # batches of global_batch sequences from the fixed validation set
            },
            "checkpoint": {
                "every_steps": 100,  # steps between asynchronous saves; the last step is always saved
                "keep_last": 2,  # newest checkpoints kept
                "keep_every": 0,  # steps; checkpoints at its multiples are kept for good; 0: none
                "fallback": False,  # where the last checkpoint is damaged: go on from the last intact one (and log it) or refuse
            },
            "log": {
                "every_steps": 10,  # steps between lines of metrics.jsonl
                # mirrors of metrics.jsonl, one a trial, each with its config; a resumed run goes on in its own
                "tensorboard": False,  # also write TensorBoard events into the run folder (tensorboardX)
                "wandb": "",  # also log to this Weights & Biases project (needs `pip install wandb`); "" for none
                "set_by": "",  # filled in: who set which value of optim and schedule (scalelab/set_by.py), for what is said and recorded
                "role": "",  # what the run is to its study: fit | check | holdout | ""; the fitter reads it
            },
            "sweep": {
                "pack": "auto",  # how trials of one pack share a process: auto | vmap | turn (one after the other)
                "workers": 0,  # processes at once for trials that cannot share one; 0: half the cores
            },
        }
    )


def data() -> dict:
    """Where the tokens come from."""
    return {
        # stdlib: this Python's own .py files without tests | text: data.path, as bytes | prepared: what `scalelab prepare` made
        "source": "stdlib",  # or synthetic: a bigram language
        "path": "",  # text: files and globs, separated by commas; prepared: the folder (with its own split and tokenizer)
        # mask: positions restart, and a document's first token is not predicted from another's last
        "documents": "cross",  # cross: attention crosses documents (GPT-3, sec. 2.3) | mask: none sees another (Llama 3, sec. 3.2)
        "val_fraction": 0.1,  # share of the documents' bytes held out for validation; split by document
        "split_seed": 0,  # which documents are held out
        "cache_dir": "",  # where token shards are kept; "": $SCALELAB_CACHE or ~/.cache/scalelab
        "language_seed": 0,  # synthetic: which language
        "n_tokens": 4_000_000,  # synthetic: corpus size in tokens
        # shares of the training sequences by source, also from a step on: "web=0.7,code=0.3; 8000: web=1/5,code=4/5"
        "mixture": "",  # "": as much of each as there is; the validation loss counts sources by their validation tokens
        "unique_tokens": "",  # training tokens kept of each source, then repeated: "1e6" | "web=1e6" (Muennighoff et al. 2023); "": all
    }


def optim() -> dict:
    """The optimizer. None: its own value (scalelab/config/optimizer_defaults.py); what it has no use for is refused."""
    return {
        "name": "adamw",  # see `scalelab optim --help`, or your own: pkg.mod:fn
        "peak_lr": placeholder(float),  # [h] per step, at the end of warm-up; tiny models want 1e-3 to 1e-2
        "beta1": placeholder(float),  # [h] decay of the first moment, or of momentum, per step
        "beta2": placeholder(float),  # [h] decay of the second moment, per step
        "beta3": placeholder(float),  # [h] ademamix: decay of the slow first moment, per step
        "alpha": placeholder(float),  # [h] ademamix: weight of the slow first moment
        "rho": placeholder(float),  # [h] sophia: the size of an update, in Hessians
        "eps": placeholder(float),  # [h] added to the second moment's root, or where the paper has it
        "weight_decay": placeholder(float),  # [h] times the LR (sgd, adam: added to the gradient)
        "decay_embeddings": True,  # whether the embedding and learned positions decay (OLMo 2: no)
        "decay_vectors": False,  # whether gains and biases decay (OLMo 2: yes)
        "clip_norm": 1.0,  # [h] global gradient norm above which gradients are scaled down (GPT-3, App. B)
        "nesterov": placeholder(bool),  # momentum, muon: look ahead
        # averaged, of momentum: m = beta1 m + (1 - beta1) g, with 1/(1 - beta1) the LR
        "averaged": placeholder(bool),  # momentum: as an average; adafactor: whether its updates are averaged
        "factored": placeholder(bool),  # adafactor: rows and columns of second moments only; false: whole (PaLM)
        "bias_correction": placeholder(bool),  # of Adam's moments; false to study its absence
        "scale": placeholder(str),  # muon: spectral, sqrt(max(1, out/in)) | rms, 0.2 sqrt(max(in, out))
        "newton_schulz": placeholder(str),  # muon: products in bf16 | fp32
        "every": placeholder(int),  # steps between new preconditioners, projections or Hessians
        "rank": placeholder(int),  # galore, apollo: rows kept of the smaller side
        "low_rank_scale": placeholder(float),  # [h] galore, apollo: factor of a low-rank update
        "rest_lr": placeholder(float),  # [h] of an optimizer for hidden matrices: peak LR of the rest's AdamW
        "rest_beta1": placeholder(float),  # [h] its beta1
        "rest_beta2": placeholder(float),  # [h] its beta2
        "rest_eps": placeholder(float),  # [h] its eps
        "own": {},  # [h] numbers of your own optimizer, which reads h["gamma"]: {"gamma": 0.025}
        "groups": "",  # LR multipliers by group, e.g. "embed=0.1,head=0.5"; groups: embed, head, position, hidden, vector
    }


def schedule() -> dict:
    """What changes over the run: learning rate, weight decay, batch, sequence length, momentum."""
    return {
        # constant | linear | cosine | cosine_restarts | wsd | wsd_s | power | multi_step | inverse_sqrt, or your own pkg.mod:fn
        "name": "cosine",  # of the LR; each with its source in optim/schedules.py; your own is (step, h) -> LR
        "warmup_steps": placeholder(int),  # [h] linear warm-up; None: as said below, else 5 %, at most 2000
        "warmup_tokens": placeholder(int),  # [h] the same in tokens, rounded to steps
        "warmup_share": placeholder(float),  # [h] the same as a share of train.steps
        # of wsd, wsd_s, power: linear | cosine | sqrt (1 - sqrt: Hägele et al. 2024, section 4) | exponential (final_share^progress:
        "decay_shape": "linear",  # Hu et al. 2024) | inverse (1/LR rises evenly: Wen et al. 2024)
        "decay_steps": placeholder(int),  # [h] of these: last steps, that decay; None: what is said below, else 20 %
        "decay_tokens": placeholder(int),  # [h] the same in tokens, rounded to steps
        "decay_share": placeholder(float),  # [h] the same as a share of train.steps (Hägele et al.: 10 to 20 %)
        # final_share: of linear, cosine, cosine_restarts, wsd, wsd_s and power
        "final_share": 0.1,  # [h] last LR / peak LR (Hoffmann et al. 2022: 0.1 for cosine; use 0 with wsd)
        # the LR then stays there (GPT-3: 260 of 300 billion tokens), or the run ends above it (OLMo 2 7B: 5 of 3.9 trillion)
        "fall_share": 1.0,  # [h] linear, cosine: where final_share is reached, as a share of train.steps
        "cycles": 1,  # [h] cosine_restarts: falls from the peak between warm-up and the end; wsd_s: decays, the last at the end
        # of cosine_restarts: a fall's length / the one before's (Loshchilov's T_mult, 1 or 2);
        "cycle_growth": 1.0,  # [h] of wsd_s: a decay's last step / the one before's (Wen et al. 2024: 2)
        "power_scale": 4.6,  # [h] power: a of LR = sequences in a batch x a x tokens^b (Shen et al. 2024, section 4)
        "power_exponent": -0.51,  # [h] power: b
        "hold_steps": 0,  # [h] inverse_sqrt: step from which it falls; 0: the warm-up's end (T5, PaLM: 10,000)
        # lr2: a step takes weight_decay x LR^2 (PaLM: 1.0); independent: weight_decay x LR / peak (Wortsman et al. 2023)
        "wd_shape": "constant",  # of optim.weight_decay: constant (times LR) | cosine (Caron et al. 2021) | lr2 | independent
        "wd_final_share": 1.0,  # [h] wd_shape=cosine: last weight_decay / first (Caron et al.: 0.04 to 0.4, so 10)
        # the batch grows linearly in tokens seen, in whole micro-batches of train.accumulate (GPT-3, Megatron-LM)
        "batch_start": placeholder(int),  # sequences of step 0, a multiple of global_batch/accumulate; None: full
        "batch_warmup_tokens": placeholder(int),  # tokens seen when global_batch is reached (GPT-3: 4 to 12 billion)
        # or the batch jumps (PaLM, Llama 3): sequences of step 0, then `step: sequences` up to global_batch
        "batch_stages": "",  # e.g. PaLM's "512; 50000: 1024; 115000: 2048", multiples of global_batch/accumulate; "": none
        # attention reaches back to the last multiple of a length that grows linearly in tokens seen; a step has as many tokens
        "seq_start": placeholder(int),  # [h] length of step 0, in tokens (Li et al. 2022: 8 to 64); None: full
        "seq_warmup_tokens": placeholder(int),  # [h] tokens seen when the length is model.seq_len
        "beta1_start": 0.85,  # [h] beta1 of step 0 where beta1_steps > 0 (Muon, Jordan 2024: 0.85 to 0.95)
        "beta1_steps": 0,  # [h] steps of beta1's linear way from there to optim.beta1 (Muon: 300); 0: constant
    }


def parallel() -> dict:
    """Devices along each axis of the mesh; one may be -1: the rest."""
    return {
        "data": 1,  # each holds everything and takes its share of the batch
        "fsdp": 1,  # the same, and each keeps 1/fsdp of what parallel.zero says
        "context": 1,  # the sequence is split; attention goes round the devices in a ring (Liu et al. 2023)
        "stage": 1,  # the layers are split; micro-batches pass from stage to stage
        "tensor": 1,  # heads, feed-forward units and vocabulary are split (Shoeybi et al. 2019)
        "sequence": False,  # between the blocks `tensor` splits the sequence (Korthikanti et al. 2022, sec. 4.2.2)
        "zero": 3,  # along fsdp: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too (FSDP)
        "schedule": "1f1b",  # of the stages: gpipe | 1f1b (holds at most `stage` micro-batches) | circular (smaller bubble)
        "microbatches": 1,  # of a pipeline, a micro-batch of train.accumulate each; a bubble of (p-1)/(rounds*m+p-1)
        "rounds": 1,  # circular: how many times a micro-batch comes round, through layers/(stage*rounds) each time
    }


def train() -> dict:
    """The run: its length, batch and seed, and what it starts from."""
    return {
        "steps": 500,  # optimizer steps; traced, but the trials of a pack share it
        "global_batch": 16,  # sequences a step, over all devices
        "accumulate": 1,  # micro-batches a step; token-weighted, so the step equals the big batch's
        "seed": 0,  # [h] initialisation and data order
        "z_loss": 0.0,  # [h] weight of mean(logsumexp^2) (PaLM: 1e-4); reported losses exclude it
        "ema": 0.0,  # [h] decay a step of a bias-corrected average of the weights, for `eval --ema`; 0: none is kept
        "deterministic": False,  # the same bits again at some speed: on a GPU, ops of fixed order, and kernels chosen once a run
        "init_from": "",  # start on weights of RUN, RUN@STEP or hf:DIR (safetensors); optimizer and schedule begin anew; "": drawn
        "branch_from": "",  # go on from RUN@STEP, all state included: `scalelab train --branch-from` sets it; "": none
        # no new step for so long, nor for ten dispatches: the stacks of all threads go into stacks.txt, exit 1. Megatron-LM's
        # --distributed-timeout-minutes is 10; compiling, evaluating, saving and restoring may take what they take
        "stall_s": 300.0,  # seconds; 0: never
        "steps_per_dispatch": 20,  # steps that run on the device before the host looks again
    }


def llama(d_model: int = 64, n_layers: int = 2, n_heads: int = 4) -> ConfigDict:
    """Touvron et al. 2023: pre-norm RMSNorm, RoPE, SwiGLU of width 8/3 d, no biases, untied head."""
    return ConfigDict(
        {
            "n_layers": n_layers,  # blocks, each attention then MLP
            "d_model": d_model,  # width of the residual stream
            "n_heads": n_heads,  # query heads
            "n_kv_heads": placeholder(int),  # key/value heads of groups of queries (Ainslie et al. 2023); None: n_heads
            "d_head": placeholder(int),  # width of a head; None: d_model / n_heads
            "d_ff": placeholder(int),  # width of the MLP; None: 4 d_model, for swiglu 8/3 d_model rounded up to 8
            "vocab_size": 256,  # rows of the embedding; bytes need 256
            "seq_len": 128,  # tokens a sequence
            "position": "rope",  # rope (Su et al. 2021) | learned | relative (Transformer-XL, as Chinchilla) | none
            "rope_theta": 10_000.0,  # base wavelength of rope, in positions
            # linear (Chen et al. 2023) | ntk (bloc97 2023) | llama3 (Llama 3.1) | yarn (Peng et al. 2023): rope for longer sequences
            "rope_scaling": "none",  # or how the frequencies of rope are made slower
            "rope_factor": 1.0,  # by how much rope_scaling stretches positions (Llama 3.1: 8, of an original length of 8192)
            "rope_original": 8192,  # llama3, yarn: tokens a sequence before the stretching
            "window": 0,  # tokens that a query sees, its own included (Mistral 7B: 4096); 0: all before it
            "global_every": 0,  # window: every n-th layer sees everything all the same (Gemma 2: 2, Gemma 3: 6); 0: none
            "rope_local_theta": 0.0,  # rope_theta of the layers with a window, if others have none (Gemma 3: 1e4 and 1e6); 0: the same
            "nope_every": 0,  # rope: every n-th layer knows no positions (SmolLM3: 4; Yang et al. 2025, "Rope to Nope"); 0: none
            "block": "sequential",  # attention, then MLP | parallel: both of one norm, added (PaLM, Chowdhery et al. 2022, sec. 2)
            "norm_place": "before",  # norms before attention and MLP | after: of what they give (OLMo 2, 2024, sec. 2.1)
            "norm": "rmsnorm",  # rmsnorm (Zhang & Sennrich 2019) | layernorm | layernorm_nobias (PaLM, sec. 2)
            "norm_eps": 1e-6,  # added to the mean square
            "mlp": "swiglu",  # swiglu (Shazeer 2020) | gelu (tanh form) | relu2 (So et al. 2021) | relu (OPT, 2022)
            "qk_norm": False,  # RMSNorm of queries and keys (Henry et al. 2020)
            "qk_norm_over": "head",  # each head by itself (Qwen 3, 2025) | projection: all heads at once (OLMo 2, 2024)
            "tied_head": False,  # the head is the embedding, transposed
            "bias": False,  # biases on every projection
            "qkv_bias": False,  # biases on queries, keys and values only (Qwen 2.5, 2024)
            "logit_softcap": 0.0,  # logits -> cap x tanh(logits / cap) (Gemma 2: 30); 0: off
            "logit_scale": "none",  # rsqrt_width: logits / sqrt(d_model), for a tied embedding of init_std 1 (PaLM, sec. 5)
            "init_std": 0.02,  # of the embedding, the head and learned positions
            "projection_std": 0.0,  # of projections (GPT-2: 0.02, DeepSeek: 0.006); 0: each 1/sqrt(its fan_in)
            "depth_scaled_init": False,  # projections into the residual stream begin 1/sqrt(2 n_layers) as large (GPT-2, sec. 2.3)
            "remat": "none",  # what the backward recomputes in each block: none | dots (keeps matmul outputs) | full
            # how attention is computed: auto (by backend and length, and said) | plain, xla (all logits at once) | blockwise
            "attention": "auto",  # blockwise, cudnn (NVIDIA), splash (TPU): memory linear in seq_len (Dao et al. 2022)
        }
    )


def gpt2(d_model: int = 64, n_layers: int = 2, n_heads: int = 4) -> ConfigDict:
    """Radford et al. 2019: pre-norm LayerNorm, learned positions, GELU of width 4 d, biases, tied head."""
    model = llama(d_model, n_layers, n_heads)
    model.position, model.norm, model.norm_eps, model.mlp = "learned", "layernorm", 1e-5, "gelu"
    model.bias = model.tied_head = True
    return model


def chinchilla(d_model: int = 64, n_layers: int = 2, n_heads: int = 4) -> ConfigDict:
    """Hoffmann et al. 2022, in Gopher's form: RMSNorm, Transformer-XL positions, GELU of width 4 d, biases, tied head."""
    model = llama(d_model, n_layers, n_heads)
    model.position, model.mlp = "relative", "gelu"
    model.bias = model.tied_head = True
    return model
