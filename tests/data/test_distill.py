"""`bitune distill` against a real server, well-behaved and not."""

import json
import logging

import pytest
from teacher_server import reply, serving

from bitune_pl.data.distill import main
from bitune_pl.data.sources import load

KEY = "sk-not-for-your-eyes"


def worked(answer):
    return reply(f"<step>\nIt is so.\n</step>\n<answer>\n{answer}\n</answer>")


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "data" / "gsm8k"
    folder.mkdir(parents=True)
    rows = [{"question": f"q{i}", "answer": f"So.\n#### {i}"} for i in range(12)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder.parent


def distill(server, root, *more):
    settings = {"--data.source": "gsm8k", "--data.root": root, "--teacher": "t", "--api-base": server.address}
    settings |= {"--wait": 0.05, "--tries": 4, "--timeout": 1.0}
    return main([str(word) for pair in settings.items() for word in pair] + [str(word) for word in more])


def written(root, name):
    return [json.loads(line) for line in (root / "gsm8k_cot" / f"{name}.jsonl").read_text().splitlines()]


def test_rows_without_a_right_answer_are_not_paid_for(root, capsys):
    path = root / "gsm8k" / "train.jsonl"
    path.write_text(
        path.read_text() + '{"question": "q12", "answer": "None."}\n{"question": " ", "answer": "#### 1"}\n'
    )
    asked = []
    with serving(lambda question, _: asked.append(question) or worked(question[1:])) as server:
        assert distill(server, root) == 0
    assert sorted(asked) == sorted(f"q{i}" for i in range(12)) and len(written(root, "train")) == 12
    said = capsys.readouterr().out
    assert "not asked: 1 without a number after ####, first gsm8k/train.jsonl line 13" in said
    assert "not asked: 1 with a blank question, first gsm8k/train.jsonl line 14" in said


def test_replies_are_sorted_and_counted(root, capsys):
    said = {
        "q1": worked("2"),
        "q2": reply("It is 2."),
        "q3": reply("", refusal="I cannot help with that."),
        "q4": reply(None, finish="content_filter"),
        "q5": (400, {"error": {"code": "content_filter", "message": "filtered"}}),
        "q6": reply("<step>So it goes on and", finish="length"),
        "q7": reply(None),
        "q8": worked("8.00"),
        "q9": reply("<step>Half \ud800 a pair</step><answer>9</answer>"),
    }
    with serving(lambda question, _: said.get(question) or worked(question[1:])) as server:
        assert distill(server, root) == 0
    places = {
        name: [row["question"] for row in written(root, name)] for name in ("train", "wrong", "unparsable", "refused")
    }
    assert places == {
        "train": ["q0", "q8", "q9", "q10", "q11"],
        "wrong": ["q1"],
        "unparsable": ["q2", "q6", "q7"],
        "refused": ["q3", "q4", "q5"],
    }
    assert written(root, "train")[0] == {
        "where": "gsm8k/train.jsonl line 1",
        "question": "q0",
        "choices": [],
        "reply": "<step>\nIt is so.\n</step>\n<answer>\n0\n</answer>",
        "finish": "stop",
        "steps": ["It is so."],
        "answer": "0",
        "teacher": "t",
    }
    assert [row["problem"] for row in written(root, "unparsable")] == [
        "0 steps and 0 answers",
        "cut off at the token limit, 0 steps and 0 answers",
        "0 steps and 0 answers",
    ]
    counts = json.loads((root / "gsm8k_cot" / "counts.json").read_text())
    assert (counts["right"], counts["wrong"], counts["unparsable"], counts["refused"]) == (5, 1, 3, 3)
    assert (counts["tokens_in"], counts["tokens_out"], counts["without a reply"]) == (110, 55, 0)
    out = capsys.readouterr().out
    assert "12 questions, 12 to ask" in out and "tokens: 110 in, 55 out" in out
    loaded = load("gsm8k_cot", "train", root)
    assert [e.answer for e in loaded.examples][:2] == [" It is so.\n\nAnswer: 0", " It is so.\n\nAnswer: 8"]
    assert [row.reason for row in loaded.dropped] == ["with half a surrogate pair in steps"]


@pytest.mark.parametrize(
    "trouble",
    [
        (429, {"error": "slow down"}),
        (500, b""),
        (503, b"<html>busy</html>"),
        (408, b""),
        "hang up",
        "sleep",
        "drip",
        "cut",
        (200, b"no json"),
        (200, {"choices": []}),
        (200, {"choices": [{"message": {"content": ["x"]}}]}),
        (200, []),
    ],
    ids=str,
)
def test_trouble_that_passes(root, trouble):
    with serving(lambda question, before: trouble if before < 2 else worked(question[1:])) as server:
        assert distill(server, root, "--limit", 2) == 0
    assert [row["question"] for row in written(root, "train")] == ["q0", "q1"]
    assert set(server.asked.values()) == {3}


def test_trouble_that_stays_is_told_and_asked_again(root, capsys):
    def behave(question, _):
        return {"q3": (503, b"busy"), "q5": (422, {"error": "no such thing"})}.get(question) or worked(question[1:])

    with serving(behave) as server:
        assert distill(server, root) == 1
        assert server.asked["q3"] == 4 and server.asked["q5"] == 1
        out = capsys.readouterr().out
        assert "1  status 503, busy, after 4 tries" in out and "1  status 422, " in out and "run again" in out
        assert len(written(root, "train")) == 10
        server.behave = lambda question, _: worked(question[1:])
        assert distill(server, root) == 0
        assert server.asked["q3"] == 5 and server.asked["q5"] == 2 and server.asked["q4"] == 1
    assert [row["question"] for row in written(root, "train")] == [f"q{i}" for i in range(12)]


def test_waiting_grows_and_the_server_is_listened_to(root):
    waits = {"q0": (429, b"", {"Retry-After": "1"}), "q1": (500, b"")}
    with serving(lambda question, before: waits[question] if before < 2 else worked(question[1:])) as server:
        distill(server, root, "--limit", 2, "--wait", 0.2)
    times = {name: [at for question, at in server.times if question == name] for name in waits}
    gaps = {name: [b - a for a, b in zip(at, at[1:], strict=False)] for name, at in times.items()}
    assert min(gaps["q0"]) >= 0.99
    assert gaps["q1"][0] >= 0.09 and gaps["q1"][1] >= 0.19


def test_no_more_at_a_time_than_wanted(root):
    import time

    def slow(question, _):
        time.sleep(0.05)
        return worked(question[1:])

    with serving(slow) as server:
        distill(server, root, "--concurrency", 3)
    assert server.most_under_way == 3


def test_a_stopped_run_goes_on_without_asking_twice(root):
    def behave(question, _):
        if question == "q6":
            raise_at_home.append(question)
            return (401, b"")
        return worked(question[1:])

    raise_at_home = []
    with serving(behave) as server:
        with pytest.raises(PermissionError):
            distill(server, root, "--concurrency", 1)
        replies = root / "gsm8k_cot" / "replies.jsonl"
        assert len(replies.read_text().splitlines()) == 6 == len(written(root, "train"))
        with replies.open("a") as file:
            file.write('{"name": "cut sho')
        server.behave = lambda question, _: worked(question[1:])
        assert distill(server, root) == 0
        assert distill(server, root) == 0
    assert all(times == 1 for question, times in server.asked.items() if question != "q6")
    assert len(written(root, "train")) == 12 == len(written(root, "replies"))


def test_another_teacher_is_not_mixed_in(root):
    with serving(lambda question, _: worked(question[1:])) as server:
        distill(server, root, "--limit", 1)
        with pytest.raises(ValueError, match="holds replies of t: go on with that teacher, or choose another --out"):
            distill(server, root, "--teacher", "other")


@pytest.mark.parametrize(
    ("told", "error", "message"),
    [
        ((401, {"error": f"Incorrect API key provided: {KEY}"}), PermissionError, "does not accept the key .*variable"),
        ((404, {"error": "The model t does not exist"}), ConnectionError, "has no model t at .*does not exist"),
        ((302, b"", {"Location": "http://127.0.0.1:9/"}), ConnectionError, "has no model t"),
    ],
)
def test_trouble_that_concerns_everything(root, monkeypatch, told, error, message):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(lambda *_: told) as server, pytest.raises(error, match=message) as raised:
        distill(server, root, "--concurrency", 1)
    assert KEY not in str(raised.value) and sum(server.asked.values()) == 1


def test_a_server_that_is_gone(root):
    with serving(lambda *_: None) as server:
        pass
    with pytest.raises(ConnectionError, match="20 questions in a row got no reply, .*ConnectError"):
        rows = [{"question": f"q{i}", "answer": f"#### {i}"} for i in range(50)]
        (root / "gsm8k" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        distill(server, root, "--tries", 1)


def test_the_key_goes_to_the_server_and_nowhere_else(root, monkeypatch, caplog, capfd):
    monkeypatch.setenv("OTHER_KEY", f"{KEY}\n")
    echo = [
        worked(f"1</answer> {KEY}"),
        (400, {"error": f"bad {KEY}"}),
        (500, f"{KEY}".encode()),
        (200, f'"{KEY}'.encode()),
    ]
    with serving(lambda question, before: echo[int(question[1:]) % 4]) as server, caplog.at_level(logging.DEBUG):
        distill(server, root, "--api-key-env", "OTHER_KEY", "--tries", 2)
    path, headers, request = server.headers_seen[0]
    assert (
        path == "/v1/chat/completions"
        and headers["authorization" if "authorization" in headers else "Authorization"] == f"Bearer {KEY}"
    )
    assert request == {"model": "t", "messages": [{"role": "user", "content": request["messages"][0]["content"]}]}
    printed = capfd.readouterr()
    assert KEY not in printed.out + printed.err + caplog.text
    assert "(the key)" in (root / "gsm8k_cot" / "replies.jsonl").read_text()
    for file in root.rglob("*"):
        assert not file.is_file() or KEY not in file.read_text(), file


def test_options_reach_the_server_and_no_key_is_needed(root, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(lambda question, _: worked(question[1:])) as server:
        distill(server, root, "--limit", 1, "--temperature", 0, "--max-tokens", 64, "--out", root / "else")
    _, headers, request = server.headers_seen[0]
    assert "authorization" not in {name.lower() for name in headers}
    assert (request["temperature"], request["max_tokens"]) == (0, 64)
    assert (root / "else" / "gsm8k_cot" / "train.jsonl").is_file()


def test_questions_with_choices(tmp_path):
    folder = tmp_path / "commonsense_qa"
    folder.mkdir()
    choices = {"text": ["x", "y"], "label": ["A", "B"]}
    (folder / "train.jsonl").write_text(json.dumps({"question": "Why?", "choices": choices, "answerKey": "B"}) + "\n")
    with serving(lambda *_: worked("B")) as server:
        distill(server, tmp_path, "--data.source", "commonsense_qa")
    assert list(server.asked) == ["Why?\n\nChoices:\nA: x\nB: y"]
    example = load("commonsense_qa_cot", "train", tmp_path).examples[0]
    assert example.answer == " It is so.\n\nAnswer: B" and "A: x\nB: y" in example.prompt


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--data.source", "alpaca", "--teacher", "t"], "alpaca is not distilled; those that are: piqa, "),
        (["--data.source", "gsm8k"], "teacher"),
        (["--data.source", "gsm8k", "--teacher", "t", "--concurrency", "0"], "concurrency"),
        (["--data.source", "gsm8k", "--teacher", "t", "--data.root", "gone"], "no file gone/gsm8k/train.jsonl"),
    ],
)
def test_mistakes(argv, message):
    with pytest.raises((ValueError, OSError), match=message):
        main(argv)


def test_a_key_that_cannot_be_sent(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "schlüssel")
    with pytest.raises(ValueError, match="What OPENAI_API_KEY holds is no key") as error:
        main(["--data.source", "gsm8k", "--teacher", "t"])
    assert "schl" not in str(error.value)
