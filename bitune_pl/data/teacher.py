"""The teacher: a model behind an OpenAI-compatible server, asked many questions at once.

What is worth another try is tried again, later each time: no connection, no reply in time, a reply cut off or garbled,
and the status codes 408, 409, 429 and 5xx. Other codes concern the one question, or, where the key, the address or the
model is wrong, all of them. What a reply means is not decided here.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import httpx2 as httpx

TRIED_AGAIN = {408, 409, 429}
LONGEST_WAIT = 60.0  # seconds between two tries
LONGEST_ASKED_FOR = 600.0  # the same, where the server says how long
IN_A_ROW = 20  # questions without a reply, after which no more are asked


@dataclass(frozen=True)
class Reply:
    """What the server said to one question.

    Args:
        text: the message; empty if there is none.
        refusal: why it will not answer; empty if it does.
        finish: the server's reason for ending, such as "stop" or "length".
        tokens_in, tokens_out: as the server counts them.
    """

    text: str
    refusal: str
    finish: str
    tokens_in: int
    tokens_out: int


class NoReply(Exception):
    """A question that got no reply; the text says why."""


@dataclass(frozen=True)
class Teacher:
    """How to ask.

    Args:
        model: its name on the server.
        api_base: the server's address, up to and with `/v1`.
        key: sent as a bearer token if there is one, and taken out of all that the server says.
        concurrency: questions under way at a time.
        timeout: seconds for a whole reply.
        tries: of one question.
        wait: seconds before the second try, twice as many before the third, and so on.
        options: further fields of a request, such as `temperature`.
    """

    model: str
    api_base: str
    key: str = field(default="", repr=False)
    concurrency: int = 8
    timeout: float = 120.0
    tries: int = 6
    wait: float = 1.0
    options: dict[str, float] = field(default_factory=dict)

    def ask(self, questions: Iterable[tuple[str, str]], take: Callable[[str, Reply | NoReply], None]) -> None:
        """Ask questions `(name, text)`; `take(name, reply)` is called for each, as the replies come.

        Raises:
            PermissionError, ConnectionError: if the server refuses everything or does not reply any more.
        """
        try:
            asyncio.run(self._ask(iter(questions), take))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _ask(self, waiting: Iterator[tuple[str, str]], take: Callable[[str, Reply | NoReply], None]) -> None:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        without_reply = 0

        async def work(client: httpx.AsyncClient) -> None:
            nonlocal without_reply
            for name, text in waiting:
                reply = await self._reply(client, text)
                take(name, reply)
                without_reply = without_reply + 1 if isinstance(reply, NoReply) else 0
                if without_reply == IN_A_ROW:
                    raise ConnectionError(
                        f"{IN_A_ROW} questions in a row got no reply, the last one because of {reply}."
                    )

        async with httpx.AsyncClient(headers=headers, timeout=self.timeout) as client, asyncio.TaskGroup() as group:
            for _ in range(self.concurrency):
                group.create_task(work(client))

    async def _reply(self, client: httpx.AsyncClient, text: str) -> Reply | NoReply:
        request = {"model": self.model, "messages": [{"role": "user", "content": text}], **self.options}
        problem = ""
        for attempt in range(self.tries):
            try:
                async with asyncio.timeout(self.timeout):
                    response = await client.post(f"{self.api_base.rstrip('/')}/chat/completions", json=request)
                if response.status_code == 200:
                    return self._read(response.json())
                problem, delay = self._said(response), _asked_to_wait(response)
                if not (response.status_code in TRIED_AGAIN or response.status_code >= 500):
                    return self._turned_down(response, problem)
            except TimeoutError:
                problem, delay = f"no reply within {self.timeout:g} seconds", 0.0
            except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
                problem, delay = self._without_key(f"{type(error).__name__}: {error}"), 0.0
            if attempt + 1 < self.tries:
                longer = min(self.wait * 2**attempt, LONGEST_WAIT)
                await asyncio.sleep(max(delay, longer * random.uniform(0.5, 1.0)))
        return NoReply(f"{problem}, after {self.tries} tries")

    def _read(self, said: dict) -> Reply:
        choice, usage = said["choices"][0], said.get("usage") or {}
        message = choice["message"]
        text, refusal = message.get("content") or "", message.get("refusal") or ""
        if not isinstance(text, str) or not isinstance(refusal, str):
            raise TypeError("the message is no text")
        finish = str(choice.get("finish_reason") or "")
        if finish == "content_filter":
            refusal = refusal or finish
        counts = (int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens"))
        return Reply(self._without_key(text), self._without_key(refusal), finish, *counts)

    def _turned_down(self, response: httpx.Response, problem: str) -> Reply | NoReply:
        """A code that another try would not change."""
        if response.status_code in (401, 403):
            raise PermissionError(f"The server does not accept the key ({problem}); check the key's variable.")
        if response.status_code in (404, 405) or 300 <= response.status_code < 400:
            raise ConnectionError(f"The server has no model {self.model} at {self.api_base} ({problem}); check both.")
        if "content_filter" in response.text or "content_policy" in response.text:
            return Reply("", problem, "content_filter", 0, 0)
        return NoReply(problem)

    def _said(self, response: httpx.Response) -> str:
        text = " ".join(response.text.split())[:200]
        return self._without_key(f"status {response.status_code}" + (f", {text}" if text else ""))

    def _without_key(self, text: str) -> str:
        return text.replace(self.key, "(the key)") if self.key else text


def _asked_to_wait(response: httpx.Response) -> float:
    """Seconds that the server asks to wait; the other form, a date, is not read."""
    said = response.headers.get("retry-after", "")
    return min(float(said), LONGEST_ASKED_FOR) if said.isascii() and said.isdigit() else 0.0
