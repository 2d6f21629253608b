"""Other implementations of optimizers with our values: each function runs the steps of an `UpdateProblem`."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import apollo_torch
import bitsandbytes
import galore_torch
import galore_torch.galore_projector
import numpy as np
import pytorch_optimizer
import schedulefree
import torch

from checks.numerics.oracles.problem import UpdateProblem, to_torch
from scalelab.optim import apollo as our_apollo
from scalelab.optim import matrices


def run_sgd(p: UpdateProblem) -> None:
    """torch's momentum; ours is an average, so theirs runs at (1 - beta1) times the LR."""
    factor = 1.0 - p.o.beta1 if p.o.averaged else 1.0
    optimizer = torch.optim.SGD(p.groups(), momentum=p.o.beta1 or 0.0, nesterov=bool(p.o.nesterov))
    p.follow(optimizer, lambda lr, t: factor * lr)


def run_adam(p: UpdateProblem) -> None:
    """torch's Adam with coupled L2."""
    p.follow(torch.optim.Adam(p.groups(), betas=(p.o.beta1, p.o.beta2), eps=p.o.eps))


def run_adamw(p: UpdateProblem) -> None:
    """torch's AdamW."""
    p.follow(torch.optim.AdamW(p.groups(), betas=(p.o.beta1, p.o.beta2), eps=p.o.eps))


def run_adamw_uncorrected(p: UpdateProblem) -> None:
    """The AdamW of galore_torch, which is that of transformers; without a rank it projects nothing."""
    betas = (p.o.beta1, p.o.beta2)
    p.follow(galore_torch.GaLoreAdamW(p.groups(), betas=betas, eps=p.o.eps, correct_bias=False, **_quiet))


_quiet = {"no_deprecation_warning": True}


def run_rmsprop(p: UpdateProblem) -> None:
    """torch's RMSprop."""
    p.follow(torch.optim.RMSprop(p.groups(), alpha=p.o.beta2, eps=p.o.eps))


def run_nadamw(p: UpdateProblem) -> None:
    """torch's NAdamW.

    Its momentum is beta1 (1 - 0.96^(t momentum_decay) / 2): beta1 from the first step on if that decay is huge.
    """
    betas = (p.o.beta1, p.o.beta2)
    options = {"momentum_decay": 1e6, "decoupled_weight_decay": True}
    p.follow(torch.optim.NAdam(p.groups(), betas=betas, eps=p.o.eps, **options))


def run_lion(p: UpdateProblem) -> None:
    """Lion of pytorch_optimizer, with decoupled decay."""
    p.follow(pytorch_optimizer.Lion(p.groups(), betas=(p.o.beta1, p.o.beta2), weight_decouple=True))


def run_ademamix(p: UpdateProblem) -> None:
    """AdEMAMix of pytorch_optimizer; alpha and beta3 grow over `train.steps`."""
    betas = (p.o.beta1, p.o.beta2, p.o.beta3)
    more = {"alpha": p.o.alpha, "t_alpha_beta3": float(p.config.train.steps), "eps": p.o.eps, "weight_decouple": True}
    p.follow(pytorch_optimizer.AdEMAMix(p.groups(), betas=betas, **more))


def run_adalayer(p: UpdateProblem) -> None:
    """Adam-mini, which treats tensors with unknown names as Adalayer does: one second moment each."""
    unnamed = torch.nn.ParameterList([t for group in p.groups() for t in group["params"]])
    p.follow(pytorch_optimizer.AdamMini(unnamed, betas=(p.o.beta1, p.o.beta2), weight_decay=0.0, eps=p.o.eps))


def run_muon(p: UpdateProblem) -> None:
    """torch's Muon, with its Newton-Schulz in bf16."""
    adjusted = {"spectral": "original", "rms": "match_rms_adamw"}[p.o.scale]
    optimizer = torch.optim.Muon(p.groups(), momentum=p.o.beta1, nesterov=p.o.nesterov, adjust_lr_fn=adjusted)
    p.follow(optimizer)


def run_muon_float64(p: UpdateProblem) -> None:
    """torch's Muon, with its cast to bf16 replaced by float64."""
    with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
        run_muon(p)


def run_adafactor(p: UpdateProblem) -> None:
    """torch's Adafactor: factored for two or more axes, and scaled by the parameter's size."""
    p.follow(torch.optim.Adafactor(p.groups(), eps=(p.o.eps, 1e-3), foreach=False))


def run_adam8bit(p: UpdateProblem) -> None:
    """The CPU kernels of bitsandbytes, in fp32."""
    optimizer = bitsandbytes.optim.AdamW8bit(p.groups(), betas=(p.o.beta1, p.o.beta2), eps=p.o.eps, min_8bit_size=4096)
    p.follow(optimizer)


def run_soap(p: UpdateProblem) -> None:
    """SOAP of pytorch_optimizer, which follows the authors' code."""
    betas = (p.o.beta1, p.o.beta2)
    p.follow(pytorch_optimizer.SOAP(p.groups(), betas=betas, precondition_frequency=p.o.every, eps=p.o.eps))


def run_shampoo(p: UpdateProblem) -> None:
    """Shampoo of pytorch_optimizer without momentum; with `every` above 1 it would not move before the first roots."""
    p.follow(pytorch_optimizer.Shampoo(p.groups(), momentum=0.0, preconditioning_compute_steps=1, matrix_eps=p.o.eps))


def run_galore(p: UpdateProblem) -> None:
    """The authors' GaLore, with our signs of singular vectors: the paper leaves them open, old moments use them."""
    with mock.patch.object(galore_torch.galore_projector.GaLoreProjector, "get_orthogonal_matrix", _with_our_sign):
        p.follow(galore_torch.GaLoreAdamW(_low_rank_groups(p), betas=(p.o.beta1, p.o.beta2), eps=p.o.eps, **_quiet))


def run_galore8bit(p: UpdateProblem) -> None:
    """The authors' 8-bit GaLore on the CPU kernels of bitsandbytes, in fp32 with a projection rounded to bf16.

    Low-rank gradients lie as ours (rank x large), so that blocks of codes hold the same numbers.
    """
    projector = galore_torch.galore_projector.GaLoreProjector
    project, project_back = projector.project, projector.project_back

    def rounded(self: Any, weights: torch.Tensor, rank: int, type: str) -> torch.Tensor:
        return _with_our_sign(self, weights, rank, type).bfloat16().float()

    def project_turned(self: Any, gradient: torch.Tensor, step: int) -> torch.Tensor:
        low = project(self, gradient, step)
        return low if low.shape[0] < low.shape[1] else low.T.contiguous()

    def project_turned_back(self: Any, low: torch.Tensor) -> torch.Tensor:
        columns = self.ortho_matrix.shape[0] > self.ortho_matrix.shape[1]  # "left"; else they stand as rows
        return project_back(self, low if columns else low.T)

    turned = {"project": project_turned, "project_back": project_turned_back, "get_orthogonal_matrix": rounded}
    with mock.patch.multiple(projector, **turned), mock.patch.object(torch.cuda, "synchronize"):
        p.follow(galore_torch.GaLoreAdamW8bit(_low_rank_groups(p), betas=(p.o.beta1, p.o.beta2), eps=p.o.eps))


_orthogonal_matrix = galore_torch.galore_projector.GaLoreProjector.get_orthogonal_matrix


def _with_our_sign(self: Any, weights: torch.Tensor, rank: int, type: str) -> torch.Tensor:
    vectors = _orthogonal_matrix(self, weights, rank, type)  # "left": as columns; "right": as rows
    axis = 0 if type == "left" else 1
    return vectors * torch.sign(vectors.gather(axis, vectors.abs().argmax(axis, keepdim=True)))


def _low_rank_groups(p: UpdateProblem) -> list[dict[str, Any]]:
    """Parameter groups with the authors' options in those of matrices alone."""
    low = {"rank": p.o.rank, "update_proj_gap": p.o.every, "scale": p.o.low_rank_scale, "proj_type": "std"}
    matrices = [name for name in p.own if p.declared[name].is_hidden_matrix]
    others = [name for name in p.own if name not in matrices]
    return [group | low for group in p.groups(matrices)] + (p.groups(others) if others else [])


def run_apollo(p: UpdateProblem) -> None:
    """The authors' APOLLO, with our random projections."""
    kind = "tensor" if p.o.name == "apollo_mini" else "channel"
    low = {"rank": p.o.rank, "update_proj_gap": p.o.every, "scale": p.o.low_rank_scale**2, "proj_type": "std"}
    groups = [group | low | {"proj": "random", "scale_type": kind} for group in p.groups()]
    optimizer = apollo_torch.APOLLOAdamW(groups, betas=(p.o.beta1, p.o.beta2), eps=p.o.eps)
    for index, name in enumerate(sorted(p.own)):
        for tensor in p.tensors[name]:
            optimizer.state[tensor]["projector"] = _Projector(p, index, name)
    p.follow(optimizer)


class _Projector:
    """Replaces apollo_torch's projector, which draws other random numbers."""

    def __init__(self, p: UpdateProblem, index: int, name: str) -> None:
        self.p, self.index = p, index
        _, self.small, _ = matrices.folded_shape(p.declared[name])

    def project(self, g: torch.Tensor, step: int) -> torch.Tensor:
        """Project the smaller side of `g` (out, in), and keep the larger."""
        shape = (min(self.p.o.rank, self.small), self.small)
        drawn = our_apollo.random_projection(self.p.config.train.seed, self.index, step // self.p.o.every, shape)
        projection = torch.tensor(np.array(drawn), dtype=g.dtype)
        return g @ projection.T if g.shape[0] >= g.shape[1] else projection @ g


def run_sophia(p: UpdateProblem) -> None:
    """Sophia of pytorch_optimizer, with our estimates. It clips m / h to rho; ours clips m / (rho h) to 1."""
    rho, groups = p.o.rho, p.groups()
    for group in groups:
        group["weight_decay"] *= rho
    options = {"p": rho, "eps": p.o.eps / rho, "update_period": p.o.every, "weight_decouple": True}
    optimizer = pytorch_optimizer.SophiaH(groups, betas=(p.o.beta1, p.o.beta2), **options)
    tensors = [t for group in groups for t in group["params"]]
    names = {id(t): (name, layer) for name, some in p.tensors.items() for layer, t in enumerate(some)}

    def estimate(t: int) -> dict[str, Any]:
        if t % p.o.every != 1:
            return {}
        whole = {k: to_torch(p.declared[k], x, torch.float64, p.transposed) for k, x in p.estimates[t - 1].items()}
        return {"hessian": [whole[name][layer] for name, layer in (names[id(t)] for t in tensors)]}

    p.follow(optimizer, lambda lr, t: lr / rho, estimate)


def run_schedule_free(p: UpdateProblem) -> None:
    """The authors' released form: a step's weight in the average is the square of the largest LR so far."""
    _averaged(p, schedulefree.AdamWScheduleFree)


def run_schedule_free_paper(p: UpdateProblem) -> None:
    """The authors' form for their published experiments (Alg. 1): sqrt(1 - beta2^t) is a factor of the LR."""
    _averaged(p, schedulefree.AdamWScheduleFreePaper)


def _averaged(p: UpdateProblem, optimizer_class: Callable[..., Any]) -> None:
    optimizer = optimizer_class(p.groups(), betas=(p.o.beta1, p.o.beta2), eps=p.o.eps, foreach=False)
    optimizer.train()
    p.follow(optimizer)
    optimizer.eval()  # from y to x
