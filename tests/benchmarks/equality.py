"""Log-likelihoods of real questions through `BituneLM`, beside what they must equal. No timing.

    python tests/benchmarks/equality.py --data ../shared/data [--questions 200] [--only pretrained ...] [--dtype float64]

SmolLM2-135M in float32 (or float64, which shows what of a difference is rounding), random adapters and theta. The first
questions of PIQA, ARC-Challenge, CommonsenseQA, SocialIQA and MMLU (evenly over its subjects), in the paper's templates:
  pretrained  against lm-eval's own Hugging Face model (`HFLM`)
  plain       plain LoRA, against `HFLM` on the same adapter through PEFT
  bitune      against the paper's three passes (`method/three_pass.py`)
  softmax     `HFLM` with its default float32 softmax against itself, as above

All references take the softmax of their logits in float64, for which `HFLM` has the option `softmax_dtype`: over a
vocabulary of 49152 PyTorch's `log_softmax` on a CPU is off by about 1e-5 a token, always to the same side (`softmax`).

Prints for each task the largest difference of a continuation's log-likelihood, absolute and relative to its size (or to 1),
and how many answers to "is it greedy" differ.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import lru_cache

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from peft import PeftModel

from bitune_pl import Bitune, load_decoder, load_tokenizer
from bitune_pl.data.encoding import Encoder
from bitune_pl.evaluation.catalogue import load, quiet
from bitune_pl.evaluation.harness import BituneLM
from bitune_pl.method import three_pass

TASKS = ("piqa", "arc_challenge", "commonsense_qa", "social_i_qa", "mmlu")
Scores = list[tuple[float, bool]]
Scorer = Callable[[list[Instance]], Scores]


def requests(task: str, folder: str, questions: int) -> list[Instance]:
    tasks = list(load([task], folder, limit=None if task == "mmlu" else questions)[task]["tasks"].values())
    each, more = divmod(questions, len(tasks))
    made = []
    with quiet():
        for i, one in enumerate(tasks):
            if limit := each + (i < more):
                one.build_all_requests(limit=limit)
                made += one.instances
    return made


def randomised(method: str, adapter: str, dtype: torch.dtype) -> Bitune:
    torch.manual_seed(0)
    model = (
        Bitune.build(load_decoder("smollm2", dtype=torch.float32).to(dtype), method, adapter, adapter_dtype=dtype)
        .to(dtype)
        .eval()
    )
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn_like(parameter, dtype=torch.float32).to(parameter.dtype) * 0.02
    return model


def stock(encoder: Encoder, dtype: torch.dtype, adapter: str | None = None, softmax: str | None = "float64") -> Scorer:
    decoder = load_decoder("smollm2", dtype=torch.float32).to(dtype)
    decoder.set_attn_implementation("sdpa")
    lm = HFLM(
        pretrained=PeftModel.from_pretrained(decoder, adapter).to(dtype) if adapter else decoder,
        tokenizer=encoder.tokenizer,
        batch_size=8,
        softmax_dtype=softmax,
    )
    return lambda asked: lm.loglikelihood(asked, disable_tqdm=True)


def three_passes(model: Bitune, encoder: Encoder) -> Scorer:
    """Two passes over each prompt, then the third for each of its continuations."""

    def score(asked: list[Instance]) -> Scores:
        cache_of = lru_cache(maxsize=1)(
            lambda read: three_pass._mixed_cache(model, torch.tensor(read, dtype=torch.long))
        )
        found = []
        for request in asked:
            context, continuation = request.args
            prompt, both = encoder.prompt(context), encoder.prompt(context + continuation)
            answer, cache = both[len(prompt) :], deepcopy(cache_of(tuple(prompt[:-1].tolist())))
            logits = three_pass._causal(model, both[len(prompt) - 1 : -1], cache, start=len(prompt) - 1)
            tokens = logits.double().log_softmax(-1).gather(1, answer[:, None])
            found.append((float(tokens.sum()), bool((logits.argmax(-1) == answer).all())))
        return found

    def scores(asked: list[Instance]) -> Scores:
        with three_pass.stock_attention(model), torch.no_grad():
            return score(asked)

    return scores


def pairs(only: list[str] | None, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, Scorer, Scorer]]:
    encoder = Encoder(load_tokenizer("smollm2"))
    for name in only or ("pretrained", "plain", "bitune", "softmax"):
        if name == "softmax":
            yield name, stock(encoder, dtype, softmax=None), stock(encoder, dtype)
            continue
        model = randomised("plain" if name == "pretrained" else name, "none" if name == "pretrained" else "lora", dtype)
        if name == "bitune":
            reference = three_passes(model, encoder)
        else:
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                reference = stock(encoder, dtype, f"{folder}/causal" if name == "plain" else None)
        yield name, BituneLM(model, encoder, progress=False).loglikelihood, reference


def compare(found: Scores, expected: Scores) -> tuple[float, float, int]:
    """The largest difference, absolute and relative to the value (or to 1), and how many greedy flags differ."""
    gaps = [(abs(a - b), abs(b)) for (a, _), (b, _) in zip(found, expected, strict=True)]
    flags = sum(a != b for (_, a), (_, b) in zip(found, expected, strict=True))
    return max(gap for gap, _ in gaps), max(gap / max(1, size) for gap, size in gaps), flags


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with local copies of the data sets")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    asked = {task: requests(task, arguments.data, arguments.questions) for task in arguments.tasks}
    print(f"{'':12}{'task':16}{'strings':>9}{'absolute':>12}{'relative':>12}{'greedy':>8}")
    for name, ours, reference in pairs(arguments.only, getattr(torch, arguments.dtype)):
        for task, made in asked.items():
            absolute, relative, flags = compare(ours(made), reference(made))
            print(f"{name:12}{task:16}{len(made):>9}{absolute:>12.1e}{relative:>12.1e}{flags:>8}", flush=True)


if __name__ == "__main__":
    main()
