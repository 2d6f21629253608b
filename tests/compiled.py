"""Programs that a session compiled are there for the next: jax's compilation cache, carried over between sessions.

A session works in a folder of its own, so that a test that kills its process while it writes, or fills the disk, leaves
nothing behind for the next. Programs are linked into it at the start; at the end, new ones that can be read whole are
carried back, each in one step. jax names a program by a hash of its text, options, flags, versions and devices;
programs of other versions, flags or processors have a folder of their own besides, so that none is ever looked up.
"""

import contextlib
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import shutil

import zstandard

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("jax", "jaxlib", "numpy", "zstandard")
MOST_BYTES = 2**30  # in all; the oldest programs go first
SUFFIX = "-cache"  # jax's


def store() -> pathlib.Path | None:
    """The folder of these versions, flags and processor; None if $SCALELAB_TEST_CACHE is empty."""
    top = os.environ.get("SCALELAB_TEST_CACHE", str(ROOT / ".cache" / "compiled"))
    if not top:
        return None
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    key = "\n".join([platform.python_version(), *versions, os.environ.get("XLA_FLAGS", ""), processor()])
    return pathlib.Path(top) / hashlib.sha256(key.encode()).hexdigest()[:16]


def processor() -> str:
    """What decides which machine code runs here: architecture, model and instruction sets."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    kinds = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return "\n".join([platform.machine(), *kinds])


def fetch(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Put the programs of earlier sessions into a session's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):  # one less: another session just dropped it
            shutil.copyfile(path, folder / path.name)


def carry_back(folder: pathlib.Path, target: pathlib.Path) -> None:
    """Keep a session's new programs for the next; those that cannot be read whole are left out, and the oldest go."""
    target.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"*{SUFFIX}"):
        if not (target / path.name).exists() and is_whole(path):
            part = target / f"{path.name}.{os.getpid()}"
            shutil.copyfile(path, part)
            os.replace(part, target / path.name)
    drop_oldest(target.parent, MOST_BYTES)


def is_whole(path: pathlib.Path) -> bool:
    """Whether jax can unpack a program; it warns of one that it cannot, which fails a test."""
    try:
        return bool(zstandard.ZstdDecompressor().decompress(path.read_bytes()))
    except (zstandard.ZstdError, OSError):
        return False


def drop_oldest(top: pathlib.Path, most_bytes: int) -> None:
    """Delete the oldest programs of all versions until the rest fits; then folders that are empty."""
    files = [(path.stat().st_mtime, path.stat().st_size, path) for path in top.glob("*/*")]
    size = sum(n for _, n, _ in files)
    for _, n, path in sorted(files):
        if size <= most_bytes:
            break
        path.unlink(missing_ok=True)
        size -= n
    for folder in top.iterdir():
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()
