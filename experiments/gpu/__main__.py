"""python -m experiments.gpu [--workdir=DIR] [--only=A,B] [--tiny] [--compile[=CHIP]] [--json[=PATH]]

Measure first on one GPU, at most ten minutes a call; the next call does what is missing. In this order:

    doctor      versions, devices, one timed product
    mfu, fp8    models of 124M, 1B and 3B in bf16 and in fp8, each against a plan that is written before
    baselines   the same shapes by torch.compile: GPT-2 as nanoGPT's, and Llama of transformers (left out without them)
    packing     32 trials under vmap, in 32 processes at once, and one after another
    attention   kernels, with and without document masks
    resume      killed and resumed under train.deterministic: the same bits?
    sweeps      the 1B model under each remat policy, and with other chunks of the loss
    plan        `scalelab plan --measure`, and `--calibrate` by runs of the same config
    tests       those that make sense on a GPU
    quickstart  the README's study
    isoflop     packs of small runs, and the loss that they predict for a run of 124M's class, written before it

Each part runs in a new process. Its result is stored as soon as it is done, in DIR (runs/gpu) and in
experiments/results/gpu.*. --tiny runs every part with tiny models on the device that is here and writes to DIR only.
--compile lowers and compiles the programs of all parts for an absent chip (h100; needs the extra plan-cuda). Exit code:
0 all parts done, 1 some failed or are missing, 2 no GPU here (or bad input), 75 stopped by a signal: finished parts are
stored.

    scalelab study gpu --workdir=runs/gpu
"""

import datetime
import pathlib
import signal
import subprocess
import sys
from collections.abc import Sequence

from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import BadInput, nearest_hint
from scalelab.experiments.gpu import compiled, page, settings
from scalelab.experiments.gpu.parts import PARTS, all_parts, run_part
from scalelab.experiments.shared import RESULTS, command_line, write_result
from scalelab.hardware import chips as hardware
from scalelab.hardware import device_memory
from scalelab.train.resume.facts import package_versions


def main(argv: Sequence[str]) -> int:
    """Run the parts; exit codes in the module's docstring."""
    return guarded("gpu", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("gpu", __doc__)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="where parts are kept (default: runs/gpu)")
    parser.add_argument("--only", default=",".join(PARTS), metavar="A,B", help=f"parts: {', '.join(PARTS)}")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny models on any device: tries the code, measures nothing"
    )
    parser.add_argument(
        "--compile", nargs="?", const="h100", metavar="CHIP", help="compile the programs for CHIP, here"
    )
    parser.add_argument(
        "--part", choices=PARTS, metavar="PART", help="this part in this process (what the others are started as)"
    )
    options = parser.parse_args(argv)
    size, folder = (
        settings.TINY_SETTINGS if options.tiny else settings.FULL_SETTINGS,
        options.workdir or pathlib.Path("runs/gpu"),
    )
    names = options.only.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        raise BadInput(f"--only={unknown[0]}: no such part{nearest_hint(unknown[0], PARTS)}")
    if options.compile:
        rows = compiled.compile_for_chip(size, options.compile)
        command, version = f"python -m experiments.gpu --compile={options.compile}", package_versions()["jax"]
        head = f"`{command}`, {datetime.date.today()}, jax {version}; run on none."
        text = "\n".join([head, "", *page.format_compiled(rows)])
        if not options.tiny:
            write_result(RESULTS, "gpu_compiled", rows, f"{text}\n")
        print(text)
        emit_json({"rows": rows}, options.json)
        return 0
    if not options.tiny:
        refuse_without_gpu()
    device_memory.reserve_gpu_memory()
    if options.part:
        run_part(options.part, size, folder)
        return 0
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))  # the running part ends too
    try:
        results = all_parts(names, folder, options.tiny)
    finally:
        signal.signal(signal.SIGTERM, before)
    if not options.tiny:
        write_result(RESULTS, "gpu", results, page.format_page(results))
    if options.json != "-":
        print(page.format_page(results))
    emit_json(results, options.json)
    return 0 if all(part["status"] == "done" for part in results["parts"].values()) else 1


def refuse_without_gpu() -> None:
    """BadInput if jax sees no GPU.

    Asked in a process that ends before the parts start: they need its memory.
    """
    why = "this jax has no build for one (`make setup ACCEL=cuda12` installs it)"
    if hardware.expects_accelerator():
        command = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.stdout.strip() == "gpu":
            return
        why = f"jax sees {done.stdout.strip() or (done.stderr.strip().splitlines() or ['nothing'])[-1]}"
    raise BadInput(f"no GPU is here: {why}; --tiny tries the code on any device, --compile compiles it for an H100")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
