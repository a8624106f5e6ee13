"""Compares the server with llama-server (native, and from pip) under load, alternating in one run.

    python -m benchmarks.bench_serve               # all of it, about 25 minutes on two cores
    python -m benchmarks.bench_serve --model X.gguf --clients 1,4 --mixes chat --rates none
    python -m benchmarks.serving_page              # docs/serving.md from the results

Two kinds of load. *Closed loop*: so many clients, each of which sends its next request when it has
its answer; it gives the throughput. *Open loop*: requests arrive at random times (a Poisson
process) whether or not others are finished, as they do from many independent users; it gives the
times that users wait. The rates are shares of what the native llama-server answers in the closed
loop. All servers are started once, with the same slots, context and threads, and are asked in
turns, so that a busy machine slows all of them. Each round has prompts of its own, the same for
every server. A line a test and server in results/serve.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine, prepare
from benchmarks.machine import save
from pyggml.compiler.jit import isa
from pyggml.host import default_threads

N_SLOTS, N_CTX_SLOT = 16, 2048
TTFT_GOOD_S, TPOT_GOOD_S = 1.0, 0.1
"""A request counts for the goodput if its first token came within the first, and the mean time of
its further tokens is within the second."""
_TEXT = (
    "river market engine letter garden winter bridge number story window paper music doctor "
    "island teacher silver village summer machine question answer kitchen mountain forest "
    "station picture history language science weather morning evening family city water light"
)
_LOADING_S = 300.0
_Body = dict[str, Any]


@dataclass(frozen=True)
class Mix:
    """What clients ask: prompts of random words, about 1.1 tokens each, and lengths of answers.

    Attributes:
        shared: words at the beginning that all prompts of a round share.
        words, answer: least and greatest number of further words, and of tokens to generate.
    """

    shared: int
    words: tuple[int, int]
    answer: tuple[int, int]

    def body(self, seed: str) -> _Body:
        """A request; the same for the same seed (``round/number``)."""
        random_ = random.Random(seed)
        first = random.Random(seed.partition("/")[0]).choices(_TEXT.split(), k=self.shared)
        words = first + random_.choices(_TEXT.split(), k=random_.randint(*self.words))
        return {
            "prompt": " ".join(words),
            "n_predict": random_.randint(*self.answer),
            "ignore_eos": True,
            "seed": 1,
            "stream": True,
        }


MIXES = {
    "chat": Mix(0, (40, 200), (32, 96)),
    "documents": Mix(0, (600, 1200), (16, 48)),
    "shared prompt": Mix(500, (10, 60), (32, 96)),
}


@dataclass(frozen=True)
class Answer:
    """Seconds from sending a request to its first and last token, and numbers of tokens."""

    first: float
    last: float
    n_prompt: int
    n_tokens: int

    @property
    def tpot(self) -> float:
        """Mean seconds of a token after the first."""
        return (self.last - self.first) / max(self.n_tokens - 1, 1)

    @property
    def good(self) -> bool:
        """Whether the request counts for the goodput."""
        return self.first <= TTFT_GOOD_S and self.tpot <= TPOT_GOOD_S


class Refused(Exception):
    """A server did not answer a request in full; the message is one line."""


async def ask(port: int, body: _Body) -> Answer:
    """Send a request and read its events.

    Plain streams: a client library takes longer for an event than the servers under test.
    """
    data = json.dumps(body).encode()
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            b"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data
        )
        first = last = 0.0
        kept = b""
        while part := await reader.read(1 << 16):
            kept = kept[-(1 << 16) :] + part
            if b"data: " in part:
                last = time.perf_counter() - start
                first = first or last
    finally:
        writer.close()
    end = kept.rpartition(b"data: ")[2].partition(b"\n")[0]
    try:
        final = json.loads(end)
        return Answer(first, last, final["tokens_evaluated"], final["tokens_predicted"])
    except (ValueError, KeyError):
        raise Refused(kept[:300].decode("utf-8", "replace").replace("\r\n", " ")) from None


async def closed_loop(port: int, bodies: list[_Body], n_clients: int) -> list[Answer]:
    """Clients that send their next request when they have their answer."""
    waiting = iter(bodies)

    async def client() -> list[Answer]:
        return [await ask(port, body) for body in waiting]

    answers = await asyncio.gather(*(client() for _ in range(n_clients)))
    return [answer for of_client in answers for answer in of_client]


async def open_loop(port: int, bodies: list[_Body], rate: float, seed: str) -> list[Answer]:
    """Requests at random times, ``rate`` a second on average."""
    gaps = random.Random(seed)
    tasks = []
    due = time.perf_counter()
    for body in bodies:
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        tasks.append(asyncio.create_task(ask(port, body)))
        due += gaps.expovariate(rate)
    return list(await asyncio.gather(*tasks))


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def summary(answers: list[Answer], seconds: float) -> dict[str, Any]:
    """Rates per second and percentiles in seconds of a test that took ``seconds``."""
    firsts, tpots = [a.first for a in answers], [a.tpot for a in answers]
    return {
        "requests": len(answers),
        "seconds": seconds,
        "requests_per_s": len(answers) / seconds,
        "prompt_tokens_per_s": sum(a.n_prompt for a in answers) / seconds,
        "tokens_per_s": sum(a.n_tokens for a in answers) / seconds,
        "goodput_per_s": sum(a.good for a in answers) / seconds,
        **{f"ttft_p{p}": percentile(firsts, p / 100) for p in (50, 95, 99)},
        **{f"tpot_p{p}": percentile(tpots, p / 100) for p in (50, 95, 99)},
    }


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        key: ``ours``, ``native`` or ``pip``.
        name: what to call it.
    """

    key: str
    name: str
    port: int


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _flags(model: Path, port: int, threads: int) -> list[str]:
    """What both commands understand."""
    return [
        "-m", str(model), "--port", str(port), "-np", str(N_SLOTS),
        "-c", str(N_SLOTS * N_CTX_SLOT), "-t", str(threads),
    ]  # fmt: skip


_FROM_PIP = """
import sys, time, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.port, p.n_parallel, p.n_ctx = sys.argv[1], *map(int, sys.argv[2:5])
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(sys.argv[5])
server = xllamacpp.Server(p)
time.sleep(1e9)
"""


@contextmanager
def running(key: str, name: str, command: list[str], port: int) -> Iterator[Server]:
    """Start a server, wait until it answers, and end it afterwards.

    Raises:
        Missing: it does not start.
    """
    root = str(Path(__file__).parents[1])
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": root} if key == "ours" else None,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + _LOADING_S
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() > end:
                raise prepare.Missing(f"{name} does not start: {' '.join(command)}")
            time.sleep(0.2)
        yield Server(key, name, port)
    finally:
        process.kill()
        process.wait()


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def servers(model: Path, threads: int, peers: list[str], stack: ExitStack) -> list[Server]:
    """Start the servers; one that cannot be made here is left out with a line."""
    folder = prepare.cache_dir()

    def ours() -> tuple[str, list[str]]:
        code = "from pyllama_cli.main import pyllama; pyllama()"
        return "pyllama-server", [sys.executable, "-P", "-c", code, "serve"]

    def native() -> tuple[str, list[str]]:
        build = prepare.build_server(folder, model)
        return f"llama-server, {build.name}", [str(build.program)]

    def pip() -> tuple[str, list[str]]:
        python = prepare.pip_peer(folder)
        return prepare.pip_name(python), [str(python), "-P", "-c", _FROM_PIP]

    made: dict[str, Callable[[], tuple[str, list[str]]]] = {
        "ours": ours, "native": native, "pip": pip,
    }  # fmt: skip
    found = []
    for key in ("ours", *peers):
        port = free_port()
        try:
            name, command = made[key]()
            sizes = [str(n) for n in (port, N_SLOTS, N_SLOTS * N_CTX_SLOT, threads)]
            flags = [str(model), *sizes] if key == "pip" else _flags(model, port, threads)
            found.append(stack.enter_context(running(key, name, [*command, *flags], port)))
            print(f"{name}: port {port}", flush=True)
        except prepare.Missing as missing:
            print(missing)
    return found


@dataclass(frozen=True)
class Test:
    """One load.

    Attributes:
        clients: of a closed loop; 0 for an open one.
        rate: requests per second of an open loop.
        n: number of requests.
        share: the rate, as a share of what the native llama-server answers.
    """

    mix: str
    clients: int
    rate: float
    n: int
    share: float = 0.0

    @property
    def name(self) -> str:
        """``chat, 4 clients`` or ``chat, 2.5 requests/s``."""
        if not self.clients:
            return f"{self.mix}, {self.rate:.2g} requests/s"
        return f"{self.mix}, {self.clients} client{'s' * (self.clients > 1)}"

    def run(self, server: Server, seed: str) -> dict[str, Any]:
        """Load a server; the fields of `summary`. Raises: Refused."""
        bodies = [MIXES[self.mix].body(f"{seed}/{i}") for i in range(self.n)]
        start = time.perf_counter()
        if self.clients:
            answers = asyncio.run(closed_loop(server.port, bodies, self.clients))
        else:
            answers = asyncio.run(open_loop(server.port, bodies, self.rate, seed))
        return summary(answers, time.perf_counter() - start)


def measure(test: Test, servers: list[Server], rounds: int) -> list[dict[str, Any]]:
    """Rounds of one test in turns: a line for each server, with medians over its rounds."""
    found: dict[str, list[dict[str, Any]]] = {server.key: [] for server in servers}
    for i in range(rounds):
        order = servers if i % 2 == 0 else servers[::-1]
        for server in order:
            found[server.key].append(test.run(server, f"{test.name}:{i}"))
    lines = []
    for server in servers:
        mine = found[server.key]
        line: dict[str, Any] = {key: statistics.median(r[key] for r in mine) for key in mine[0]}
        line["samples"] = [r["tokens_per_s"] for r in mine]
        if server.key != "ours":
            pairs = list(zip(found["ours"], mine, strict=True))
            for key in ("tokens_per_s", "ttft_p95"):
                line[f"ours_over_{key}"] = statistics.median(a[key] / b[key] for a, b in pairs)
        lines.append(line | {"server": server.key, "name": server.name})
    return lines


def _report(test: Test, lines: list[dict[str, Any]]) -> str:
    parts = [
        f"{r['server']} {r['tokens_per_s']:.0f} t/s, first token {r['ttft_p50'] * 1e3:.0f} ms "
        f"(95%: {r['ttft_p95'] * 1e3:.0f}), next {r['tpot_p50'] * 1e3:.1f} ms"
        + (f" [{r['ours_over_tokens_per_s']:.2f}x]" if r["server"] != "ours" else "")
        for r in lines
    ]
    return f"{test.name}: " + "; ".join(parts)


def run_all(
    servers: list[Server], args: argparse.Namespace, head: dict[str, Any]
) -> list[dict[str, Any]]:
    """Closed loops, then open ones at shares of the slowest capacity to compare with."""
    lines: list[dict[str, Any]] = []

    def run(test: Test) -> list[dict[str, Any]]:
        found = measure(test, servers, args.rounds)
        print(_report(test, found), flush=True)
        for line in found:
            lines.append(head | dataclasses.asdict(test) | line)
            if not args.no_save:
                save(lines[-1], "serve.jsonl", quiet=True)
        return found

    for server in servers:  # kernels compile, pages come in
        Test("chat", N_SLOTS, 0.0, N_SLOTS).run(server, "warm")
    for mix in args.mixes:
        capacity = 0.0
        for clients in args.clients:
            found = run(Test(mix, clients, 0.0, max(args.requests, 2 * clients)))
            reference = next((r for r in found if r["server"] == "native"), found[0])
            capacity = max(capacity, reference["requests_per_s"])
        for share in args.rates:
            run(Test(mix, 0, share * capacity, args.requests, share))
    return lines


def _numbers(text: str) -> list[float]:
    return [] if text == "none" else [float(part) for part in text.split(",")]


def main() -> None:
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=about, allow_abbrev=False)
    parser.add_argument("--model", type=Path, help="default: the demo model in Q4_0")
    parser.add_argument("--peers", default="native,pip", help="native, pip or none")
    parser.add_argument("--mixes", default=",".join(MIXES), help=f"of {', '.join(MIXES)}")
    parser.add_argument("--clients", default="1,4,16", help="numbers of clients of closed loops")
    parser.add_argument(
        "--rates", default="0.5,0.8,1.2", help="of open loops, as shares of the native throughput"
    )
    parser.add_argument("--requests", type=int, default=32, help="of a test and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end with this process
    args.mixes, args.rates = args.mixes.split(","), _numbers(args.rates)
    args.clients = [int(n) for n in _numbers(args.clients)]
    peers = [] if args.peers == "none" else args.peers.split(",")
    if unknown := [m for m in args.mixes if m not in MIXES]:
        parser.error(f"no mix {unknown[0]!r}: one of {', '.join(MIXES)}")
    if unknown := [p for p in peers if p not in ("native", "pip")]:
        parser.error(f"no peer {unknown[0]!r}: native or pip")
    try:
        model = args.model or prepare.demo_files(prepare.cache_dir())[1]
        head = machine.head(args.threads) | {"isa": isa(), "file": model.name}
        with ExitStack() as stack:
            run_all(servers(model.resolve(), args.threads, peers, stack), args, head)
    except (prepare.Missing, Refused) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
