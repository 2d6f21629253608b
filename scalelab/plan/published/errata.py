"""Sentences of teaching texts that no code of ours could make come out otherwise: errata, without a computed verdict.

Each: its place (the subject under which it stands), what it says, and what is so, with the source.
"""

ERRATA = (
    ("Memory: comments of the code", "7B in fp32 with AdamW takes 84 GB.",
     "12 bytes a parameter leave out the gradients; the text beside it counts 16, which are 112 GB."),
    ("Incidents: cost of a rollback", "From step 45,500 to the checkpoint of 44,000, 1,000 steps and $3,600 are lost.",
     "1,500 steps, and at its own $180,000 for 45,000 steps $4 each: $6,000; 1,000 steps would be $4,000."),
    ("Optimizers: Adafactor", "T5 and PaLM trained with factored moments, about half of AdamW's memory.",
     "T5's keeps rows and columns alone, next to nothing (Shazeer & Stern 2018); PaLM's was not factored and had a "
     "first moment, as many bytes as AdamW (Chowdhery et al. 2022, section 5)."),
    ("Optimizers: Schedule-Free", "It removes the need to tune a warm-up.",
     "Its authors recommend a warm-up and name it among what is tuned (Defazio et al. 2024)."),
    ("Stability: PaLM's spikes", "PaLM restarted its learning rate.",
     "It went back to a checkpoint about 100 steps before a spike and skipped 200 to 500 batches; the learning rate "
     "was left alone (Chowdhery et al. 2022, section 5.1)."),
    ("Gradient accumulation", "It is numerically identical to the large batch.",
     "Only where micro-batches are weighted by their tokens, and then up to rounding: a mean of means gives a token of "
     "a short micro-batch more weight (transformers issues 34191 and 35203)."),
    ("Checkpoints: how often", "Save every 500, or every few thousand, steps.",
     "The best interval depends on the cost of a save and on failures (Daly 2006), so on model and cluster: "
     "`scalelab plan --why` computes it for yours."),
    ("Schedules: who uses what", "Llama 3, DeepSeek-V3 and Qwen 2.5 all used WSD.",
     "Cosine, then annealing (Dubey et al. 2024, section 3.4); constant, cosine, two constants (DeepSeek-AI 2024, "
     "section 4.2); Qwen 2.5 does not say."),
    ("Stability: z-loss", "It prevents the collapse of attention's entropy.",
     "It acts on the softmax of the output (Chowdhery et al. 2022, section 5), which attention does not pass through; "
     "`python -m experiments.studies.z_loss` measures attention's entropy with and without it."),
    ("Stability: z-loss", "Qwen3 trained with it.",
     "No public report or config of Qwen3 that we know says so: unverified."),
    ("Incidents: a spike", "The loss jumped from 2.8 to 12.4.",
     "A model that guesses has ln V: 10.8 for 50,257 tokens, 11.8 for 128,256. 12.4 is worse than guessing for every "
     "vocabulary up to e^12.4 = 242,802."),
    ("Incidents: what to change", "After a spike the learning rate is lowered by 30 %.",
     "A choice, not a law: PaLM left its learning rate alone (ibid., section 5.1). `scalelab replay` trains the steps "
     "again under the change and says what it does."),
)  # fmt: skip


def errata_lines() -> tuple[str, ...]:
    """The errata as findings of `scalelab reproduce textbook`."""
    return tuple(f'{place}: "{sentence}" No verdict: {truth}' for place, sentence, truth in ERRATA)
