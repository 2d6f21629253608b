"""Mutual authentication of a run's processes: both sides prove that they can read a secret file in the run's folder.

Process 0 writes the file, a new secret that only its user may read (0600), and removes it once all have come. A proof
is an HMAC over the other side's fresh number, so eavesdropping, replay and questions give a stranger nothing.
"""

import contextlib
import hmac
import os
import pathlib
import secrets
from collections.abc import Iterator

from scalelab.errors import BadInput
from scalelab.untrusted.files import read_bytes

SECRET_FILE = ".token"
NUMBER_BYTES = 32


@contextlib.contextmanager
def offer_secret(folder: pathlib.Path) -> Iterator[bytes]:
    """Keep a new secret in a file of the folder until the block ends; a failure also removes a folder made here."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path, secret = folder / SECRET_FILE, secrets.token_hex(NUMBER_BYTES).encode()
    path.unlink(missing_ok=True)  # left by a killed process 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(descriptor, secret + b"\n")
    os.close(descriptor)
    try:
        yield secret
    except BaseException:  # of any kind: no secret stays behind; raised again
        path.unlink(missing_ok=True)
        if new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    path.unlink(missing_ok=True)


def read_secret(folder: pathlib.Path) -> bytes:
    """The secret that process 0 offers now; b"" if there is none."""
    with contextlib.suppress(OSError, BadInput):
        os.listdir(folder)  # makes a network disk ask the server again whether the file is there
        text = read_bytes(folder / SECRET_FILE)
        return text.strip() if text.endswith(b"\n") else b""
    return b""


def make_challenge() -> str:
    """A fresh random number, as hexadecimal text."""
    return secrets.token_hex(NUMBER_BYTES)


def make_proof(secret: bytes, side: str, *numbers: str) -> str:
    """Proof of knowing the secret: an HMAC over `side` and `numbers`; one side's proof is not valid for the other."""
    return hmac.new(secret, " ".join((side, *numbers)).encode(), "sha256").hexdigest()


def is_valid_proof(secret: bytes, proof: str, side: str, *numbers: str) -> bool:
    """Whether `proof` is the one of `make_proof`; never true for an empty secret."""
    return bool(secret) and hmac.compare_digest(proof.encode(), make_proof(secret, side, *numbers).encode())
