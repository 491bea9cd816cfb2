"""Seconds to score CommonsenseQA questions with SmolLM2-135M, contenders in turn in one run.

    python tests/benchmarks/scoring.py --data ../shared/data [--questions 200] [--rounds 3] [--threads 2]

bfloat16 base and adapters, LoRA of rank 8 on all linear layers, five choices a question, from text to log-likelihoods:
  bitune     Bitune, through `BituneLM`
  lora       plain LoRA, through `BituneLM`
  stock N    plain LoRA (PEFT) through lm-eval's own Hugging Face model at batch size N

Prints the median of each and the ratios to the best of the stock times. `--only bitune lora` leaves the others out, and
`--profile` shows where the time of each goes.
"""

import argparse
import statistics
import time
from functools import partial

import torch
from lm_eval.models.huggingface import HFLM
from peft import LoraConfig, get_peft_model

from bitune_pl import Bitune, load_decoder, load_tokenizer
from bitune_pl.data.encoding import Encoder
from bitune_pl.evaluation.catalogue import load, quiet
from bitune_pl.evaluation.harness import BituneLM

BF16 = torch.bfloat16
LORA = LoraConfig(r=8, lora_alpha=1, target_modules="all-linear")
BATCHES = (1, 8, 16, 32)


def requests(folder: str, questions: int) -> list:
    task = load(["commonsense_qa"], folder, limit=questions)["commonsense_qa"]["tasks"]["commonsense_qa"]
    with quiet():
        task.build_all_requests(limit=questions)
    return task.instances


def contenders(wanted, asked: list) -> dict:
    encoder = Encoder(load_tokenizer("smollm2"))
    runs = {}
    for name, method in (("bitune", "bitune"), ("lora", "plain")):
        if wanted(name):
            model = Bitune.build(load_decoder("smollm2", BF16), method, "lora", adapter_dtype=BF16).eval()
            runs[name] = partial(from_text, model, encoder, asked)
    if any(wanted(f"stock {size}") for size in BATCHES):
        decoder = load_decoder("smollm2", BF16)
        decoder.set_attn_implementation("sdpa")
        peft = get_peft_model(decoder, LORA, autocast_adapter_dtype=False).to(BF16).eval()
        for size in BATCHES:
            if wanted(f"stock {size}"):
                lm = HFLM(pretrained=peft, tokenizer=encoder.tokenizer, batch_size=size)
                runs[f"stock {size}"] = partial(lm.loglikelihood, asked, disable_tqdm=True)
    return runs


def from_text(model: Bitune, encoder: Encoder, asked: list) -> list:
    return BituneLM(model, encoder, progress=False).loglikelihood(asked)  # a model that was asked before knows the ids


def seconds(run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def show_profile(run) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=50))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder that holds commonsense_qa/validation.jsonl")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    asked = requests(arguments.data, arguments.questions)
    runs = contenders(lambda name: not arguments.only or name in arguments.only, asked)
    if arguments.profile:
        for name, run in runs.items():
            print(name)
            show_profile(run)
        return
    times: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(arguments.rounds + 1):
        for name, run in runs.items():
            taken = seconds(run)
            if round_:  # the first warms up
                times[name].append(taken)
    report(times)


def report(times: dict[str, list[float]]) -> None:
    median = {name: statistics.median(taken) for name, taken in times.items()}
    for name, taken in times.items():
        print(f"{name:10} {median[name]:7.2f} s   ({min(taken):.2f} - {max(taken):.2f})")
    best = min((name for name in times if name.startswith("stock")), key=median.get, default=None)
    for name in ("bitune", "lora"):
        if best and name in times:
            paired = statistics.median(a / b for a, b in zip(times[name], times[best], strict=True))
            print(f"{name} / {best}: {median[name] / median[best]:.2f} (medians), {paired:.2f} (round by round)")


if __name__ == "__main__":
    main()
