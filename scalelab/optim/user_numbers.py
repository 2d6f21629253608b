"""The hparams that a user's own optimizer may read: the ones set in its config, and `optim.own`."""

from typing import Any, NoReturn

import jax

from scalelab.config import Optim
from scalelab.errors import BadInput
from scalelab.optim.schedules import Hparams


class UserNumbers(dict[str, Any]):
    """hparams by name; reading a name that is not set is BadInput, since a silent 0 would train something else."""

    def __init__(self, optimizer: str, unset: tuple[str, ...], h: Hparams) -> None:
        super().__init__({name: value for name, value in h.items() if name not in unset})
        self._optimizer, self._unset = optimizer, unset

    def __missing__(self, name: str) -> NoReturn:
        key = f"optim.{name}" if name in self._unset else f"optim.own.{name}"
        raise BadInput(f"optim.name={self._optimizer!r} reads h[{name!r}], which is not set: --config.{key}=VALUE")


def _plain(names: Any, values: Any) -> Any:
    return dict(zip(names, values, strict=True))


# If the user's function is compiled by itself, with `h` an argument, it sees a plain dict.
jax.tree_util.register_pytree_node(UserNumbers, lambda h: (tuple(h.values()), tuple[Any, ...](h)), _plain)


def readable_hparams(o: Optim, h: Hparams) -> Hparams:
    """The hparams that the optimizer `o` may read: all of `h`, for a user's own (`pkg.mod:fn`) only the ones set."""
    return UserNumbers(o.name, o.unset, h) if ":" in o.name else h
