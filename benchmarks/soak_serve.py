"""Treats the server badly: clients that hang up, malformed and huge requests, slow senders.

    python -m benchmarks.soak_serve                # 10,000 requests, 20% hang up: some minutes
    python -m benchmarks.soak_serve --malformed    # 10,000 malformed requests, 400 slow senders
    python -m benchmarks.soak_serve --malformed --start 4711 --count 1     # one of them again
    python -m benchmarks.soak_serve --largest      # largest allowed values beside a stream
    python -m benchmarks.soak_serve --exits 100    # SIGTERM while such requests run: 10 minutes
    python -m benchmarks.serving_page              # docs/serving.md from the results

The server is a process of its own with a tiny random model (``--model``: another), so that requests
follow each other as fast as they can be answered. Meanwhile its memory, files and threads are
sampled, and another process asks ``/health`` on a connection of its own. A line for each run in
results/soak.jsonl. Exit code 1, with the numbers of the requests, if something was not as it must
be: memory that grows, an answer that is no 4xx, a traceback, a slot that is not freed, other bits,
a gap in a stream, an exit after the shutdown timeout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import machine
from benchmarks.bench_serve import free_port, is_ready, percentile
from benchmarks.machine import save
from benchmarks.malformed import MAX_BODY_MIB, Malformed, http, largest, malformed, text_of

N_SLOTS, N_CTX_SLOT, CACHE_MIB = 16, 2048, 8
N_CLIENTS = 16
GONE = 0.2
"""Share of the clients that hang up."""
WARM = 0.2
"""Share of the requests, at the beginning, that the growth of memory is not measured over."""
MAX_GROWTH = 0.01
"""Growth of the memory over the other requests, as a share of it, that still is none."""
SLOW_S, N_SLOW = 1.0, 48
"""Deadline for headers and for the body in a malformed run; slow senders at a time."""
MAX_GAP_MS, MAX_HEALTH_MS = 100.0, 50.0
"""Between two events of a stream, and of `/health` in 99% of the cases, on an idle machine."""
SHUTDOWN_S = 2
"""``--shutdown-timeout`` of the servers that are ended while they work."""
_ANSWER_S = 60.0  # a request without an answer in this time is a finding
_LOADING_S = 120.0
_PROBE_S, _SAMPLE_S = 0.1, 0.5
_ABOUT_SCHEMAS = re.compile(r"^WARNING pyllama\.chat\.tools\.grammar: .*\n", re.MULTILINE)
_COMPLAINT = re.compile(r"\A.*?(?=^(?:WARNING|ERROR|CRITICAL|Traceback)|\Z)", re.M | re.S)
_WORDS = ("river", "market", "engine", "letter", "garden", "winter", "bridge", "number")
Rng = random.Random


# --- the server ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Running:
    """A server's process."""

    port: int
    pid: int
    log: Path

    def get(self, path: str) -> Any:
        """The JSON that a path answers."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return json.load(answer)

    def post(self, path: str, body: Any) -> Any:
        """The JSON that a path answers to a body."""
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode()
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)

    def n_busy(self) -> int:
        """The number of slots that are not free."""
        return sum(slot["is_processing"] for slot in self.get("/slots"))

    def sample(self) -> tuple[float, int, int]:
        """Resident memory in MiB, open files and threads, from /proc."""
        folder = Path(f"/proc/{self.pid}")
        found = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        n_files = sum(1 for _ in (folder / "fd").iterdir())
        return int(found["VmRSS"].split()[0]) / 1024, n_files, int(found["Threads"])

    def complaints(self) -> str:
        """What the server wrote to stderr from its first warning on, but on a client's schemas."""
        text = _ABOUT_SCHEMAS.sub("", self.log.read_text("utf-8", "replace"))
        return _COMPLAINT.sub("", text, count=1)


@contextmanager
def serving(model: Path, *flags: str) -> Iterator[Running]:
    """Start the server, wait until it answers, and end it afterwards.

    Raises:
        SystemExit: it does not start, or does not end by SIGTERM.
    """
    port = free_port()
    code = "from pyllama_cli.main import pyllama; pyllama()"
    sizes = ["-np", str(N_SLOTS), "-c", str(N_SLOTS * N_CTX_SLOT), "-cram", str(CACHE_MIB)]
    command = [sys.executable, "-P", "-c", code, "serve", "-m", str(model), "--port", str(port)]
    root = str(Path(__file__).parents[1])
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        more = ["--slot-save-path", folder, "--metrics", "--props", "--embeddings",
                "--pooling", "mean", *flags]  # fmt: skip
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [*command, *sizes, *more], stdout=errors, stderr=errors,
                env={**os.environ, "PYTHONPATH": root},
            )  # fmt: skip
        try:
            end = time.monotonic() + _LOADING_S
            while not is_ready(port):
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"the server does not start: {log.read_text()[-2000:]}")
                time.sleep(0.05)
            yield Running(port, process.pid, log)
            process.terminate()
            if process.wait(30) != 0:
                raise SystemExit(f"the server ended with {process.returncode}")
        finally:
            process.kill()
            process.wait()


def tiny_model(folder: Path) -> Path:
    """Write a random LLaMA with a chat template and the tokens for infill."""
    from tests.pyllama.models import Spec, random_weights, write_model

    spec = Spec(n_ctx=N_CTX_SLOT)
    more = {
        "tokenizer.chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n"
        "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
        **{f"tokenizer.ggml.fim_{name}_token_id": 3 + i
           for i, name in enumerate(("pre", "suf", "mid"))},
    }  # fmt: skip
    return write_model(folder / "tiny.gguf", spec, random_weights(spec), metadata=more)


# --- /health meanwhile --------------------------------------------------------------------------


def probe(port: int, stop: Any, out: Any) -> None:
    """Ask ``/health`` until ``stop``; sends the seconds of each answer, and how late a sleep ends.

    The second list is the delay that the machine itself adds: a busy one wakes processes late.
    """
    asked: list[float] = []
    late: list[float] = []
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.connect()
    assert connection.sock is not None
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while not stop.is_set():
        begin = time.perf_counter()
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        now = time.perf_counter()
        if answer.status == 200:
            asked.append(now - begin)
        time.sleep(_PROBE_S)
        late.append(time.perf_counter() - now - _PROBE_S)
    out.put((asked, late))


@contextmanager
def probing(port: int, found: dict[str, Any]) -> Iterator[None]:
    """Probe meanwhile; adds percentiles in milliseconds to ``found``."""
    spawn = multiprocessing.get_context("spawn")
    stop, out = spawn.Event(), spawn.Queue()
    child = spawn.Process(target=probe, args=(port, stop, out), daemon=True)
    child.start()
    try:
        yield
    finally:
        stop.set()
        asked, late = out.get(timeout=90)
        child.join()
    for name, values in (("health", asked), ("late", late)):
        found[f"{name}_n"] = len(values)
        for share in (50, 99, 100):
            key = f"{name}_p{share}_ms" if share < 100 else f"{name}_max_ms"
            found[key] = round(1e3 * percentile(values or [0.0], share / 100), 3)


# --- good requests, of which some are given up --------------------------------------------------


def _text(rng: Rng, most: int) -> str:
    """Up to ``most`` words; the tiny model has a token for each character."""
    return " ".join(rng.choices(_WORDS, k=rng.randrange(1, most + 1)))


def good_request(rng: Rng) -> tuple[str, dict[str, Any]]:
    """A path and a body: completions, conversations, tools, grammars, embeddings."""
    n = rng.randrange(1, 25)
    stream = rng.random() < 0.5
    words = rng.choice((4, 20, 150))
    kind = rng.randrange(10)
    if kind < 3:
        body: dict[str, Any] = {"prompt": _text(rng, words), "n_predict": n, "stream": stream}
        return "/completion", body | {"n_probs": rng.choice((0, 0, 5)), "seed": rng.randrange(9)}
    if kind == 3:
        prompts = [_text(rng, words) for _ in range(rng.randrange(1, 4))]
        several = {"n": rng.choice((1, 2, 3)), "stream": stream}
        return "/v1/completions", {"prompt": prompts, "max_tokens": n} | several
    if kind == 4:
        text = rng.choice(('root ::= "a" | "b" root', "root ::= [a-z]{1,9}", 'root ::= "x"+'))
        return "/completion", {"prompt": "a", "n_predict": n, "grammar": text, "stream": stream}
    if kind == 5:
        return "/v1/embeddings", {"input": [_text(rng, words) for _ in range(rng.randrange(1, 5))]}
    if kind == 6:
        return "/infill", {"input_prefix": "a", "input_suffix": _text(rng, 20), "n_predict": n}
    messages = [{"role": "system", "content": "Be short."}] * rng.randrange(2)
    messages += [{"role": "user", "content": _text(rng, words)}]
    chat = {"messages": messages, "max_tokens": n, "stream": stream}
    if kind == 7:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        function = {"name": rng.choice(("f", "g")), "parameters": schema}
        chat |= {"tools": [{"type": "function", "function": function}]}
        return "/v1/chat/completions", chat | {"tool_choice": rng.choice(("auto", "required"))}
    if kind == 8:
        return "/v1/messages", chat
    return "/v1/chat/completions", chat | {"n": rng.choice((1, 1, 2))}


async def _open(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)


async def good(port: int, number: int) -> str:
    """Send a request, which a fifth of the clients gives up; what came of it."""
    rng = random.Random(f"soak/{number}")
    path, body = good_request(rng)
    data = http(path, text_of(body))
    leaves = rng.choice(("body", "wait", "stream")) if rng.random() < GONE else ""
    reader, writer = await _open(port)
    try:
        if leaves == "body":
            writer.write(data[: rng.randrange(len(data))])
            await writer.drain()
            return "gone within the request"
        writer.write(data)
        await writer.drain()
        if leaves == "wait":
            await asyncio.sleep(rng.random() * 0.1)
            return "gone before the response"
        head = await asyncio.wait_for(reader.read(1 << 16), _ANSWER_S)
        if leaves == "stream":
            return "gone within the response"
        rest = await asyncio.wait_for(reader.read(-1), _ANSWER_S)
    finally:
        writer.transport.abort()
    status = head[9:12].decode("latin-1")
    if status != "200" or b'"error"' in head + rest:
        return f"status {status}: {(head + rest)[-300:]!r}"
    return "answered"


# --- malformed requests ---------------------------------------------------------------------------

_STATUS = re.compile(rb"(?:\A|(?<=[}\n>]))HTTP/1\.1 (\d{3}) ")
_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)


def missing(data: bytes) -> int:
    """The least number of bytes that the last response in some bytes still lacks."""
    found = [match.start() for match in _STATUS.finditer(data)]
    head, gap, body = data[found[-1] if found else 0 :].partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    if not found or not gap or length is None:
        return 1
    return max(0, int(length[1]) - len(body))


async def answer(port: int, one: Malformed) -> list[int]:
    """Send a malformed request; the status codes that came, none if the connection was closed.

    Raises:
        TimeoutError: neither of both within a minute.
    """
    reader, writer = await _open(port)
    found, wanted, n_requests = bytearray(), 1, one.data.count(b"HTTP/1.1\r\n")
    try:
        with suppress(ConnectionError):
            writer.write(one.data)
            async with asyncio.timeout(_ANSWER_S):
                # the server may refuse before it has read all
                drained = asyncio.ensure_future(writer.drain())
                try:
                    while part := await reader.read(1 << 16):
                        found += part
                        if n_requests == 1 and len(found) >= wanted:
                            if not (lacks := missing(found)):
                                break
                            wanted = len(found) + lacks
                finally:
                    drained.cancel()
                    await asyncio.gather(drained, return_exceptions=True)
    finally:
        writer.transport.abort()
    return [int(code) for code in _STATUS.findall(found)]


def verdict(one: Malformed, codes: Sequence[int]) -> str:
    """``4xx``, ``501``, ``closed`` or ``valid``; another text is a finding."""
    if not codes:
        return "finding: no response" if one.is_http else "closed"
    if wrong := [code for code in codes if not (200 <= code < 300 or 400 <= code < 500)]:
        is_not_served = one.kind == "path" and set(wrong) == {501}
        return "501" if is_not_served else f"finding: status {wrong[0]}"
    return "4xx" if all(400 <= code < 500 for code in codes) else "valid"


async def judged(port: int, number: int) -> str:
    """Send the malformed request of a number; its kind and verdict."""
    one = malformed(number)
    try:
        codes = await answer(port, one)
    except TimeoutError:
        return f"{one.kind}: finding: nothing within {_ANSWER_S:.0f} s"
    return f"{one.kind}: {verdict(one, codes)}"


async def slow(port: int, number: int) -> str:
    """Send headers or a body a byte at a time, and wait for the 408."""
    rng = random.Random(f"slow/{number}")
    data = http("/completion", text_of({"prompt": "a" * 100, "n_predict": 1}))
    at = rng.choice((0, data.index(b"\r\n\r\n") + 4))  # from here on slowly
    begin = time.perf_counter()
    reader, writer = await _open(port)
    try:
        writer.write(data[:at])
        for i in range(at, len(data)):
            if reader.at_eof():
                break
            with suppress(ConnectionError):
                writer.write(data[i : i + 1])
                await writer.drain()
            with suppress(TimeoutError):
                async with asyncio.timeout(SLOW_S / 20):
                    head = await reader.read(1 << 16)
                    break
        else:
            return "finding: a slow sender is served"
    except ConnectionError:
        return "finding: reset without a 408"
    finally:
        writer.transport.abort()
    if head[9:12] != b"408":
        return f"finding: {head[:60]!r}"
    late = time.perf_counter() - begin > SLOW_S + 5
    return "finding: 408, but late" if late else "408"


# --- the largest requests -------------------------------------------------------------------------


def watch_stream(port: int, begun: Any, stop: Any, out: Any) -> None:
    """Read one stream after the other until ``stop``; sends when each event came and its gap."""
    body = {"prompt": "a", "n_predict": 400, "stream": True, "ignore_eos": True, "top_k": 1}
    gaps: list[tuple[float, float]] = []
    while not stop.is_set():
        connection = HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
        connection.request("POST", "/completion", json.dumps(body))
        answer = connection.getresponse()
        answer.read1()
        before = time.perf_counter()
        while not stop.is_set() and answer.read1():
            begun.set()
            now = time.perf_counter()
            gaps.append((now, now - before))
            before = now
        connection.close()
    out.put(gaps)


@contextmanager
def streaming(port: int, gaps: list[tuple[float, float]]) -> Iterator[None]:
    """Read streams meanwhile; adds times and gaps in seconds to ``gaps``."""
    spawn = multiprocessing.get_context("spawn")
    begun, stop, out = spawn.Event(), spawn.Event(), spawn.Queue()
    child = spawn.Process(target=watch_stream, args=(port, begun, stop, out), daemon=True)
    child.start()
    try:
        begun.wait(_ANSWER_S)
        yield
    finally:
        stop.set()
        gaps += out.get(timeout=90)
        child.join()


def largest_requests(n_ctx: int = N_CTX_SLOT) -> dict[str, bytes]:
    """The largest requests by name, made beforehand: that takes a core for seconds."""
    return {name: http(path, text_of(body)) for name, (path, body) in largest(n_ctx).items()}


async def huge(port: int, name: str, data: bytes, run: Run) -> None:
    """Send the largest request of a name, and note its status."""
    reader, writer = await _open(port)
    found = b""
    try:
        with suppress(ConnectionError, TimeoutError):
            writer.write(data)
            async with asyncio.timeout(_ANSWER_S):
                await writer.drain()
                while part := await reader.read(1 << 20):
                    found = (found + part)[:200]
    finally:
        writer.transport.abort()
    status = found[9:12].decode("latin-1") or "none"
    is_right = status == "200" or status[0] == "4"
    run.note(-1, f"{name}: {status}" if is_right else f"{name}: finding: {found[-150:]!r}")


def beside_a_stream(server: Running) -> tuple[Run, dict[str, Any]]:
    """Each largest request alone, and then all at once, beside a stream whose gaps are measured."""
    requests = largest_requests()
    run, found = Run(), {"run": "largest", "requests": 3 * len(requests)}
    for name, data in requests.items():  # kernels compile
        asyncio.run(huge(server.port, name, data, Run()))
    before, gaps, parts = bits(server), [], {}  # type: ignore[var-annotated]
    begin = time.perf_counter()

    async def all_at_once() -> None:
        await asyncio.gather(*(huge(server.port, *one, run) for one in requests.items()))

    with probing(server.port, found), streaming(server.port, gaps):
        start = time.perf_counter()
        time.sleep(2)
        parts["none"] = start, time.perf_counter()
        for name, data in requests.items():
            start = time.perf_counter()
            asyncio.run(huge(server.port, name, data, run))
            parts[name] = start, time.perf_counter()
        start = time.perf_counter()
        asyncio.run(all_at_once())
        parts["all at once"] = start, time.perf_counter()
    found["seconds"] = round(time.perf_counter() - begin, 1)
    worst = {
        name: round(1e3 * max((gap for at, gap in gaps if start <= at - gap <= end), default=0), 1)
        for name, (start, end) in parts.items()
    }
    for name, gap_ms in worst.items():
        if gap_ms > MAX_GAP_MS:
            run.findings.append((-1, f"{name}: a gap of {gap_ms} ms"))
    if found["health_p99_ms"] > MAX_HEALTH_MS:
        run.findings.append((-1, f"/health takes {found['health_p99_ms']} ms"))
    values = [gap for _, gap in gaps] or [0.0]
    found |= {"gaps_ms": worst, "gap_p99_ms": round(1e3 * percentile(values, 0.99), 2)}
    return run, found | after(server, before, run)


def exits(model: Path, count: int) -> tuple[Run, dict[str, Any]]:
    """Servers that get SIGTERM while some of the largest requests run."""
    run, found, requests = Run(), {"run": "exits", "requests": count}, largest_requests()
    took: list[float] = []
    begin = time.perf_counter()
    with click.progressbar(range(count), file=sys.stderr) as numbers:
        for number in numbers:
            rng = random.Random(f"exit/{number}")
            with serving(model, "--shutdown-timeout", str(SHUTDOWN_S)) as server:

                async def working(port: int = server.port, rng: Rng = rng) -> None:
                    chosen = rng.sample([*requests.items()], 6)
                    sent = [asyncio.ensure_future(huge(port, *one, Run())) for one in chosen]
                    await asyncio.sleep(rng.random() * 0.5)
                    for one in sent[:3]:  # their clients hang up
                        one.cancel()
                    await asyncio.sleep(rng.random() * 0.5)
                    ended_at = time.perf_counter()
                    os.kill(server.pid, signal.SIGTERM)
                    while _is_alive(server.pid) and time.perf_counter() - ended_at < 60:
                        await asyncio.sleep(0.01)
                    took.append(time.perf_counter() - ended_at)
                    for one in sent:
                        one.cancel()
                    await asyncio.gather(*sent, return_exceptions=True)

                asyncio.run(working())
            is_late = took[-1] > SHUTDOWN_S
            run.note(number, f"finding: took {took[-1]:.1f} s" if is_late else "in time")
    found["seconds"] = round(time.perf_counter() - begin, 1)
    found |= {"exit_p50_s": round(percentile(took, 0.5), 2), "exit_max_s": round(max(took), 2)}
    return run, found


def _is_alive(pid: int) -> bool:
    """Whether a child of this process runs; after its end it is a zombie."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] != "Z"


# --- runs ---------------------------------------------------------------------------------------


@dataclass
class Run:
    """Numbers of requests by what came of them, and samples of the server.

    Attributes:
        samples: requests done, seconds, MiB, files, threads.
        findings: numbers and what was wrong.
    """

    counts: Counter[str] = field(default_factory=Counter)
    samples: list[tuple[int, float, float, int, int]] = field(default_factory=list)
    findings: list[tuple[int, str]] = field(default_factory=list)

    def note(self, number: int, what: str) -> None:
        """Count what came of a request."""
        if "finding" in what or what.startswith("status"):
            self.findings.append((number, what))
            what = "finding"
        self.counts[what] += 1


async def load(
    server: Running, numbers: range, ask: Callable[[int, int], Awaitable[str]], run: Run,
    n_clients: int = N_CLIENTS,
) -> None:  # fmt: skip
    """Let clients send the requests of some numbers, each the next one when it is done."""
    waiting, begin = iter(numbers), time.perf_counter()
    is_done = asyncio.Event()
    with click.progressbar(length=len(numbers), file=sys.stderr) as bar:

        async def client() -> None:
            for number in waiting:
                run.note(number, await ask(server.port, number))
                bar.update(1)

        async def sampler() -> None:
            while not is_done.is_set():
                seconds = time.perf_counter() - begin
                run.samples.append((sum(run.counts.values()), seconds, *server.sample()))
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SAMPLE_S):
                        await is_done.wait()

        sampling = asyncio.ensure_future(sampler())
        await asyncio.gather(*(client() for _ in range(n_clients)))
        is_done.set()
        await sampling


def slope(samples: Sequence[tuple[int, float, float, int, int]]) -> tuple[float, float]:
    """MiB per 1,000 requests by least squares after the warm-up, and the growth as a share.

    The growth is that of the line over the requests that it was fitted to.
    """
    n = samples[-1][0]
    rows = np.array([(s[0], s[2]) for s in samples if s[0] >= WARM * n])
    if len(rows) < 3:
        return 0.0, 0.0
    per_request, at_0 = np.polyfit(rows[:, 0], rows[:, 1], 1)
    start, stop = rows[0, 0], rows[-1, 0]
    growth = per_request * (stop - start) / (at_0 + per_request * start)
    return 1000 * float(per_request), float(growth)


def bits(server: Running) -> Any:
    """The answer to a request whose text and probabilities must never change."""
    body = {"prompt": "The same bits", "n_predict": 16, "temperature": 0, "n_probs": 5,
            "cache_prompt": False, "ignore_eos": True}  # fmt: skip
    found = server.post("/completion", body)
    return found["content"], found["completion_probabilities"]


def after(server: Running, before: Any, run: Run) -> dict[str, Any]:
    """What must hold after a run: all slots free, the same bits, no files left, a silent log."""
    end = time.monotonic() + 10
    while (n_busy := server.n_busy()) and time.monotonic() < end:
        time.sleep(0.05)
    if n_busy:
        run.findings.append((-1, f"{n_busy} slots are not free"))
    if bits(server) != before:
        run.findings.append((-1, "a good request gives other bits than before"))
    if complaints := server.complaints():
        run.findings.append((-1, f"the log has {len(complaints)} characters: {complaints[-2000:]}"))
    time.sleep(0.5)
    rss, files, threads = server.sample()
    return {"rss_end_mib": round(rss, 1), "files_end": files, "threads_end": threads}


def soak(server: Running, count: int) -> tuple[Run, dict[str, Any]]:
    """Good requests, of which a fifth are given up."""
    for number in range(-4, 0):  # kernels compile
        asyncio.run(good(server.port, number))
    before, run, found = bits(server), Run(), {"run": "hang up", "requests": count}
    begin = time.perf_counter()
    with probing(server.port, found):
        asyncio.run(load(server, range(count), good, run))
    found["seconds"] = round(time.perf_counter() - begin, 1)
    found |= after(server, before, run)
    per_1000, growth = slope(run.samples)
    if growth > MAX_GROWTH:
        run.findings.append((-1, f"memory grows by {growth:.1%}"))
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode()
    aborted = re.search(r"^llamacpp:requests_aborted_total (\d+)", metrics, re.M)
    found |= {
        "mib_per_1000": round(per_1000, 3),
        "growth": round(growth, 5),
        "aborted": int(aborted[1]) if aborted else 0,
    }
    return run, found


def abuse(server: Running, start: int, count: int) -> tuple[Run, dict[str, Any]]:
    """Malformed requests, then slow senders."""
    before, run, found = bits(server), Run(), {"run": "malformed", "requests": count}
    begin = time.perf_counter()
    with probing(server.port, found):
        asyncio.run(load(server, range(start, start + count), judged, run, 2 * N_CLIENTS))
        slow_run = Run()
        n_slow = min(count, 8 * N_SLOW)
        asyncio.run(load(server, range(n_slow), slow, slow_run, N_SLOW))
    found["seconds"] = round(time.perf_counter() - begin, 1)
    run.findings += slow_run.findings
    found |= {"slow": n_slow, "slow_408": slow_run.counts["408"]}
    found |= after(server, before, run)
    per_1000, growth = slope(run.samples)
    return run, found | {"mib_per_1000": round(per_1000, 3), "growth": round(growth, 5)}


def thinned(samples: Sequence[tuple[Any, ...]], n: int = 60) -> list[tuple[Any, ...]]:
    """At most ``n`` samples, evenly chosen."""
    step = max(1, -(-len(samples) // n))
    return [tuple(round(v, 1) for v in sample) for sample in [*samples[::step], samples[-1]]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--model", type=Path, help="default: a tiny random one")
    parser.add_argument("--malformed", action="store_true", help="malformed requests instead")
    parser.add_argument("--largest", action="store_true", help="largest allowed values instead")
    parser.add_argument("--exits", type=int, metavar="N", help="SIGTERM to N busy servers instead")
    parser.add_argument("--start", type=int, default=0, help="number of the first malformed one")
    parser.add_argument("--count", type=int, default=10_000, help="number of requests")
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end with this process
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or tiny_model(Path(folder))
        flags = ["--header-timeout", f"{SLOW_S:.0f}", "--timeout", f"{SLOW_S:.0f}",
                 "--max-body-size", str(MAX_BODY_MIB)] if args.malformed else []  # fmt: skip
        busy = os.getloadavg()[0]
        if args.exits:
            run, found = exits(model.resolve(), args.exits)
        else:
            with serving(model.resolve(), *flags) as server:
                run, found = (
                    abuse(server, args.start, args.count) if args.malformed
                    else beside_a_stream(server) if args.largest
                    else soak(server, args.count)
                )  # fmt: skip
    found |= {"load_before": round(busy, 1), "load_after": round(os.getloadavg()[0], 1)}
    found |= {"counts": dict(sorted(run.counts.items()))}
    if run.samples:
        found["samples"] = thinned(run.samples)
    line = machine.head(1) | {"file": model.name} | found | {"findings": len(run.findings)}
    if args.no_save:
        print(json.dumps({key: value for key, value in line.items() if key != "samples"}, indent=1))
    else:
        save(line, "soak.jsonl", quiet=True)
        print({key: value for key, value in found.items() if key != "samples"})
    for number, what in run.findings:
        print(f"{number}: {what}")
    sys.exit(bool(run.findings))


if __name__ == "__main__":
    main()
