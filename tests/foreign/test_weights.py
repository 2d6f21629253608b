"""N from the weights of families that are not known here, beside what transformers counts; and the cache's limit."""

import json
import os
import pathlib
import shutil
import time

import pytest

from scalelab.errors import BadInput
from scalelab.foreign import cache, convert, find, opened
from scalelab.foreign.weights import count_weights

FAMILIES = pathlib.Path(__file__).parent / "files" / "unknown_families"
# transformers 5.24.0: num_parameters(), num_parameters(exclude_embeddings=True), less an output head of its own.
COUNTED = {"mamba": (896, 640), "bloom": (1160, 904), "gpt_neox": (1128, 872 - 32 * 8)}


@pytest.mark.parametrize("family", COUNTED)
def test_elements_of_weights_are_the_parameters_that_transformers_counts(family, tmp_path):
    total, rest = COUNTED[family]
    counts, origin = count_weights(FAMILIES / family)
    assert counts == {"total": total, "non_embedding": rest} and "embed" in origin
    shutil.copytree(FAMILIES / family, tmp_path / "run")
    lines = [{"step": i, "loss": 3.0 - 0.1 * i, "tokens": 64 * i} for i in range(1, 9)]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (found,) = find.find_runs(tmp_path / "run")
    (run,) = find.read_found(found)
    converted = convert.convert_run(run, {})
    assert converted.record["params"] == {"total": total, "non_embedding": rest}
    assert f"N = {origin}" in converted.line
    assert convert.convert_run(run, {"N": "1M"}).record["params"] == {"total": 1_000_000}


def test_weights_that_cannot_be_counted_say_why(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\x05\0\0\0\0\0\0\0{bad}")
    counts, why = count_weights(tmp_path)
    assert counts == {} and why.startswith("weights: ") and "not an intact safetensors file" in why
    from safetensors.numpy import save_file

    numpy = pytest.importorskip("numpy")
    save_file({"layer.qweight": numpy.zeros((4, 4), numpy.int32)}, tmp_path / "model.safetensors")
    assert "packed numbers" in count_weights(tmp_path)[1]
    save_file({"first": numpy.zeros((4, 4), numpy.float32)}, tmp_path / "model.safetensors")
    assert count_weights(tmp_path)[0] == {"total": 16}


def write_source(folder, steps=50):
    folder.mkdir(parents=True)
    lines = [{"step": i, "loss": 3.0, "lr": 1e-3} for i in range(steps)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_the_cache_removes_what_was_used_longest_ago(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "cache" / "foreign"
    sources = [write_source(tmp_path / name, 400) for name in "abcd"]
    for age, source in zip((3, 9, 6), sources, strict=False):  # hours
        imported = opened.open_source(source)
        place = next(each for each in root.iterdir() if each in imported.folder.parents)
        os.utime(place, (time.time() - 3600 * age,) * 2)
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    limit = size / 3 * 2.5 / 2**30  # of four entries, two fit
    monkeypatch.setenv("SCALELAB_FOREIGN_GIB", f"{limit:.12f}")
    told = opened.open_source(sources[3]).notes
    left = {json.loads(path.read_text())["single"] for path in root.glob("*/source.json")}
    assert left == {"a", "d"} and any("2 sources unused for longest" in note for note in told)
    assert not any("cache:" in note for note in opened.open_source(sources[3]).notes)  # told once
    assert opened.open_source(sources[1]).runs  # read again
    monkeypatch.setenv("SCALELAB_FOREIGN_GIB", "-1")
    with pytest.raises(BadInput, match=r"SCALELAB_FOREIGN_GIB=-1: .* above zero"):
        opened.open_source(sources[0])


def test_the_cache_keeps_what_was_used_within_an_hour_and_what_is_not_its_own(tmp_path, monkeypatch):
    """A folder of the user's, however old and large, is not an entry: entries are named by their digest."""
    own = ["a" * 32, "b" * 32]
    for name in (*own, "mine", "0123"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 1000)
    monkeypatch.setenv("SCALELAB_FOREIGN_GIB", "1e-7")
    assert "nothing is removed" in cache.prune_cache(tmp_path, tmp_path / own[0])
    for name in (*own, "mine", "0123"):
        os.utime(tmp_path / name, (1, 1))
    assert "1 sources" in cache.prune_cache(tmp_path, tmp_path / own[0])
    assert {path.name for path in tmp_path.iterdir()} == {own[0], "mine", "0123"}
