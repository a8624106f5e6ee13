"""Speculative decoding on the command line, with tiny models of random weights."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pyllama.engine import Engine, Event
from pyllama.runtime.model import Model
from pyllama.speculative import draft_model, names
from pyllama.speculative.lookup_cache import NgramCache
from pyllama_cli.commands import completion, lookup, parallel, speculative, tokenize
from pyllama_cli.options.speculative import SPEC_TYPES, SpeculativeOptions

from ..pyllama.models import Spec, random_weights, write_eagle3, write_model
from ..tiers import long, some

CYAN = "\x1b[36m"
TEXT = "one two three one two three one two"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, some draft models and a file that is no model."""
    folder = tmp_path_factory.mktemp("models")
    spec = Spec(n_layer=3)
    write_model(folder / "x.gguf", spec, random_weights(spec))
    small = Spec(n_layer=1)
    write_model(folder / "small.gguf", small, random_weights(small, 1))
    other = Spec(n_layer=1, n_vocab=512)
    write_model(folder / "other.gguf", other, random_weights(other, 2))
    fewer = Spec(n_layer=1, n_vocab=260)
    write_model(folder / "fewer.gguf", fewer, random_weights(fewer, 3))
    write_eagle3(folder / "head.gguf", spec)
    (folder / "text.gguf").write_text("no model")
    return folder


def run(
    command: click.Command, folder: Path, *args: object, stdin: str = ""
) -> tuple[int, str, str]:
    given = ["-m", str(folder / "x.gguf"), *map(str, args)]
    result = CliRunner().invoke(command, given, input=stdin)
    return result.exit_code, result.stdout, result.stderr


def without_colors(text: str) -> str:
    return re.sub(r"\x1b\[\d+m", "", text)


def test_types_are_those_of_the_library() -> None:
    assert (*names.DRAFTERS, *names.MODELS) == SPEC_TYPES
    defaults, options = inspect.signature(draft_model).parameters, SpeculativeOptions()
    assert defaults["p_min"].default == options.draft_p_min
    assert defaults["p_split"].default == options.draft_p_split


COMPLETE = ("-p", TEXT, "-n", 24, "--no-perf", "-no-cnv", "--ignore-eos")
DRAFTERS = {
    "the model itself": ("-md", "x.gguf"),
    "a draft model": ("-md", "small.gguf", "--draft-max", 4),
    "a tree": ("-md", "small.gguf", "--draft-branches", 3, "--draft-p-split", 0),
    "another vocabulary": ("-md", "other.gguf", "-cd", 128, "-td", 1, "-tbd", 1),
    "a quantized cache": ("-md", "small.gguf", "-ctkd", "f32", "-ctvd", "bf16"),
    "a head": ("--spec-type", "draft-eagle3", "-md", "head.gguf", "--draft-branches", 2),
    "layers": ("--self-draft-layers", 1, "--draft-p-min", 0.01),
    "lookup": ("--lookup", "--draft-min", 2),
    "suffix": ("--spec-type", "suffix", "--draft-branches", 2),
    "ngram-simple": ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", 2,
                     "--spec-ngram-simple-size-m", 2),
    "map": ("--spec-type", "ngram-map-k,ngram-map-k4v", "--spec-ngram-size-n", 2,
            "--spec-ngram-size-m", 4),
    "mod": ("--spec-default", "--spec-ngram-mod-n-match", 2, "--spec-ngram-mod-n-min", 1),
    "cache": ("--spec-type", "ngram-cache"),
    "several": ("--lookup", "--spec-type", "suffix,ngram-mod", "-md", "small.gguf"),
    "off": ("--lookup", "--draft-max", 0),
}  # fmt: skip


@pytest.mark.parametrize("settings", [long((("--temp", 0),)), ("--temp", 0.8, "-s", 7)], ids=str)
@pytest.mark.parametrize("drafter", some(DRAFTERS, 5))
def test_the_text_is_that_without_drafts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, drafter: str, settings: tuple[object, ...]
) -> None:
    monkeypatch.chdir(folder)
    plain = run(completion.command, folder, *COMPLETE, *settings)
    assert plain[0] == 0 and len(plain[1]) > len(TEXT) + 8
    drafted = run(
        completion.command, folder, *COMPLETE, *settings, *DRAFTERS[drafter], "--no-adaptive-draft"
    )
    assert drafted[:2] == plain[:2]
    code, out, _ = run(completion.command, folder, *COMPLETE, *settings, *DRAFTERS[drafter])
    assert (code, out) == plain[:2]


SETTINGS = {
    "a context shift": ("-n", 60, "-c", 84, "--context-shift", "--keep", 2),
    "a full context": ("-n", -1, "-c", 90),
    "no tokens": ("-n", 0),
    "one token": ("-n", 1),
    "a stop string": ("-r", "\u0001", "-r", "a", "-r", "e"),
    "a grammar": ("--grammar", 'root ::= [a-e]+ "." [0-9]*'),
    "penalties": ("--repeat-penalty", 1.5, "--dry-multiplier", 0.8, "-s", 3),
    "mirostat": ("--mirostat", 2, "-s", 4),
    "small batches": ("-b", 4, "-ub", 2),
}


@pytest.mark.parametrize(
    "drafter", [("-md", "x.gguf"), long((("--lookup", "--spec-type", "suffix"),))]
)
@pytest.mark.parametrize("setting", some(SETTINGS, 4))
def test_settings_hold_with_drafts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, setting: str, drafter: tuple[str, ...]
) -> None:
    monkeypatch.chdir(folder)
    args = (*COMPLETE, "-s", 9, *SETTINGS[setting])
    plain = run(completion.command, folder, *args)
    assert plain[0] == 0
    drafted = run(completion.command, folder, *args, *drafter, "--no-adaptive-draft")
    assert drafted[:2] == plain[:2]


def test_prompt_cache_with_drafts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(folder)
    drafts = ("-md", "x.gguf", "--no-adaptive-draft")
    plain = run(completion.command, folder, *COMPLETE, "--prompt-cache", tmp_path / "a")
    drafted = run(completion.command, folder, *COMPLETE, "--prompt-cache", tmp_path / "b", *drafts)
    assert plain[0] == drafted[0] == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    every = ("--temp", 0, "--prompt-cache", tmp_path / "b", "--prompt-cache-all")
    first = run(completion.command, folder, *COMPLETE, *every, *drafts)
    again = run(completion.command, folder, *COMPLETE, *every, *drafts)
    assert first[0] == 0 and again[:2] == first[:2] and "prompt tokens from" in again[2]


def test_statistics_and_colours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    args = ("-p", TEXT, "-n", 20, "--temp", 0, "--ignore-eos", "--no-adaptive-draft", "-md")
    plain = run(completion.command, folder, *args[:-2], "-no-cnv")
    code, out, err = run(completion.command, folder, *args, "x.gguf", "--color", "on", "-no-cnv")
    assert code == 0 and CYAN in out and without_colors(out) == plain[1]
    assert "\naccept    = 100.000%\n" in err and "statistics     draft-simple" in err
    assert "n_draft   = 16\n" in err and "eval time" in err
    assert "statistics" not in plain[2] and "n_draft" not in plain[2]


def test_drafts_with_distributions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    args = (*COMPLETE, "-s", 3, "--no-adaptive-draft", "-md", "x.gguf", "--perf")
    sampled = ("--draft-temp", 0.7, "--draft-top-k", 20, "--draft-seed", 5)
    first = run(completion.command, folder, *args, *sampled)
    assert first[0] == 0 and "#gen drafts" in first[2]
    assert run(completion.command, folder, *args, *sampled)[1] == first[1]
    code, _, err = run(completion.command, folder, *args, "--draft-sampling", "probabilistic")
    assert code == 0 and float(re.search(r"accept    = ([\d.]+)%", err)[1]) > 99  # type: ignore[index]
    for draft in ("fewer.gguf", "other.gguf"):  # without the biased token
        code, _, err = run(completion.command, folder, *args, *sampled, "-md", draft, "-l", "260+1")
        assert code == 0 and "#gen drafts" in err


@pytest.mark.long
def test_parallel(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(folder)
    (tmp_path / "p.txt").write_text(f"{TEXT}\nabc abc abc ab\nx\n")
    args = ("-f", tmp_path / "p.txt", "-np", 2, "-n", 16, "-s", 1, "--ignore-eos")
    plain = run(parallel.command, folder, *args)
    assert plain[0] == 0 and "statistics" not in plain[2]
    for drafter in (("-md", "small.gguf"), ("--lookup",), ("--self-draft-layers", 2)):
        code, out, err = run(parallel.command, folder, *args, *drafter, "--no-adaptive-draft")
        assert (code, out) == plain[:2] and "#gen drafts" in err
        assert run(parallel.command, folder, *args, *drafter, "-no-kvu")[:2] == plain[:2]
    args = (*args, "-md", "x.gguf", "--no-adaptive-draft", "--temp", 0)
    uncolored, (code, out, _) = (
        run(parallel.command, folder, *args, "-co", c) for c in ("off", "on")
    )
    assert code == 0 and CYAN in out and without_colors(out) == uncolored[1] != out


@pytest.mark.parametrize("mode", [("-cnv", "--chat-template", "vicuna"), ("-i", "-p", "one two")])
def test_conversation(folder: Path, monkeypatch: pytest.MonkeyPatch, mode: tuple[str, ...]) -> None:
    monkeypatch.chdir(folder)
    args = (*mode, "--temp", 0, "--ignore-eos", "-n", 12, "-c", 200)
    stdin = f"{TEXT}\nagain\n"
    plain = run(completion.command, folder, *args, stdin=stdin)
    for drafter in (("-md", "x.gguf"), ("--spec-type", "suffix")):
        code, out, err = run(completion.command, folder, *args, *drafter, stdin=stdin)
        assert (code, out) == plain[:2] and "n_accept" in err
    drafts = ("-md", "x.gguf", "--no-adaptive-draft", "--color", "on")
    code, out, _ = run(completion.command, folder, *args, *drafts, stdin=stdin)
    assert code == 0 and CYAN in out and without_colors(out) == plain[1]


def test_speculative_tools(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    args = ("-p", TEXT, "-n", 20, "--temp", 0, "--ignore-eos", "--no-adaptive-draft")
    plain = run(completion.command, folder, *args[:-1], "-no-cnv")[1]
    for more in ((), ("-np", 3, "--draft-p-split", 0), ("--parallel", 2)):
        code, out, err = run(speculative.command, folder, *args, "-md", "small.gguf", *more)
        assert (code, out) == (0, plain), err
    lines = [
        r"encoded +\d+ tokens in +[\d.]+ seconds, speed: +[\d.]+ t/s",
        r"decoded   20 tokens in +[\d.]+ seconds, speed: +[\d.]+ t/s",
        "n_draft   = 16",
        "n_predict = 20",
        r"n_drafted = \d+",
        r"n_accept  = \d+",
        r"accept    = [\d.]+%",
        "target:",
        r"llama_perf_context_print:       total time = .*",
    ]
    at = 0
    for line in lines:  # in this order
        found = re.compile(f"^{line}$", re.MULTILINE).search(err, at)
        assert found, (line, err)
        at = found.end()
    for drafter in (("-md", "x.gguf"), ("--lookup",), ("--spec-type", "suffix")):
        code, out, err = run(speculative.simple, folder, *args, *drafter)
        assert (code, out) == (0, plain) and "n_drafted = " in err
    code, out, err = run(speculative.command, folder, *args, "--lookup")
    assert (code, out, err.count("\n")) == (2, "", 1) and "there is no draft model" in err
    code, out, err = run(speculative.simple, folder, *args)
    assert (code, out) == (2, "") and "error: nothing drafts: give a draft model" in err


def test_lookup_tools(folder: Path, tmp_path: Path) -> None:
    text, cache, mine = tmp_path / "t.txt", tmp_path / "a.bin", tmp_path / "mine.bin"
    text.write_text(TEXT * 8)
    code, out, err = run(lookup.create, folder, "-f", text, "-lcs", cache)
    assert (code, out) == (0, "") and f"{cache}: " in err
    ids = run(tokenize.command, folder, "-f", text, "--ids")[1]
    tokens = [int(token) for token in ids.strip("[]\n").split(",")]
    expected = NgramCache()
    for end in range(2, len(tokens) + 1):
        expected.append(tokens[:end], range(2, 3))
    assert NgramCache.load(cache).counts == expected.counts
    code, _, err = run(lookup.create, folder, "-f", text, "-lcs", text)
    assert code == 2 and "is read too" in err and text.read_text() == TEXT * 8

    both = tmp_path / "both.bin"
    done = CliRunner().invoke(lookup.merge, [str(cache), str(cache), str(both)])
    assert done.exit_code == 0 and done.stdout == ""
    doubled = {key: {t: 2 * n for t, n in c.items()} for key, c in expected.counts.items()}
    assert NgramCache.load(both).counts == doubled

    code, out, err = run(lookup.stats, folder, "-f", text, "-lcs", both, "-c", 64)
    assert (code, out) == (0, "")
    found = dict(re.findall(r"^(n_\w+) += (\d+)$", err, re.MULTILINE))
    assert found["n_draft"] == "16" and int(found["n_predict"]) == len(tokens) // 64 * 64
    assert int(found["n_drafted"]) >= int(found["n_accept"]) > 100
    assert "t_draft_flat = " in err and " us per token, " in err

    args = ("-p", TEXT, "-n", 20, "--temp", 0, "--ignore-eos")
    plain = run(completion.command, folder, *args, "-no-cnv")[1]
    code, out, err = run(lookup.command, folder, *args, "-lcs", both, "-lcd", mine, "--draft", 5)
    assert (code, out) == (0, plain)
    assert "n_draft      = 5\n" in err and "decoded   20 tokens" in err and "target:" in err
    learned = NgramCache.load(mine).counts
    code, out, err = run(lookup.command, folder, *args, "-lcs", both, "--draft-max", 0)
    assert (code, out) == (0, plain) and "n_drafted    = 0\n" in err
    assert len(learned) > 20 and max(map(len, learned)) == 4
    for _ in range(2):
        code, out, _ = run(completion.command, folder, *args, "-no-cnv", "-lcd", mine)
        assert (code, out) == (0, plain)
    again = NgramCache.load(mine).counts
    assert again.keys() == learned.keys()
    assert all(again[key] == {t: 3 * n for t, n in c.items()} for key, c in learned.items())


INTERRUPTED: dict[str, tuple[click.Command, tuple[object, ...]]] = {
    "lookup": (lookup.command, ()),
    "completion": (completion.command, ("-no-cnv",)),
    "conversation": (completion.command, ("-cnv", "--chat-template", "vicuna")),
    "parallel": (parallel.command, ()),
}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_the_dynamic_cache_has_a_text_that_ctrl_c_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    step, n_steps = Engine.step, 0

    def interrupted(engine: Engine) -> list[Event]:
        nonlocal n_steps
        n_steps += 1
        if n_steps == 12:
            raise KeyboardInterrupt
        return step(engine)

    monkeypatch.setattr(Engine, "step", interrupted)
    command, args = INTERRUPTED[name]
    mine = tmp_path / "mine.bin"
    code, _, err = run(command, folder, "-p", TEXT, "-n", 200, "--ignore-eos", "-lcd", mine, *args)
    assert code == 130 and "error" not in err
    assert len(NgramCache.load(mine).counts) > 60  # of a prompt of 53 tokens, and 10 more


WRONG = {
    "-md missing.gguf": (1, "missing.gguf: no such file"),
    "-md text.gguf": (1, "text.gguf: "),
    "-md small.gguf --self-draft-layers 1": (2, "the draft is another model (-md, -hfd) or the"),
    "--self-draft-layers 9": (2, "the model cannot draft for itself: n_layer is 9, want 1 to 3"),
    "--self-draft-threshold 0.5": (2, "for itself: sparse_threshold is 0.5, but no layer"),
    "--self-draft-threshold nan": (2, "'nan' is not a number, inf or -inf"),
    "--spec-type draft-simple": (2, "--spec-type draft-simple needs a draft model: -md or -hfd"),
    "--spec-type draft-dflash": (2, "--spec-type draft-dflash needs the head's file: -md or -hfd"),
    "--spec-type draft-dflash -md small.gguf": (1, "a llama model is no DFlash head"),
    "--spec-type draft-eagle3": (2, "--spec-type draft-eagle3 needs the head's file: -md or -hfd"),
    "--spec-type draft-eagle3 -md small.gguf": (1, "a llama model is no EAGLE-3 head"),
    "--spec-type draft-eagle3,draft-mtp -md head.gguf": (2, "and one head can draft"),
    "-md head.gguf": (1, "head is no whole model: it drafts for another one, as draft-eagle3"),
    "--spec-type draft-mtp": (1, "the model has no layers of multi-token prediction"),
    "--spec-type draft-mtp -md small.gguf": (1, "has no layers of multi-token prediction"),
    "--spec-type draft-mtp,draft-simple -md small.gguf": (2, "-md is a draft model or has a head"),
    "--spec-type suffixes": (2, "'suffixes' is not one of none, ngram-simple, "),
    "--lookup --draft-min 5 --draft-max 4": (2, "--draft-min 5 is above --draft-max 4"),
    "--draft-max 1025": (2, "1025 is not a whole number from 0 to 1024"),
    "-md x.gguf --draft-p-min 1.5": (2, "1.5 is not a finite number from 0 to 1"),
    "-md x.gguf --draft-sampling greedy --draft-top-k 3": (2, "--draft-top-k has no effect with"),
    "-md x.gguf --draft-branches 0": (2, "0 is not a whole number from 1 to"),
    "--spec-ngram-mod-n-match 0": (2, "0 is not a whole number from 1 to 1024"),
    "--lookup-cache-static none.bin": (1, "none.bin: No such file or directory"),
    "-lcs text.gguf": (1, "text.gguf: damaged lookup cache at byte 0"),
    "-lcd text.gguf": (1, "text.gguf: damaged lookup cache at byte 0"),
    "-lcd no/such/x.bin": (2, "no/such: no such directory to write to"),
    "-lcs large.bin": (1, "large.bin: lookup cache of another vocabulary: it has token 9999"),
    "-ctkd q2_k -md x.gguf": (2, "'q2_k' is not one of"),
    "-ctkd q4_0 -md small.gguf": (1, "draft model small.gguf: type_k is Q4_0, whose blocks are"),
    "-md small.gguf -cd 2147483647": (1, "choose a smaller --ctx-size-draft"),
    "--lookup -c 4 --perf": (1, "the prompt has 6 tokens, a context of"),
}


@pytest.mark.parametrize("line", WRONG)
def test_errors_are_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(folder)
    large = NgramCache()
    large.append([3, 9999])
    large.save("large.bin")
    code, message = WRONG[line]
    before = Path("text.gguf").read_text()
    got = run(completion.command, folder, "-p", "hi", "-n", 4, "-no-cnv", *line.split())
    *notes, error = got[2].splitlines()  # notes on loading
    assert got[:2] == (code, "") and error.startswith("error: ") and message in error
    assert not [line for line in notes if re.search("error|Traceback|n_draft", line)]
    assert Path("text.gguf").read_text() == before


def test_wrong_draft_models_are_found_before_the_target_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    load = Model.load

    def recorded(path: Path, *args: Any, **options: Any) -> Model:
        loaded.append(path.name)
        return load(path, *args, **options)

    monkeypatch.chdir(folder)
    monkeypatch.setattr(Model, "load", recorded)
    assert run(completion.command, folder, "-p", "hi", "-md", "text.gguf")[0] == 1
    assert loaded == ["text.gguf"]


def test_a_draft_model_on_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None, str | None]] = []

    def hub_model(repo: str, file: str | None, hub: Any) -> Path:
        asked.append((repo, file, hub.token))
        return folder / "small.gguf"

    monkeypatch.setattr("pyllama.hub.hub.hub_model", hub_model)
    args = ("-p", "hi", "-n", 2, "-no-cnv", "-hft", "secret", "-hfd", "user/small")
    assert run(completion.command, folder, *args)[0] == 0
    assert run(completion.command, folder, *args, "-md", "Q4.gguf")[0] == 0
    assert asked == [("user/small", None, "secret"), ("user/small", "Q4.gguf", "secret")]


def test_options_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "DRAFT_MAX": "3",
        "SPEC_TYPE": "suffix",
        "SPEC_DRAFT_MODEL": str(folder / "small.gguf"),
        "SPEC_DRAFT_CACHE_TYPE_K": "f32",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"LLAMA_ARG_{name}", value)
    code, _, err = run(completion.command, folder, "-p", "hi", "-n", 2, "-no-cnv")
    assert code == 0 and "n_draft   = 3\n" in err and "suffix,draft-simple: #calls" in err


def test_flags_without_a_drafter_are_noted(folder: Path) -> None:
    args = ("-p", "hi", "-n", 2, "--no-perf", "-no-cnv")
    code, _, err = run(completion.command, folder, *args, "--draft", 4, "-ctkd", "q8_0")
    notes = [line.partition(" has no effect without a drafter")[0] for line in err.splitlines()]
    assert code == 0 and sorted(notes) == ["--draft-max", "-ctkd"]
    assert run(completion.command, folder, *args, "--spec-type", "none")[2] == ""
    for more in ((), ("--lookup",)):
        code, _, err = run(
            completion.command, folder, *args, *more, "--spec-ngram-simple-min-hits", 2
        )
        assert code == 0 and err.startswith("--spec-ngram-simple-min-hits is ignored: ")
    code, _, err = run(completion.command, folder, *args, "-md", folder / "x.gguf", "-ngld", 9)
    assert code == 0 and "no GPU was found (" in err and "-ngld is ignored" in err


def test_lookup_tools_without_input(folder: Path, tmp_path: Path) -> None:
    for command, args in ((lookup.create, ("-lcs", tmp_path / "x")), (lookup.stats, ())):
        code, out, err = run(command, folder, *args)
        assert (code, out, err) == (2, "", "error: there is no text: give it with -p or -f\n")
    assert run(lookup.create, folder, "-p", "x")[0] == 2
    for files in ([], ["a"], ["a", str(tmp_path / "no" / "b")], ["missing.bin", "b"]):
        done = CliRunner().invoke(lookup.merge, files)
        assert done.exit_code in (1, 2) and done.stderr.count("\n") == 1
    code, out, err = run(lookup.command, folder)
    assert (code, out) == (2, "") and "there is no prompt" in err
