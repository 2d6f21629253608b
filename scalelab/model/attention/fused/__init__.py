"""Fused kernels of attention: `cudnn` (NVIDIA), `packed` (documents as its offsets), `splash` (TPU), `ring` (of both).

Each computes a part of attention with the log of its softmax's sum, and its gradients from the sums of all parts
(`output`).
"""
