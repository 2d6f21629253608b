"""The honest things that hostile ones are made from: trained, swept, prepared and exported once, then copied."""

import contextlib
import json
import logging
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping

from checks.hostile.strangers.edits import CODE, TOKEN, Case, Site, clear
from scalelab.errors import BadInput, WorkFailed

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUCKET = "bucket"
CONFIG = '''"""A run of 24 steps on a few files of text."""

from scalelab.configs import tiny

SMALL = {small!r}


def get_config():
    """The tiny run, smaller."""
    config = tiny.get_config()
    for key, value in SMALL.items():
        group, name = key.split(".")
        config[group][name] = value
    return config


def sweep(h):
    """Two programs, two seeds."""
    return h.product([h.sweep("model.d_model", [8, 12]), h.sweep("train.seed", range(2))])


def tune():
    """One key."""
    return {{"nuisance": {{"optim.peak_lr": (1e-3, 1e-1, "log")}}, "fixed": ["train.global_batch", "train.steps"]}}
'''
SMALL = {
    "model.d_model": 8, "model.n_layers": 1, "model.n_heads": 2, "model.seq_len": 16, "train.global_batch": 2,
    "train.steps": 24, "train.steps_per_dispatch": 2, "eval.every_steps": 12, "eval.batches": 1, "log.every_steps": 1,
    "checkpoint.every_steps": 12, "checkpoint.keep_last": 9, "schedule.warmup_steps": 2, "data.source": "text",
    "data.val_fraction": 0.3, "train.ema": 0.7, "log.layers_every": 2, "schedule.name": "wsd",
}  # fmt: skip
TUNE = ["tune", "--config=small.py", "--trials=40", "--executor=manifest"]
ABLATE = [
    *("ablate", "--baseline=small.py", "--variant=other.py", "--budgets=1e8,2e8,4e8", "--sizes=8,8,8"),
    "--executor=manifest",
]
PREPARE = ["prepare", "--source=text/*.txt", "--tokenizer=bpe:280", "--workers=1", "--val-fraction=.3"]
STEPS: tuple[tuple[list[str], tuple[int, ...]], ...] = (
    (["train", "--config=small.py", "--workdir=run"], (0,)),
    (["note", "run", "a note"], (0,)),
    (["eval", "run", "--sequences=2"], (0,)),
    (["report", "run"], (0, 1)),
    (["sweep", "--config=small.py", "--workdir=sweep"], (0,)),
    (["report", "sweep"], (0, 1)),
    (["sweep", "--config=small.py", "--workdir=manifest", "--executor=manifest"], (75,)),
    ([*TUNE, "--workdir=tune"], (75,)),
    ([*ABLATE, "--workdir=ablate"], (75,)),
    ([*PREPARE, "--out=prepared"], (0,)),
    (["export", "hf", "run", "--out=hf"], (0,)),
    (["fit", "it.csv", "--bootstrap=0", "--json=law.json"], (0, 1)),
    (["train", "--config=small.py", f"--workdir=s3://{BUCKET}/run"], (0,)),
    ([*PREPARE, f"--out=s3://{BUCKET}/prepared"], (0,)),
)
WORDS = (
    "def f(x):\n    return [x, (x)]\n",
    "for i in range(9):\n    print(i)\n",
    "while x:\n    x = g[x]\n",
)
TASK = {"context": "def f(x):\n    retur", "completion": "n "}
HARDWARE = {
    "name": "mine", "flops": {"bfloat16": 2e12, "float32": 1e12}, "hbm_bytes": 16e9, "hbm_bytes_per_s": 5e11,
    "link_bytes_per_s": 1e10, "links": 2, "devices_per_node": 2, "node_bytes_per_s": 1e10,
}  # fmt: skip


def make_honest(folder: pathlib.Path, store: Mapping[str, str], code: str, tell: Callable[[str], None]) -> None:
    """Make all of it in `folder`, unless this code did so before; the store's objects are kept as files."""
    if (folder / "made").exists() and (folder / "made").read_text() == code:
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "text").mkdir(parents=True)
    chance = random.Random(0)
    for i in range(12):
        words = [chance.choice(WORDS) for _ in range(10 + 8 * i)]
        (folder / "text" / f"{i}.txt").write_text("".join(words))
    write_configs(folder, folder)
    shutil.copy(ROOT / "scalelab" / "laws" / "examples" / "quickstart.csv", folder / "it.csv")
    environment = os.environ | store | {"SCALELAB_CACHE": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = str(ROOT)
    for arguments, codes in STEPS:
        tell(f"honest: scalelab {' '.join(arguments)}")
        command = [sys.executable, "-m", "scalelab", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode not in codes:
            raise WorkFailed(f"scalelab {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-500:]}")
    download(store["AWS_ENDPOINT_URL"], folder / "buckets")
    (folder / "tasks.jsonl").write_text("".join(json.dumps(TASK) + "\n" for _ in range(3)))
    (folder / "source.jsonl").write_text("".join(json.dumps({"text": word}) + "\n" for word in WORDS * 20))
    (folder / "hardware.json").write_text(json.dumps(HARDWARE))
    (folder / "outputs").mkdir()
    (folder / "papers" / "chinchilla").mkdir(parents=True)
    (folder / "made").write_text(code)


def write_configs(folder: pathlib.Path, honest: pathlib.Path) -> None:
    """Write the user's own two configs into a folder; their text lies in `honest`."""
    small = SMALL | {"data.path": f"{honest}/text/*.txt"}
    (folder / "small.py").write_text(CONFIG.format(small=small))
    (folder / "other.py").write_text(CONFIG.format(small=small | {"optim.beta2": 0.9}))


SOURCES = {"bucket_run": "buckets/run", "bucket_corpus": "buckets/prepared", "table": "it.csv", "law": "law.json",
           "tasks": "tasks.jsonl", "source": "source.jsonl", "hardware": "hardware.json",
           "tokenizer": "prepared/tokenizer.json"}  # fmt: skip


def build_case(case: Case, slot: pathlib.Path, honest: pathlib.Path, neighbour: bool = True) -> Site:
    """Lay out the work folder of a pair: the user's configs, perhaps an honest neighbour, and the hostile thing."""
    work = slot / "work"
    clear_tree(work)
    work.mkdir(parents=True)
    write_configs(work, honest)
    if neighbour:
        shutil.copytree(honest / "run", work / "neighbour")
    shutil.copy(honest / "it.csv", work / "honest.csv")
    (work / "text").symlink_to(honest / "text")
    site = Site(work, work / case.place, honest, slot / "canary", slot / "marker")
    source = honest / SOURCES.get(case.kind, case.kind)
    if source.is_dir():
        shutil.copytree(source, site.it)
    else:
        shutil.copy(source, site.it)
    case.build(site)
    return site


def clear_tree(folder: pathlib.Path) -> None:
    """Remove a folder, however deep it is."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (RecursionError, OSError):  # or a process of the last command still writes
        time.sleep(1)
        subprocess.run(["rm", "-rf", "--", str(folder)], check=True)


def make_canaries(slot: pathlib.Path, honest: pathlib.Path) -> None:
    """Make the tree that nothing may touch: a home, files, a run, and the module whose import leaves a mark."""
    canary = slot / "canary"
    clear_tree(canary)
    for name in ("home/.ssh", "home/.config", "files", "drop", "code"):
        (canary / name).mkdir(parents=True)
    secret = {"secret.txt": TOKEN + "\n", "secret.csv": f"run,step,loss\n{TOKEN},1,2\n",
              "secret.json": json.dumps({"name": TOKEN, "status": "done", "text": TOKEN}) + "\n",
              "secret.jsonl": json.dumps({"step": 1, "kind": TOKEN, "text": TOKEN, "time": 1.0}) + "\n"}  # fmt: skip
    for name, content in secret.items():
        (canary / "files" / name).write_text(content)
    (canary / "files" / "read_only.txt").write_text(TOKEN)
    (canary / "files" / "read_only.txt").chmod(0o444)
    (canary / "home" / ".bashrc").write_text(f"# {TOKEN}\n")
    (canary / "home" / ".ssh" / "authorized_keys").write_text(TOKEN)
    (canary / "home" / ".ssh" / "authorized_keys").chmod(0o600)
    shutil.copytree(honest / "run", canary / "run")
    mark = f"open({str(slot / 'marker')!r}, 'a').write('x')"
    (canary / "code" / f"{CODE}.py").write_text(
        f"{mark}\n\n\ndef fn(*_, **__):\n    {mark}\n\n\n"
        f"def law(N, D, *, E: float):\n    {mark}\n    return E + 0 * N * D\n"
    )
    clear(slot / "marker")


@contextlib.contextmanager
def start_store() -> Iterator[dict[str, str]]:
    """A local S3 of moto's, and the environment of its clients."""
    try:
        import moto.server
        import obstore  # noqa: F401
    except ImportError as error:
        raise BadInput(f"hostile buckets need {error.name}: pip install -r requirements-dev.txt") from error
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        ask(url, "PUT", "")
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        yield {"AWS_ENDPOINT_URL": url, **keys}
    finally:
        server.stop()


def ask(url: str, method: str, path: str, content: bytes | None = None) -> bytes:
    """One request about the bucket."""
    request = urllib.request.Request(f"{url}/{BUCKET}{path}", data=content, method=method)
    request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/s3/aws4_request")
    request.add_header("Content-Type", "application/octet-stream")  # else moto takes a form for it
    with urllib.request.urlopen(request) as reply:
        body: bytes = reply.read()
    return body


def list_objects(url: str, prefix: str = "") -> list[str]:
    """The names in the bucket that begin so (at most 1,000)."""
    query = urllib.parse.urlencode({"list-type": 2, "prefix": prefix})
    return re.findall(r"<Key>([^<]*)</Key>", ask(url, "GET", f"?{query}").decode())


def download(url: str, folder: pathlib.Path) -> None:
    """Keep all objects as files."""
    for name in list_objects(url):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(ask(url, "GET", f"/{urllib.parse.quote(name)}"))


def upload(url: str, folder: pathlib.Path, prefix: str, again: bool) -> None:
    """Put a folder's files as objects below a prefix, in place of those that were there (`again`)."""
    for name in list_objects(url, prefix + "/") if again else ():
        ask(url, "DELETE", f"/{urllib.parse.quote(name)}")
    for path in folder.rglob("*"):
        if path.is_file():
            name = f"{prefix}/{path.relative_to(folder).as_posix()}"
            ask(url, "PUT", f"/{urllib.parse.quote(name)}", path.read_bytes())
