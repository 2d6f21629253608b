"""The mesh to plan for: the user's, else the config's, else one chosen here and named in a note."""

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any

from scalelab.config import Layout, Static, with_fields
from scalelab.errors import BadInput, nearest_hint
from scalelab.parallel import mesh as mesh_lib
from scalelab.parallel import rules

SHORTEST = 2048  # tokens in a part of a sequence of a chosen mesh: shorter parts would wait for the ring of attention
LAYOUT_KEYS = tuple(field.name for field in dataclasses.fields(Layout))


def parse_mesh(mesh: str | Mapping[str, Any] | Layout) -> dict[str, Any]:
    """Parse "fsdp=8,tensor=8,sequence=true", or a mapping, to {"fsdp": 8, "tensor": 8, "sequence": True}.

    BadInput for a key that is not in `parallel`.
    """
    if isinstance(mesh, Layout):
        return dataclasses.asdict(mesh)
    return {key: _value(mesh, key, value) for key, value in (_pairs(mesh) if isinstance(mesh, str) else mesh).items()}


def _pairs(text: str) -> dict[str, Any]:
    """Parse whole numbers and truth values; leave other words as they are."""
    options: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, _, word = part.partition("=")
        number = int(word) if word.removeprefix("-").isdigit() else word
        options[key] = {"true": True, "false": False}.get(word, number)
    return options


def _value(mesh: Any, key: str, value: Any) -> Any:
    if key not in LAYOUT_KEYS:
        raise BadInput(f"--mesh={mesh}: {key!r} is not an axis or option of `parallel`{nearest_hint(key, LAYOUT_KEYS)}")
    if key == "schedule":
        return value
    if key == "expert_buffer":
        return _factor(mesh, key, value)
    if key == "sequence":
        if not isinstance(value, bool):
            raise BadInput(f"--mesh={mesh}: sequence={value!r} is not true or false")
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise BadInput(f"--mesh={mesh}: {key}={value!r} is not a whole number")
    return int(value)


def _factor(mesh: Any, key: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise BadInput(f"--mesh={mesh}: {key}={value!r} is not a number") from None


def apply_mesh(
    static: Static, devices: int | None = None, mesh: str | Mapping[str, Any] | Layout | None = None
) -> tuple[Static, list[str]]:
    """`static` on a mesh of `devices` (None: as many as the mesh has), and notes: a chosen mesh, a trainer's refusal.

    Default `mesh`: the config's `parallel`. If that is one device and there are more, they go to `fsdp` as far as width
    and batch divide, then to `tensor` as far as heads divide, then to `context` as far as parts of a sequence stay
    long, the rest to `data`. BadInput for sizes that don't multiply to the devices, and for options that no mesh has.
    """
    notes: list[str] = []
    layout = static.layout
    if mesh is not None:
        asked = parse_mesh(mesh)
        layout = with_fields(layout, **dict.fromkeys(mesh_lib.MESH_AXES, 1) | asked)
        if layout.expert == 1 and "expert_buffer" not in asked:  # the config's is for the config's mesh
            layout = with_fields(layout, expert_buffer=0.0)
        if devices is None and -1 in dataclasses.astuple(layout):
            raise BadInput(f"--mesh={mesh}: -1 is the rest of the devices; say how many there are, e.g. --devices=8")
    if devices is not None and devices < 1:
        raise BadInput(f"--devices={devices} is not a number of devices; 1 or more")
    sizes = [getattr(layout, axis) for axis in mesh_lib.MESH_AXES]
    if devices is None:
        devices = math.prod(size for size in sizes if size > 0)
    if mesh is None and layout.devices == 1 < devices:
        layout, note = _choose_layout(static, layout, devices)
        notes.append(note)
    elif layout.devices == 1 < devices:
        raise BadInput(
            f"--mesh={mesh} is a mesh of one, and there are {devices} devices; nearest: --mesh=fsdp={devices}"
        )
    layout = mesh_lib.resolve_layout(layout, devices)
    rules.check_layout_options(layout)
    static = with_layout(static, layout)
    return static, notes + layout_refusals(static)


def with_layout(static: Static, layout: Layout) -> Static:
    """`static` on this resolved layout, with what of it the model's program depends on."""
    model = with_fields(static.model, **mesh_fields(layout))
    return with_fields(static, model=model, layout=layout)


def mesh_fields(layout: Layout) -> dict[str, Any]:
    """The fields of a model's shape that its mesh decides."""
    buffer = layout.expert_buffer if layout.expert != 1 else 0.0
    return {"sequence_parallel": layout.sequence and layout.tensor != 1, "expert_buffer": buffer}


def partial_mesh(
    static: Static, devices: int | None, mesh: str | Mapping[str, Any] | Layout | None = None
) -> dict[str, int]:
    """{axis: size} of a mesh that `devices` hold several times, as stage=16 on 64; {} of every other mesh."""
    asked = dataclasses.asdict(static.layout) if mesh is None else parse_mesh(mesh)
    sizes = {axis: int(asked.get(axis, 1)) for axis in mesh_lib.MESH_AXES if asked.get(axis, 1) != 1}
    product = math.prod(sizes.values())
    if devices is None or min(sizes.values(), default=0) < 1 or not 1 < product < devices or devices % product:
        return {}
    return sizes


def _choose_layout(static: Static, layout: Layout, devices: int) -> tuple[Layout, str]:
    shape = static.model
    widths = shape.d_model, shape.d_kv_latent, shape.d_q_latent
    fsdp = math.gcd(devices, *widths, static.global_batch // static.accumulate)
    tensor = math.gcd(devices // fsdp, shape.n_heads, shape.n_kv_heads, shape.d_ff, shape.vocab_size)
    context = math.gcd(devices // (fsdp * tensor), max(1, shape.seq_len // SHORTEST))
    data = devices // (fsdp * tensor * context)
    sizes: dict[str, Any] = {"data": data, "fsdp": fsdp, "tensor": tensor, "context": context}
    product = " x ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1)
    return with_fields(layout, **sizes), f"mesh: {product}, chosen as the config has none"


def layout_refusals(static: Static) -> list[str]:
    """The trainer's reason to refuse this layout: one line, or none."""
    try:
        rules.check_layout(static, static.layout)
    except BadInput as why:
        return [f"the trainer refuses this: {why}"]
    return []
