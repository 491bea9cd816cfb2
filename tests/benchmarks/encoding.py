"""Seconds and memory of reading and encoding a JSONL file, against the fast tokenizer called in bulk on the same strings.

    python tests/benchmarks/encoding.py [--rows 100000] [--rounds 3] [--data FOLDER]

The rows are GSM8K's from a folder of local data, or worded sums of this project, repeated with a number of their own so that
none is like another. Each contender is a process of its own, in turn; times are without imports. `ours` reads the file, makes
examples and encodes them; `bulk` has the strings in memory and makes one call for the prompts and one for the answers.
"""

import argparse
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

from bitune_pl import load_tokenizer
from bitune_pl.data.encoding import Encoder
from bitune_pl.data.rows import encode
from bitune_pl.data.sources import load


def write(path: Path, rows: int, root: str | None) -> None:
    examples = load("gsm8k", "train", root).examples if root else load("sums", "train").examples
    with path.open("w") as file:
        for i, example in enumerate(islice(cycle(examples), rows)):
            file.write(json.dumps({"prompt": f"{i}. {example.prompt}", "answer": example.answer}) + "\n")


def ours(path: Path) -> float:
    encoder = Encoder(load_tokenizer("smollm2"))
    start = time.perf_counter()
    encode(encoder, load(str(path), "train", whole=True).examples, False)
    return time.perf_counter() - start


def bulk(path: Path) -> float:
    rows = [json.loads(line) for line in path.open()]
    prompts, answers = [row["prompt"] for row in rows], [f" {row['answer'].strip()}" for row in rows]
    tokenizer = load_tokenizer("smollm2")
    start = time.perf_counter()
    for texts in (prompts, answers):
        tokenizer(texts, add_special_tokens=False, return_attention_mask=False)
    return time.perf_counter() - start


def measured(contender, path: Path, queue) -> None:
    seconds = contender(path)
    queue.put((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", help="folder of local data sets")
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    found: dict[str, list[tuple]] = {"ours": [], "bulk": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        write(path, args.rows, args.data)
        for _ in range(args.rounds):
            for name, contender in {"ours": ours, "bulk": bulk}.items():
                queue = spawn.Queue()
                process = spawn.Process(target=measured, args=(contender, path, queue))
                process.start()
                found[name].append(queue.get())
                process.join()
                print(name, "{:.2f} s, {:.2f} GB".format(*found[name][-1]), flush=True)
    seconds = {name: statistics.median(time for time, _ in runs) for name, runs in found.items()}
    memory = max(gb for _, gb in found["ours"])
    print(
        f"\nbulk / ours {seconds['bulk'] / seconds['ours']:.2f} (at least 0.5 wanted), {memory:.2f} GB (below 1.5 wanted)"
    )


if __name__ == "__main__":
    main()
