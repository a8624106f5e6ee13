"""llama-cpp-python's own test suite, with `pyllama.compat` in place of its package."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

pytestmark = [pytest.mark.compat, pytest.mark.long]
TRANSFORMER = "tinyllamas/stories15M-q4_0.gguf"


def outcomes(sources: Path, folder: Path, models: dict[str, Path], *options: str) -> dict[str, str]:
    """ "passed", or the message of the failure, by the name of the test."""
    report = folder / "report.xml"
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent),
        "PYLLAMA_TEST_MODELS": json.dumps({name: str(path) for name, path in models.items()}),
    }
    command = ["-m", "pyllama.compat", "-m", "pytest", "tests", "-p", "local_models"]
    command += ["-p", "no:cacheprovider", "--noconftest", f"--junit-xml={report}", "-q", *options]
    done = subprocess.run(
        [sys.executable, "-P", *command], cwd=sources, env=env, capture_output=True, text=True
    )
    assert report.is_file(), done.stdout + done.stderr
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [*case.iter("failure"), *case.iter("error")]
        found[case.get("name", "")] = bad[0].get("message", "failed") if bad else "passed"
    return found


# Classes and functions that are not there: parts of its grammars, of embeddings, of templates.
ABSENT = {
    "BuiltinRule", "SchemaConverter", "guess_chat_format_from_gguf_metadata", "normalize_embedding",
}  # fmt: skip


def test_names_of_its_modules(sources: Path, llama_cpp: ModuleType) -> None:
    for path in (sources / "llama_cpp").glob("*.py"):
        if f"llama_cpp.{path.stem}" not in sys.modules or path.stem == "llama_cpp":
            continue
        module = sys.modules[f"llama_cpp.{path.stem}"]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
        absent = {name for name in names if name[0] != "_" and not hasattr(module, name)}
        assert absent <= ABSENT, path
    assert callable(llama_cpp.llama_chat_format.format_chatml)


def test_only_downloads_fail(sources: Path, tmp_path: Path) -> None:
    found = outcomes(sources, tmp_path, {})
    passed = {name for name, message in found.items() if message == "passed"}
    assert passed == {
        "test_llama_cpp_version", "test_llama_cpp_tokenization", "test_mistral_instruct",
        "test_hf_tokenizer_config_str_to_chat_formatter", "test_grammar_from_string",
        "test_composed_pydantic_grammar", "test_grammar_anyof", "test_find_candidate_pred_tokens",
    }  # fmt: skip
    assert len(found) == 26
    assert not [n for n, m in found.items() if n not in passed and "no download: " not in m]


@pytest.mark.model
def test_with_another_transformer_in_place_of_theirs(
    sources: Path, tmp_path: Path, demo_model: Path
) -> None:
    """The tests of caches expect no particular text of it."""
    found = outcomes(
        sources, tmp_path, {TRANSFORMER: demo_model}, "-k", "llama_cpp_transformer_model_path"
    )
    assert len(found) == 4 and {*found.values()} == {"passed"}
