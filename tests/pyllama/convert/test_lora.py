"""PEFT's adapters: the logits of PEFT, the file of llama.cpp's converter, its tokens; refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile
from pyllama import Batch, Context, Model
from pyllama.arch import get_arch
from pyllama.convert import convert, convert_lora
from pyllama.convert.plan import name_finder
from pyllama.errors import ModelError
from pyllama.runtime.adapters import load_lora

from ..arch.checkpoints import recorded, variants, write_checkpoint, write_safetensors
from ..arch.llama_cpp import generate, plain_words, serve

F32 = GGMLType.F32
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
NAMES = ("llama", "qwen2", "gemma3")
TARGETS: dict[str, tuple[list[str], str]] = {  # by variant, and the name of the embedding
    **dict.fromkeys((*NAMES, "hrm_text"), (LINEAR, "embed_tokens")),  # the last has two stacks
    "gpt2": (["c_attn", "c_proj", "c_fc", "lm_head"], "wte"),  # transposed, but not the last one
    "qwen35_text": (
        ["in_proj_qkv", "in_proj_z", "out_proj", "q_proj", "down_proj"],
        "embed_tokens",
    ),
    "falcon_h1": (["in_proj", "q_proj", "k_proj", "gate_proj", "lm_head"], "embed_tokens"),
}


def settings(**more: Any) -> dict[str, Any]:
    return {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", **more}


def write_folder(folder: Path, tensors: dict[str, np.ndarray], **more: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(settings(**more)))
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return folder


def random_adapter(seed: int = 0) -> dict[str, np.ndarray]:
    """An adapter of the variant ``llama``: queries and values of the first two layers."""
    rng, made = np.random.default_rng(seed), {}
    for i in range(2):
        for part, n in (("q", 64), ("v", 32)):
            stem = f"base_model.model.model.layers.{i}.self_attn.{part}_proj"
            made[f"{stem}.lora_A.weight"] = rng.standard_normal((4, 64)).astype(np.float32) / 8
            made[f"{stem}.lora_B.weight"] = rng.standard_normal((n, 4)).astype(np.float32) / 4
    return made


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base") / "llama", "llama")


def test_files_that_are_read_are_not_replaced(tmp_path: Path, base: Path) -> None:
    folder = write_folder(tmp_path / "x", random_adapter())
    for path in (folder / "adapter_model.safetensors", base / "config.json"):
        before = path.read_bytes()
        with pytest.raises(ModelError, match="is a file of the checkpoint; choose another name"):
            convert_lora(folder, base, path)
        assert path.read_bytes() == before


@pytest.mark.filterwarnings("ignore")  # of PEFT and transformers
@pytest.mark.parametrize("name", TARGETS)
def test_logits_of_peft(tmp_path: Path, name: str) -> None:
    peft = pytest.importorskip("peft")
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    folder, tokens = write_checkpoint(tmp_path / name, name), recorded(name)["tokens"].tolist()
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    linear, embedding = TARGETS[name]
    options: dict[str, Any] = {"r": 8, "lora_alpha": 24, "target_modules": linear}
    more = {"use_rslora": True, "r": 4, "target_modules": [*linear, embedding],
            "rank_pattern": {linear[0]: 6}, "alpha_pattern": {linear[-1]: 3}}  # fmt: skip
    model = peft.get_peft_model(reference, peft.LoraConfig(**options), "one")
    model.add_adapter("two", peft.LoraConfig(**options | more))
    with torch.no_grad():
        for key, x in model.named_parameters():
            if "lora_" in key:
                x.copy_(torch.randn_like(x) * 0.3 / x.shape[-1] ** 0.5)
    model.save_pretrained(tmp_path / "peft")
    loaded = Model.load(convert(folder, tmp_path / "x.gguf", "f32"))
    order = ["one", "two"]
    files = [convert_lora(tmp_path / "peft" / x, folder, tmp_path / f"{x}.gguf") for x in order]
    loras = [load_lora(file, loaded) for file in files]

    def theirs(**scales: float) -> np.ndarray:
        model.base_model.set_adapter(list(scales))
        for adapter, scale in scales.items():
            for module in model.modules():
                if hasattr(module, "set_scale") and adapter in module.scaling:
                    module.set_scale(adapter, scale)
        with torch.inference_mode():
            result: np.ndarray = model(torch.tensor([tokens])).logits[0].numpy()
        return result

    context = Context(loaded, n_ctx=64, type_k=F32, type_v=F32)
    context.set_adapters(loras)
    results = []
    for scales in ({"one": 1.0}, {"one": 0.5}, {"two": 1.0}, {"one": 0.5, "two": 0.75}):
        context.reset()
        factors = {loras[order.index(x)]: scale for x, scale in scales.items()}
        context.decode(Batch(tokens, logits="all", adapters=context.scales(factors)))
        results.append(context.logits.copy())
        assert np.abs(results[-1] - theirs(**scales)).max() < 1e-4
    assert all(np.abs(x - results[0]).max() > 0.05 for x in results[1:])


@pytest.mark.parametrize(
    ("name", "module", "ours"),
    [
        ("kimi-linear", "self_attn.forget_gate.f_a_proj", "ssm_f_a"),
        ("kimi-linear", "mlp.shared_experts.up_proj", "ffn_up_shexp"),
        ("hy_v3", "mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ],
)
def test_modules_that_have_other_names_in_checkpoints(name: str, module: str, ours: str) -> None:
    find = name_finder(get_arch(name), variants()[name][1])
    assert find(f"model.layers.1.{module}.weight") == (f"blk.1.{ours}.weight", -1)


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp_s_tokens(tmp_path: Path, name: str) -> None:
    pytest.importorskip("xllamacpp")
    folder, tokens = write_checkpoint(tmp_path / name, name), recorded(name)["tokens"].tolist()
    path = convert(folder, tmp_path / "x.gguf", "f32")
    model = Model.load(path)
    heads = variants()[name][1]
    q = heads["num_attention_heads"] * heads.get("head_dim", 16)
    rng, made = np.random.default_rng(3), {}
    for i in range(heads["num_hidden_layers"]):
        for part, n_in, n_out in (("self_attn.q_proj", 64, q), ("mlp.up_proj", 64, 160)):
            stem = f"base_model.model.model.layers.{i}.{part}"
            made[f"{stem}.lora_A.weight"] = rng.standard_normal((4, n_in)).astype("f4") / 8
            made[f"{stem}.lora_B.weight"] = rng.standard_normal((n_out, 4)).astype("f4") / 4
    lora = convert_lora(write_folder(tmp_path / "lora", made), folder, tmp_path / "l.gguf")
    context = Context(model, n_ctx=128, type_k=F32, type_v=F32)
    context.set_adapters([load_lora(lora, model)])
    context.apply({context.adapters[0]: 1.0})
    greedy, rest = [], tokens
    for _ in range(16):
        context.decode(Batch(rest))
        rest = [int(context.logits_ith(-1).argmax())]
        greedy += rest
    server = serve(plain_words(path), lora=(str(lora), 1.0))
    assert generate(server, tokens, 16)[0] == greedy
    assert greedy != recorded(name)["greedy"].tolist()[:16]


@pytest.mark.skipif("LLAMA_CPP_SOURCES" not in os.environ, reason="needs llama.cpp's sources")
@pytest.mark.parametrize("alora", [False, True])
def test_the_file_of_llama_cpp_s_converter(tmp_path: Path, base: Path, alora: bool) -> None:
    more: dict[str, Any] = {"alora_invocation_tokens": [5, 6, 7]} if alora else {}
    folder = write_folder(tmp_path / "my-lora-v1", random_adapter(), **more)
    sources = Path(os.environ["LLAMA_CPP_SOURCES"])
    theirs = tmp_path / "theirs.gguf"
    path = os.pathsep.join(map(str, (sources, sources / "gguf-py")))
    script, env = sources / "convert_lora_to_gguf.py", {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-P", script, folder, "--base", base, "--outfile", theirs]
    subprocess.run(command, check=True, capture_output=True, env=env)
    ours = convert_lora(folder, base, tmp_path / "ours.gguf")
    a, b = GGUFFile(theirs), GGUFFile(ours)
    assert {k: np.asarray(v).tolist() for k, v in a.metadata.items()} == {
        k: np.asarray(v).tolist() for k, v in b.metadata.items()
    }
    assert a.value_types == b.value_types
    assert {n: (i.type, i.ne) for n, i in a.tensors.items()} == {
        n: (i.type, i.ne) for n, i in b.tensors.items()
    }
    for tensor in a.tensors:
        assert np.array_equal(a.tensor_bytes(tensor), b.tensor_bytes(tensor))


@pytest.mark.parametrize("outtype", ["f16", "bf16", "q8_0", "auto"])
def test_types(tmp_path: Path, base: Path, outtype: str) -> None:
    folder = write_folder(tmp_path / "lora", random_adapter())
    file = GGUFFile(convert_lora(folder, base, tmp_path / "x-{ftype}.gguf", outtype))
    found = {name[-6:]: info.type.name for name, info in file.tensors.items()}
    wanted = {"q8_0": {"lora_a": "Q8_0", "lora_b": "F16"}, "f16": dict.fromkeys(found, "F16")}
    assert found == wanted.get(outtype, dict.fromkeys(found, "BF16"))
    default = convert_lora(folder, base, dry_run=True)
    assert default.parent == folder and not default.exists()


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "DoRA": ({"use_dora": True}, {}, "DoRA"),
    "magnitudes": ({}, {"base_model.model.x.lora_magnitude_vector": (4,)}, "DoRA is not supported"),
    "modules": ({"modules_to_save": ["lm_head"]}, {}, "modules_to_save"),
    "embeddings": (
        {}, {"base_model.model.model.embed_tokens.weight": (600, 64)}, "embeddings of another size",
    ),
    "method": ({"peft_type": "IA3"}, {}, "peft_type is 'IA3'"),
    "biases": ({"bias": "all"}, {}, "trained biases"),
    "layers": ({"layer_replication": [[0, 2], [1, 3]]}, {}, "layer_replication"),
    "base's parts": ({"init_lora_weights": "pissa_niter_4"}, {}, "'pissa_niter_4', which changes"),
    "alpha": ({"lora_alpha": None}, {}, "lora_alpha is None"),
    "rank": ({"r": 0}, {}, "r is 0"),
    "pair": (
        {}, {"base_model.model.model.layers.2.mlp.up_proj.lora_A.weight": (4, 64)}, "lora_B of",
    ),
    "base": ({}, {f"base_model.model.blocks.0.w.lora_{x}.weight": (4, 4) for x in "AB"}, "unknown"),
    "sizes": (
        {}, {"base_model.model.model.layers.2.mlp.up_proj.lora_A.weight": (4, 64),
             "base_model.model.model.layers.2.mlp.up_proj.lora_B.weight": (160, 3)},
        "do not multiply",
    ),
    "invocation": ({"invocation_string": "<x>"}, {}, "alora_invocation_tokens"),
    "slow pattern": ({"alpha_pattern": {"(a+)+": 4}}, {}, "repeats too much"),
    "long pattern": ({"rank_pattern": {".*a.*b.*c.*": 4}}, {}, "repeats too much"),
    "bad pattern": ({"alpha_pattern": {"(": 4}}, {}, "is no pattern"),
    "bad alpha": ({"alpha_pattern": {"up_proj": "x"}}, {}, "want a number"),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_refusals_are_one_line(tmp_path: Path, base: Path, fault: str) -> None:
    more, shapes, message = REFUSED[fault]
    tensors = random_adapter() | {n: np.ones(shape, np.float32) for n, shape in shapes.items()}
    folder = write_folder(tmp_path / "lora", tensors, **more)
    with pytest.raises(ModelError, match=message) as error:
        convert_lora(folder, base, tmp_path / "x.gguf")
    assert "\n" not in str(error.value) and not (tmp_path / "x.gguf").exists()


def test_the_base_must_be_found(tmp_path: Path, base: Path) -> None:
    folder = write_folder(tmp_path / "lora", random_adapter(), base_model_name_or_path="a/b")
    with pytest.raises(ModelError, match="the base 'a/b' is no folder here"):
        convert_lora(folder)
    with pytest.raises(ModelError, match="adapter_config"):
        convert_lora(base)
