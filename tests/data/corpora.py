"""Documents to prepare, and the files of every kind that hold them, each written by something that isn't our reader."""

import functools
import gzip
import io
import json
import pathlib
import struct
import tarfile
import zipfile

import numpy as np
import zstandard

WORDS = ("loss", "scale", "token", "naïve", "width", "好", "the", "of", "and", "model")
END = 50256


def texts(n, seed=0):
    """n different short documents."""
    random = np.random.default_rng(seed)
    return [f"{i} " + " ".join(random.choice(WORDS, random.integers(3, 60))) for i in range(n)]


def ids(n, seed=0, vocab_size=END):
    """n documents of ids below `vocab_size`, small ones more often: there is something to learn."""
    random = np.random.default_rng(seed)
    lengths = random.integers(3, 200, n)
    return [(vocab_size * random.random(length) ** 4).astype(np.int64) for length in lengths]


def json_lines(documents):
    return "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(documents)).encode()


def write(path, content):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = {".gz": gzip.compress, ".tgz": gzip.compress, ".zst": zstandard.compress}
    path.write_bytes(packed.get(path.suffix, bytes)(content))
    return str(path)


def write_parquet(path, documents, row_group_size=50, **columns):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": documents, **columns}), path, row_group_size=row_group_size)
    return str(path)


def tar(members):
    """The bytes of a tar; a member is (name, content), or (name, None, target of a link)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content, *link in members:
            info = tarfile.TarInfo(name)
            if link:
                info.type, info.linkname = tarfile.SYMTYPE, link[0]
            info.size = len(content or b"")
            archive.addfile(info, io.BytesIO(content or b""))
    return out.getvalue()


def zipped(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


def write_nanogpt(path, documents, dtype=np.uint16, end=END):
    """As nanoGPT's data/openwebtext/prepare.py: each document, then <|endoftext|>."""
    np.concatenate([np.append(document, end) for document in documents]).astype(dtype).tofile(path)
    return str(path)


def write_llmc(path, documents, magic=20240520, version=1, dtype=np.uint16, n_tokens=None):
    """As llm.c's dev/data: a header of 256 int32, then <|endoftext|> before each document."""
    stream = np.concatenate([np.insert(document, 0, END) for document in documents]).astype(dtype)
    header = np.zeros(256, np.int32)
    header[:3] = magic, version, len(stream) if n_tokens is None else n_tokens
    pathlib.Path(path).write_bytes(header.tobytes() + stream.tobytes())
    return str(path)


def write_megatron(path, documents, code=8, dtype=np.uint16, split_every=None, end=END):
    """As Megatron-LM's IndexedDatasetBuilder with --append-eod: a document may be several sequences."""
    sequences, bounds = [], [0]
    for document in documents:
        whole = np.append(document, end).astype(dtype)
        step = split_every or len(whole)
        sequences += [whole[i : i + step] for i in range(0, len(whole), step)]
        bounds.append(len(sequences))
    path = pathlib.Path(path)
    path.with_suffix(".bin").write_bytes(b"".join(sequence.tobytes() for sequence in sequences))
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    places = np.cumsum([0, *lengths[:-1]]).astype(np.int64) * np.dtype(dtype).itemsize
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sequences), len(bounds))
    index = head + lengths.tobytes() + places.tobytes() + np.array(bounds, np.int64).tobytes()
    path.with_suffix(".idx").write_bytes(index)
    return str(path.with_suffix(".bin"))


@functools.cache
def tiny_docs():
    """A builder of a data set, as a user writes one; tensorflow_datasets knows a name once."""
    import tensorflow_datasets as tfds

    class TinyDocs(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.2.0")
        documents = ()

        def _info(self):
            features = tfds.features.FeaturesDict({"text": tfds.features.Text(), "n": np.int64})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            documents_seen = self.documents
            return {
                "train": self._generate_examples(documents_seen),
                "test": self._generate_examples(documents_seen[:3]),
            }

        def _generate_examples(self, documents_seen):
            for i, text in enumerate(documents_seen):
                yield i, {"text": text, "n": i}

    tfds.disable_progress_bar()
    return TinyDocs


def make_tfds(folder, documents, file_format="array_record"):
    """`documents` prepared under `folder` by tensorflow_datasets itself; the spec that reads them."""
    tiny_docs().documents = documents
    tiny_docs()(data_dir=folder, file_format=file_format).download_and_prepare()
    return f"tfds:tiny_docs@{folder}"
