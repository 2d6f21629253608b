"""Parse config values of the form NAME=NUMBER,…: `data.mixture`, `data.unique_tokens`, `model.block`; all exact."""

from fractions import Fraction
from typing import NamedTuple

from scalelab.errors import BadInput
from scalelab.numbers.written import parse_count


class MixtureStage(NamedTuple):
    """Shares of the training sequences by source, from step `step` on; a source that is not named has none."""

    step: int
    shares: dict[str, Fraction]


def parse_mixture(text: str) -> tuple[MixtureStage, ...]:
    """`"web=0.7,code=0.3; 8000: web=1/5,code=4/5"` -> stages; `""` -> (): sources by their sizes.

    BadInput for a part not of the form NAME=SHARE or STEP:, a name twice, shares that don't sum to 1, or steps that
    don't rise.
    """
    stages: list[MixtureStage] = []
    for part in text.split(";") if text.strip() else []:
        start, colon, shares = part.rpartition(":")
        step = _parse_step(start.strip()) if colon else 0
        if stages and not colon:
            raise BadInput(
                f"data.mixture: {part.strip()!r} has no step; write it as STEP: {part.strip()}, "
                f"e.g. 8000: {part.strip()}"
            )
        if stages and step <= stages[-1].step:
            raise BadInput(
                f"data.mixture: step {step} comes after step {stages[-1].step}: steps have to rise; "
                f"nearest: {stages[-1].step + 1}"
            )
        if not stages and step:
            raise BadInput(f"data.mixture begins at step {step}, and the steps before have no shares; nearest: 0")
        stages.append(MixtureStage(step, _parse_shares(shares)))
    return tuple(stages)


def same_mixture_before(old: str, new: str, step: int) -> bool:
    """Whether two values of `data.mixture` agree in the steps before `step`."""
    before = [[stage for stage in parse_mixture(text) if stage.step < step] for text in (old, new)]
    used = [[(s.step, {name: share for name, share in s.shares.items() if share}) for s in stages] for stages in before]
    return used[0] == used[1]


def _parse_step(text: str) -> int:
    if not text.replace("_", "").isdecimal():
        raise BadInput(f"data.mixture: {text!r} is not a step; e.g. web=0.7,code=0.3; 8000: web=0.2,code=0.8")
    return int(text.replace("_", ""))


def _parse_shares(text: str) -> dict[str, Fraction]:
    shares = parse_named_numbers("data.mixture", text, "web=0.7,code=0.3")
    if (total := sum(shares.values(), Fraction())) != 1:
        ways = f"e.g. {'NAME=1/3' if abs(total - 1) < 0.01 else _scaled(shares)}"
        raise BadInput(f"data.mixture: the shares in {text.strip()!r} sum to {float(total):.12g}, not 1; {ways}")
    return shares


def _scaled(shares: dict[str, Fraction]) -> str:
    total = sum(shares.values())
    return ",".join(f"{name}={share / total}" for name, share in shares.items()) if total else "NAME=1"


def parse_unique_tokens(text: str) -> dict[str, int]:
    """`"web=1e6,code=2e6"` -> tokens by name; `"1e6"` -> {"": tokens}: of every source; `""` -> {}."""
    if not text.strip():
        return {}
    text = text if "=" in text else f"={text}"
    tokens = parse_named_numbers("data.unique_tokens", text, "1e6, or web=10M,code=2e6", counts=True)
    for name, number in tokens.items():
        if number.denominator != 1 or not number:
            part = f"{name}={float(number):g}".lstrip("=")
            raise BadInput(f"data.unique_tokens: {part} is not a number of tokens; nearest: {max(1, round(number))}")
    return {name: int(number) for name, number in tokens.items()}


class StackText(NamedTuple):
    """A number of layers in a row with one kind of block."""

    block: str
    depth: int


def parse_stacks(text: str, n_layers: int) -> tuple[StackText, ...]:
    """`"sequential=2,parallel=4"` -> stacks of layers, in order; a block's name alone: all `n_layers`.

    A name may come twice, as the order counts. BadInput for a part that is not BLOCK=LAYERS, for no layer, and for
    layers that don't sum to `n_layers`.
    """
    parts = text.split(",")
    if len(parts) == 1 and "=" not in text:
        return (StackText(text.strip(), n_layers),)
    stacks = tuple(_parse_stack(part.strip()) for part in parts)
    if (total := sum(stack.depth for stack in stacks)) != n_layers:
        raise BadInput(
            f"model.block={text!r}: the layers sum to {total:,}, not model.n_layers={n_layers:,}; "
            f"nearest: {_scaled_stacks(stacks, n_layers)}"
        )
    return stacks


def _parse_stack(part: str) -> StackText:
    name, _, depth = (piece.strip() for piece in part.partition("="))
    if not name or not depth.isascii() or not depth.isdecimal() or not int(depth[:20]):
        nearest = f"; nearest: {name}=1" if name else "; e.g. sequential=2,parallel=4"
        raise BadInput(f"model.block: {part[:80]!r} is not a block and its number of layers, at least 1{nearest}")
    return StackText(name, int(depth[:20]))


def _scaled_stacks(stacks: tuple[StackText, ...], n_layers: int) -> str:
    """The stacks in these shares, as text, with `n_layers` in all."""
    if len(stacks) > n_layers:
        return f"{stacks[0].block}, or model.n_layers={sum(stack.depth for stack in stacks)}"
    return format_stacks(scale_stacks(stacks, n_layers))


def scale_stacks(stacks: tuple[StackText, ...], n_layers: int) -> tuple[StackText, ...]:
    """The stacks with `n_layers` in all, in shares as near as whole layers are, each one layer at least."""
    total = sum(stack.depth for stack in stacks)
    shares = [Fraction(stack.depth * n_layers, total) for stack in stacks]
    depths = [max(1, int(share)) for share in shares]
    while sum(depths) != n_layers:
        step = 1 if sum(depths) < n_layers else -1
        lacking = [i for i, depth in enumerate(depths) if depth + step]
        i = max(lacking, key=lambda i: step * (shares[i] - depths[i]))
        depths[i] += step
    return tuple(StackText(stack.block, depth) for stack, depth in zip(stacks, depths, strict=True))


def format_stacks(stacks: tuple[StackText, ...]) -> str:
    """`model.block` of these stacks."""
    return stacks[0].block if len(stacks) == 1 else ",".join(f"{stack.block}={stack.depth}" for stack in stacks)


def parse_named_numbers(key: str, text: str, example: str, counts: bool = False) -> dict[str, Fraction]:
    """`"a=0.1,b=1/3"` -> {name: number}, exact. BadInput naming `key`: not NAME=NUMBER, below 0, a name twice.

    `counts`: also `10M`, as in tables.
    """
    numbers: dict[str, Fraction] = {}
    for part in text.split(","):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        try:
            number = Fraction(parse_count(value)) if counts and value[-1:].isalpha() else Fraction(value)
        except (ValueError, OverflowError, ZeroDivisionError):
            number = Fraction(-1)
        if not sign or not 0 <= number < 2**63:
            raise BadInput(f"{key}: {part.strip()!r} is not a name and a number from 0 to 2^63; e.g. {example}")
        if name in numbers:
            raise BadInput(f"{key}: {name!r} is named twice in {text.strip()!r}")
        numbers[name] = number
    return numbers
