"""Parsing of the shared options and of the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pyllama.runtime.overrides import Overrides
from pyllama_cli.options.adapters import files_of
from pyllama_cli.options.options import (
    ContextOptions,
    ModelOptions,
    context_options,
    model_options,
)
from pyllama_cli.options.overrides import current_overrides
from pyllama_cli.options.prompt import PromptOptions, escape_option, process_escapes, prompt_options
from pyllama_cli.options.sampling import sampling_options, sampling_params
from pyllama_cli.parameters import from_options
from pyllama_cli.tool import Program


def take(*args: str, n_ctx: int = 0) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    @click.command("x", cls=Program)
    @model_options
    @prompt_options
    @escape_option()
    @context_options(n_ctx)
    @sampling_options
    def command(**options: Any) -> None:
        seen.update(options)

    result = CliRunner().invoke(command, args)
    assert result.exit_code == 0, result.stderr
    return seen


def test_defaults_match_llama_cpp() -> None:
    options = take()
    context = ContextOptions.from_click(options)
    assert (context.n_ctx, context.n_batch, context.n_ubatch) == (0, 2048, 512)
    assert (context.n_threads, context.n_threads_batch) == (None, None)
    from pyllama.sampling import SamplingParams

    assert sampling_params(options) == SamplingParams(seed=-1)
    model = ModelOptions.from_click(options)
    assert (model.model, model.use_mmap, model.use_mlock, model.repack) == (None, True, False, True)


def test_a_tool_has_its_own_context_size() -> None:
    assert ContextOptions.from_click(take(n_ctx=512)).n_ctx == 512


def test_old_and_new_spellings_are_equal() -> None:
    old = take("-t", "3", "--temperature", "0", "-fa", "-c", "64", "-s", "7", "-e")
    new = take("--threads=3", "--temp=0", "--flash-attn=on", "--ctx-size=64", "--seed=7")
    assert old == new
    assert ContextOptions.from_click(old).n_threads_batch == 3
    assert ContextOptions.from_click(take("-t", "3", "-tb", "4")).n_threads_batch == 4


@pytest.mark.parametrize(
    ("args", "mmap", "mlock"),
    [
        ("--no-mmap", False, False),
        ("--mlock", True, True),
        ("--no-mmap --mlock", False, True),
        ("-lm none", False, False),
        ("-lm mmap", True, False),
        ("-lm mlock", False, True),
        ("-lm mmap+mlock", True, True),
        ("-lm auto --no-mmap", False, False),
        ("--mmap -lm none", False, False),
    ],
)
def test_load_modes(args: str, mmap: bool, mlock: bool) -> None:
    model = ModelOptions.from_click(take(*args.split()))
    assert (model.use_mmap, model.use_mlock) == (mmap, mlock)


def test_sampling_options_reach_the_chain() -> None:
    args = "-s 5 --temp 0.5 --top-k 0 -l 15043+1.5 -l 2-inf --ignore-eos --samplers top-k;temp"
    params = sampling_params(take(*args.split()))
    assert (params.seed, params.temp, params.top_k, params.ignore_eos) == (5, 0.5, 0, True)
    assert params.logit_bias == {15043: 1.5, 2: float("-inf")}
    assert params.samplers == ("top_k", "temperature")
    args = (
        "--dynatemp-range 0.2 --dynatemp-exp 2 --typical 0.9 --top-nsigma 1.5 --xtc-probability 0.5"
        " --xtc-threshold 0.2 --dry-multiplier 0.8 --dry-base 2 --dry-allowed-length 3"
        " --dry-penalty-last-n 99 --adaptive-target 0.3 --adaptive-decay 0.5 --mirostat 2"
        r" --mirostat-ent 4 --mirostat-lr 0.2 --dry-sequence-breaker \n --sampler-seq edska"
    )
    from pyllama.sampling import SamplingParams

    assert sampling_params(take(*args.split())) == SamplingParams(
        dynatemp_range=0.2, dynatemp_exponent=2, typical_p=0.9, top_n_sigma=1.5,
        xtc_probability=0.5, xtc_threshold=0.2, dry_multiplier=0.8, dry_base=2,
        dry_allowed_length=3, dry_penalty_last_n=99, adaptive_target=0.3, adaptive_decay=0.5,
        mirostat=2, mirostat_tau=4, mirostat_eta=0.2, dry_sequence_breakers=("\n",), seed=-1,
        samplers=("penalties", "dry", "top_n_sigma", "top_k", "adaptive_p"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("args", "breakers"),
    [
        ("", ("\n", ":", '"', "*")),
        ("a b", ("a", "b")),
        ("none", ()),
        ("a none b", ("b",)),
        ("none a none", ()),
    ],
)
def test_dry_sequence_breakers(args: str, breakers: tuple[str, ...]) -> None:
    flags = [x for b in args.split() for x in ("--dry-sequence-breaker", b)]
    assert sampling_params(take(*flags)).dry_sequence_breakers == breakers


@pytest.mark.parametrize(
    ("args", "samplers"),
    [
        ("--samplers TOP-K;nucleus;typ --sampler-seq kt", ("top_k", "temperature")),
        ("--sampling-seq kt --samplers topk;minp", ("top_k", "min_p")),
        ("--sampling-seq i", ("infill",)),
    ],
)
def test_the_last_list_of_samplers_counts(args: str, samplers: tuple[str, ...]) -> None:
    assert sampling_params(take(*args.split())).samplers == samplers


@pytest.mark.parametrize("flag", ["--samplers", "--sampler-seq"])
def test_an_empty_list_of_samplers_is_a_plain_draw(flag: str) -> None:
    """As in llama.cpp: only the draw is left, without the default samplers."""
    from pyllama.sampling import Chain

    params = sampling_params(take(flag, ""))
    assert Chain(params, 5).describe() == "logits -> dist"


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("--samplers", "top_k;nope", "unknown sampler nope; choose from penalties, dry, "),
        ("--sampler-seq", "kz", "unknown letter 'z'; choose from e (penalties), d (dry), "),
        ("--mirostat", "3", "3 is not a whole number from 0 to 2"),
        ("--dry-base", "0.5", "0.5 is not a finite number of at least 1"),
    ],
)
def test_invalid_sampling_options(flag: str, text: str, message: str) -> None:
    command = click.command("x", cls=Program)(sampling_options(lambda **_: None))
    result = CliRunner().invoke(command, [flag, text])
    assert result.exit_code == 2 and message in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (rb"a\nb\tc\r", b"a\nb\tc\r"),
        (rb"\\n \' \"", b"\\n ' \""),
        (rb"\x41\xe2\x82\xac", "A€".encode()),
        (rb"\q \x4 \xzz", rb"\q \x4 \xzz"),
        (b"end\\", b"end\\"),
    ],
)
def test_escapes(raw: bytes, text: bytes) -> None:
    assert process_escapes(raw) == text


def test_prompts(tmp_path: Path) -> None:
    def text(*args: str) -> str | None:
        return from_options(PromptOptions, take(*args)).text()

    file = tmp_path / "prompt.txt"
    file.write_bytes("é\\t\r\n\n".encode() + b"\xff\n")
    assert text() is None
    assert text("-p", "") == ""
    assert text("-p", r"a\n") == "a\n"
    assert text("-p", r"a\n", "--no-escape") == r"a\n"
    assert text("-p", "a\udcff") == "a\ufffd"
    assert text("-f", str(file)) == "é\t\r\n\n\ufffd"
    whole = from_options(PromptOptions, take("-f", str(file), "--no-escape"))
    assert whole.text(whole_file=True) == "é\\t\r\n\n\ufffd\n"
    assert whole.text(b"from stdin") == "from stdin"
    with pytest.raises(OSError):
        text("-f", str(tmp_path / "missing"))


def test_sparse_options() -> None:
    def sparse(*args: str) -> tuple[str, float | None]:
        options = ModelOptions.from_click(take(*args))
        return options.sparse, options.sparse_threshold

    assert sparse() == ("auto", None)
    given = "predictor,exact:0-3"
    assert sparse("--sparse", given, "--sparse-threshold", "-0.5") == (given, -0.5)
    assert sparse("--sparse-threshold=-inf") == ("auto", float("-inf"))


def test_metadata_overrides() -> None:
    quoted = '"s=str:with, a comma",n=float:2.5'
    options = take("--override-kv", "a=int:-3,b=bool:false", "--override-kv", quoted)
    model = ModelOptions.from_click(options)
    assert model.kv_overrides == {"a": -3, "b": False, "s": "with, a comma", "n": 2.5}
    assert type(model.kv_overrides["b"]) is bool and not model.check_tensors
    assert ModelOptions.from_click(take("--check-tensors")).check_tensors


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("--override-kv", "a", "'a' is not KEY=TYPE:VALUE"),
        ("--override-kv", "a=u8:1", "with a TYPE of int, float, bool, str"),
        ("--override-kv", "a=int:1.5", "'1.5' is not of type int"),
        ("--override-kv", "a=bool:1", "'1' is not of type bool"),
        ("--override-kv", '"a=str:x', "is not a comma-separated list"),
        ("--sparse", "predictors", "'predictors': must be auto, predictor, cross, exact"),
        ("--sparse", "topk", "must be topk=N, N is the number of neurons"),
        ("--sparse-threshold", "nan", "'nan' is not a number, inf or -inf"),
        ("--sparse-threshold", "much", "'much' is not a number, inf or -inf"),
    ],
)
def test_invalid_values(flag: str, text: str, message: str) -> None:
    result = CliRunner().invoke(
        click.command("x", cls=Program)(model_options(lambda **_: None)), [flag, text]
    )
    assert result.exit_code == 2 and message in result.stderr


@pytest.mark.parametrize(
    ("plain", "scaled", "message"),
    [
        ("", "", "--lora: the name of a file is empty"),
        ("a,,b", "c:1", "--lora: the name of a file is empty"),
        ("a", "", "--lora-scaled: '' is not FILE:SCALE"),
        ("a", "c:nan", "--lora-scaled: 'c:nan' is not FILE:SCALE"),
        ("a", ":1", "--lora-scaled: ':1' is not FILE:SCALE"),
    ],
)
def test_names_and_factors_of_adapters(plain: str, scaled: str, message: str) -> None:
    assert files_of(["a,b"], ["c:0.5"], "") == [("a", 1.0), ("b", 1.0), ("c", 0.5)]
    with pytest.raises(click.UsageError) as error:
        files_of([plain], [scaled], "--lora-scaled")
    assert message in error.value.message


def test_rope_and_activation_overrides() -> None:
    seen: list[Any] = []

    @click.command(cls=Program)
    @context_options()
    def command(**options: Any) -> None:
        seen.append(current_overrides())

    def run(*args: str) -> Any:
        return CliRunner().invoke(command, args)

    assert run().exit_code == 0 and seen.pop() == Overrides()
    every = (
        "--rope-scaling yarn --rope-freq-base 5e5 --rope-scale 4 --yarn-orig-ctx 512 "
        "--yarn-ext-factor 1 --yarn-attn-factor 1.5 --yarn-beta-slow 2 --yarn-beta-fast 16 "
        "--act relu"
    )
    assert run(*every.split()).exit_code == 0
    assert seen.pop() == Overrides(
        rope_scaling="yarn", rope_freq_base=5e5, rope_freq_scale=0.25, yarn_orig_ctx=512,
        yarn_ext_factor=1.0, yarn_attn_factor=1.5, yarn_beta_slow=2.0, yarn_beta_fast=16.0,
        hidden_act="relu",
    )  # fmt: skip
    assert run("--rope-freq-scale", "0.5").exit_code == 0
    assert seen.pop() == Overrides(rope_freq_scale=0.5)
    for wrong in ("--rope-scale 0", "--rope-scale 2 --rope-freq-scale 0.5", "--act tanh"):
        result = run(*wrong.split())
        assert result.exit_code == 2 and "Traceback" not in result.output
