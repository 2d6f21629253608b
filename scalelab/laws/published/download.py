"""Downloads run tables from the authors' public repositories, each with a pinned commit and a SHA-256 to match.

Five tables can be downloaded as they are. The others were converted from other formats or typed from a paper:
`MANUAL_SOURCES` says where they come from.
"""

import dataclasses
import hashlib
import http.client
import os
import pathlib
import urllib.request
from collections.abc import Callable

from scalelab.laws.published.tables import MOST_TABLE_BYTES
from scalelab.untrusted.files import read_bytes

CHUNK_BYTES = 1 << 16
TIMEOUT_S = 60.0
_RAW = "https://raw.githubusercontent.com"
# The file that the paper's notebook reads.
_BESIROGLU = f"{_RAW}/Besiroglu/data/02783aeb768463ef2635c061a961068ff3e93949"
_GEMSTONES = f"{_RAW}/mcleish7/gemstone-scaling-laws/1fb97a26b3a4ee647475ee3b46d67413b1844405/wandb_dfs"


class DownloadError(RuntimeError):
    """A file that could not be downloaded, or whose bytes are not the expected ones. Nothing of it stays on disk."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A table's URL, and the SHA-256 of its bytes."""

    url: str
    sha256: str


def _gemstones(name: str, sha256: str) -> Source:
    return Source(f"{_GEMSTONES}/wandb_df_for_fitting_{name}.jsonl", sha256)


DOWNLOADABLE_FILES = {
    "chinchilla/points.csv": Source(
        f"{_BESIROGLU}/svg_extracted_data.csv", "193478df4e90f040016431996c45682659306840ecdadf83cfb9cd5ca0aa1b30"
    ),
    "gemstones/hot.jsonl": _gemstones("hot", "655467b59c99383403d6f73f5b7f23c02aea3f12935dc110382d8a8b43a0ff5d"),
    "gemstones/hot_100b+.jsonl": _gemstones(
        "hot_100b%2B", "1da97ce3d1394e0223826c8f5ca081cb0fb289ec65d2707fb5430721e92e9659"
    ),
    "gemstones/hot_sampled_like_chinchilla.jsonl": _gemstones(
        "hot_sampled_like_chinchilla", "cd77120b51cb60621bddafc2291e7f301dcb7610092ccc37ced802e5fd887cd1"
    ),
    "gemstones/slim_chinchilla.jsonl": _gemstones(
        "slim_chinchilla", "38cd9dba89a7c9e25c5959cf67817522264e8db4921f8deeab15e0ffdc386f8d"
    ),
}
_PORIAN = "github.com/formll/resolving-scaling-law-discrepancies, data/summary_df*.pickle.xz: pickled pandas frames"
_DATABLATIONS = "github.com/huggingface/datablations: the logs and notebooks of the runs"
MANUAL_SOURCES = {
    "marin/moe_frontier.csv": "github.com/marin-community/marin, issues 4447 and 4697: C, loss, note (fitted, or "
    "measured later)",
    "steplaw/moe.csv": "github.com/step-law/steplaw, data: the table of models with experts, as it is",
    "chinchilla/table_A9.csv": "Hoffmann et al. 2022 (arXiv 2203.15556), table A9: params_M, d_model, ffw_size, "
    "kv_size, n_heads, n_layers",
    "porian/isoflop_points.csv": f"{_PORIAN}; one row an IsoFLOP point",
    "porian/optimal_pairs.csv": f"{_PORIAN}; one row a budget: flops, n, loss, n_star_std",
    "gadre/runs.csv": "github.com/mlfoundations/scaling, exp_data/models/*.json with exp_data/evals/*.json: one row "
    "a run",
    "datablations/runs_182_fit_set.csv": f"{_DATABLATIONS}; params, tokens_total, tokens_unique, val_loss",
}


def download_file(source: Source, path: pathlib.Path, tell: Callable[[str], None]) -> None:
    """Download `source` to `path`, whole and verified, or raise DownloadError and leave nothing behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(source.url, timeout=TIMEOUT_S) as answer, draft.open("wb") as file:
            while chunk := answer.read(CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
                tell(f"{path.name}: {file.tell() / 1024:.0f} KiB")
        if digest.hexdigest() != source.sha256:
            raise DownloadError(f"{source.url} has SHA-256 {digest.hexdigest()}, not {source.sha256}: not kept")
        draft.replace(path)
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"{source.url}: {getattr(error, 'reason', error)}") from None
    finally:
        draft.unlink(missing_ok=True)


def has_valid_copy(source: Source, path: pathlib.Path) -> bool:
    """Whether `path` already holds the bytes of `source`."""
    return (
        path.is_file() and hashlib.sha256(read_bytes(path, MOST_TABLE_BYTES, follow=True)).hexdigest() == source.sha256
    )
