"""Board power of chips, as their makers print it: the most that one draws by design, without its host."""

from scalelab.hardware.chips import Chip

# Watts by `Chip.name`. NVIDIA's data sheets, "max thermal design power", its upper end where it can be set (H100 NVL:
# 350 to 400) and the larger one where a row covers two boards (A100 40GB: SXM 400, PCIe 250); GeForce: the graphics
# card power of the architecture's whitepaper. H100 PCIe: product brief PB-11133. GB200: of each GPU, Blackwell
# architecture technical brief. AMD: "total board power" of the Instinct data sheets. Not here: TPUs and Trainium
# (nothing is published), GH200 (one figure for GPU and CPU), B300 and GB300 (1,100 to 1,400 W in print), and chips
# without a sheet of the maker that could be read (A800, H800, H20, A10G). Looked up in print in 2026: H100 PCIe,
# B200, GB200, L40, MI300X, MI325X, MI355X, H200 NVL; the others are as commonly quoted, and wait for a second reader.
BOARD_WATTS = {
    "GB200": 1200, "B200": 1000, "RTX 5090": 575, "H200 SXM": 700, "H200 NVL": 600, "H100 SXM": 700, "H100 NVL": 400,
    "H100 PCIe": 350, "A100 80GB PCIe": 300, "A100 80GB SXM": 400, "A100 40GB": 400, "A10": 150, "RTX A6000": 300,
    "RTX 3090": 350, "L40S": 350, "L40": 300, "RTX 6000 Ada": 300, "L4": 72, "RTX 4090": 450, "MI300X": 750,
    "MI325X": 1000, "MI355X": 1400, "V100 PCIe 16GB": 250, "V100 PCIe 32GB": 250, "V100 SXM2 16GB": 300,
    "V100 SXM2 32GB": 300, "T4": 70,
}  # fmt: skip


def board_watts(chip: Chip) -> float | None:
    """Watts of a chip's board at full power; None where its maker publishes none, or the table lacks the chip."""
    return BOARD_WATTS.get(chip.name)
