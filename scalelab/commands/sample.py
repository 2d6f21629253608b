"""scalelab sample RUN[@STEP] --prompt=TEXT [--prompt=TEXT ...] [--tokens=N] [--temperature=T]
                    [--top-k=K] [--top-p=P] [--seed=S] [--samples=COUNT]

Continue a prompt with a run's weights, until the document ends or N tokens are reached. The prompt begins a document.
Several prompts are one batch, which is faster than one after another; each goes on as it would alone.
A special token of the tokenizer that a prompt spells, such as <|im_start|>, is read as that token, and a line says so.
With --temperature=0 each token is the likeliest one; otherwise it is drawn from the softmax at that temperature,
restricted to the K likeliest tokens and then to the smallest set of them that holds P of the probability. The same seed
gives the same text; sample i doesn't depend on COUNT. Bytes that are not UTF-8 are shown as the replacement character.

Exit code: 0 done, 1 the checkpoint is damaged, 2 bad input.

    scalelab sample runs/mine --prompt="def " --tokens=64 --temperature=0.8
"""

from scalelab import api
from scalelab.cli.parser import Parser, add_weights_options, describe_weights, emit_json
from scalelab.cli.progress import WorkProgress


def main(argv: list[str]) -> int:
    """Sample and print; exit codes in the module's docstring."""
    parser = Parser("sample", __doc__, {"--n": "--samples"})
    add_weights_options(parser)
    parser.add_argument(
        "--prompt", action="append", metavar="TEXT", help='the beginning of the document (default ""); may be repeated'
    )
    parser.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help="at most N new tokens (default: 100, or as many as model.seq_len leaves)",
    )
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T", help="0: greedy (default 1)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="draw from the K likeliest; 0: all (default)")
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="draw from the nucleus that holds P (default 1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the draws (default 0)")
    parser.add_argument("--samples", type=int, default=1, metavar="COUNT", help="number of samples (default 1)")
    options = parser.parse_args(argv)
    prompts = options.prompt or [""]

    with WorkProgress() as bars:
        drawn = api.sample(
            options.run,
            prompts,
            tokens=options.tokens,
            samples=options.samples,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=options.seed,
            ema=options.ema,
            average=options.average,
            progress=bars.update,
        )
    begun = [prompt for prompt in prompts for _ in range(options.samples)]
    if options.json != "-":
        print(describe_weights(drawn.origin))
        if drawn.special_tokens:
            print(f"read as special tokens, not as their letters: {' '.join(drawn.special_tokens)}")
        for i, (prompt, each, text) in enumerate(zip(begun, drawn.samples, drawn.texts, strict=True), 1):
            end = "ends its document" if each.ended else "cut"
            print(f"--- {i} of {len(drawn.samples)}: {len(each.ids)} tokens, {end}, {each.nats:.2f} nats")
            print(f"{prompt}{text}")
    rows = [
        each._asdict() | {"text": text, "prompt": prompt}
        for prompt, each, text in zip(begun, drawn.samples, drawn.texts, strict=True)
    ]
    facts = {"origin": drawn.origin, "prompt": prompts[0], "choice": drawn.choice._asdict(), "samples": rows}
    emit_json(facts, options.json)
    return 0
