"""Read off the source: only `scalelab/untrusted/` opens what others wrote, and makes a path of a name in a file."""

import ast
import pathlib
import re

import pytest

from tests.folders import by_folder, parse

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = [
    path
    for path in sorted((ROOT / "scalelab").rglob("*.py"))
    if not path.is_relative_to(ROOT / "scalelab" / "untrusted")
    and (ROOT / "scalelab" / "experiments") not in path.parents
]
METHODS = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}  # of any object but the room's own modules
FUNCTIONS = {
    *("open", "io.open", "os.open", "json.load", "json.loads", "csv.reader", "csv.DictReader", "np.load", "np.memmap"),
    *("np.fromfile", "np.genfromtxt", "yaml.load", "yaml.safe_load", "tomllib.load", "tomllib.loads", "pickle.load"),
    *("pickle.loads", "shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree"),
}
ROOM = {"files", "documents"}  # modules of scalelab.untrusted, when imported as such
PATHS = re.compile(r"folder|path|place|parent|workdir|\bout\b|\broot\b|\bdraft\b")
STORED = "a name in a file"

PACKAGE, OWN, WRITES = "data of the package", "what this process or its own child wrote", "a new file of its own"
BOUNDED = "text that is bounded and checked where it is read"
NAMED = "a file that the user names"
ALLOWED = {
    "scalelab/__main__.py": {"open": "/dev/null", "os.open": "/dev/null"},
    "scalelab/cli/parser.py": {"json.loads": OWN, "write_text": f"{NAMED} for the answer"},
    "scalelab/commands/completion.py": {"read_text": PACKAGE},
    "scalelab/commands/fit/options.py": {"read_text": PACKAGE},
    "scalelab/commands/runs.py": {"write_text": f"{NAMED} for the answer"},
    "scalelab/api/door.py": {"read_text": PACKAGE},
    "scalelab/api/setup.py": {"read_text": PACKAGE, "write_text": WRITES},
    "scalelab/api/laws/curves.py": {"write_text": f"{NAMED} for the schedule, where no file is"},
    "scalelab/api/work/together.py": {"open": "/dev/null"},
    "scalelab/data/shards.py": {"open": WRITES, "np.memmap": "after `path_below` and the file's size and hash"},
    "scalelab/data/prepare/job.py": {"write_bytes": WRITES, STORED: "the entry of a tokenizer of this process"},
    "scalelab/data/prepare/merge.py": {"open": WRITES},
    "scalelab/data/prepare/screen.py": {"np.fromfile": OWN, "write_text": WRITES, "write_bytes": WRITES},
    "scalelab/data/prepare/units.py": {"open": WRITES, "write_text": WRITES},
    "scalelab/data/read/archives.py": {"open": "members of a tar that is read as a stream"},
    "scalelab/data/read/delimited.py": {"csv.reader": "rows of a stream of chunks"},
    "scalelab/data/read/megatron.py": {"np.memmap": f"{NAMED}, whose size its header gives"},
    "scalelab/data/read/text.py": {"json.loads": "a line of a corpus: its own bounds, and the fault by its place"},
    "scalelab/data/read/tokenfiles.py": {"np.memmap": f"{NAMED}, whose size its header gives"},
    "scalelab/data/read/tables/webdataset.py": {"json.loads": "a member of a sample, bounded where it is read"},
    "scalelab/data/sources/remote.py": {"open": WRITES},
    "scalelab/diagnose/replay/trial.py": dict.fromkeys(
        ("shutil.copy", "shutil.copytree"), "plain files of a run, into a folder that is deleted"
    ),
    "scalelab/git.py": {"read_bytes": "the user's own repository", "shutil.copy2": "its index"},
    "scalelab/hardware/versions.py": {"read_text": PACKAGE, "json.loads": PACKAGE},
    "scalelab/record/identity.py": {"read_bytes": "the source of modules that may be imported"},
    "scalelab/hf/write.py": {"write_text": WRITES},
    "scalelab/index/store.py": {"read_bytes": PACKAGE, "write_bytes": "a draft of mkstemp"},
    "scalelab/record/jsonfiles.py": {"os.open": "to bring it to disk"},
    "scalelab/foreign/opened.py": {"read_bytes": PACKAGE},  # the code that reads, for its digest
    "scalelab/foreign/readers/configs.py": {
        "yaml.load": BOUNDED,
        "tomllib.loads": BOUNDED,
    },  # plain values, without aliases and tags
    "scalelab/laws/examples/__init__.py": {"open": PACKAGE, "csv.DictReader": PACKAGE},
    "scalelab/laws/published/download.py": {"open": WRITES},
    "scalelab/laws/published/tables.py": {"csv.DictReader": BOUNDED},
    "scalelab/laws/read/readers.py": {"csv.reader": BOUNDED},
    "scalelab/parallel/handshake.py": {"os.open": WRITES},
    "scalelab/parallel/processes.py": {"json.loads": OWN},
    "scalelab/plan/compiled/aot.py": {"json.load": OWN, "write_text": WRITES},
    "scalelab/report/html.py": {"read_text": PACKAGE},
    "scalelab/set_by.py": {"json.loads": BOUNDED},
    "scalelab/signals.py": {"os.open": "/dev/null"},
    "scalelab/stores/lease.py": {"read_text": "a file of the kernel"},
    "scalelab/stores/upload.py": {
        "shutil.copytree": "hard links; links and pipes are left out as files are sent",
        "shutil.copy2": "the same, on another disk",
    },
    "scalelab/sweep/executors/manifest.py": {"json.loads": OWN},
    "scalelab/sweep/tune/conduct.py": {STORED: "runs that this process has named"},
    "scalelab/train/checkpoints/manifest.py": {"json.loads": OWN, STORED: "the pack that `read_record` has checked"},
    "scalelab/train/resume/weights.py": {"write_bytes": WRITES},
    "scalelab/user_code.py": {"read_bytes": "the source of modules that are imported"},
}


def relative(path):
    return path.relative_to(ROOT).as_posix()


def foreign_openings(tree):
    """(line, what) of each place that opens a file, parses text or makes a path by itself."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            base, _, method = name.rpartition(".")
            if name in FUNCTIONS:
                found.append((node.lineno, name))
            elif base and method in METHODS and base not in ROOM:
                found.append((node.lineno, method))
        elif joins_stored_name(node):
            found.append((node.lineno, STORED))
    return found


def joins_stored_name(node):
    """`folder / entry["file"]`; a quotient of two numbers of a record is none."""
    is_join = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and is_stored(node.right)
    return is_join and PATHS.search(ast.unparse(node.left))


def is_stored(node):
    """Whether an expression takes a value of loaded content: `entry["file"]`, `content.get("path")`."""
    for part in ast.walk(node):
        key = part.slice if isinstance(part, ast.Subscript) else None
        if (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and part.func.attr == "get"
            and part.args
        ):
            key = part.args[0]
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            return not ast.unparse(part).split("[")[0].isupper()  # a table of constants of the program
    return False


@by_folder(SOURCES)
def test_only_the_room_opens_what_others_wrote(paths):
    for path in paths:
        found = foreign_openings(parse(path))
        allowed = ALLOWED.get(relative(path), {})
        for line, what in found:
            assert what in allowed, f"{relative(path)}:{line}: {what}: use scalelab/untrusted, or say here why not"
        assert set(allowed) <= {what for _, what in found}, f"{relative(path)} needs no such permission any more"


def test_every_permission_is_of_a_file():
    assert set(ALLOWED) <= {relative(path) for path in SOURCES}


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("open(path)", "open"), ("with path.open() as f: pass", "open"), ("os.open(p, 0)", "os.open"),
        ("pathlib.Path(x).read_text()", "read_text"), ("(a / 'b').read_bytes()", "read_bytes"),
        ("json.loads(x)", "json.loads"), ("json.load(f)", "json.load"), ("list(csv.reader(f))", "csv.reader"),
        ("np.load(x)", "np.load"), ("shutil.copy(a, b)", "shutil.copy"), ("path.write_text('x')", "write_text"),
        ("folder / entry['file']", STORED), ("run.folder / 'runs' / content.get('name')", STORED),
        ("pathlib.Path(out) / record['pack']['checkpoints']", STORED), ("place / f'{job[\"name\"]}.json'", STORED),
    ],
)  # fmt: skip
def test_it_sees_what_it_forbids(code, what):
    assert [found for _, found in foreign_openings(ast.parse(code))] == [what]


@pytest.mark.parametrize(
    "code",
    ["read_bytes(path)", "files.read_text(path)", "folder / name", "row['a'] / row['b']", "folder / FILES['json']",
     "documents.parse_json(x)", "x.get(1)", "loss / held['val_loss']"],
)  # fmt: skip
def test_it_lets_the_rest_be(code):
    assert foreign_openings(ast.parse(code)) == []
