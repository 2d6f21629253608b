"""Make the files beside this one by the libraries whose formats they are; nothing of scalelab is used.

pip install datasets==5.2.0 webdataset==1.0.2 transformers==5.24.0 && python tests/data/files/make.py
"""

import json
import pathlib

HERE = pathlib.Path(__file__).parent
DOCUMENTS = [f"Document {i} tells {'how loss falls ' * (i % 4)}in naïve 好 words." for i in range(12)]
WORDS = ["Scaling laws tell how loss falls with compute.", "What is a token? A piece of text.", "system user naïve 好"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}"
    "{{ message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
INST = """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {{- '[SYS] ' ~ (message.content | trim) ~ ' [/SYS]' }}
    {%- elif message.role == 'user' %}
        {{- '[INST] ' ~ message.content ~ ' [/INST]' }}
    {%- elif message.role == 'assistant' %}
        {%- generation %}
        {{- ' ' ~ message.content ~ eos_token }}
        {%- endgeneration %}
    {%- else %}
        {{- raise_exception('unknown role') }}
    {%- endif %}
{%- endfor %}
"""
CHATS = [
    [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "What is a token?"}],
    [
        {"role": "system", "content": "  Be brief. "},
        {"role": "user", "content": "naïve 好?"},
        {"role": "assistant", "content": "好 it is."},
        {"role": "user", "content": 'And {"json": 1}?\n\nyes'},
        {"role": "assistant", "content": "Scaling laws tell.\n"},
    ],
    [{"role": "user", "content": "<|im_end|> spelled"}, {"role": "assistant", "content": "a"}],
]


def make_saved():
    """A DatasetDict of two splits by save_to_disk, the first in two files."""
    from datasets import Dataset, DatasetDict

    rows = {
        "text": DOCUMENTS,
        "meta": [{"lang": ("en", "de")[i % 2], "text": f"nested {i}"} for i in range(len(DOCUMENTS))],
        "ids": [[1 + byte % 90 for byte in text.encode()] + [0] for text in DOCUMENTS],
        "messages": [CHATS[i % len(CHATS)] for i in range(len(DOCUMENTS))],
    }
    whole = Dataset.from_dict(rows)
    splits = {"train": whole.select(range(9)), "test": whole.select(range(9, 12))}
    DatasetDict(splits).save_to_disk(HERE / "saved", num_shards={"train": 2, "test": 1})


def make_samples():
    """A tar of WebDataset: three members a sample."""
    import webdataset

    with webdataset.TarWriter(str(HERE / "samples.tar"), user="", group="", mtime=0) as tar:
        for i, text in enumerate(DOCUMENTS):
            about = {"caption": f"caption {i}", "lang": ("en", "de")[i % 2]}
            tar.write({"__key__": f"s/{i:03d}", "txt": text, "json": about, "cls": i % 3})


def make_chats():
    """A small tokenizer, and what transformers makes of chats by two templates."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    how = {"special_tokens": special, "initial_alphabet": alphabet, "show_progress": False}
    inner.train_from_iterator(WORDS * 4, trainers.BpeTrainer(vocab_size=330, **how))
    (HERE / "chat").mkdir(exist_ok=True)
    inner.save(str(HERE / "chat" / "tokenizer.json"))
    cases = []
    for template, end in ((CHATML, "<|im_end|>"), (INST, "</s>")):
        file = str(HERE / "chat" / "tokenizer.json")
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=file, bos_token="<s>", eos_token=end)
        tokenizer.chat_template = template
        for messages in CHATS:
            made = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
            case = {"template": template, "tokens": {"bos_token": "<s>", "eos_token": end}, "messages": messages}
            cases.append(case | {"input_ids": made["input_ids"], "assistant_masks": made["assistant_masks"]})
    facts = {"made_by": f"transformers {transformers.__version__}, apply_chat_template", "cases": cases}
    (HERE / "chat" / "expected.json").write_text(json.dumps(facts, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    make_saved()
    make_samples()
    make_chats()
