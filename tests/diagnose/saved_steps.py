"""Checkpoints edited in a test: arrays of a saved step replaced, and its manifest written again, as if saved so."""

import numpy as np
import orbax.checkpoint as ocp

from scalelab.model.declare import named_leaves
from scalelab.train.checkpoints import hashes, manifest
from scalelab.train.checkpoints.restore import read_tree


def edit_arrays(run, step, change):
    """Replace arrays of a saved step by `change(arrays)`, {name: array} of those that are to be others."""
    folder = run / "checkpoints" / str(step)
    tree = read_tree(folder / "state")
    old = named_leaves(tree["run"])
    for name, x in change(old).items():
        _set(tree["run"], name.split("."), np.asarray(x, old[name].dtype).reshape(old[name].shape))
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False)) as orbax:
        orbax.save((folder / "state").absolute(), args=ocp.args.PyTreeSave(tree), force=True)
    content = manifest.read_manifest(folder)
    more = {key: content[key] for key in content if key not in ("format", "files", "tree_sha256", "sha256")}
    files = hashes.hash_files(folder, manifest.list_step_files(folder))
    manifest.write_manifest(folder, more.pop("step"), files, more.pop("tree"), more.pop("facts"), **more)


def _set(tree, path, value):
    """Set a leaf of a tree, in which the state of a matrix optimizer has whole names of parameters as keys."""
    if isinstance(tree, dict) and (whole := ".".join(path)) in tree:
        tree[whole] = value
    else:
        _set(tree[int(path[0])] if isinstance(tree, list | tuple) else tree[path[0]], path[1:], value)
