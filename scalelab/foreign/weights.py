"""N of a model of any family: the elements of tensors in safetensors files beside its log. Only headers are read."""

import math
import pathlib
import re

from scalelab.errors import BadInput
from scalelab.hf.files import INDEX_FILE, WEIGHTS_FILE, TensorHeader, read_headers

# Tensors that are tables of a vocabulary or of positions, or the output head, by the last parts of their names.
EMBEDDINGS = re.compile(
    r"(?:.*\.)?(?:(?:embed_tokens|tok_embeddings|word_embeddings|token_embedding|position_embeddings|wte|wpe|embed_in"
    r"|embeddings?|embed|embed_out|lm_head)\.(?:weight|embedding)|output\.weight)"
)
BUFFERS = re.compile(r".*\.(?:inv_freq|attn\.(?:bias|masked_bias)|attention\.(?:bias|masked_bias)|num_batches_tracked)")
NUMBERS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


def count_weights(folder: pathlib.Path) -> tuple[dict[str, int], str]:
    """(counts by convention, where they are from) of the weights in a folder; ({}, why) if there are none to count.

    A head that is tied to the embedding stands in a file once, and counts once. `non_embedding`: where names tell.
    """
    if not any((folder / name).is_file() for name in (WEIGHTS_FILE, INDEX_FILE)):
        return {}, ""
    try:
        tensors = [each for each in read_headers(folder).values() if not BUFFERS.fullmatch(each.name)]
    except BadInput as refusal:
        return {}, f"weights: {refusal}"
    packed = next((each for each in tensors if each.dtype not in NUMBERS), None)
    if packed:
        return {}, f"weights: {packed.name} is of {packed.dtype}: packed numbers, whose elements are not parameters"
    total = sum(map(_elements, tensors))
    embeddings = [each for each in tensors if EMBEDDINGS.fullmatch(each.name)]
    if not embeddings:
        return {"total": total}, "safetensors' elements"
    rest = total - sum(map(_elements, embeddings))
    names = ", ".join(each.name for each in embeddings[:3])
    return {"total": total, "non_embedding": rest}, f"safetensors' elements (embeddings: {names})"


def _elements(header: TensorHeader) -> int:
    return math.prod(header.shape)
