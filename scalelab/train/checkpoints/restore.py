"""Reading arrays back through Orbax, onto any mesh."""

import contextlib
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding


def restore_arrays(orbax: ocp.AsyncCheckpointer, place: pathlib.Path, like: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays at `place`, as `like` wants them: onto its shardings, or onto the first device."""
    target = jax.tree.map(_sharded_struct, dict(like))
    arguments = ocp.checkpoint_utils.construct_restore_args(target)
    restore = ocp.args.PyTreeRestore(item=target, restore_args=arguments, partial_restore=True)
    arrays: dict[str, Any] = orbax.restore(place, args=restore)
    return arrays


def _sharded_struct(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=sharding)


@contextlib.contextmanager
def hide_abandoned_reads() -> Iterator[None]:
    """Keep reads that Orbax abandons from printing: where one of them fails, it closes the loop that awaits the others.

    Each of those ends with a traceback on standard error, up to dozens, around the line that names the damaged file.
    After a failure the hook stays, since they end at any time.
    """
    shown = sys.unraisablehook

    def hook(event: Any) -> None:
        if not (isinstance(event.exc_value, RuntimeError) and str(event.exc_value) == "Event loop is closed"):
            shown(event)

    sys.unraisablehook = hook
    yield
    sys.unraisablehook = shown


def read_arrays(place: pathlib.Path) -> dict[str, np.ndarray]:
    """All arrays at `place` by dotted name (`run.params.embed.w`), in host memory, whatever program saved them."""
    leaves = jax.tree_util.tree_leaves_with_path(read_tree(place))
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}


def read_tree(place: pathlib.Path) -> Any:
    """The tree of arrays at `place`, in host memory; tuples that were saved come back as lists or dicts."""
    with hide_abandoned_reads(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as orbax:
        saved = orbax.metadata(place.absolute())
        plain = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), saved.item_metadata.tree)
        return orbax.restore(place.absolute(), args=ocp.args.PyTreeRestore(restore_args=plain))
