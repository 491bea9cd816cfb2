"""What an evaluation has finished, one line a request, so that a stopped one goes on where it was.

The file lies beside the results and is removed once they are written. Its first line says what model and which settings it
belongs to; a file of others is started anew. Nothing half-written is used: a last line that was cut is dropped.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path

from bitune_pl.data.files import put


def key_of(kind: str, arguments: Iterable) -> str:
    """A request by its kind and its texts: 16 hexadecimal digits."""
    return digest(kind, *arguments)


def digest(*parts) -> str:
    """16 hexadecimal digits of anything that JSON can write."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()[:16]


class Finished:
    """Answers by the key of their request, in memory and in a file.

    Args:
        path: the file; it is made, or taken up if it is of this `owner`.
        owner: says the model and the settings: a fingerprint.

    Raises:
        OSError: if the file cannot be written.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self.path, self.answers = path, {}
        head = json.dumps({"owner": owner})
        kept = [head]
        if path.is_file():
            first, *rest = path.read_text(encoding="utf-8", errors="replace").split("\n")
            if first == head:
                kept += [line for line in rest if self._take(line)]
        put(path, "\n".join(kept) + "\n")
        self.file = path.open("a", encoding="utf-8")

    def _take(self, line: str) -> bool:
        try:
            key, answer = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return False
        answer = tuple(answer) if isinstance(answer, list) else answer
        if is_right := isinstance(key, str) and _is_answer(answer):
            self.answers[key] = answer
        return is_right

    def add(self, answers: dict[str, object]) -> None:
        """Keep new answers; they are on their way to the disk when this returns."""
        self.answers |= answers
        self.file.write("".join(json.dumps(pair) + "\n" for pair in answers.items()))
        self.file.flush()

    def close(self) -> None:
        self.file.close()

    def remove(self) -> None:
        """The results are written: this is not needed any more."""
        self.close()
        self.path.unlink(missing_ok=True)


def _is_answer(said: object) -> bool:
    """A text; the log-likelihood of one; or a log-likelihood and whether each token is the likeliest."""
    number, *greedy = said if isinstance(said, tuple) and said else (said,)
    is_finite = type(number) in (int, float) and abs(number) < math.inf
    return isinstance(said, str) or is_finite and (not isinstance(said, tuple) or [type(g) for g in greedy] == [bool])
