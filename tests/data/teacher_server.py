"""A server that speaks OpenAI's protocol on loopback, and misbehaves as it is told."""

import json
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def reply(text, finish="stop", refusal=None):
    message = {"role": "assistant", "content": text, "refusal": refusal}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return 200, {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}


class Server(ThreadingHTTPServer):
    """Answers with `behave(question, times asked before)`: a status and a body, or a word for what goes wrong."""

    daemon_threads = True

    def __init__(self, behave):
        super().__init__(("127.0.0.1", 0), Handler)
        self.behave, self.asked, self.times = behave, Counter(), []
        self.under_way = self.most_under_way = 0
        self.lock, self.headers_seen = threading.Lock(), []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server, request = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question = request["messages"][0]["content"].rpartition("Question: ")[2]
        with server.lock:
            before = server.asked[question]
            server.asked[question] += 1
            server.under_way += 1
            server.most_under_way = max(server.most_under_way, server.under_way)
            server.headers_seen.append((self.path, dict(self.headers), request))
            server.times.append((question, time.monotonic()))
        try:
            self.answer(server.behave(question, before))
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            with server.lock:
                server.under_way -= 1

    def answer(self, told):
        if told == "hang up":
            self.close_connection = True
        elif told == "sleep":
            time.sleep(1.5)
            self.close_connection = True
        elif told == "drip":
            self.send(200, {}, b"x" * 100, drip=True)
        elif told == "cut":
            self.send(200, {}, b'{"choices": [', length=1000)
            self.close_connection = True
        else:
            status, body, *headers = told
            self.send(status, dict(*headers), body if isinstance(body, bytes) else json.dumps(body).encode())

    def send(self, status, headers, body, length=None, drip=False):
        self.send_response(status)
        for name, value in ({"Content-Length": length or len(body)} | headers).items():
            self.send_header(name, str(value))
        self.end_headers()
        for i in range(0, len(body), 1 if drip else len(body) or 1):
            self.wfile.write(body[i : i + (1 if drip else len(body))])
            self.wfile.flush()
            time.sleep(0.1 if drip else 0)

    def log_message(self, *args):
        pass


@contextmanager
def serving(behave):
    server = Server(behave)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
