"""The same shapes in torch, compiled by torch.compile: GPT-2 as nanoGPT trains it, Llama as in transformers.

Written for PyTorch's own fast paths: fused attention and AdamW, bf16 by autocast over fp32 weights. The rows are those
of our plan, halved until they fit. Left out, with the reason, where torch or transformers is not installed.
"""

import functools
import os
import time
from collections.abc import Callable
from typing import Any

from checks.gpu.measures import utilisation
from checks.gpu.question import Context, Question
from checks.gpu.settings import build_config
from scalelab.plan.machine.machine import load_machine

WARM_UP = 3  # steps, the first of which compiles


def ask_torch(model: str, cost_s: float) -> list[Question]:
    """torch.compile's step of a model, at the rows that are planned for ours."""
    return [Question("step", cost_s, functools.partial(_measured, name=model))]


def _measured(context: Context, name: str) -> dict[str, Any]:
    """Tokens/s at the planned rows, halved until they fit; or why it was left out."""
    model = context.settings.models[name]
    try:
        import torch

        make = make_gpt2 if model["preset"] == "gpt2" else make_llama
        make({**model, "n_layers": 1, "d_model": 2 * model["n_heads"]}, "none")  # imports what it needs, or says so
    except ImportError as missing:
        return {"left_out": str(missing).split("\n")[0]}
    os.environ["JAX_PLATFORMS"] = "cpu"  # jax only plans here: the GPU is torch's
    on = load_machine(torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")
    plan = utilisation.choose_plan(model, on, context.settings.rows)
    rows = plan["rows"]
    while rows >= 1:
        try:
            torch.manual_seed(0)
            step_s = _time_steps(make(model, plan["remat"]), model, rows, context.settings.measured_s)
            tokens = rows * model["seq_len"]
            peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
            return {
                "rows": rows, "remat": plan["remat"], "step_s": step_s, "tokens_per_s": tokens / step_s,
                "peak_bytes": peak, "torch": torch.__version__,
            }  # fmt: skip
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            rows //= 2
    return {"left_out": "out of memory with one row"}


def _time_steps(module: Any, model: dict[str, Any], rows: int, measured_s: float) -> float:
    """Median seconds of a step."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = module.to(device).train()
    loss_of = torch.compile(module)
    adamw = torch.optim.AdamW(module.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    tokens = torch.randint(model["vocab_size"], (rows, model["seq_len"] + 1), device=device)
    seconds: list[float] = []
    while len(seconds) < WARM_UP + 3 or sum(seconds[WARM_UP:]) < measured_s:
        start = time.perf_counter()
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    timed = sorted(seconds[WARM_UP:])
    return timed[len(timed) // 2]


def make_gpt2(model: dict[str, Any], remat: str) -> Any:
    """A module (inputs, targets [B, S]) -> mean loss: GPT-2 with a tied head and no dropout; `remat` is not used."""
    import torch
    from torch import nn

    functional = nn.functional
    width, heads = model["d_model"], model["n_heads"]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            shape = (*x.shape[:2], heads, width // heads)
            q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm_1(x)).split(width, dim=2))
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
            return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(model["vocab_size"], width)
            self.positions = nn.Embedding(model["seq_len"], width)
            self.blocks = nn.ModuleList([Block() for _ in range(model["n_layers"])])
            self.norm = nn.LayerNorm(width)
            for table in (self.tokens, self.positions):
                nn.init.normal_(table.weight, std=0.02)

        def forward(self, inputs: Any, targets: Any) -> Any:
            x = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
            for block in self.blocks:
                x = block(x)
            logits = self.norm(x) @ self.tokens.weight.T
            return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return Gpt2()


def make_llama(model: dict[str, Any], remat: str) -> Any:
    """A module (inputs, targets [B, S]) -> mean loss: transformers' Llama; any `remat` but none checkpoints layers."""
    from torch import nn
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = build_config({**model, "n_layers": model["n_layers"]}).model
    config = LlamaConfig(
        hidden_size=shape.d_model,
        intermediate_size=shape.d_ff,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.seq_len,
        tie_word_embeddings=shape.tied_head,
        attn_implementation="sdpa",
        use_cache=False,
    )
    llama = LlamaForCausalLM(config)
    if remat != "none":
        llama.gradient_checkpointing_enable({"use_reentrant": False})

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.llama = llama

        def forward(self, inputs: Any, targets: Any) -> Any:
            logits = self.llama(input_ids=inputs).logits
            return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return Loss()


Make = Callable[[dict[str, Any], str], Any]
