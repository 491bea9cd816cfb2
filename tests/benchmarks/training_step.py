"""Seconds of a training step (forward and backward) on SmolLM2-135M, contenders in turn in one run.

    python tests/benchmarks/training_step.py [--rounds 5]

Eight samples of unequal lengths, bfloat16 base and adapters, LoRA of rank 8 on all linear layers:
  bitune        Bitune, one pass
  lora          plain LoRA, one pass
  stock         plain LoRA through transformers' own forward, padded
  three passes  Bitune as its equations are written, one sample at a time

Prints the median of each, the ratios of the paper's interest, and the arithmetic floor of Bitune over LoRA: every token of a
prompt is read twice, ((2P + A) blocks + A head) / ((P + A) blocks + A head).
"""

import argparse
import statistics
import time

import torch
from peft import LoraConfig, get_peft_model

from bitune_pl import Bitune, Sample, load_decoder
from bitune_pl.method import three_pass

BF16 = torch.bfloat16
LORA = LoraConfig(r=8, lora_alpha=1, target_modules="all-linear")


def samples(vocab: int) -> list[Sample]:
    prompts = torch.linspace(20, 180, 8).round().long()
    answers = torch.linspace(12, 108, 8).round().long()
    generator = torch.Generator().manual_seed(0)
    answers = answers[torch.randperm(8, generator=generator)]
    draw = lambda n: torch.randint(vocab, (int(n),), generator=generator)  # noqa: E731
    return [Sample(draw(p), [draw(a)]) for p, a in zip(prompts, answers, strict=True)]


def padded(batch: list[Sample]) -> dict:
    rows = [torch.cat([s.prompt, s.answers[0]]) for s in batch]
    width = max(map(len, rows))
    ids, labels, mask = (torch.full((len(rows), width), fill) for fill in (0, -100, 0))
    for i, (row, sample) in enumerate(zip(rows, batch, strict=True)):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
        labels[i, len(sample.prompt) : len(row)] = sample.answers[0]
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def contenders() -> tuple[dict, float]:
    models = {
        name: Bitune.build(load_decoder("smollm2", BF16), name, "lora", adapter_dtype=BF16)
        for name in ("bitune", "plain")
    }
    stock = get_peft_model(load_decoder("smollm2", BF16), LORA, autocast_adapter_dtype=False).to(BF16)
    batch = samples(models["bitune"].decoder.config.vocab_size)
    inputs = padded(batch)
    steps = {
        "bitune": (models["bitune"], lambda: models["bitune"].loss(batch)),
        "lora": (models["plain"], lambda: models["plain"].loss(batch)),
        "stock": (stock, lambda: stock(**inputs).loss),
        "three passes": (models["bitune"], lambda: three_pass_backward(models["bitune"], batch)),
    }
    return steps, floor(models["plain"].decoder, batch)


def three_pass_backward(model: Bitune, batch: list[Sample]) -> torch.Tensor:
    """As published: sample by sample, gradients added up."""
    for sample in batch[:-1]:
        (three_pass.loss(model, [sample]) / len(batch)).backward()
    return three_pass.loss(model, batch[-1:]) / len(batch)


def floor(decoder, batch: list[Sample]) -> float:
    head = decoder.get_output_embeddings().weight.numel()
    blocks = sum(
        p.numel()
        for n, p in decoder.get_decoder().named_parameters()
        if p.ndim == 2 and "lora" not in n and "embed" not in n
    )
    p, a = sum(len(s.prompt) - 1 for s in batch), sum(len(s.answers[0]) for s in batch)
    return ((2 * p + a) * blocks + a * head) / ((p + a) * blocks + a * head)


def seconds(model: torch.nn.Module, loss) -> float:
    model.zero_grad()
    start = time.perf_counter()
    loss().backward()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*")
    arguments = parser.parse_args()
    steps, least = contenders()
    steps = {name: step for name, step in steps.items() if not arguments.only or name in arguments.only}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(arguments.rounds + 1):
        for name, step in steps.items():
            taken = seconds(*step)
            if round_:  # the first warms up
                times[name].append(taken)
    median = {name: statistics.median(taken) for name, taken in times.items()}
    for name, taken in times.items():
        print(f"{name:13} {median[name]:6.2f} s   ({min(taken):.2f} - {max(taken):.2f})")
    print(f"arithmetic floor of bitune / lora: {least:.2f}")
    for a, b in (("bitune", "lora"), ("bitune", "stock"), ("three passes", "bitune")):
        if {a, b} <= set(times):
            paired = statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))
            print(f"{a} / {b}: {median[a] / median[b]:.2f} (medians), {paired:.2f} (round by round)")


if __name__ == "__main__":
    main()
