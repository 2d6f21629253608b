"""A user's own functions, faulty and not; copied beside the config file as `mine.py`."""

import ast
import pathlib
import random
import re
import sysconfig

import jax
import jax.numpy as jnp
import optax


def library(pattern="[a-t]*.py", limit=200):
    """Python's own modules as texts, in the order of their names."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    paths = [path for path in sorted(root.glob(pattern)) if path.parent.name not in ("encodings", "test")]
    return [text for path in paths[:limit] if len(text := path.read_bytes()) > 400]


def articles(path):
    """A corpus of some 500 texts of up to 12,000 bytes."""
    for text in library() + library("[a-w]*/[a-z]*.py", 500):
        yield text[:12000]


STEPS = {
    "N": [(1, 2), (2, 1), (-1, 2), (-2, 1), (1, -2), (2, -1), (-1, -2), (-2, -1)],
    "B": [(1, 1), (1, -1), (-1, 1), (-1, -1)],
    "R": [(1, 0), (-1, 0), (0, 1), (0, -1)],
    "Q": [(1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1)],
    "K": [(1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1)],
}


def _targets(board, square, kind, white):
    """Where a piece may go: by its steps, up to another piece; checks are not looked for."""
    file, rank = square
    if kind == "P":
        ahead = 1 if white else -1
        places = [(file, rank + ahead)]
        if rank == (1 if white else 6):
            places.append((file, rank + 2 * ahead))
        for place in places:
            if place in board:
                break
            yield place
        for side in (-1, 1):
            place = (file + side, rank + ahead)
            if place in board and board[place][1] != white:
                yield place
        return
    for right, up in STEPS[kind]:
        for far in range(1, 2 if kind in "NK" else 8):
            place = (file + far * right, rank + far * up)
            if not (0 <= place[0] < 8 and 0 <= place[1] < 8):
                break
            if place in board and board[place][1] == white:
                break
            yield place
            if place in board:
                break


def _name(square):
    return "abcdefgh"[square[0]] + str(square[1] + 1)


def games(path):
    """Chess games as in PGN: tags, then moves of a player who likes to take."""
    dice = random.Random(901)
    places = ("Riga", "Linares", "Zurich", "Hastings", "Tata Steel", "Baku", "Moscow", "Biel")
    names = ("Petrov, A", "Lindgren, K", "Rao, S", "Okafor, C", "Duarte, M", "Novak, J", "Haas, E", "Sato, H")
    for number in range(420):
        board = {(file, rank): ("P", rank == 1) for file in range(8) for rank in (1, 6)}
        board |= {(file, rank): (kind, rank == 0) for file, kind in enumerate("RNBQKBNR") for rank in (0, 7)}
        moves = []
        for ply in range(dice.randrange(24, 110)):
            white = ply % 2 == 0
            own = [square for square, piece in board.items() if piece[1] == white]
            choices = [(a, b) for a in own for b in _targets(board, a, board[a][0], white) if 0 <= b[1] < 8]
            choices = [(a, b) for a, b in choices if board.get(b, ("", 0))[0] != "K"]
            if not choices:
                break
            takes = [choice for choice in choices if choice[1] in board]
            here, there = dice.choice(takes if takes and dice.random() < 0.4 else choices)
            kind, took = board.pop(here)[0], there in board
            board[there] = ("Q" if kind == "P" and there[1] in (0, 7) else kind, white)
            start = (_name(here)[0] if took else "") if kind == "P" else kind
            text = start + ("x" if took else "") + _name(there) + ("=Q" if board[there][0] != kind else "")
            moves.append(f"{ply // 2 + 1}. {text}" if white else text)
        result = dice.choice(("1-0", "0-1", "1/2-1/2"))
        year, (white_name, black_name) = dice.randrange(1970, 2024), dice.sample(names, 2)
        tags = [("Event", f"{dice.choice(places)} {year}"), ("Round", f"{number % 13 + 1}")]
        tags += [("White", white_name), ("Black", black_name), ("Result", result)]
        yield "".join(f'[{key} "{value}"]\n' for key, value in tags) + "\n" + " ".join([*moves, result]) + "\n"


def minified(path):
    """Modules without comments and blank lines, one blank for each level, and none around signs."""
    for text in library("[a-p]*.py", 110):
        lines = []
        for line in ast.unparse(ast.parse(text)).splitlines():
            body = line.lstrip(" ")
            if body and not body.startswith(("'", '"')):
                lines.append(" " * ((len(line) - len(body)) // 4) + re.sub(r" ?([=<>+*/%,:|&-]+) ?", r"\1", body))
        yield "\n".join(lines) + "\n"


def tunes(path):
    """Tunes in ABC notation: a heading, then two parts of bars in a key, each a walk along its scale."""
    dice = random.Random(903)
    first = ("Miller", "Widow", "Piper", "Salmon", "Cobbler", "Lark", "Sailor", "Weaver", "Rambler", "Heron")
    last = ("Reel", "Jig", "Fancy", "Return", "Delight", "Hornpipe", "Farewell", "Waltz")
    scale = ["A,", "B,", *"CDEFGABcdefgab", "c'"]
    for number in range(1, 700):
        meter, length = dice.choice((("4/4", 8), ("6/8", 6), ("3/4", 6), ("2/4", 4)))
        at, parts = dice.randrange(6, 11), []
        for _ in range(2):
            bars = []
            for _ in range(8):
                left, notes = length, []
                while left:
                    size = min(left, dice.choice((1, 1, 1, 2, 2, 3)))
                    at = min(len(scale) - 1, max(0, at + dice.choice((-2, -1, -1, 0, 1, 1, 2))))
                    notes.append(scale[at] + (str(size) if size > 1 else ""))
                    left -= size
                bars.append("".join(notes))
            parts.append("|: " + " | ".join(bars[:4]) + " |\n" + " | ".join(bars[4:]) + " :|")
        title = f"The {dice.choice(first)}'s {dice.choice(last)}"
        key = dice.choice(("G", "D", "A", "Em", "Am", "Bm", "C"))
        yield f"X:{number}\nT:{title}\nM:{meter}\nL:1/8\nK:{key}\n" + "\n".join(parts) + "\n"


def dumps(path):
    """Files as xxd prints them, without the text beside: an offset, then eight groups of four digits."""
    for text in library("[d-s]*.py", 70):
        lines = []
        for at in range(0, min(len(text), 4000), 16):
            digits = text[at : at + 16].hex()
            lines.append(f"{at:08x}: " + " ".join(digits[i : i + 4] for i in range(0, len(digits), 4)))
        yield "\n".join(lines) + "\n"


def hooked(declared, o, h, lr):
    """Adam, whose moves are handed to a hook for each layer."""
    adam = optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps)

    def by_layer(move, declaration):
        if not declaration.stack:
            return move
        hooks = []
        for layer in range(move.shape[0]):
            hooks.append(lambda: move[layer])  # noqa: B023
        return jnp.stack([hook() for hook in hooks])

    def update(grads, state, params=None):
        moves, state = adam.update(grads, state, params)
        return jax.tree.map(by_layer, moves, declared), state

    return optax.GradientTransformation(adam.init, update)


def even_steps(declared, o, h, lr):
    """Adam (Kingma & Ba 2015) whose squares are kept in a byte each: 255 even steps up to the tensor's largest."""
    b1, b2, eps = h.optim.beta1, h.optim.beta2, h.optim.eps

    def init(params):
        mu = jax.tree.map(jnp.zeros_like, params)
        bytes_ = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.uint8), params)
        return {"count": jnp.zeros((), jnp.int32), "mu": mu, "nu": bytes_, "step": jax.tree.map(lambda p: 0.0, params)}

    def update(grads, state, params=None):
        count = state["count"] + 1
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state["mu"], grads)
        nu = jax.tree.map(lambda q, s, g: b2 * q * s + (1 - b2) * g * g, state["nu"], state["step"], grads)
        step = jax.tree.map(lambda v: jnp.maximum(jnp.max(v), 1e-30) / 255, nu)
        kept = jax.tree.map(lambda v, s: jnp.clip(jnp.round(v / s), 1, 255).astype(jnp.uint8), nu, step)
        nu = jax.tree.map(lambda q, s: q * s, kept, step)
        moves = jax.tree.map(lambda m, v: (m / (1 - b1**count)) / (jnp.sqrt(v / (1 - b2**count)) + eps), mu, nu)
        return moves, {"count": count, "mu": mu, "nu": kept, "step": step}

    return optax.GradientTransformation(init, update)


def adan(declared, o, h, lr):
    """Adan (Xie et al. 2022, arXiv 2208.06677) with its own betas, from optax."""
    return optax.scale_by_adan(0.98, 0.92, 0.99, h.optim.eps)


def stable(declared, o, h, lr):
    """StableAdamW (Wortsman et al. 2023, arXiv 2304.13013): a tensor's steps shrink where g^2 / v is above one."""
    adam = optax.scale_by_adam(h.optim.beta1, h.optim.beta2, h.optim.eps)

    def update(grads, state, params=None):
        moves, state = adam.update(grads, state, params)

        def shrink(move, g, v):
            v = jnp.maximum(v / (1 - h.optim.beta2**state.count), h.optim.eps**2)
            return move / jnp.maximum(1.0, jnp.sqrt(jnp.mean(g * g / v)))

        return jax.tree.map(shrink, moves, grads, state.nu), state

    return optax.GradientTransformation(adam.init, update)


def mlp_first(x, parts):
    """The MLP before attention, each with its own norm."""
    x = x + parts.times * parts.mlp(parts.norm("mlp_norm", x))
    return x + parts.times * parts.attention(parts.norm("attention_norm", x))


def slow_states(a):
    """Temporal activation regularization (Merity et al. 2017, arXiv 1708.01009): neighbours' states stay near."""
    moved = jnp.mean(jnp.square(a.hidden[:, 1:] - a.hidden[:, :-1]).astype(jnp.float32), axis=-1)
    counts = a.targets[:, 1:] >= 0
    return 2e-2 * jnp.sum(jnp.where(counts, moved, 0.0)) / jnp.maximum(jnp.sum(counts), 1)
