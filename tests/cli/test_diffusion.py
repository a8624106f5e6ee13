"""``pyllama-diffusion`` on a tiny model: the text of `unmask`, messages, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pyllama import Context, Model
from pyllama.convert import convert
from pyllama.diffusion import unmask
from pyllama.parameters.diffusion import DiffusionParams
from pyllama.sampling import SamplingParams
from pyllama_cli.commands import completion, diffusion, serve
from tests.pyllama.diffusion.checkpoints import write_checkpoint
from tests.pyllama.diffusion.variants import MASK
from tests.pyllama.models import Spec, random_weights, write_model

PROMPT = "Hello there"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("x")
    return convert(write_checkpoint(folder / "dream", "dream"), folder / "x.gguf", "f32")


def run(command: Any, path: Path, *args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, ["-m", str(path), "-t", "1", *args])
    return result.exit_code, result.stdout, result.stderr


def text_of(path: Path, params: DiffusionParams, sampling: SamplingParams) -> str:
    model = Model.load(path)
    prompt = model.tokenizer.encode(PROMPT, add_special=True)
    *_, last = unmask(Context(model, n_ubatch=32), prompt, params, sampling)
    assert MASK not in last.tokens
    return model.tokenizer.decode(last.tokens[len(prompt) :]) + "\n"


def test_the_text_and_its_time(path: Path) -> None:
    flags = ["-ub", "32", "--diffusion-eps", "0.001", "--diffusion-steps", "6", "--temp", "0"]
    code, out, err = run(diffusion.command, path, "-p", PROMPT, *flags)
    wanted = text_of(path, DiffusionParams(eps=0.001, steps=6), SamplingParams(temp=0.0))
    assert code == 0 and out == wanted
    assert " tokens in 6 steps and " in err


def test_all_parameters(path: Path) -> None:
    flags = [
        *("-ub", "32", "--diffusion-block-length", "16", "--diffusion-steps", "8"),
        *("--diffusion-algorithm", "2", "--diffusion-alg-temp", "0.3", "--diffusion-cfg-scale"),
        *("0.5", "--diffusion-add-gumbel-noise", "1", "-s", "5", "--temp", "0.9"),
        *("--top-k", "9", "--top-p", "0.8", "--diffusion-visual"),
    ]
    params = DiffusionParams(
        block_length=16, steps=8, algorithm=2, alg_temp=0.3, cfg_scale=0.5, add_gumbel_noise=True
    )
    sampling = SamplingParams(seed=5, temp=0.9, top_k=9, top_p=0.8)
    code, out, err = run(diffusion.command, path, "-p", PROMPT, *flags)
    assert code == 0 and out == text_of(path, params, sampling)
    assert "\033" not in err  # not a terminal


def test_visual_in_a_terminal(path: Path) -> None:
    shown: list[str] = []
    model = Model.load(path)
    show = diffusion._screen(model, MASK, 1, shown.append)
    show("step 1 of 2", [5, MASK, 40])
    assert shown == [f"\033[2J\033[Hstep 1 of 2\n {model.tokenizer.decode([40])}\n"]


def test_messages(path: Path) -> None:
    flags = ["-ub", "64", "--diffusion-block-length", "32", "--diffusion-steps", "4", "-p", "Hi"]
    plain, message = (run(diffusion.command, path, *flags, flag) for flag in ("-no-cnv", "-cnv"))
    assert plain[0] == message[0] == 0 and plain[1] != message[1]
    code, _, err = run(diffusion.command, path, *flags, "-sys", "Be brief.")
    assert code == 2 and "add -cnv" in err


def test_refusals(path: Path, tmp_path: Path) -> None:
    code, _, err = run(diffusion.command, path, "-p", "x", "-ub", "32")
    assert code == 1 and "eps or block_length must be above 0" in err.splitlines()[-1]
    spec = Spec()
    causal = write_model(tmp_path / "x.gguf", spec, random_weights(spec))
    code, _, err = run(diffusion.command, causal, "-p", "x", "--diffusion-eps", "0.1")
    assert code == 1 and "no diffusion model" in err and "use pyllama-cli" in err.splitlines()[-1]
    code, _, err = run(completion.command, path, "-p", "x", "-n", "4", "-no-cnv")
    assert code == 1 and "use pyllama-diffusion" in err.splitlines()[-1]


def test_the_server_refuses_it_or_gives_embeddings(path: Path) -> None:
    from pyllama.errors import ModelError
    from pyllama.server.request.options import ServerOptions

    model = Model.load(path)
    with pytest.raises(ModelError, match=r"use pyllama-diffusion, or --embeddings"):
        serve.ServeOptions().how_pooled(ServerOptions(), model)
    assert serve.ServeOptions(embedding=True).how_pooled(ServerOptions(), model) == "none"
