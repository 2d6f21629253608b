"""What a mesh can't split of experts."""

from scalelab.config import Layout, Static
from scalelab.config.checks.validate import check_divides
from scalelab.errors import BadInput


def check_expert_layout(static: Static, layout: Layout) -> None:
    """Raise BadInput where a resolved layout can't split the experts, or there are none."""
    shape = static.model
    if layout.expert_buffer and (layout.expert == 1 or layout.expert_buffer < 1):
        why = "no rows are sent" if layout.expert == 1 else "rows are dropped even if all devices get equally many"
        nearest = "0" if layout.expert == 1 else "1, or 0: none is dropped"
        raise BadInput(
            f"parallel.expert_buffer={layout.expert_buffer:g} with parallel.expert={layout.expert}: {why}; "
            f"nearest: {nearest}"
        )
    if not shape.n_experts:
        if layout.expert > 1:
            raise BadInput(
                f"parallel.expert={layout.expert} with model.n_experts=0: there are no experts to split; "
                f"nearest: parallel.expert=1 and parallel.data={layout.data * layout.expert}"
            )
        return
    if layout.devices > 1 and static.precision == "fp8_delayed":
        raise BadInput(
            f"precision.name={static.precision!r} with model.n_experts={shape.n_experts} on {layout.devices} devices: "
            "devices don't gather their experts' amax; nearest: precision.name='fp8'"
        )
    check_divides("model.n_experts", shape.n_experts, "parallel.expert", layout.expert)
    check_divides("model.d_expert", shape.d_expert, "parallel.tensor", layout.tensor)
