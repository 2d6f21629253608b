"""scalelab sample RUN[@STEP] --prompt=TEXT [--tokens=N] [--temperature=T] [--top-k=K] [--top-p=P] [--seed=S]
                    [--samples=COUNT]

Continue a prompt with a run's weights, until the document ends or N tokens are reached. The prompt begins a document.
With --temperature=0 each token is the likeliest one; otherwise it is drawn from the softmax at that temperature,
restricted to the K likeliest tokens and then to the smallest set of them that holds P of the probability. The same seed
gives the same text; sample i doesn't depend on COUNT. Bytes that are not UTF-8 are shown as the replacement character.

Exit code: 0 done, 1 the checkpoint is damaged, 2 bad input.

    scalelab sample runs/mine --prompt="def " --tokens=64 --temperature=0.8
"""

from scalelab.cli.parser import Parser, add_weights_options, describe_weights, emit_json
from scalelab.cli.progress import WorkProgress


def main(argv: list[str]) -> int:
    """Sample and print; exit codes in the module's docstring."""
    parser = Parser("sample", __doc__, {"--n": "--samples"})
    add_weights_options(parser)
    parser.add_argument("--prompt", default="", metavar="TEXT", help="the beginning of the document")
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

    from scalelab.evaluate import sample, subject
    from scalelab.train.step.program import cache_compilations

    cache_compilations()
    model = subject.load_evaluated_model(options.run, options.ema, options.average)
    tokenizer = subject.load_model_tokenizer(model)
    n_tokens = options.tokens
    if n_tokens is None:
        n_tokens = sample.default_tokens(model, tokenizer, options.prompt)
    sampling = sample.SamplingOptions(options.temperature, options.top_k, options.top_p, options.seed)
    with WorkProgress() as bars:
        samples = sample.draw_samples(
            model,
            tokenizer,
            options.prompt,
            n_tokens,
            options.samples,
            sampling,
            lambda *counts: bars.update("tokens", *counts),
        )
    texts = [sample.decode_sample(tokenizer, drawn) for drawn in samples]
    if options.json != "-":
        print(describe_weights(model.origin))
        for i, (drawn, text) in enumerate(zip(samples, texts, strict=True), 1):
            end = "ends its document" if drawn.ended else "cut"
            print(f"--- {i} of {len(samples)}: {len(drawn.ids)} tokens, {end}, {drawn.nats:.2f} nats")
            print(f"{options.prompt}{text}")
    rows = [drawn._asdict() | {"text": text} for drawn, text in zip(samples, texts, strict=True)]
    emit_json(
        {"origin": model.origin, "prompt": options.prompt, "choice": sampling._asdict(), "samples": rows}, options.json
    )
    return 0
