"""The tools that run several sequences, and the prompt cache, on a tiny model of random weights."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from pyllama_cli.commands import batched_bench, completion, parallel

from ..pyllama.models import Spec, random_weights, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec()
    return write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec))


def run(
    command: click.Command, model: Path, *args: object, stdin: str = ""
) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, ["-m", str(model), *map(str, args)], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_batched_bench_prints_llama_cpp_table(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr("pyllama.bench.batched.time", seconds)
    code, out, err = run(batched_bench.command, model, "-npp", "4,8", "-ntg", 2, "-npl", "1,3")
    lines = out.splitlines()
    assert code == 0 and "n_kv_max = 30, n_batch = 30" in err
    assert lines[:2] == [  # llama-batched-bench's
        "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |"
        "    S t/s |",
        "|-------|--------|------|--------|----------|----------|----------|----------|----------|"
        "----------|",
    ]
    assert len({len(line) for line in lines}) == 1
    rows = [[int(x) for x in line.split("|")[1:5]] for line in lines[2:]]
    assert rows == [[4, 2, 1, 6], [4, 2, 3, 18], [8, 2, 1, 10], [8, 2, 3, 30]]
    assert lines[5].endswith("1.000 |    24.00 |    1.000 |     6.00 |    2.000 |    15.00 |")


def test_batched_bench_as_json_lines(model: Path) -> None:
    args = ("-npp", 8, "-ntg", 2, "-npl", 3, "-pps", "-c", 20, "--output-format", "jsonl")
    code, out, err = run(batched_bench.command, model, *args)
    row = json.loads(out)
    assert (code, err) == (0, "")
    assert (row["pp"], row["pl"], row["n_kv"], row["is_pp_shared"]) == (8, 3, 14, 1)
    code, out, err = run(batched_bench.command, model, *args[:6], "-c", 20)
    assert code == 2 and "no combination fits into a context of 20" in err


def test_parallel_continues_each_line_of_a_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.txt").write_text("one\n\ntwo three\n")
    args = ("-f", tmp_path / "p.txt", "-ns", 5, "-np", 2, "-n", 6, "--seed", 7, "--ignore-eos")
    code, out, err = run(parallel.command, model, *args)
    assert code == 0 and "5 texts, 2 in parallel" in err and " 30 generated tokens" in err
    parts = dict(re.findall(r"--- (\d): 6 tokens ---\n(one|two three)", out))
    assert parts == {str(i): ("one", "two three")[i % 2] for i in range(5)}
    assert out == run(parallel.command, model, *args)[1]  # the same seed, the same texts
    assert run(parallel.command, model, "-p", "")[0] in (0, 2)

    def interrupted(text: str) -> None:
        if "--- 1" in text:
            raise KeyboardInterrupt

    monkeypatch.setattr(parallel, "write_raw", interrupted)
    code, _, err = run(parallel.command, model, *args)
    assert code == 130 and "2 texts, 2 in parallel: " in err
    monkeypatch.undo()
    top = run(parallel.command, model, "-f", tmp_path / "p.txt", "-n", 1, "--seed", 2**32 - 2)
    assert top[0] == 0 and "2 texts" in top[2]
    code, _, err = run(parallel.command, model, "-p", "x", "-ns", 2**31 - 1)
    assert code == 2 and "2147483647 is not a whole number from 0 to 100000" in err
    code, _, err = run(parallel.command, model)
    assert code == 2 and "there is no prompt" in err


def test_no_kv_unified(model: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\n\ntwo three four\n")
    args = ("-f", tmp_path / "p.txt", "-np", 2, "-n", 6, "--temp", 0, "--ignore-eos")
    shared = run(parallel.command, model, *args)
    assert shared[0] == 0 and run(parallel.command, model, *args, "-no-kvu")[1] == shared[1]
    assert run(parallel.command, model, *args, "-kvu", "-c", 40)[0] == 0
    code, _, err = run(parallel.command, model, *args, "--no-kv-unified", "-c", 24)
    assert code == 1 and "a context of 12 takes 11" in err
    args = ("-npp", "4,8", "-ntg", 2, "-npl", "1,3", "-pps", "-no-kvu")
    code, out, err = run(batched_bench.command, model, *args)
    rows = [[int(x) for x in line.split("|")[1:5]] for line in out.splitlines()[2:]]
    assert rows == [[4, 2, 1, 6], [4, 2, 3, 18], [8, 2, 1, 10], [8, 2, 3, 30]]
    assert "n_kv_max = 30" in err
    code, out, _ = run(batched_bench.command, model, *args, "-c", 24)  # 8 cells each
    assert code == 0 and len(out.splitlines()) == 2 + 2


def test_prompt_cache(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    base = ("-p", "hello there", "-n", 5, "--temp", 0, "--no-perf", "-no-cnv", "-c", 64)
    plain = run(completion.command, model, *base)[1]
    first = run(completion.command, model, *base, "--prompt-cache", path)
    assert first[0] == 0 and first[1] == plain and "does not exist yet" in first[2]
    again = run(completion.command, model, *base, "--prompt-cache", path, "--prompt-cache-all")
    n = int(re.search(r"(\d+) of (\d+) prompt tokens", again[2])[1])  # type: ignore[index]
    assert again[1] == plain and n > 3
    before = path.read_bytes()
    run(completion.command, model, *base, "--prompt-cache", path, "--prompt-cache-ro")
    assert path.read_bytes() == before
    path.write_bytes(before[:100])
    code, out, err = run(completion.command, model, *base, "--prompt-cache", path)
    assert (code, out) == (1, "") and "is damaged" in err and len(err.splitlines()) == 1
    code, out, err = run(completion.command, model, *base, "--prompt-cache", tmp_path / "no" / "x")
    assert (code, out) == (2, "") and "no such directory to write to" in err  # before any work


def test_context_shift(model: Path) -> None:
    base = ("-p", "ab", "-n", 50, "--temp", 0, "--no-perf", "-no-cnv", "-c", 20, "--ignore-eos")
    short = run(completion.command, model, *base)
    long = run(completion.command, model, *base, "--context-shift", "--keep", 2)
    assert short[0] == long[0] == 0
    assert long[1].startswith(short[1].rstrip("\n")[:8]) and len(long[1]) > len(short[1])


TALK = ("-cnv", "--chat-template", "vicuna", "--temp", 0, "--no-perf", "--ignore-eos")


def test_a_conversation_continues_with_a_full_context(model: Path) -> None:
    args, stdin = (*TALK, "-sys", "Be brief.", "-n", 20, "-c", 100), "one\ntwo\nthree\nfour\n"
    code, out, err = run(completion.command, model, *args, stdin=stdin)
    assert code == 0 and "error: the prompt has" in err and "use --ctx-size" in err
    first = out.splitlines()[0]
    for keep in (0, 12, -1):
        shifted = ("--context-shift", "--keep", keep)
        code, out, err = run(completion.command, model, *args, *shifted, stdin=stdin)
        assert (code, err) == (0, "") and out.splitlines()[0] == first
    stdin = f"one\n{'x' * 100}\ntwo\n"
    code, again, err = run(completion.command, model, *args, "--context-shift", stdin=stdin)
    assert code == 0 and len(again.splitlines()) == 2 and again.splitlines()[0] == first
    assert len(err.splitlines()) == 1 and "a context of 100 takes" in err
    args = (*TALK, "-n", 150, "-c", 60)
    assert (
        run(completion.command, model, *args, "-p", "Hi", "-st")[1]
        < run(completion.command, model, *args, "-p", "Hi", "-st", "--context-shift")[1]
    )
    filled = (*TALK, "-n", -2, "-c", 60, "-p", "Hi", "-st", "--context-shift")
    assert run(completion.command, model, *filled)[0] == 0  # generation ends
    long = (*args, "-p", "x" * 70, "-st")
    for options in ((), ("--context-shift",), ("--context-shift", "--keep", -1)):
        code, out, err = run(completion.command, model, *long, *options)
        assert (code, out) == (1, "") and "tokens, a context of 60 takes 59; use --ctx-size" in err


def test_prompt_cache_of_a_conversation(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    args, stdin = (*TALK, "-sys", "Be brief.", "-n", 8, "-c", 200), "one\ntwo\n"
    plain = run(completion.command, model, *args, stdin=stdin)[1]
    args = (*args, "--prompt-cache", path)
    first = run(completion.command, model, *args, stdin=stdin)
    assert first[:2] == (0, plain) and "does not exist yet" in first[2]
    size = path.stat().st_size
    again = run(completion.command, model, *args, "--prompt-cache-all", stdin=stdin)
    match = re.search(r"(\d+) of (\d+) prompt tokens", again[2])
    assert again[1] == plain and match and match[1] == match[2] != "0"
    assert path.stat().st_size > 2 * size  # the whole conversation
    before = path.read_bytes()
    more = (*args, "--prompt-cache-ro", "--prompt-cache-all")
    assert run(completion.command, model, *more, stdin=stdin)[1] == plain
    assert path.read_bytes() == before
    path.write_bytes(before[:100])
    code, out, err = run(completion.command, model, *args, stdin=stdin)
    assert (code, out) == (1, "") and "is damaged" in err and len(err.splitlines()) == 1
    code, _, err = run(
        completion.command, model, "-i", "--prompt-cache", path, "--prompt-cache-all"
    )
    assert code == 2 and "--prompt-cache-all cannot be used with -i" in err
