"""A name without special characters for a folder that Orbax writes and reads.

Orbax searches for the files of each process by a pattern that starts with the folder's own path. Where that path holds
`[`, `*` or `?`, the search finds nothing, or another folder's files: the step is committed and can't be restored (Orbax
0.12.8, `merge_ocdbt_per_process_files`). Tensorstore takes a backslash in a path for a separator.
"""

import os
import pathlib
import shutil
import tempfile
import weakref
from typing import Any

SPECIAL_CHARACTERS = "[]*?\\"


def plain_path(folder: pathlib.Path, user: Any) -> pathlib.Path:
    """Return `folder`, or if its path has SPECIAL_CHARACTERS a link to it, which is removed with the object `user`."""
    if not any(character in str(folder) for character in SPECIAL_CHARACTERS):
        return folder
    place = pathlib.Path(tempfile.mkdtemp(prefix="scalelab-link-"))
    weakref.finalize(user, shutil.rmtree, place, ignore_errors=True)
    os.symlink(folder, place / "checkpoints")
    return place / "checkpoints"
