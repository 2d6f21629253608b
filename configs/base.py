"""The default tree: one record for every config key, read from top to bottom; `scalelab config [KEY]` prints it.

One file, longer than others here may be: it is the page on which users find a key, and a fork edits one place. Cut into
a file a group, it took a search to find what a table of contents already is, and each key's neighbours were lost.

A config file starts from here and changes what it studies:

    from scalelab.configs import base
    def get_config():
        config = base.get_config()
        config.model = base.llama(d_model=512, n_layers=8, n_heads=8)
        return config

A record holds the default, the meaning, the unit, the range or choices, and the source of a default or choice.
Choices are the names in tables of the package that implement them: to add one, add a row there (docs/fork.md). The
words behind `#` are today's; `scalelab config KEY` reads them from the tables.
`derived(type)` is None until `scalelab.config.resolve` derives it; the run's config.json shows the value it came to.

`key`      what decides the program or the data: part of the run's identity, and it may not change on resume
`number`   a traced number: it changes without recompiling, and trials that differ only in such numbers are packed
`setting`  nothing computed depends on it: not part of the identity
Numbers and settings may change on resume, keys may not, unless the line says otherwise (`resume=`, `identity=`).
On the command line counts are written as people write them: 20k, 1.5M, 7B, 1T, 1e9 (`scalelab/numbers/written.py`).
"""

from typing import TYPE_CHECKING

from scalelab.config.keys import COUNT, POSITIVE, TOKENS, above, build_group, build_tree, derived, key, number, setting

if TYPE_CHECKING:  # the records can be read without it: `scalelab config` and `scalelab runs` start faster
    from ml_collections import ConfigDict

# The defaults are those of `llama` below, at the size of `configs/tiny.py`.
MODEL = {
    "n_layers": key(2, "blocks, each attention then MLP", range=COUNT),
    "d_model": key(64, "width of the residual stream", range=COUNT),
    "n_heads": key(4, "query heads", range=COUNT),
    "n_kv_heads": key(derived(int), "key and value heads, each for a group of query heads; None: n_heads", range=COUNT,
        source="Ainslie et al. 2023"),
    "d_head": key(derived(int), "width of a head; None: d_model / n_heads", range=COUNT),
    "d_ff": key(derived(int), "width of the MLP; None: 4 d_model (swiglu: 8/3, rounded up to 8)", range=COUNT),
    "vocab_size": key(256, "rows of the embedding; bytes need 256", unit="tokens", range=COUNT),
    "seq_len": key(128, "length of a sequence", unit="tokens", range=COUNT),
    "position": key("rope", "how positions are encoded",
        source="rope: Su et al. 2021; relative: Transformer-XL (Dai et al. 2019), as in Chinchilla",
        choices="model/attention/attention.py:POSITIONS"),  # rope learned relative none
    "rope_theta": key(10_000.0, "rope: base wavelength", unit="positions", range=POSITIVE, source="Su et al. 2021"),
    "rope_scaling": key("none", "how rope is stretched to longer sequences",
        source="linear: Chen et al. 2023; ntk: bloc97 2023; llama3: Llama 3.1; yarn: Peng et al. 2023",
        choices="model/attention/positions/rotary.py:ROPE_SCALINGS"),  # none linear ntk llama3 yarn
    "rope_factor": key(1.0, "rope_scaling: by how much positions are stretched", range=(1, 1e6),
        source="Llama 3.1: 8, from an original length of 8192"),
    "rope_original": key(8192, "llama3, yarn: sequence length before stretching", unit="tokens", range=COUNT),
    "rope_mscale": key(1.0, "yarn: m in 0.1 m ln(rope_factor) + 1, the factor on queries and on keys",
        range=(0, 1e3), source="Peng et al. 2023, eq. 22: 1; DeepSeek-V2: 0.707"),
    "window": key(0, "latest tokens that a query attends to, itself included; 0: all", unit="tokens", range=(0, 1e9),
        source="Mistral 7B: 4096"),
    "global_every": key(0, "window: every n-th layer uses full attention; 0: none", unit="layers", range=(0, 1e6),
        source="Gemma 2: 2; Gemma 3: 6"),
    "rope_local_theta": key(0.0, "rope_theta of layers with a window; 0: as in the others", unit="positions",
        range=(0, 1e12), source="Gemma 3: 1e4, beside a rope_theta of 1e6"),
    "rope_share": key(1.0, "rope: share of a head's numbers, its first ones, that are rotated", range=(0.01, 1),
        source="GPT-NeoX-20B, StableLM-3B-4E1T: 0.25"),
    "nope_every": key(0, "rope: every n-th layer has no positions; 0: none", unit="layers", range=(0, 1e6),
        source='SmolLM3: 4; Yang et al. 2025, "Rope to Nope"'),
    "block": key("sequential", "attention, then MLP; parallel: both after one norm, added; experts: sequential with "
        "experts in the place of the MLP; or your own as pkg.mod:fn; "
        'stacks of unequal layers, each with its depth: "sequential=1,parallel=5"',
        source="parallel: PaLM (Chowdhery et al. 2022), sec. 2", user_code=True, stacked=True,
        choices="model/block.py:BLOCKS"),  # sequential parallel experts
    "norm_place": key("before", "norms before attention and MLP, after them, on their outputs, or both (around)",
        source="after: OLMo 2 (2024), sec. 2.1; around: Gemma 2 (2024), sec. 2",
        choices="model/block.py:NORM_PLACES"),  # before after around
    "norm": key("rmsnorm", "kind of norm",
        source="rmsnorm: Zhang & Sennrich 2019; layernorm_nobias: PaLM, sec. 2",
        choices="model/layers.py:NORMS"),  # rmsnorm layernorm layernorm_nobias
    "norm_eps": key(1e-6, "added to the mean square", range=POSITIVE),
    "mlp": key("swiglu", "activation of the MLP; gelu in its tanh form",
        source="swiglu, geglu: Shazeer 2020; relu2: So et al. 2021; relu: OPT (2022)",
        choices="model/layers.py:GATED+UNGATED"),  # swiglu geglu | gelu relu2 relu
    "qk_norm": key(False, "whether queries and keys have an RMSNorm", source="Henry et al. 2020"),
    "qk_norm_over": key("head", "qk_norm: over each head by itself, or over all heads at once",
        source="head: Qwen 3 (2025); projection: OLMo 2 (2024)",
        choices="model/attention/attention.py:QK_NORM_AXES"),  # head projection
    "tied_head": key(False, "whether the head is the embedding, transposed"),
    "bias": key(False, "whether every projection has a bias"),
    "qkv_bias": key(False, "whether queries, keys and values alone have biases", source="Qwen 2.5 (2024)"),
    "attention_softcap": key(0.0, "cap of attention's logits: x -> cap x tanh(x / cap); 0: off", range=(0, 1e6),
        source="Gemma 2 (2024), sec. 2: 50"),
    "logit_softcap": key(0.0, "cap: logits -> cap x tanh(logits / cap); 0: off", range=(0, 1e6), source="Gemma 2: 30"),
    "logit_scale": key("none", "rsqrt_width: logits / sqrt(d_model), for a tied embedding of init_std 1",
        source="PaLM, sec. 5",
        choices="model/layers.py:LOGIT_SCALES"),  # none rsqrt_width
    "init_std": key(0.02, "initial standard deviation of embedding, head and learned positions", range=POSITIVE),
    "projection_std": key(0.0, "initial standard deviation of projections; 0: each 1/sqrt(its fan_in)",
        range=(0, 1e3), source="GPT-2: 0.02; DeepSeek: 0.006"),
    "depth_scaled_init": key(False, "whether projections into the residual stream start 1/sqrt(2 n_layers) as large",
        source="GPT-2, sec. 2.3"),
    "remat": key("none", "what the backward pass recomputes in each block; dots: not matmuls; auto: least that fits",
        choices="model/pieces.py:REMAT_POLICIES plan/search/remat.py:CHOOSERS"),  # none dots full | auto
    "n_experts": key(0, "experts in each block of the kind `experts` (model.block), in the place of its MLP; 0: none",
        range=(0, 65_536), source="Shazeer et al. 2017"),
    "experts_per_token": key(2, "experts that a token goes to", range=COUNT, source="GShard, Mixtral 8x7B: 2"),
    "d_expert": key(derived(int), "width of an expert; None: d_ff", range=COUNT, source="DeepSeekMoE (2024), sec. 3.1"),
    "n_shared_experts": key(0, "experts that every token goes to, as one MLP of so many widths d_expert",
        range=(0, 65_536), source="DeepSeekMoE (2024), sec. 3.2"),
    "router_scores": key("softmax", "scores of the experts, from the router's logits",
        source="sigmoid: DeepSeek-V3 (2024), sec. 2.1.2",
        choices="model/experts/router.py:SCORES"),  # softmax sigmoid
    "router_renormalize": key(True, "whether the scores of a token's experts are divided by their sum",
        source="Mixtral, Qwen3-MoE: yes; OLMoE: no"),
    "router_scale": key(1.0, "factor on the sum of the routed experts", range=POSITIVE, source="DeepSeek-V3: 2.5"),
    "router_groups": key(1, "groups of the experts, of which a token chooses the best first", range=COUNT,
        source="DeepSeek-V3: 8"),
    "router_groups_per_token": key(1, "groups from which a token's experts come, each judged by its two best",
        range=COUNT, source="DeepSeek-V3: 4"),
    "router_z_weight": key(0.0, "weight of the router's mean logsumexp^2", range=(0, 1e3), source="ST-MoE: 1e-3"),
    "balance_rate": key(1e-3, "step of the bias that balances experts, by the sign of the load's error; 0: none",
        unit="per step", range=(0, 1e3), source="Wang et al. 2024, arXiv 2408.15664"),
    "balance_weight": key(0.0, "weight of the loss that balances experts, over the batch; 0: none", range=(0, 1e3),
        source="Switch Transformer (2021), sec. 2.2: 1e-2; GShard"),
    "balance_sequence_weight": key(0.0, "weight of the loss that balances experts within each sequence; 0: none",
        range=(0, 1e3), source="DeepSeek-V3, sec. 2.1.2: 1e-4"),
    "expert_capacity": key(0.0, "most tokens of an expert over their mean, at least 1; the others are dropped and "
        "counted; 0: none is dropped", range=(0, 1e6), source="Switch Transformer: 1.25"),
    "expert_products": setting("auto", "how tokens are multiplied with their experts; auto: by the chip",
        source="dropless: MegaBlocks (Gale et al. 2022)",
        choices="model/experts/ways.py:CHOOSERS+WAYS"),  # auto | loop products blocks ragged dense
    "d_kv_latent": key(0, "latent attention: width of the vector from which keys and values come; 0: off",
        range=(0, 2**31 - 1), source="DeepSeek-V2 (2024), sec. 2.1: 512"),
    "d_q_latent": key(0, "latent attention: width of the vector from which queries come; 0: straight from the stream",
        range=(0, 2**31 - 1), source="DeepSeek-V3: 1536"),
    "d_head_rope": key(64, "latent attention: width of a head's part with rotation; d_head is the part without",
        range=COUNT, source="DeepSeek-V2: 64"),
    "d_head_value": key(derived(int), "latent attention: width of a head's values; None: d_head", range=COUNT),
    "attention": setting("auto", "attention kernel; auto: by chip and length; cudnn: NVIDIA; splash: TPU; in rings too",
        source="blockwise: Dao et al. 2022",
        choices="model/attention/kernels.py:CHOOSERS+KERNELS"),  # auto | plain blockwise cudnn splash xla
}  # fmt: skip

# Where the tokens come from.
DATA = {
    "source": key("stdlib", "Python's own .py files, data.path as bytes, a bigram language, the output of `prepare`, "
        "or your own documents as pkg.mod:fn", user_code=True,
        choices="data/sources/sources.py:SOURCES data/dataset.py:READY"),  # stdlib text synthetic | prepared
    "path": key("", "text: files and globs, separated by commas; prepared: the folder, with split and tokenizer"),
    "documents": key("cross", "whether attention crosses documents; mask: it does not, and positions restart in each",
        source="cross: GPT-3, sec. 2.3; mask: Llama 3, sec. 3.2",
        choices="config/choices.py:DOCUMENTS"),  # cross mask
    "val_fraction": key(0.1, "share of bytes held out for validation: whole documents, or pieces of few",
        range=above(0, 1)),
    "split_seed": key(0, "which documents are held out", range=(0, 2**31 - 1)),
    "cache_dir": setting("", 'folder of token shards; "": $SCALELAB_CACHE or ~/.cache/scalelab; stored: read only'),
    "language_seed": key(0, "synthetic: which language", range=(0, 2**31 - 1)),
    "n_tokens": key(4_000_000, "synthetic: size of the corpus", unit="tokens", range=(1000, 1e12)),
    "mixture": key("", 'shares of training sequences by source; "": by size; from a step on: '
        '"web=0.7,code=0.3; 8000: web=1/5,code=4/5"'),
    "unique_tokens": key("", 'training tokens kept of each source, then repeated: "1e6" or "web=1e6"; "": all',
        unit="tokens", source="Muennighoff et al. 2023"),
}  # fmt: skip

# The optimizer. Derived values are its own (scalelab/config/optimizer_defaults.py); a value it can't use is refused.
OPTIM = {
    "name": key("adamw", "which optimizer (`scalelab optim --help`), or your own as pkg.mod:fn", user_code=True,
        choices="optim/registry.py:OPTIMIZERS"),
    "peak_lr": number(derived(float), "learning rate at the end of warm-up; tiny models want 1e-3 to 1e-2",
        unit="per step", range=(0, 1e3)),
    "beta1": number(derived(float), "decay of the first moment, or of momentum", unit="per step", range=(0, 0.999999)),
    "beta2": number(derived(float), "decay of the second moment", unit="per step", range=(0, 0.999999)),
    "beta3": number(derived(float), "ademamix: decay of the slow first moment", unit="per step", range=(0, 0.9999999)),
    "alpha": number(derived(float), "ademamix: weight of the slow first moment", range=(0, 1e6)),
    "rho": number(derived(float), "sophia: the size of an update, in Hessians", range=above(0, 1e6)),
    # Smaller eps, times a share of them, are zero in fp32: 0 / 0 wherever a gradient is zero.
    "eps": number(derived(float), "added to the root of the second moment, or as in its paper", range=(1e-36, 1)),
    "weight_decay": number(derived(float), "decay of the weights, times the LR (sgd, adam: added to the gradient)",
        unit="per step", range=(0, 1e3)),
    "decay_embeddings": key(True, "whether the embedding and learned positions decay", source="OLMo 2: no"),
    "decay_vectors": key(False, "whether gains and biases decay", source="OLMo 2: yes"),
    "clip": key("global", "how gradients are clipped: only at clip_norm; zclip: also outliers of the norm; adagc: each "
        "tensor at its own past norm; spam: also each number at sqrt(5000 v)",
        source="Kumar et al. 2025; Wang et al. 2025; Huang et al. 2025; constants: scalelab/optim/clip.py",
        choices="optim/clip.py:CLIPPERS"),  # global zclip adagc spam
    "clip_norm": number(1.0, "global gradient norm above which gradients are scaled down (adagc: in its warm-up alone)",
        range=above(0, 1e9), source="GPT-3, App. B"),
    "nesterov": key(derived(bool), "momentum, muon: whether to look ahead"),
    "averaged": key(derived(bool), "momentum: m = beta1 m + (1 - beta1) g; adafactor: mean updates"),
    "factored": key(derived(bool), "adafactor: rows and columns of second moments only; false: whole",
        source="PaLM: false"),
    "bias_correction": key(derived(bool), "whether Adam's moments are bias-corrected; false to study its absence"),
    "scale": key(derived(str), "muon: sqrt(max(1, out/in)), or 0.2 sqrt(max(in, out))",
        choices="optim/muon.py:SCALES"),  # spectral rms
    "newton_schulz": key(derived(str), "muon: format of the products",
        choices="optim/muon.py:ARITHMETICS"),  # bf16 fp32
    "every": key(derived(int), "interval of preconditioners, projections or Hessians", unit="steps", range=COUNT),
    "rank": key(derived(int), "galore, galore8bit, apollo: rows kept of the smaller side", range=COUNT),
    "low_rank_scale": number(derived(float), "galore, galore8bit, apollo: factor of a low-rank update",
        range=above(0, 1e6)),
    "rest_lr": number(derived(float), "optimizers for hidden matrices: peak LR of the AdamW for the rest",
        unit="per step", range=(0, 1e3)),
    "rest_beta1": number(derived(float), "beta1 of rest_lr's AdamW", unit="per step", range=(0, 0.999999)),
    "rest_beta2": number(derived(float), "beta2 of rest_lr's AdamW", unit="per step", range=(0, 0.999999)),
    "rest_eps": number(derived(float), "eps of rest_lr's AdamW", range=(1e-36, 1)),
    "own": number({}, 'traced numbers of your own optimizer, which reads h.optim.own.gamma: optim.own.gamma=0.025'),
    "groups": key("", 'LR multipliers of embed, head, position, hidden, vector: "embed=0.1,head=0.5"; "": none'),
}  # fmt: skip

# What changes over the run: learning rate, weight decay, batch, sequence length, momentum. Its parts must fit into the
# run and into each other: warm-up and decay that overlap are refused, as no step would have peak_lr.
SCHEDULE = {
    "name": key("cosine", "schedule of the LR, or your own (step, h) -> LR as pkg.mod:fn", user_code=True,
        choices="optim/schedules.py:SCHEDULES+DECAYING_SCHEDULES"),
    # linear cosine cosine_restarts multi_step inverse_sqrt | constant wsd wsd_s power
    "warmup_steps": number(derived(int), "linear warm-up; None: by tokens or share, else 5 %, at most 2000",
        unit="steps", range=(0, 1e12)),
    "warmup_tokens": number(derived(int), "warm-up, rounded to steps", unit="tokens", range=(0, 1e18), identity=False),
    "warmup_share": number(derived(float), "linear warm-up", unit="share of train.steps", range=(0, 1), identity=False),
    "decay_shape": key("linear", "wsd, wsd_s, power: shape of the decay", resume=True,
        source="Hägele et al. 2024; Hu et al. 2024; Wen et al. 2024",
        choices="optim/schedules.py:DECAYS"),  # linear cosine sqrt exponential inverse
    "decay_steps": number(derived(int), "wsd, wsd_s, power: length of the decay; None: by tokens or share, else 20 %",
        unit="steps", range=(0, 1e12)),
    "decay_tokens": number(derived(int), "decay, rounded to steps", unit="tokens", range=(0, 1e18), identity=False),
    "decay_share": number(derived(float), "length of decay", unit="share of train.steps", range=(0, 1), identity=False,
        source="Hägele et al. 2024: 0.1 to 0.2"),
    # At fall_share below 1 the LR then stays there (GPT-3); above 1 the run ends before it gets there (OLMo 2 7B).
    "final_share": number(0.1, "linear, cosine, cosine_restarts, wsd, wsd_s, power: last LR / peak LR; use 0 with wsd",
        range=(0, 1), source="Hoffmann et al. 2022: 0.1 for cosine"),
    "fall_share": number(1.0, "linear, cosine: where final_share is reached", unit="share of train.steps",
        range=above(0, 1e3), source="GPT-3: 260/300; OLMo 2 7B: 5/3.9"),
    "cycles": number(1, "cosine_restarts: falls after warm-up; wsd_s: decays, the last at the end", range=(1, 64)),
    "cycle_growth": number(1.0, "cosine_restarts: a fall's length / the previous one's; wsd_s: of a decay's last step",
        range=(1, 4), source="T_mult of Loshchilov & Hutter 2017: 1 or 2; Wen et al. 2024: 2"),
    "power_scale": number(4.6, "power: a in LR = sequences per batch x a x tokens^b", range=above(0, 1e9),
        source="Shen et al. 2024, sec. 4"),
    "power_exponent": number(-0.51, "power: b of power_scale", range=(-2, 0), source="Shen et al. 2024, sec. 4"),
    "hold_steps": number(0, "inverse_sqrt: step from which the LR falls; 0: end of warm-up", unit="steps",
        range=(0, 1e12), source="T5, PaLM: 10,000"),
    "wd_shape": key("constant", "weight_decay times LR, along a cosine, times LR^2, or times LR / peak", resume=True,
        source="Caron et al. 2021; PaLM; Wortsman et al. 2023",
        choices="optim/schedules.py:WEIGHT_DECAYS"),  # constant cosine lr2 independent
    "wd_final_share": number(1.0, "wd_shape=cosine: last weight_decay / first", range=(0, 1e3),
        source="Caron et al. 2021: 10, from 0.04 to 0.4"),
    # The batch grows linearly in tokens seen, by whole micro-batches of train.accumulate (as in Megatron-LM), or jumps.
    "batch_start": key(derived(int), "batch of step 0, a multiple of global_batch/accumulate; None: full",
        unit="sequences", range=COUNT),
    "batch_warmup_tokens": key(derived(int), "tokens seen when the batch is global_batch", unit="tokens", range=TOKENS,
        source="GPT-3: 4 to 12 billion"),
    "batch_stages": key("", 'jumps instead: batch of step 0, then `step: sequences` up to global_batch; "": none',
        unit="sequences", source='PaLM: "512; 50000: 1024; 115000: 2048"; Llama 3'),
    # Attention reaches back to the last multiple of a length that grows linearly in tokens; a step has as many tokens.
    "seq_start": number(derived(int), "length of sequences at step 0; None: full", unit="tokens", range=COUNT,
        resume=False, source="Li et al. 2022: 8 to 64"),
    "seq_warmup_tokens": number(derived(int), "tokens seen when the length is model.seq_len", unit="tokens",
        range=TOKENS, resume=False),
    "beta1_start": number(0.85, "beta1 of step 0, if beta1_steps > 0", unit="per step", range=(0, 0.999999),
        source="Muon (Jordan 2024): 0.85 to 0.95"),
    "beta1_steps": number(0, "linear way from beta1_start to optim.beta1; 0: constant", unit="steps", range=(0, 1e12),
        source="Muon (Jordan 2024): 300"),
}  # fmt: skip

PARAMETRIZATION = {
    "name": key("standard", "how initialisation, LR and multipliers depend on size",
        source="mup: Yang et al. 2022, Table 8; completep: Dey et al. 2025, Table 1",
        choices="config/choices.py:PARAMETRIZATIONS"),  # standard mup completep
    "base_width": key(64, "mup, completep: the d_model at which everything equals standard's", range=COUNT),
    "base_layers": key(2, "completep: the n_layers at which everything equals standard's", range=COUNT),
    "base_d_head": key(derived(float), "mup, completep: d_head at base_width; None: the same heads", range=POSITIVE),
}  # fmt: skip

PRECISION = {
    # fp16: dynamic loss scaling; fp8: e4m3, gradients e5m2, a scale a tensor; fp8_delayed: from the last 16 steps;
    # fp8_block: a scale for each tile of 128 (DeepSeek-V3).
    # Without fp32 weights: bf16_stochastic (2 bytes a weight), bf16_kahan (2 and 2 for what rounding lost).
    # Harmful, to show it: bf16_master; warned of: fp16_unscaled | bf16_moments (experiments/results/precision.md).
    "name": key("fp32", "formats of activations and products; each in scalelab/precision/policy.py",
        choices="precision/policy.py:POLICIES"),
    # fp32 tf32 bf16 fp16 fp8 fp8_delayed fp8_block fp16_unscaled bf16_moments bf16_master bf16_stochastic bf16_kahan
}  # fmt: skip

# Devices along each axis of the mesh; one may be -1: the rest.
AXIS = (-1, 2**31 - 1)
PARALLEL = {
    "data": setting(1, "replicas that share the batch", unit="devices", range=AXIS),
    "fsdp": setting(1, "replicas that each keep 1/fsdp of what parallel.zero names", unit="devices", range=AXIS),
    "expert": setting(1, "replicas that each keep 1/expert of the experts; tokens travel to theirs and back",
        unit="devices", range=AXIS, source="GShard (Lepikhin et al. 2020), sec. 3"),
    "expert_buffer": setting(0.0, "most rows that a device sends to another along expert, and multiplies, over their "
        "mean; what is beyond is dropped and counted; 0: room for all", range=(0, 1e6),
        source="Switch Transformer: 1.25"),
    "context": setting(1, "parts of a sequence; keys and values go round a ring", unit="devices", range=AXIS,
        source="Liu et al. 2023"),
    "stage": setting(1, "pipeline stages of layers, the ends with one less if need be; micro-batches pass through",
        unit="devices", range=AXIS),
    "tensor": setting(1, "parts of heads, feed-forward units and vocabulary", unit="devices", range=AXIS,
        source="Shoeybi et al. 2019"),
    "sequence": setting(False, "whether `tensor` splits the sequence between blocks",
        source="Korthikanti et al. 2022, sec. 4.2.2"),
    "sums": setting("compute", "format of the partial products that `tensor` adds up: of activations, or fp32",
        choices="precision/policy.py:SUMS"),  # compute float32
    "parts": setting(0, "with sequence: stretches gathered and multiplied one after another; 0: up to 4 by the device",
        range=(0, 64), source="Wang et al. 2023, ASPLOS"),
    "zero": setting(3, "split along fsdp: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too",
        range=(0, 3), source="Rajbhandari et al. 2020; 3: FSDP"),
    "schedule": setting("1f1b", "order of a pipeline; 1f1b holds at most 2 * stage - 1 micro-batches, the others all",
        choices="parallel/stages/ticks.py:PIPELINE_SCHEDULES"),  # gpipe 1f1b circular
    "microbatches": setting(1, "micro-batches of a pipeline; bubble: (p-1)/(rounds*m+p-1)", range=COUNT),
    "rounds": setting(1, "not gpipe: rounds of a micro-batch; a stage holds so many chunks of layers", range=COUNT),
}  # fmt: skip

# The run: its length, batch and seed, and what it starts from.
TRAIN = {
    "steps": number(500, "optimizer steps; the trials of a pack share it", unit="steps", range=COUNT),
    "global_batch": key(16, "batch of a step, over all devices", unit="sequences", range=COUNT),
    "accumulate": key(1, "micro-batches a step; weighted by tokens, as in one big batch", range=COUNT),
    "seed": number(0, "seed of initialisation and data order", range=(0, 2**31 - 1), resume=False),
    "z_loss": number(0.0, "weight of mean(logsumexp^2); reported losses exclude it", range=(0, 1e3),
        source="PaLM: 1e-4"),
    "loss": key("", 'your own term of the loss, in nats a token, as pkg.mod:fn; "": none', user_code=True),
    "metrics": setting("", 'your own metrics of the step, logged with its own, as pkg.mod:fn; "": none',
        user_code=True),
    "ema": number(0.0, "decay of a bias-corrected average of the weights, for `eval --ema`; 0: none", unit="per step",
        range=(0, 0.9999999), resume=False),
    "updates": setting("whole", "when weights change: after the backward; or in a second one, each layer as its "
        "gradient arises, so that no other layer's exists",
        source="per_layer: LOMO (Lv et al. 2023), sec. 3; GaLore (Zhao et al. 2024), sec. 4.3",
        choices="config/choices.py:UPDATES"),  # whole per_layer
    "moments": setting("device", "where the optimizer's state lies; pinned_host: in the host's memory, from which "
        "each layer's is fetched for its update (train.updates=per_layer)",
        source="Ren et al. 2021, ZeRO-Offload",
        choices="config/choices.py:MOMENTS"),  # device pinned_host
    "deterministic": setting(False, "the same bits every time, at some speed: on a GPU, ops of fixed order"),
    "init_from": key("", 'start on the weights of RUN, RUN@STEP or hf:DIR (safetensors), all else anew; "": random'),
    "branch_from": setting("", 'go on from RUN@STEP with all state; `scalelab train --branch-from` sets it; "": none',
        resume=False),
    "stall_s": setting(300.0, "longest wait for a step (or ten dispatches), then stacks.txt and exit 1; also for "
        "other processes to compile; 0: none",
        unit="seconds", range=(0, 1e9), source="Megatron-LM's --distributed-timeout-minutes: 10"),
    "steps_per_dispatch": setting(20, "steps that the device runs before the host looks", unit="steps", range=COUNT),
}  # fmt: skip

EVAL = {
    "every_steps": key(100, "interval between validation losses; the last step has one", unit="steps", range=COUNT,
        resume=True),
    "batches": key(8, "batches of global_batch sequences from the fixed validation set", range=COUNT, resume=True),
    "patience": key(0, "end the run (status: stopped early) after so many without a lower loss; 0: never",
        unit="evaluations", range=(0, 1e9), source="Prechelt 1998, \"Early stopping - but when?\""),
    "metrics": setting("", 'your own metrics of evaluations, as pkg.mod:fn; "": none', user_code=True),
    "tasks": setting("", 'task files, with commas, scored at each evaluation; one column each, task/NAME; "": none'),
}  # fmt: skip

CHECKPOINT = {
    "every_steps": setting(100, "interval between saves; the last step is saved", unit="steps", range=COUNT),
    "keep_last": setting(2, "newest checkpoints kept", unit="checkpoints", range=COUNT),
    "keep_every": setting(0, "checkpoints at its multiples are kept for good; 0: none", unit="steps", range=(0, 1e12)),
    "fallback": setting(False, "if the last checkpoint is damaged: whether to go on from the last intact one"),
}  # fmt: skip

LOG = {
    "every_steps": setting(10, "interval between lines of metrics.jsonl", unit="steps", range=COUNT),
    "layers_every": setting(0, "interval of layers.jsonl: norms, activations, attention, losses of tokens; 0: none",
        unit="steps", range=(0, 1e12)),
    "layers_after_alarm": setting(32, "layers_every: every step so long after one that the guard flags", unit="steps",
        range=(0, 1e6)),
    "profile": setting("", 'steps of an XProf trace, FIRST:LAST such as 100:103, into RUN/profile; "": none'),
    # Mirrors of metrics.jsonl, one a trial, each with its config; a resumed run goes on in its own (docs/trackers.md).
    "tensorboard": setting(False, "whether TensorBoard events are also written into the run folder (tensorboardX)"),
    "wandb": setting("", 'Weights & Biases project to log to as well (needs `pip install wandb`); "": none'),
    "tags": setting("", "tags at Weights & Biases, separated by commas"),
    "sinks": setting("", 'your own, as pkg.mod:fn, several with commas; "": none', user_code=True, several=True),
    "alert": setting("", 'command that is started for each alarm, with it as JSON on its input; "": none'),
    "set_by": setting("", "who set each value of optim and schedule; filled in by scalelab"),
    "stretches": setting("", "what was counted before a changed batch, length or mixture; filled in by scalelab"),
    "remat": setting("", "model.remat=auto: why it became what it is; filled in by scalelab"),
    "role": setting("", 'what the run is to its study, for the fitter; "": nothing',
        choices="laws/fits/study.py:ROLES"),  # fit check holdout
}  # fmt: skip

# What watches every step, and what it may do; its memory is part of the checkpoints (scalelab/train/step/guard.py).
GUARD = {
    "policy": key("watch", "off; watch: log alarms, change nothing; skip: drop outliers; rewind: also go back",
        resume=True, choices="config/choices.py:GUARD_POLICIES"),  # off watch skip rewind
    "detector": key("log", "outliers; log: of logarithms, which never enter the window; sigma: as in OLMo-core",
        resume=True, source="sigma: OLMo-core's SkipStepOptimizer",
        choices="config/choices.py:DETECTORS"),  # log sigma
    "window": key(128, "losses and gradient norms that a step is compared with", unit="steps", range=(8, 4096),
        resume=True, source="OLMo-core: 128"),
    "minimum": number(64, "values in the window before a step is judged by it", unit="steps", range=(2, 4096),
        source="OLMo-core: half the window"),
    "sigmas": number(6.0, "standard deviations above the mean from which a value is an outlier", range=above(0, 1e3),
        source="OLMo-core: 6"),
    "spike": key("skip", "skip, rewind: what happens to an outlier; clip: to the window's median gradient norm",
        resume=True, choices="config/choices.py:SPIKES"),  # skip clip
    "skip": key("step", "skip, rewind: what a loss or gradient that is not finite costs (train.accumulate > 1)",
        resume=True, choices="config/choices.py:SKIPS"),  # step micro_batch
    "rerun": key(False, "whether flagged steps are taken again at once: other bits are the hardware's fault; "
        "holds the state twice", resume=True, source="Megatron-LM: rerun_state_machine"),
}  # fmt: skip

# How the run is judged after it was trained (`scalelab diagnose`).
DIAGNOSE = {
    "accept": setting("", 'causes that are meant, with commas, such as "decay_wrong,not_shuffled": listed, no findings',
        several=True, choices="diagnose/checks/causes.py:CAUSES"),  # decay_wrong schedule_wrong not_shuffled init_wrong
}  # fmt: skip

SWEEP = {
    "pack": setting("auto", "how trials of a pack share a process; turn: in sequence",
        choices="train/step/program.py:PACKING_CHOOSERS+PACKINGS"),  # auto | vmap turn
    "workers": setting(0, "most at once, for trials that can't share one; 0: half the cores", unit="processes",
        range=(0, 1024)),
}  # fmt: skip

KEYS = {
    "model": MODEL, "data": DATA, "optim": OPTIM, "schedule": SCHEDULE, "parametrization": PARAMETRIZATION,
    "precision": PRECISION, "parallel": PARALLEL, "train": TRAIN,
    "eval": EVAL, "checkpoint": CHECKPOINT, "guard": GUARD, "log": LOG, "diagnose": DIAGNOSE, "sweep": SWEEP,
}  # fmt: skip


def get_config() -> "ConfigDict":
    """The whole tree with its defaults."""
    return build_tree(KEYS)


def llama(d_model: int = 64, n_layers: int = 2, n_heads: int = 4) -> "ConfigDict":
    """Touvron et al. 2023: pre-norm RMSNorm, RoPE, SwiGLU of width 8/3 d, no biases, untied head."""
    model = build_group(MODEL)
    model.d_model, model.n_layers, model.n_heads = d_model, n_layers, n_heads
    return model


def gpt2(d_model: int = 64, n_layers: int = 2, n_heads: int = 4) -> "ConfigDict":
    """Radford et al. 2019: pre-norm LayerNorm, learned positions, GELU of width 4 d, biases, tied head."""
    model = llama(d_model, n_layers, n_heads)
    model.position, model.norm, model.norm_eps, model.mlp = "learned", "layernorm", 1e-5, "gelu"
    model.bias = model.tied_head = True
    return model


def chinchilla(d_model: int = 64, n_layers: int = 2, n_heads: int = 4) -> "ConfigDict":
    """Hoffmann et al. 2022, as Gopher: RMSNorm, Transformer-XL positions, GELU of width 4 d, biases, tied head."""
    model = llama(d_model, n_layers, n_heads)
    model.position, model.mlp = "relative", "gelu"
    model.bias = model.tied_head = True
    return model
