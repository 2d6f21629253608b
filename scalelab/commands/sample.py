"""scalelab sample RUN[@STEP] --prompt=TEXT [--tokens=N] [--temperature=T] [--top-k=K] [--top-p=P] [--seed=S] [--n=COUNT]

Print what a run says after a prompt, until a document ends or N tokens are reached. The prompt begins a document. With
--temperature=0 each token is the likeliest one; else it is drawn from the softmax at that temperature, of the K likeliest
tokens, and of these from the fewest that hold P of the probability. The same seed gives the same text; sample i doesn't
depend on how many there are. Bytes that are no UTF-8 are shown as the replacement character.

Exit code: 0 done, 1 the checkpoint is damaged, 2 bad input.
"""

from scalelab.cli.parser import Parser, add_weights_options, describe_weights, emit_json
from scalelab.cli.progress import WorkProgress

DEFAULT_TOKENS = 100


def main(argv: list[str]) -> int:
    """Sample and print; the exit code is as the module says."""
    parser = Parser("sample", __doc__)
    add_weights_options(parser)
    parser.add_argument("--prompt", default="", metavar="TEXT", help="what the document begins with")
    parser.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help=f"at most so many (default: {DEFAULT_TOKENS}, or what model.seq_len leaves)",
    )
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T", help="0: greedy (default 1)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="of the K likeliest; 0: of all (default)")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="of the nucleus that holds P (default 1)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the draws (default 0)")
    parser.add_argument("--n", type=int, default=1, metavar="COUNT", help="samples (default 1)")
    options = parser.parse_args(argv)

    from scalelab.evaluate import sample, subject
    from scalelab.train.step.program import cache_compilations

    cache_compilations()
    of = subject.load_evaluated_model(options.run, options.ema, options.average)
    tokenizer = subject.load_model_tokenizer(of)
    most = options.tokens
    if most is None:
        most = max(1, min(DEFAULT_TOKENS, of.seq_len - 1 - len(sample.encode_prompt(tokenizer, options.prompt))))
    choice = sample.SamplingOptions(options.temperature, options.top_k, options.top_p, options.seed)
    with WorkProgress() as bars:
        found = sample.draw_samples(
            of, tokenizer, options.prompt, most, options.n, choice, lambda *counts: bars.update("tokens", *counts)
        )
    texts = [tokenizer.decode(one.ids).decode(errors="replace") for one in found]
    if options.json != "-":
        print(describe_weights(of.origin))
        for i, (one, text) in enumerate(zip(found, texts, strict=True), 1):
            end = "ends its document" if one.ended else "cut"
            print(f"--- {i} of {len(found)}: {len(one.ids)} tokens, {end}, {one.nats:.2f} nats\n{options.prompt}{text}")
    samples = [one._asdict() | {"text": text} for one, text in zip(found, texts, strict=True)]
    emit_json(
        {"origin": of.origin, "prompt": options.prompt, "choice": choice._asdict(), "samples": samples}, options.json
    )
    return 0
