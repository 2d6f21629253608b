"""The hparams that a user's own optimizer may read: the ones set in its config, and `optim.own`."""

from scalelab.config import Hparams, Optim, flatten_hparams, group_hparams


def readable_hparams(o: Optim, h: Hparams) -> Hparams:
    """The hparams that the optimizer `o` may read: all of `h`, for a user's own (`pkg.mod:fn`) only the ones set.

    Reading another is BadInput, since a silent 0 would train something else.
    """
    if ":" not in o.name:
        return h
    unset = {f"optim.{name}" for name in o.unset}
    readable = {key: value for key, value in flatten_hparams(h).items() if key not in unset}
    return group_hparams(readable, f"optim.name={o.name!r}")
