"""Read and write weights in the files of Hugging Face's `transformers`, without that library or a network."""

from scalelab.hf.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from scalelab.hf.families.gemma import GEMMA, GEMMA2, GEMMA3
from scalelab.hf.families.gpt2 import GPT2
from scalelab.hf.families.granite import GRANITE
from scalelab.hf.families.llama import LLAMA, MISTRAL
from scalelab.hf.families.mixtures import MIXTRAL, OLMOE, QWEN3_MOE
from scalelab.hf.families.olmo import OLMO2, OLMO3
from scalelab.hf.families.phi3 import PHI3
from scalelab.hf.families.qwen import QWEN2, QWEN3
from scalelab.hf.families.smollm3 import SMOLLM3
from scalelab.hf.families.stablelm import STABLELM

# Where several can express a model, the first is written.
DENSE = (LLAMA, GPT2, MISTRAL, QWEN2, QWEN3, OLMO2, OLMO3, SMOLLM3, PHI3, STABLELM, GRANITE, GEMMA, GEMMA2, GEMMA3)
FORMATS = {form.name: form for form in (*DENSE, MIXTRAL, QWEN3_MOE, OLMOE, DEEPSEEK_V3, DEEPSEEK_V2)}
