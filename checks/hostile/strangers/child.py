"""The warm process of a command: it imports scalelab once, and runs each line that it is given.

    python -m checks.hostile.strangers.child REQUESTS REPLIES [FAKE.py]

Both are descriptors. A request is a JSON line {line, folder, stdout, stderr}, a reply {code}. Control-C counts only
while a command runs. FAKE.py defines another `main(arguments)`: so the judge itself is tested.
"""

import contextlib
import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from checks.hostile.strangers.edits import CODE


def main(requests: int, replies: int, fake: str = "") -> None:
    """Serve until the requests end."""
    command = runpy.run_path(fake)["main"] if fake else _command()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(requests) as lines, os.fdopen(replies, "w") as answers:
        answers.write("{}\n")
        answers.flush()
        for line in lines:
            answers.write(json.dumps({"code": run(command, json.loads(line))}) + "\n")
            answers.flush()


def _command() -> Callable[[list[str]], int]:
    import jax  # noqa: F401

    from scalelab.__main__ import main as command

    return command


def run(command: Callable[[list[str]], int], request: Mapping[str, Any]) -> int | None:
    """Run one command with its output in files; None stands for an exception, whose traceback is in the output."""
    os.chdir(request["folder"])
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return command(request["line"])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except KeyboardInterrupt:
        return 130
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        for name in [name for name in sys.modules if name.partition(".")[0] == CODE]:
            del sys.modules[name]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
