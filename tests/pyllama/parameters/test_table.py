"""A parameter has one value by whichever name it is set: flag, field of a request, argument."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pyllama import Llama
from pyllama.parameters import Parameter, from_arguments, rows
from pyllama.parameters.drafting import DRAFTERS
from pyllama.parameters.generation import GenerationParams, RequestParams, names_in
from pyllama.parameters.page import TABLES, page
from pyllama.parameters.sampling import SamplingParams
from pyllama.runtime.model import LoadOptions
from pyllama.runtime.params import ContextParams
from pyllama.speculative.names import drafter_by_name
from pyllama_cli.commands import completion
from pyllama_cli.options.options import (
    ContextOptions,
    ModelOptions,
    context_options,
    model_options,
)
from pyllama_cli.options.sampling import sampling_options, sampling_params
from pyllama_cli.options.speculative import SpeculativeOptions
from pyllama_cli.parameters import from_options
from pyllama_cli.tool import Program

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from pyllama.parameters.serving import Listening
from pyllama.server.apis.ollama.ollama import to_llama_cpp
from pyllama.server.request.fields import Body, Fields
from pyllama.server.request.limits import LIMITS
from pyllama.server.request.options import ServerOptions
from pyllama.server.request.request_options import (
    CompletionOptions,
    default_options,
    read_completion,
)
from pyllama_cli.commands import serve

ROOT = Path(__file__).resolve().parents[3]
TOKENIZER: Any = SimpleNamespace(eog=frozenset(), n_vocab=99)
NUMBERS = ("int", "float", "bool")
SAMPLING = [row for row in rows(SamplingParams).values() if row.kind in NUMBERS]
REQUEST = [row for row in rows(RequestParams).values() if row.json]
# of parameters that are no numbers: flags and their values, a field, the value
OTHERS: dict[str, tuple[list[str], Any, Any]] = {
    "logit_bias": (["-l", "5+1.5"], [[5, 1.5]], {5: 1.5}),
    "dry_sequence_breakers": (["--dry-sequence-breaker", "x"], ["x"], ("x",)),
    "samplers": (["--samplers", "top_k;typ"], "ky", ("top_k", "typ_p")),
}
# fields in the settings of a response that llama.cpp does not have
NOT_LLAMA_CPPS: set[str] = set()


def values(row: Parameter) -> Iterator[float]:
    """Values that all faces accept, other than the default."""
    faces = [row, *row.flags, *([row.json] if row.json else [])]
    numbers = (1, 2, 3) if row.kind == "int" else (0.5, 0.25, 1.5)
    for value in (True,) if row.kind == "bool" else numbers:
        if value != row.default and all(face.low <= value <= face.high for face in faces):
            yield value


def by_flag(*args: str) -> SamplingParams:
    seen: list[SamplingParams] = []

    @click.command(cls=Program)
    @sampling_options
    def command(**options: Any) -> None:
        seen.append(sampling_params(options))

    result = CliRunner().invoke(command, args)
    assert result.exit_code == 0, result.stderr
    return seen[0]


def asked(body: dict[str, Any], **options: Any) -> CompletionOptions:
    """What a request asks of a server with these options; each field of it is read."""
    noted = Body(body)
    found = read_completion(Fields(noted), ServerOptions(**options), TOKENIZER, 4, is_own=True)
    assert noted.ignored == []
    return found


def by_field(body: dict[str, Any]) -> SamplingParams:
    return asked(body).params


@pytest.mark.parametrize("row", SAMPLING, ids=lambda row: row.name)
def test_each_name_sets_the_same_value(row: Parameter) -> None:
    value = next(values(row))
    for flags in row.flags:
        for name in flags.names:
            assert (
                getattr(by_flag(name, *([] if value is True else [str(value)])), row.name) == value
            )
    if row.json is not None:
        for name in row.json.names:
            assert getattr(by_field({name: value}), row.name) == value
        if row.json.ollama:
            body = Fields(Body({"options": {row.json.ollama: value}}))
            assert to_llama_cpp(body)[row.json.names[0]] == value
    for name in row.arguments:
        assert from_arguments(SamplingParams, {name: value, "other": 1}) == {row.name: value}


def test_arguments_are_those_of_llamas_methods() -> None:
    methods = (Llama.create_completion, Llama.create_chat_completion, Llama.sample)
    names = {name for method in methods for name in inspect.signature(method).parameters}
    for row in rows(SamplingParams).values():
        for name in row.arguments:
            assert name in names, f"no method has {name}; sampling={{...}} takes {row.name} already"


@pytest.mark.parametrize("name", OTHERS)
def test_lists_by_flag_and_field(name: str) -> None:
    args, field, value = OTHERS[name]
    assert getattr(by_flag(*args), name) == value == getattr(by_field({name: field}), name)


@pytest.mark.parametrize("row", REQUEST, ids=lambda row: row.name)
def test_a_request_sets_what_a_server_has_a_default_of(row: Parameter) -> None:
    texts = {"str": "none", "tuple[str, ...]": ("x",)}
    value: Any = texts.get(row.kind, not row.default)
    if row.kind == "int":
        value = next(values(row))
    for name in row.json.names if row.json else ():
        as_json = list(value) if isinstance(value, tuple) else value
        assert getattr(asked({name: as_json}), row.name) == value
    if row.name in rows(GenerationParams):
        assert getattr(asked({}, **{row.name: value}), row.name) == value
        assert getattr(from_options(ServerOptions, {row.name: value}), row.name) == value
    assert getattr(asked({}), row.name) == row.default


@pytest.mark.parametrize("api", ["anthropic", "ollama", "responses"])
def test_names_in_other_apis(api: str) -> None:
    ours = {
        name
        for table in (SamplingParams, RequestParams)
        for row in rows(table).values()
        if row.json
        for name in row.json.names
    }
    found = names_in(api)
    assert found and {*found.values()} <= ours


LOADING = [row for table in (LoadOptions, ContextParams) for row in rows(table).values()]
# a value other than the default: what the flag takes, what the field of the dataclass then is
LOADED: dict[str, tuple[str, Any]] = {
    "kv_overrides": ("a=int:1", {"a": 1}),
    "sparse": ("off", "off"),
    "sparse_threshold": ("0.5", 0.5),
    "devices": ("cpu", "cpu"),
    "n_gpu_layers": ("3", 3),
    "split_mode": ("none", "none"),
    "main_gpu": ("1", 1),
    "tensor_split": ("3,1", (3.0, 1.0)),
    "override_tensor": ("ffn=cpu", (("ffn", "cpu"),)),
    "vram_budget": ("2", (2.0,)),
    "type_k": ("q8_0", "q8_0"),
    "type_v": ("f32", "f32"),
}


@pytest.mark.parametrize("row", [r for r in LOADING if r.flags], ids=lambda row: row.name)
def test_flags_of_loading_and_of_a_context(row: Parameter) -> None:
    text, value = LOADED.get(row.name, ("7", 7))
    args = [[name, text] for flags in row.flags for name in flags.names]
    if row.kind == "bool":
        value = not row.default
        names = [name for flags in row.flags for name in flags.names]
        args = [[name] for both in names for name in both.split("/")[bool(row.default) :]]
    for one in args:
        model, context = loaded(*(word.strip() for word in one))
        table = next(t for t in (model, model.offload, context) if row.name in rows(type(t)))
        assert getattr(table, row.name) == value, one
    for made in (LoadOptions, ContextParams):
        if rows(made).get(row.name) is row:
            for name in row.arguments:
                assert from_arguments(made, {name: value}) == {row.name: value}


def loaded(*args: str) -> tuple[ModelOptions, ContextOptions]:
    found: list[tuple[ModelOptions, ContextOptions]] = []

    @click.command(cls=Program)
    @model_options
    @context_options()
    def command(**options: Any) -> None:
        found.append((ModelOptions.from_click(options), ContextOptions.from_click(options)))

    result = CliRunner().invoke(command, args)
    assert result.exit_code == 0, result.stderr
    return found[0]


def test_defaults_of_the_tools_are_the_librarys() -> None:
    model, context = loaded()
    for table in (model, model.offload, context):
        for row in rows(type(table)).values():
            assert getattr(table, row.name) == row.default, row.name


SERVING = [r for t in (ServerOptions, Listening) for r in rows(t).values() if r.flags]
SERVED: dict[str, tuple[str, Any]] = {  # as above; the others are texts or numbers
    "hosts": ("::1,localhost", ("::1", "localhost")),
    "allowed_hosts": ("A, b", ("a", "b")),
    "api_prefix": ("/a/b", "/a/b"),
    "max_body_bytes": ("2", 2 << 20),
    "pooling": ("mean", "mean"),
    "reasoning_format": ("none", "none"),
}


@pytest.mark.parametrize("row", SERVING, ids=lambda row: row.name)
def test_flags_of_the_server(row: Parameter, tmp_path: Path) -> None:
    text, value = ("7", 7) if row.kind.startswith(("int", "float")) else ("x", "x")
    if row.kind.startswith("Path"):
        text, value = str(tmp_path), tmp_path
    elif row.kind.startswith("tuple"):
        value = ("x",)
    text, value = SERVED.get(row.name, (text, value))
    args = [[name, text] for flags in row.flags for name in flags.names]
    if row.kind == "bool":
        value = not row.default
        args = [[n.split("/")[-1 if row.default else 0]] for f in row.flags for n in f.names]
    for one in args:
        more = {"ssl_key": ["--ssl-cert-file", "x"], "ssl_cert": ["--ssl-key-file", "x"]}
        found = served(*one, *more.get(row.name, []))
        table = next(t for t in found if row.name in rows(type(t)))
        assert getattr(table, row.name) == value, one


def served(*args: str) -> tuple[ServerOptions, Listening]:
    options = serve.command.make_context("serve", [*args]).params
    listening = serve.listening_of(options)
    return from_options(serve.ServeOptions, options).server(options, listening), listening


@pytest.mark.parametrize("name", [n for n, row in DRAFTERS.items() if row.home])
def test_a_drafter_is_made_by_its_flags(name: str) -> None:
    ends = DRAFTERS[name].numbers
    flags = [word for end in ends for word in (f"--spec-{name}-{end}", "5")]
    options = completion.command.make_context("x", ["--spec-type", name, *flags]).params
    drafts = SpeculativeOptions.from_click(options)
    assert drafts.types == [name]
    assert drafts.ngram.get(name, {}) == {number.argument: 5 for number in ends.values()}
    made = drafter_by_name(name, {name: drafts.ngram.get(name, {})})
    assert type(made).__name__ in (DRAFTERS[name].home.partition(":")[2], "LookupCache")


def test_every_row_is_tried() -> None:
    faced = {r.name for r in rows(SamplingParams).values() if r.flags or r.json}
    assert faced <= {row.name for row in SAMPLING} | {*OTHERS}


def test_defaults_are_those_that_llama_cpp_tells() -> None:
    props = json.loads((ROOT / "tests/data/server/completions.json").read_text("utf-8"))["props"]
    recorded = props["body"]["default_generation_settings"]["params"]
    ours = default_options(ServerOptions()).settings(whole=False)
    assert ours.keys() == recorded.keys() | NOT_LLAMA_CPPS
    for row in SAMPLING:
        for name in row.json.names if row.json else ():
            if name in recorded and name != "seed":  # recorded with one
                assert row.default == recorded[name] == ours[name]


def test_a_size_belongs_to_each_name() -> None:
    for row in rows(SamplingParams).values():
        if row.json is not None and row.json.size is not None:
            assert {LIMITS[name] for name in row.json.names} == {row.json.size}


def test_the_page_is_up_to_date() -> None:
    text = (ROOT / "docs/parameters.md").read_text("utf-8")
    assert text == page(), "run: python -m pyllama.parameters.page > docs/parameters.md"
    for table, _ in TABLES.values():
        for row in rows(table).values():
            assert f"\n| `{row.name}` |" in text


def test_docstrings_are_made_of_the_table() -> None:
    assert SamplingParams.__doc__ is not None
    for row in rows(SamplingParams).values():
        assert (
            f"        {row.name}: {row.help[:1].lower()}{row.help[1:]}\n" in SamplingParams.__doc__
        )
