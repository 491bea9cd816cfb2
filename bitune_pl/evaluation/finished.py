"""What an evaluation has finished, one line a request, so that a stopped one goes on where it was.

The file lies beside the results, named after its owner (the model, the tasks and the settings), so that evaluations with
others leave it alone; it is written with the first answer and removed once the results are there. Nothing half-written is
used: a last line that was cut is dropped.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from bitune_pl.data.files import put


def digest(*parts) -> str:
    """16 hexadecimal digits of anything that JSON can write."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()[:16]


class Finished:
    """Answers by the key of their request, in memory and in a file.

    Args:
        out: the file of the results that these answers are for; theirs lies beside it.
        owner: says the model, the tasks and the settings: a fingerprint.
    """

    def __init__(self, out: Path, owner: str) -> None:
        self.path, self.owner = out.with_name(f"{out.name}.{owner[:8]}.unfinished"), owner
        self.answers: dict[str, object] = {}
        self.asked: Counter[str] = Counter()  # how often each text to continue was there
        self.file: TextIO | None = None
        if self.path.is_file():
            first, *rest = self.path.read_text(encoding="utf-8", errors="replace").split("\n")
            if first == self._head:
                for line in rest:
                    self._take(line)

    @property
    def _head(self) -> str:
        return json.dumps({"owner": self.owner})

    def _take(self, line: str) -> None:
        try:
            key, answer = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return
        answer = tuple(answer) if isinstance(answer, list) else answer
        if isinstance(key, str) and _is_answer(answer):
            self.answers[key] = answer

    def add(self, answers: Mapping[str, object]) -> None:
        """Keep new answers; they are on their way to the disk when this returns.

        Raises:
            OSError: if they cannot be written.
        """
        self.file = self.file or self._open()
        self.answers |= answers
        try:
            self.file.write("".join(json.dumps(pair) + "\n" for pair in answers.items()))
            self.file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def _open(self) -> TextIO:
        """The file, with what it held that is whole."""
        known = [json.dumps(pair) for pair in self.answers.items()]
        put(self.path, "\n".join([self._head, *known]) + "\n")
        return self.path.open("a", encoding="utf-8")

    def close(self) -> None:
        if self.file:
            self.file.close()

    def remove(self) -> None:
        """The results are written: this is not needed any more."""
        self.close()
        self.path.unlink(missing_ok=True)


class Asked:
    """Requests of one kind that lm-eval makes together: the answers that are known, by their place, and where new ones go.

    Requests are told apart by their texts. Of several texts to continue that are the same, in whatever tasks, each has an
    answer of its own, for where answers are sampled they differ; the same log-likelihood is the same.
    """

    def __init__(self, finished: Finished | None, kind: str, arguments: Sequence[Iterable]) -> None:
        self.finished, self.keys = finished, []
        for texts in arguments if finished else ():
            key = digest(kind, *texts)
            before = finished.asked[key]
            finished.asked[key] += kind == "generate_until"
            self.keys.append(digest(key, before) if before else key)
        answers = finished.answers if finished else {}
        self.known: dict = {i: answers[key] for i, key in enumerate(self.keys) if key in answers}

    def add(self, fresh: Mapping[int, object]) -> None:
        """Keep new answers, by their place."""
        if self.finished:
            self.finished.add({self.keys[i]: answer for i, answer in fresh.items()})


def _is_answer(said: object) -> bool:
    """A text; the log-likelihood of one; or a log-likelihood and whether each token is the likeliest."""
    number, *greedy = said if isinstance(said, tuple) and said else (said,)
    is_finite = type(number) in (int, float) and abs(number) < math.inf
    return isinstance(said, str) or is_finite and (not isinstance(said, tuple) or [type(g) for g in greedy] == [bool])
