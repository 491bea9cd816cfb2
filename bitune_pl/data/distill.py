"""`bitune distill`: worked answers of a teacher, for a student to learn from (paper, 3.3 and A.9).

    export OPENAI_API_KEY=...
    bitune distill --data.source gsm8k --teacher gpt-4.1 --out distilled
    bitune fit --data.source gsm8k_cot --data.root distilled ...

Every training question is asked once. Replies are written as they come to `<out>/<source>_cot/replies.jsonl`, word for
word, and a run that was stopped goes on after them. At the end of a run they are sorted into `train.jsonl` (the final
answer is right), `wrong.jsonl`, `unparsable.jsonl` and `refused.jsonl`. Questions without a reply are asked again by
the next run. The server's key is read from the environment, and written nowhere.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from filelock import FileLock, Timeout
from jsonargparse import ArgumentError, ArgumentParser, Namespace
from jsonargparse.typing import PositiveFloat, PositiveInt
from tqdm import tqdm

from bitune_pl.data import chain_of_thought, files, sources
from bitune_pl.data.chain_of_thought import TASKS, Unparsable
from bitune_pl.data.example import Dropped
from bitune_pl.data.fields import Content, Unusable
from bitune_pl.data.teacher import NoReply, Reply, Teacher

OUTCOMES = {
    "right": "train.jsonl",
    "wrong": "wrong.jsonl",
    "unparsable": "unparsable.jsonl",
    "refused": "refused.jsonl",
}


@dataclass(frozen=True)
class Question:
    """A row of the data set, how the teacher is asked, and the right answer; `name` is the same for the same prompt."""

    where: str
    said: Content
    prompt: str
    right: str

    @property
    def name(self) -> str:
        return hashlib.blake2b(self.prompt.encode(), digest_size=12).hexdigest()

    @property
    def choices(self) -> tuple[str, ...]:
        return self.said.answers if self.said.is_question else ()


def main(argv: Sequence[str]) -> int:
    """Ask, sort, count; the exit status is 1 if questions are left without a reply.

    Raises:
        ValueError, OSError: with a sentence for the user.
    """
    args = _parse(argv)
    source, root = args["data.source"], args["data.root"]
    if source not in TASKS:
        raise ValueError(f"{source} is not distilled; those that are: {', '.join(TASKS)}.")
    options = {name: args[name] for name in ("temperature", "max_tokens") if args[name] is not None}
    key = _key(args.api_key_env)
    teacher = Teacher(args.teacher, args.api_base, key, args.concurrency, args.timeout, args.tries, args.wait, options)
    questions, dropped = _questions(source, root, args.limit)
    for reason in sources.reasons(dropped):
        print(f"not asked: {reason}")
    folder = Path(args.out or root or "distilled") / f"{source}_cot"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            return _distill(questions, teacher, folder)
    except Timeout:
        raise ValueError(f"Another run writes to {folder}: wait for it, or choose another --out.") from None


def _distill(questions: list[Question], teacher: Teacher, folder: Path) -> int:
    replies = _earlier(folder / "replies.jsonl", teacher.model)
    todo = {question.name: question.prompt for question in questions if question.name not in replies}
    print(f"{len(questions)} questions, {len(todo)} to ask, for {folder}")
    problems: Counter[str] = Counter()
    try:
        _ask(teacher, todo, folder / "replies.jsonl", replies, problems)
    finally:
        _report(_sort(questions, replies, teacher.model, folder), problems, folder)
    return int(any(question.name not in replies for question in questions))


def _questions(source: str, root: str | None, limit: int | None) -> tuple[list[Question], list[Dropped]]:
    """What can be asked, for its right answer is known; and the rows that cannot."""

    def question(where: str, said: Content | Dropped) -> Question | Dropped:
        if isinstance(said, Dropped):
            return said
        try:
            right = chain_of_thought.gold(said)
        except Unusable as reason:
            return Dropped(where, str(reason))
        choices = said.answers if said.is_question else ()
        return Question(where, said, TASKS[source].prompt(said.fields["question"], choices), right)

    rows = [question(*row) for row in islice(sources.contents(source, "train", root), limit)]
    return [row for row in rows if isinstance(row, Question)], [row for row in rows if isinstance(row, Dropped)]


def _earlier(path: Path, model: str) -> dict[str, Reply]:
    """The replies of earlier runs, by question; a last line that a crash cut short is removed."""
    if not path.is_file():
        return {}
    with path.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
    replies = {}
    for _, row in files.jsonl(path, str(path)):
        if isinstance(row, ValueError):
            raise row
        name, teacher = row.pop("name"), row.pop("teacher")
        if teacher != model:
            raise ValueError(f"{path} holds replies of {teacher}: go on with that teacher, or choose another --out.")
        replies[name] = Reply(**row)
    return replies


def _ask(teacher: Teacher, todo: dict[str, str], path: Path, replies: dict[str, Reply], problems: Counter[str]) -> None:
    """Ask what is to do, and write each reply as it comes."""
    with path.open("a", encoding="utf-8") as file, tqdm(total=len(todo), unit="question", disable=None) as bar:

        def take(name: str, reply: Reply | NoReply) -> None:
            bar.update()
            if isinstance(reply, NoReply):
                problems[str(reply)] += 1
                return
            replies[name] = reply
            file.write(json.dumps({"name": name, "teacher": teacher.model, **asdict(reply)}) + "\n")
            file.flush()

        teacher.ask(todo.items(), take)


def _sort(questions: list[Question], replies: dict[str, Reply], model: str, folder: Path) -> dict[str, int]:
    """Write the replies apart by outcome, in the order of the data set, and count them and their tokens."""
    rows: dict[str, list[dict]] = {outcome: [] for outcome in OUTCOMES}
    for question in questions:
        if question.name in replies:
            outcome, row = _outcome(question, replies[question.name])
            rows[outcome].append(row | {"teacher": model})
    for outcome, name in OUTCOMES.items():
        files.put(folder / name, "".join(json.dumps(row) + "\n" for row in rows[outcome]))
    counts = {outcome: len(found) for outcome, found in rows.items()}
    counts["without a reply"] = len(questions) - sum(counts.values())
    for name in ("tokens_in", "tokens_out"):
        counts[name] = sum(getattr(reply, name) for reply in replies.values())
    files.put(folder / "counts.json", json.dumps({"teacher": model, **counts}, indent=2) + "\n")
    return counts


def _outcome(question: Question, reply: Reply) -> tuple[str, dict]:
    row = {"where": question.where, "question": question.said.fields["question"], "choices": list(question.choices)}
    row |= {"reply": reply.text, "finish": reply.finish}
    if reply.refusal:
        return "refused", row | {"problem": reply.refusal}
    try:
        steps, answer = chain_of_thought.parse(reply.text, len(question.choices))
    except Unparsable as problem:
        return "unparsable", row | {
            "problem": f"cut off at the token limit, {problem}" if reply.finish == "length" else str(problem)
        }
    row |= {"steps": steps, "answer": answer}
    if answer == question.right:
        return "right", row
    return "wrong", row | {"problem": f"the right answer is {question.right}"}


def _report(counts: dict[str, int], problems: Counter[str], folder: Path) -> None:
    for outcome, name in OUTCOMES.items():
        print(f"  {outcome:<16}{counts[outcome]:>8}  {folder / name}")
    print(f"  {'without a reply':<16}{counts['without a reply']:>8}" + ("  run again to ask them" if problems else ""))
    for problem, times in problems.most_common(3):
        print(f"  {'':<16}{times:>8}  {problem}")
    print(f"  tokens: {counts['tokens_in']} in, {counts['tokens_out']} out")


def _key(variable: str) -> str:
    """The server's key; servers of one's own often need none."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"What {variable} holds is no key: it has characters that cannot be sent.")
    return key


def _parse(argv: Sequence[str]) -> Namespace:
    parser = ArgumentParser(
        prog="bitune distill", description=__doc__.split("\n\n")[2], exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("--data.source", required=True, help=f"what to ask: {', '.join(TASKS)}")
    parser.add_argument("--data.root", type=str | None, help="local copies of the data sets; without it, the hub")
    parser.add_argument("--teacher", required=True, help="name of the model on the server")
    parser.add_argument(
        "--api-base", default="https://api.openai.com/v1", help="address of an OpenAI-compatible server"
    )
    parser.add_argument("--api-key-env", default="OPENAI_API_KEY", help="the environment variable that holds the key")
    parser.add_argument(
        "--out", type=str | None, help="folder for <source>_cot; default: that of data.root, or distilled"
    )
    parser.add_argument("--limit", type=PositiveInt | None, help="only the first so many questions")
    parser.add_argument("--concurrency", type=PositiveInt, default=8, help="questions under way at a time")
    parser.add_argument("--timeout", type=PositiveFloat, default=120.0, help="seconds for a reply")
    parser.add_argument("--tries", type=PositiveInt, default=6, help="of a question, further and further apart")
    parser.add_argument("--wait", type=PositiveFloat, default=1.0, help="seconds before the second try")
    parser.add_argument("--temperature", type=float | None, help="left to the server by default")
    parser.add_argument("--max-tokens", type=PositiveInt | None, help="of a reply; left to the server by default")
    try:
        return parser.parse_args(list(argv))
    except ArgumentError as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{said[:300].rstrip('.')}; bitune distill --help lists the settings.") from None
