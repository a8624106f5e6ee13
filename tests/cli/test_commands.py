"""Output of the commands on stdout, stderr and in files, with a fake runtime."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from pyggml.errors import GGUFError
from pyggml.host import ThreadOptions
from pyllama.engine import Event, Request, TextAssembler, Timings
from pyllama.errors import ContextFull
from pyllama.runtime.model import LoadOptions
from pyllama.runtime.params import ContextParams
from pyllama.tokenizer.detokenize import Pieces
from pyllama_cli.commands import bench, completion, perplexity, tokenize
from pyllama_cli.commands.inspect import graph

EOG = 0


class FakeTokenizer(Pieces):
    chat_template = None
    eog = frozenset({EOG})
    vocab = SimpleNamespace(suppress=frozenset())

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
    hparams: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(n_vocab=256))
    size_bytes: int = 98_000_000
    n_gpu_layers: int = 0

    @classmethod
    def load(cls, path: Path, *args: LoadOptions, **options: Any) -> FakeModel:
        if path.name == "bad.gguf":
            raise GGUFError(f"{path}: magic is b'GGML'; this is not a GGUF file")
        return cls(path)


class FakeContext:
    def __init__(self, model: FakeModel, params: ContextParams) -> None:
        self.model = model
        self.n_ctx = self.n_ctx_seq = params.n_ctx or 512
        self.n_batch = params.n_batch
        self.n_threads = self.n_threads_batch = 2


class FakeEngine:
    """An engine that generates a fixed text, and the lease of its only sequence."""

    def __init__(self, context: FakeContext, *, timings: Timings, speculation: None) -> None:
        self.context, self.timings = context, timings

    def run(self, request: Request) -> Iterator[Event]:
        timings, tokenizer = self.timings, self.context.model.tokenizer
        timings.sample_ms, timings.n_sample, timings.n_reused = 1, 3, 2
        timings.prompt_eval_ms, timings.n_prompt_eval = 20, 5
        timings.eval_ms, timings.n_eval = 30, 3
        include_stop = request.sampling.include_stop_str_in_output
        text = TextAssembler(tokenizer, request.stop, include_stop=include_stop)
        for i, token in enumerate([*map(ord, " Paris. User: and"), EOG]):
            if i == request.max_tokens:
                yield Event(0, 0, "end", reason="length")
                return
            if chr(token) == "a" and request.sampling.seed == 666:
                raise KeyboardInterrupt
            yield Event(0, 0, "tokens", (token,), text.push(token), text.stops.rest)
            if text.stops.matched:
                yield Event(0, 0, "end", reason="stop")
                return
        yield Event(0, 0, "end", reason="eog")


@dataclass
class FakeResult:
    """A running estimate of the perplexity."""

    chunk: int
    ppl: float
    error: float = 0.5
    n_scored: int = 10
    nll: float = 20.0


def fake_drawn(path: Path | None, n_tokens: int, **sparse: Any) -> SimpleNamespace:
    """A graph of one node, named after the number of tokens."""
    import pyggml as ops
    from pyggml.alloc import GraphAllocator
    from pyggml.buffer import HOST
    from pyggml.cgraph import CGraph
    from pyggml.context import Context
    from pyggml.dtype import GGMLType

    ctx, gf = Context(no_alloc=True), CGraph()
    x = ctx.new_tensor_1d(GGMLType.F32, 4).set_name("x").set_input()
    gf.build_forward_expand(ops.silu(ctx, x).set_name(f"y{n_tokens}-0"))
    plan = GraphAllocator(HOST).alloc_graph(gf)
    return SimpleNamespace(graph=gf, plan=plan, title="m", runs=(), times=None)


def fake_profiled(model: Any, path: Path, *, n_tokens: int, **options: Any) -> SimpleNamespace:
    from pyggml.backend.trace import RunTrace
    from pyggml.viz import NodeTime

    drawn = fake_drawn(path, n_tokens)
    drawn.title = f"behind {options['depth']}"
    none = np.zeros(0)
    drawn.runs = (RunTrace((), none, none, none.astype(np.int64), options["n_threads"] or 7),)
    drawn.times = {drawn.graph.nodes[0]: NodeTime(1e6, 2e6, 1.0, 4, ("silu_kernel",), ())}
    return drawn


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    row = json.loads('{"model_type": "m", "avg_ts": 2.0, "n_prompt": 8, "n_gen": 0, "n_depth": 0}')
    chunk = [FakeResult(i, 10.0 + i) for i in (1, 2, 3)]
    monkeypatch.setattr("pyllama.engine.Engine", FakeEngine)
    monkeypatch.setattr("pyllama.engine.Lease", lambda engine: engine)
    fakes = {
        "runtime.model": {"Model": FakeModel, "LoadOptions": LoadOptions},
        "runtime.context": {"Context": FakeContext},
        "eval.perplexity": {
            "perplexity": lambda context, tokens, n_ctx, n, file: iter(chunk[:n]),
            "strided_perplexity": lambda context, tokens, stride, n_ctx, n: iter(
                [replace(one, ppl=one.ppl + n_ctx + stride) for one in chunk[:n]]
            ),
        },
        "inspect.graph_export": {"drawn_graph": fake_drawn},
        "inspect.graph_profile": {"profiled_graph": fake_profiled},
        "bench.bench": {
            "BenchCase": lambda **case: SimpleNamespace(**case, params=ContextParams()),
            "run_bench": lambda model, case, **o: {**row, "n_prompt": case.n_prompt},
        },
    }
    for name, members in fakes.items():
        module = ModuleType(f"pyllama.{name}")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, f"pyllama.{name}", module)


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


def test_completion_verbose_output() -> None:
    err = run(completion.command, "-p", "hi", "-v", "-c", "64", "-n", "3")[2]
    assert "generate: n_ctx = 64, n_batch = 2048, n_predict = 3" in err
    assert "n_threads = 2" in err
    assert re.search(r"^sampler seed: \d+$", err, re.MULTILINE)  # of a random one too
    chain = "logits -> ?penalties -> ?dry -> ?top-n-sigma -> top-k -> ?typical -> top-p -> min-p"
    assert f"sampler chain: {chain} -> ?xtc -> temp-ext -> dist\n" in err


def test_missing_prompt_and_bad_file() -> None:
    code, out, err = run(completion.command)
    assert (code, out) == (2, "") and "-p or -f" in err
    code, out, err = run(completion.command, "-p", "hi", "-m", "bad.gguf")
    assert (code, out) == (1, "")
    assert re.fullmatch(r"error: bad\.gguf: magic .* not a GGUF file\n", err)


def test_a_refused_prompt_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> Iterator[Event]:
        raise ContextFull("the prompt is too long")

    monkeypatch.setattr(FakeEngine, "run", refuse)
    done = run(completion.command, "-p", "hi")
    assert done == (1, "", "error: the prompt is too long\n")


def test_perplexity(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some text")
    code, out, _ = run(perplexity.command, "-f", str(text), "--chunks", "2")
    assert (code, out) == (0, "[1]11.0000,[2]12.0000,\nFinal estimate: PPL = 12.0000 +/- 0.50000\n")
    out = run(perplexity.command, "-f", str(text), "--ppl-output-type", "1")[1]
    assert out.splitlines()[1] == "     512  12.0000  2.000000  0.041667"
    args = ("-f", str(text), "-c", "100", "--ppl-stride", "40", "--chunks", "2")
    out = run(perplexity.command, *args)[1]
    assert out.startswith("[1]307.0000,[2]308.0000,\nFinal")  # chunks of 256
    out = run(perplexity.command, *args, "--ppl-output-type", "1")[1]
    assert out.startswith("       0  307.0000\n      40  308.0000\n")
    for wrong in ([], [*args, "--save-all-logits", "x"], [*args, "--kl-divergence"]):
        assert run(perplexity.command, *wrong)[0] == 2


def test_tokenize() -> None:
    lines = "   104 -> 'h'\n   105 -> 'i'\n"
    assert run(tokenize.command, "-p", "hi") == (0, lines, "")
    assert run(tokenize.command, "--stdin", "--ids", stdin="hi") == (0, "[104, 105]\n", "")
    assert run(tokenize.command, "-p", "", "--ids", "--show-count")[1] == (
        "[]\nTotal number of tokens: 0\n"
    )
    for wrong in ([], ["-p", "a", "--stdin"], ["-f", "a", "--stdin"]):
        code, out, err = run(tokenize.command, *wrong, stdin="hi")
        assert (code, out, err.count("\n")) == (2, "", 1) and "one of -p, -f and --stdin" in err


def test_graph_writes_each_requested_file(tmp_path: Path) -> None:
    files = {name: tmp_path / f"x.{name}" for name in ("dot", "svg", "html", "memory")}
    args = [arg for name, path in files.items() for arg in (f"--{name}", str(path))]
    assert run(graph.command, "--tokens", "3", *args) == (0, "", "")
    text = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    assert text["dot"].startswith("digraph") and text["html"].startswith("<!DOCTYPE html>")
    assert text["svg"].startswith("<svg") and text["memory"].startswith("<svg")
    assert all("y3-0" in t for t in text.values())
    assert run(graph.command)[1].startswith("digraph ggml {")


def test_graph_options() -> None:
    assert "compute" in run(graph.command, "--color", "buffer")[1]
    assert "|CPU}" in run(graph.command, "--color", "backend")[1]
    assert "|split 0}" in run(graph.command, "--color", "split")[1]
    assert '"layer 0"' in run(graph.command, "--fold")[1]
    assert '"layer 0"' in run(graph.command, "--fold", "layers")[1]
    assert 'label="layer 0"' in run(graph.command, "--fold", "repeats")[1]
    assert run(graph.command, "--layers", "2:1")[0] == 2
    code, _, err = run(graph.command, "--color", "time")
    assert code == 2 and "add --profile" in err


def test_graph_profiles_a_run(tmp_path: Path) -> None:
    page, trace = tmp_path / "x.html", tmp_path / "x.json"
    code, out, _ = run(graph.command, "--profile", "--depth", "9", "--html", str(page))
    assert code == 0 and "y1-0" in out and "silu_kernel" in out and "1.00 ms" in out
    assert "behind 9" in page.read_text(encoding="utf-8") and 'id="tab-times"' in page.read_text()
    assert run(graph.command, "--trace", str(trace), "-t", "2")[:2] == (0, "")
    lanes = [e for e in json.loads(trace.read_text())["traceEvents"] if e["name"] == "thread_name"]
    assert len(lanes) == 2


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
            "-ctk",
            "f16,q4_0",
            "-fa",
            "on",
            "-o",
            "jsonl",
            "--progress",
        ],
    )
    assert code == 0
    assert [json.loads(line)["n_prompt"] for line in out.splitlines()] == [8, 16, 4] * 4
    assert err.count("benchmark ") == 12 and "benchmark 12/12" in err


def test_an_interrupted_bench_prints_valid_json(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(model: Any, case: dict[str, int], **options: Any) -> dict[str, int]:
        if case.n_prompt == 16:
            raise KeyboardInterrupt
        return {"n_prompt": case.n_prompt}

    monkeypatch.setattr(sys.modules["pyllama.bench.bench"], "run_bench", stopped)
    code, out, _ = run(bench.command, "-p", "8,16", "-n", "0", "-o", "json")
    assert code == 130 and [row["n_prompt"] for row in json.loads(out)] == [8]
    code, out, err = run(bench.command, "-m", "bad.gguf", "-p", "8", "-o", "json")
    assert code == 1 and len(json.loads(out)) == 2 and "bad.gguf" in err


def test_bench_accepts_hub_models_and_thread_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[tuple[str, str | None]] = []
    given: list[ThreadOptions] = []

    def hub_model(repo: str, file: str | None, hub: Any) -> Path:
        loaded.append((repo, file))
        return Path("x.gguf")

    monkeypatch.setattr("pyllama.hub.hub.hub_model", hub_model)
    monkeypatch.setattr("pyggml.host.set_thread_options", given.append)
    arguments = ["-hf", "user/model", "-hff", "x.gguf", "--poll", "7", "-o", "jsonl"]
    result = CliRunner().invoke(bench.command, arguments)
    assert result.exit_code == 0, result.stderr
    assert loaded == [("user/model", "x.gguf")] and given == [ThreadOptions(poll=7)]
    code, _, err = run(bench.command, "-hf", "user/model")
    assert code == 2 and "with -m or with -hf, not both" in err


def test_bench_without_a_test_or_model() -> None:
    code, out, err = run(bench.command, "-p", "0", "-n", "0", "-o", "json")
    assert (code, out) == (2, "") and "-p or -n above 0, or -pg" in err
    for names in ("", ","):
        result = CliRunner().invoke(bench.command, ["-m", names])
        assert result.exit_code == 2 and "names no file" in result.stderr
