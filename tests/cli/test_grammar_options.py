"""``--grammar`` and its relatives, on a tiny model of random weights."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pyllama_cli.commands import completion, parallel

from ..pyllama.models import Spec, random_weights, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec()
    return write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec))


def run(command: click.Command, model: Path, *args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, ["-m", str(model), *map(str, args)])
    return result.exit_code, result.stdout, result.stderr


COMPLETE = ("-p", "a", "-no-cnv", "--no-display-prompt", "--no-perf", "--temp", 1.5, "-s", 3)


def test_completions_match_the_grammar(model: Path, tmp_path: Path) -> None:
    code, out, err = run(completion.command, model, *COMPLETE, "--grammar", 'root ::= "a" [ab]{2}')
    assert code == 0, err
    assert re.fullmatch(r"a[ab]{2} \[end of text\]\n", out)
    file = tmp_path / "x.gbnf"
    file.write_text('root ::= "a"* "ba"', encoding="utf-8-sig")  # with a byte order mark
    code, out, err = run(completion.command, model, *COMPLETE, "--grammar-file", file)
    assert re.fullmatch(r"a*ba \[end of text\]\n", out)
    code, out, err = run(parallel.command, model, "-p", "a", "-ns", 3, "--grammar", 'root ::= "bb"')
    assert code == 0
    assert out.count(" tokens ---\nabb\n") == 3


def test_an_empty_grammar_is_none(model: Path) -> None:
    plain = run(completion.command, model, *COMPLETE, "-n", 5)
    assert run(completion.command, model, *COMPLETE, "-n", 5, "--grammar", "") == plain


def test_wrong_grammars(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.gbnf"
    file.write_text("root ::= a\n\na ::= [b")
    latin1 = tmp_path / "latin1.gbnf"
    latin1.write_bytes(b'root ::= "\xe4"')
    for args, code, message in (
        (("--grammar-file", file), 1, f"error: {file}: line 3, column 7: this class has no "),
        (("--grammar", "root ::= x"), 1, "error: --grammar: line 1, column 10: rule 'x' is not"),
        (("--grammar-file", tmp_path / "none"), 1, "No such file"),
        (("-j", "{"), 1, "error: --json-schema: JSON schema: not a JSON text: "),
        (("-j", '"{}"'), 1, "error: --json-schema: JSON schema: must be an object or a boolean"),
        (("--grammar-file", latin1), 1, f"error: {latin1}: not UTF-8 text: "),
        (("-jf", latin1), 1, f"error: {latin1}: not UTF-8 text: "),
        (("-j", "{}", "--grammar", "x"), 2, "--grammar and --json-schema cannot be combined"),
    ):
        found, out, err = run(completion.command, model, *COMPLETE, *args)
        assert (found, out) == (code, "")
        assert message in err
        assert "Traceback" not in err


def test_json_schemas(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyllama.grammar.schema.json_schema")
    file = tmp_path / "x.json"
    file.write_text('{"enum": ["ab", "b"]}')
    for args in (("-j", file.read_text()), ("-jf", file)):
        code, out, _ = run(completion.command, model, *COMPLETE, *args)
        assert code == 0
        assert re.match(r'"(ab|b)"', out)
