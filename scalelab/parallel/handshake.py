"""Who may talk to a run's processes: who can read a file in its folder. Both sides prove it before either says a thing of the run.

Process 0 writes the file, a new secret that only its user may read (0600), and removes it once all have come. A proof is an
HMAC over the other side's fresh number, so that listening in, repeating and asking get a stranger nothing.
"""

import contextlib
import hmac
import os
import pathlib
import secrets
from collections.abc import Iterator

SECRET_FILE = ".token"
NUMBER_BYTES = 32


@contextlib.contextmanager
def offer_secret(folder: pathlib.Path) -> Iterator[bytes]:
    """The new secret of a folder, in a file there until the block ends. A folder that had to be made and stays empty goes too."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path, secret = folder / SECRET_FILE, secrets.token_hex(NUMBER_BYTES).encode()
    path.unlink(missing_ok=True)  # a killed process 0's
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(descriptor, secret + b"\n")
    os.close(descriptor)
    try:
        yield secret
    except BaseException:
        path.unlink(missing_ok=True)
        if new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    path.unlink(missing_ok=True)


def read_secret(folder: pathlib.Path) -> bytes:
    """The secret that process 0 offers now; b"" while there is none."""
    with contextlib.suppress(OSError):
        os.listdir(folder)  # a network disk then asks the server again whether the file is there
        text = (folder / SECRET_FILE).read_bytes()
        return text.strip() if text.endswith(b"\n") else b""
    return b""


def make_challenge() -> str:
    """A fresh number."""
    return secrets.token_hex(NUMBER_BYTES)


def make_proof(secret: bytes, side: str, *numbers: str) -> str:
    """What only who knows the secret can say to these numbers. `side` keeps one side's proof from being the other's."""
    return hmac.new(secret, " ".join((side, *numbers)).encode(), "sha256").hexdigest()


def is_valid_proof(secret: bytes, proof: str, side: str, *numbers: str) -> bool:
    """Whether a proof is right."""
    return bool(secret) and hmac.compare_digest(proof.encode(), make_proof(secret, side, *numbers).encode())
