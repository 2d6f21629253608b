"""Read and write weights in the files of Hugging Face's `transformers`, without that library or a network."""

from scalelab.hf.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from scalelab.hf.gpt2 import GPT2
from scalelab.hf.llama import LLAMA, MISTRAL

FORMATS = {form.name: form for form in (LLAMA, GPT2, DEEPSEEK_V3, DEEPSEEK_V2, MISTRAL)}
