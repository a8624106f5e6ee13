"""What the commands print and where, with a stand-in for the runtime."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pyggml.errors import GGUFError
from pyllama.timings import Timings
from pyllama_cli.commands import bench, completion, graph, perplexity, tokenize

EOG = 0


class FakeTokenizer:
    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [ord(c) for c in text]

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        return b"" if token == EOG else chr(token).encode()

    def is_eog(self, token: int) -> bool:
        return token == EOG


@dataclass
class FakeModel:
    path: Path
    tokenizer: FakeTokenizer = field(default_factory=FakeTokenizer)
    desc: str = "llama 135M Q4_1"
    n_params: int = 135_000_000
    size_bytes: int = 98_000_000

    @classmethod
    def load(cls, path: Path, **options: Any) -> FakeModel:
        if path.name == "bad.gguf":
            raise GGUFError(f"{path}: magic is b'GGML'; this is not a GGUF file")
        return cls(path)


class FakeContext:
    def __init__(self, model: FakeModel, **options: Any) -> None:
        self.model = model
        self.n_ctx, self.n_batch = options["n_ctx"], options["n_batch"]
        self.n_threads = self.n_threads_batch = 2


def fake_generate(
    context: FakeContext,
    tokens: list[int],
    params: Any,
    *,
    n_predict: int,
    timings: Timings,
    **options: Any,
) -> Iterator[int]:
    timings.sample_ms, timings.n_sample, timings.n_reused = 1, 3, 2
    timings.prompt_eval_ms, timings.n_prompt_eval = 20, 5
    timings.eval_ms, timings.n_eval = 30, 3
    for i, token in enumerate([*map(ord, " Paris. User: and"), EOG]):
        if i == n_predict:
            return
        if chr(token) == "a" and params.seed == 666:
            raise KeyboardInterrupt
        yield token


def fake_dot(path: Path, *, n_tokens: int, out: Path | None, **options: Any) -> str:
    text = f"digraph {{ {n_tokens} }}\n"
    if out is not None:
        out.write_text(text)
    return text


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    row = json.loads('{"model_type": "m", "avg_ts": 2.0, "n_prompt": 8, "n_gen": 0, "n_depth": 0}')
    chunk = [SimpleNamespace(chunk=i, ppl=10.0 + i, error=0.5) for i in (1, 2, 3)]
    fakes = {
        "model": {"Model": FakeModel},
        "context": {"Context": FakeContext},
        "generate": {"generate": fake_generate},
        "perplexity": {"perplexity": lambda context, tokens, n_ctx, n: iter(chunk[:n])},
        "graph_export": {"graph_dot": fake_dot},
        "bench": {
            "BenchCase": lambda **case: case,
            "run_bench": lambda model, case, **o: {**row, "n_prompt": case["n_prompt"]},
        },
    }
    for name, members in fakes.items():
        module = ModuleType(f"pyllama.{name}")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, f"pyllama.{name}", module)
    monkeypatch.setattr("pyggml.jit.on_compile", None)  # commands set it: put it back afterwards


def run(command: click.Command, *args: str, stdin: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, ["-m", "x.gguf", *args], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_completion_prints_the_text_and_the_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timings, "total_ms", 60.0)
    code, out, err = run(completion.command, "-p", "France:", "--temp", "0", "-no-cnv")
    err = re.sub(r"load time = +[0-9.]+ ms", "load time =      10.00 ms", err)
    assert (code, out) == (0, "France: Paris. User: and [end of text]\n")
    assert err.splitlines() == [
        "llama_perf_sampler_print:    sampling time =       1.00 ms /     3 runs   "
        "(    0.33 ms per token,  3000.00 tokens per second)",
        "llama_perf_context_print:        load time =      10.00 ms",
        "llama_perf_context_print: prompt eval time =      20.00 ms /     5 tokens "
        "(    4.00 ms per token,   250.00 tokens per second)",
        "llama_perf_context_print:        eval time =      30.00 ms /     3 runs   "
        "(   10.00 ms per token,   100.00 tokens per second)",
        "llama_perf_context_print:       total time =      60.00 ms /     8 tokens",
        "llama_perf_context_print: unaccounted time =       9.00 ms /  15.0 %",
        "llama_perf_context_print:    graphs reused =          2",
    ]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("-n", "6"), "hi Paris\n"),
        (("-n", "0"), "hi\n"),
        (("-r", "User:"), "hi Paris. User:\n"),
        (("-r", "nothing", "-r", "."), "hi Paris.\n"),
        (("--no-display-prompt",), " Paris. User: and [end of text]\n"),
    ],
)
def test_where_completion_stops(args: tuple[str, ...], text: str) -> None:
    assert run(completion.command, "-p", "hi", "--no-perf", *args) == (0, text, "")


def test_ctrl_c_keeps_the_text_and_the_timings() -> None:
    code, out, err = run(completion.command, "-p", "hi", "-s", "666")
    assert (code, out) == (130, "hi P")
    assert "eval time" in err and "error" not in err


def test_completion_says_what_it_runs() -> None:
    err = run(completion.command, "-p", "hi", "-v", "-c", "64", "-n", "3")[2]
    assert "generate: n_ctx = 64, n_batch = 2048, n_predict = 3" in err
    assert "n_threads = 2" in err


def test_nothing_to_continue_and_a_bad_file() -> None:
    code, out, err = run(completion.command)
    assert (code, out) == (2, "") and "-p or -f" in err
    code, out, err = run(completion.command, "-p", "hi", "-m", "bad.gguf")
    assert (code, out) == (1, "")
    assert re.fullmatch(r"error: bad\.gguf: magic .* not a GGUF file\n", err)


def test_perplexity(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some text")
    code, out, _ = run(perplexity.command, "-f", str(text), "--chunks", "2")
    assert (code, out) == (0, "[1]11.0000,[2]12.0000,\nFinal estimate: PPL = 12.0000 +/- 0.50000\n")
    assert run(perplexity.command)[0] == 2


def test_tokenize() -> None:
    lines = "   104 -> 'h'\n   105 -> 'i'\n"
    assert run(tokenize.command, "-p", "hi") == (0, lines, "")
    assert run(tokenize.command, "--stdin", "--ids", stdin="hi") == (0, "[104, 105]\n", "")
    assert run(tokenize.command, "-p", "", "--ids", "--show-count")[1] == (
        "[]\nTotal number of tokens: 0\n"
    )
    assert run(tokenize.command)[0] == 2


def test_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dot = tmp_path / "x.dot"
    assert run(graph.command, "--tokens", "3", "--dot", str(dot)) == (0, "", "")
    assert dot.read_text() == "digraph { 3 }\n"
    assert run(graph.command)[1] == "digraph { 1 }\n"
    assert run(graph.command, "--layers", "2:1")[0] == 2
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = run(graph.command, "--svg", str(tmp_path / "x.svg"))
    assert code == 2 and "graphviz" in err


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for dot")
def test_graph_as_svg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "dot"
    fake.write_text(
        '#!/bin/sh\ntext=$(cat)\ntest "$text" = "digraph { 1 }" || '
        '{ echo "Error: syntax" >&2; exit 1; }\necho "$text"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    svg = tmp_path / "x.svg"
    assert run(graph.command, "--svg", str(svg))[0] == 0
    assert svg.read_text() == "digraph { 1 }\n"
    code, _, err = run(graph.command, "--svg", str(svg), "--tokens", "2")
    assert code == 1 and err.startswith("error: ") and "Error: syntax" in err


def test_bench_runs_the_product_of_the_lists() -> None:
    code, out, err = run(
        bench.command,
        *[
            "-p",
            "8,16",
            "-n",
            "0",
            "-pg",
            "4,2",
            "-t",
            "1,2",
            "-d",
            "0",
            "-o",
            "jsonl",
            "--progress",
        ],
    )
    assert code == 0
    assert [json.loads(line)["n_prompt"] for line in out.splitlines()] == [8, 16, 4] * 2
    assert err.count("benchmark ") == 6 and "benchmark 6/6" in err
