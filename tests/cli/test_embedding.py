"""``pyllama-embedding`` on a tiny model of random weights: llama-embedding's output."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pyggml.gguf import GGUFFile, write_gguf
from pyllama import Context, Model
from pyllama.embeddings import cosine_similarity, embed_many, normalize, rerank
from pyllama.engine import Engine
from pyllama.runtime.overrides import Overrides
from pyllama_cli.commands import embedding

from ..pyllama.models import Spec, random_weights, write_model
from ..tiers import only

TEXTS = ["a cat", "a dog", "Paris is a city"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec()
    return write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec))


@pytest.fixture(scope="module")
def reranker(model: Path) -> Path:
    """The model with a classification head of two outputs."""
    path = model.with_name("rank.gguf")
    with GGUFFile(model) as file:
        tensors = {n: (file.tensor_bytes(n), t.type, t.ne) for n, t in file.tensors.items()}
        head = np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)
        metadata = {"llama.pooling_type": np.uint32(4), "llama.classifier.output_labels": ["y", ""]}
        write_gguf(path, {**file.metadata, **metadata}, {**tensors, "cls.output.weight": head})
    return path


def run(*args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(embedding.command, [*map(str, args)])
    return result.exit_code, result.stdout, result.stderr


def wanted(model: Path, pooling: str, *texts: str, causal: bool = True) -> list[np.ndarray]:
    loaded = Model.load(model)
    context = Context(loaded, n_ctx=64, overrides=Overrides(causal=causal))
    encode = loaded.tokenizer.encode
    return embed_many(Engine(context), [encode(t, parse_special=True) for t in texts], pooling)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("p", only([-1, 0, 1, 2, 3], [-1, 2]))
def test_numbers_of_one_text(model: Path, pooling: str, p: int) -> None:
    (row,) = wanted(model, pooling, "a cat")
    args = ("-m", model, "-p", "a cat", "--pooling", pooling, "--embd-normalize", p)
    code, out, _ = run(*args, "--embd-output-format", "raw")
    assert code == 0 and out.count("\n") == 1
    assert np.allclose([*map(float, out.split())], normalize(row, p), atol=0.5 if p == 0 else 1e-6)
    code, out, _ = run(*args)
    form = "6.0f" if p == 0 else "9.6f"
    assert out == "embedding 0: " + "".join(f"{x:{form}} " for x in normalize(row, p)) + "\n"


def test_similarities_of_several_texts(model: Path, tmp_path: Path) -> None:
    rows = wanted(model, "mean", *TEXTS)
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    code, out, err = run("-m", model, "-f", path, "--pooling", "mean", "-np", 2)
    lines = out.splitlines()
    assert code == 0 and "3 texts" in err
    assert [line.split(":")[0] for line in lines[:3]] == [f"embedding {i}" for i in range(3)]
    assert len(lines[0].split()) == 2 + 16
    assert lines[3:7] == ["", "cosine similarity matrix:", "", " a cat  a dog Paris  "]
    similarities = [f"{cosine_similarity(rows[1], row):6.2f} " for row in rows]
    assert lines[8] == "".join(similarities) + "a dog" and lines[9].endswith(" Paris is a")


def test_json(model: Path) -> None:
    args = ("-m", model, "-p", "<#>".join(TEXTS), "--embd-separator", "<#>", "--pooling", "last")
    rows = [normalize(row) for row in wanted(model, "last", *TEXTS)]
    for form in ("json", "json+", "array"):
        code, out, _ = run(*args, "--embd-output-format", form)
        found = json.loads(out)
        assert code == 0
        if form != "array":
            assert [one["index"] for one in found["data"]] == [0, 1, 2]
            assert ("cosineSimilarity" in found) == (form == "json+")
            got = [one["embedding"] for one in found["data"]]
        else:
            got = found
        assert np.allclose(got, rows, atol=1e-6)
    assert json.loads(run(*args[:3], "a", "--embd-output-format", "json+")[1]).keys() == {
        "object", "data",
    }  # fmt: skip


def test_the_rows_of_all_tokens(model: Path) -> None:
    args = ("-m", model, "-p", r"a cat\na")  # the model says no pooling
    rows = np.concatenate(wanted(model, "none", "a cat", "a"))
    code, out, _ = run(*args, "--embd-output-format", "array", "--embd-normalize", -1)
    assert code == 0 and np.allclose(json.loads(out), rows, atol=1e-6)
    lines = run(*args)[1].splitlines()
    assert len(lines) == len(rows) and all(" ... " in line for line in lines)


def test_attention(model: Path) -> None:
    args = ("-m", model, "-p", "a cat", "--pooling", "cls", "--embd-output-format", "raw")
    code, out, _ = run(*args, "--attention", "non-causal", "-ub", 1)
    (row,) = wanted(model, "cls", "a cat", causal=False)
    assert code == 0 and np.allclose([*map(float, out.split())], normalize(row), atol=1e-6)
    assert out != run(*args, "--attention", "causal")[1]


def test_scores(reranker: Path) -> None:
    pairs = ["an animal?\ta cat", "an animal?\tParis"]
    context = Context(Model.load(reranker), n_ctx=64)
    scores = rerank(Engine(context), "an animal?", ["a cat", "Paris"])
    code, out, _ = run("-m", reranker, "-p", "\n".join(pairs))
    lines = out.splitlines()
    assert code == 0 and len(lines) == 4
    assert lines[0] == f"rerank score 0: {scores[0]:8.3f} [y]" and lines[3].endswith(" [1]")
    args = ("-p", "|".join(pairs).replace("\t", "#"), "--embd-separator", "|")
    code, out, _ = run(
        "-m", reranker, *args, "--cls-separator", "#", "--embd-output-format", "array"
    )
    assert np.allclose([row[0] for row in json.loads(out)], scores, atol=1e-6)
    code, _, err = run("-m", reranker, "-p", "a\tb\tc")
    assert code == 2 and "text 0 has 3 parts" in err


def test_wrong_command_lines(model: Path) -> None:
    for args, code, message in (
        ((), 2, "give the texts with -p or -f"),
        (("-p", "a", "--embd-separator", ""), 2, "a separator cannot be empty"),
        (("-p", "a", "--pooling", "max"), 2, "--pooling"),
        (("-p", "a", "--embd-normalize", "-2"), 2, "--embd-normalize"),
        (("-p", "a", "--pooling", "rank"), 1, "no classification head"),
        (("-p", "a cat", "-c", "2"), 1, "--ctx-size"),
        (("-p", "a cat", "-c", "2", "--attention", "non-causal"), 1, "--ctx-size"),
    ):
        got, out, err = run("-m", model, *args)
        assert (got, out) == (code, "") and message in err, (args, err)
