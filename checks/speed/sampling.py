"""python -m checks.speed.sampling [--rounds=N] [--quick] [--json[=PATH]]

Measure how fast `scalelab sample` draws tokens beside transformers' `generate`, both on the exported weights of one
random Llama (8 layers of width 512, 8,192 ids; --quick: 4 of 256, 1,024 ids), greedily, fp32, with a cache: tokens a
second after warm-up, in turn, the median of N rounds (default 5), prompts of 32 ids and 64 new tokens, one prompt and
eight in a batch. Greedy ids must be equal. Needs torch and transformers (`make test-lm-eval` installs them). Minutes.

    python -m checks.speed.sampling --quick
"""

import json
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from checks.shared import RESULTS, command_line, result_header
from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, whole_number
from scalelab.config import Static
from scalelab.configs import base
from scalelab.errors import WorkFailed
from scalelab.evaluate import generate
from scalelab.hf.write import write_model
from scalelab.model import transformer

PROMPT, NEW, BATCHES = 32, 64, (1, 8)
NO_END = np.int32(-1)  # an id that is never drawn, so that both draw all tokens
CHUNK = 16  # tokens of ours between two looks at what has ended, as `scalelab sample` has it


def make_model(quick: bool) -> tuple[Static, Any]:
    """(static half of the config, random parameters), so large that greedy tokens are clear."""
    d_model, n_layers, vocab = (256, 4, 1024) if quick else (512, 8, 8192)
    tree = base.get_config()
    tree.model = base.llama(d_model, n_layers, d_model // 64)
    with tree.model.ignore_type():
        tree.model.update({"vocab_size": vocab, "seq_len": 1024, "init_std": 0.3})
    static = config_lib.static(config_lib.resolve(tree))
    return static, transformer.init_params(static.model, jax.random.key(0))


def make_ours(static: Static, params: Any, prompts: np.ndarray) -> Callable[[], np.ndarray]:
    """A function that draws NEW ids after each prompt as `scalelab sample` does."""
    ids, first = generate.pad_prompts(list(prompts))
    rules = generate.Rules(static.model.vocab_size, greedy=True, restricted=False)
    draws = generate.Draws(0.0, 0, 1.0, 0, np.arange(len(prompts)))
    length, params = generate.cache_length(static, PROMPT + NEW), generate.arrange_params(static, params)

    def draw() -> np.ndarray:
        texts = generate.begin(static, length, params, ids, first, NO_END)
        for done in range(CHUNK, NEW + 1, CHUNK):
            texts = generate.go_on(static, rules, params, texts, np.int32(done), NO_END, draws)
            bool(texts.done_B.all())
        return np.asarray(texts.ids_BC)[:, :NEW]

    return draw


def make_theirs(folder: pathlib.Path, prompts: np.ndarray) -> Callable[[], np.ndarray]:
    """The same by `generate` of transformers on an exported folder."""
    import torch  # here: --help works without it
    import transformers

    model, ids = transformers.AutoModelForCausalLM.from_pretrained(folder).eval(), torch.tensor(prompts).long()
    options = {"do_sample": False, "max_new_tokens": NEW, "max_length": None, "eos_token_id": None, "pad_token_id": 0}

    def draw() -> np.ndarray:
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        return np.asarray(out[:, PROMPT:])

    return draw


def measure_batch(static: Static, params: Any, folder: pathlib.Path, batch: int, rounds: int) -> dict[str, Any]:
    """Tokens a second of both for so many prompts, and the median of the rounds' ratios."""
    prompts = np.random.default_rng(batch).integers(1, static.model.vocab_size, (batch, PROMPT)).astype(np.int32)
    both = {"ours": make_ours(static, params, prompts), "transformers": make_theirs(folder, prompts)}
    first = {name: draw() for name, draw in both.items()}  # warm-up
    if not np.array_equal(first["ours"], first["transformers"]):
        raise WorkFailed(f"{batch} prompts: the greedy ids differ, so the times are not of the same work")
    seconds: dict[str, list[float]] = {name: [] for name in both}
    for _ in range(rounds):
        for name, draw in both.items():
            start = time.perf_counter()
            draw()
            seconds[name].append(time.perf_counter() - start)
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["transformers"], strict=True)]
    rates = {
        f"{name}_tokens_per_s": round(batch * NEW / statistics.median(times), 1) for name, times in seconds.items()
    }
    ends = {"least": round(min(ratios), 2), "most": round(max(ratios), 2)}
    return {"prompts": batch, **rates, "ratio": round(statistics.median(ratios), 2), **ends}


def main(argv: list[str]) -> int:
    """Measure, print and write the result. Exit code 0, 2 for bad input."""
    return guarded("sampling", _main, argv)


def _main(argv: list[str]) -> int:
    parser = command_line("speed.sampling", __doc__)
    parser.add_argument("--rounds", type=whole_number, default=5, metavar="N", help="rounds (default 5)")
    parser.add_argument("--quick", action="store_true", help="a small model")
    options = parser.parse_args(argv)
    static, params = make_model(options.quick)
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model"
        write_model(model, static.model, params, {"run": "random", "step": 0})
        rows = []
        for batch in BATCHES:
            rows.append(measure_batch(static, params, model, batch, options.rounds))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    import transformers  # here: --help works without it

    content = result_header("speed.sampling", argv) | {"transformers": transformers.__version__, "rows": rows}
    (RESULTS / "sampling.json").write_text(json.dumps(content, indent=1) + "\n")
    emit_json(content, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
