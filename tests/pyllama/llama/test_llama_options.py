"""`Llama` on a fake context: names, and the implemented options of llama-cpp-python."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyllama import Model
from pyllama.errors import ModelError, NotSupported, PyllamaError
from pyllama.llama import arguments
from pyllama.llama.llama import Llama
from pyllama.llama.tokenizer import BaseLlamaTokenizer
from pyllama.runtime.overrides import Overrides

from ..adapters import adaptable, merge, random_terms, write_lora
from ..fake_context import BOS, EOS, ids, text_of
from ..models import Spec, random_weights, write_model


def test_tokens_and_names(reciting: Any) -> None:
    llama = reciting(n_ctx=0, last_n_tokens_size=8)
    assert (llama.n_ctx(), llama.n_embd(), llama.n_vocab()) == (512, 8, 260)
    assert (llama.token_bos(), llama.token_eos(), llama.token_nl()) == (1, 2, 3 + 10)
    assert llama.tokenize(b"hi") == ids("hi")
    assert llama.tokenize(b"<s>", add_bos=False, special=True) == [BOS]
    assert len(llama.tokenize(b"<s>", add_bos=False)) == 3
    assert llama.detokenize([BOS, *llama.tokenize(b" x", add_bos=False)]) == b"x"
    assert llama.detokenize([EOS], special=True) == b"</s>"
    assert llama.tokenizer().decode(llama.tokenizer().encode("naïv")) == "naïv"
    assert llama.metadata["fake.n"] == "7" and llama.metadata["fake.eps"] == "0.000010"
    assert llama.metadata["fake.flag"] == "true" and llama.metadata["general.name"] == "fake"
    assert "tokenizer.ggml.tokens" not in llama.metadata


def test_vocab_only_and_closed(reciting: Any) -> None:
    llama = reciting(vocab_only=True)
    assert llama.tokenize(b"x") and llama.n_ctx() == 64
    with pytest.raises(ModelError, match="vocab_only"):
        llama.eval([5])
    with reciting() as llama:
        model, context = llama.model, llama.context
    assert model.closed and context.closed
    with pytest.raises(ModelError, match="closed"):
        llama("x")
    llama.close()
    llama.__del__()


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist") as error:
        Llama(str(tmp_path / "none.gguf"))
    assert isinstance(error.value, PyllamaError)


def test_arguments_that_cannot_be_obeyed(reciting: Any) -> None:
    assert reciting(type_k=0, type_v=2).context.types == (GGMLType.F32, GGMLType.Q4_0)
    reciting(type_k=1, chat_format="chatml", flash_attn=True)
    for options in (
        {"pooling_type": 5},
        {"attention_type": 2},
        {"rope_scaling_type": 4},
        {"type_k": 12},
        {"type_v": 99},
        {"split_mode": 2},
    ):
        with pytest.raises(NotSupported, match=next(iter(options))):
            reciting(**options)
    with pytest.raises(ValueError, match="did you mean chatglm4"):
        reciting(chat_format="chatlm")
    for embed in (reciting().embed, reciting().create_embedding):
        with pytest.raises(RuntimeError, match="must be created with embedding=True"):
            embed("The cat")


def test_unknown_arguments_are_ignored_with_one_warning(
    reciting: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """LangChain sends some that llama-cpp-python has removed."""
    assert built(reciting(n_parts=-1, f16_kv=True, n_thread=2)) == built(reciting())
    (line,) = (record.getMessage() for record in caplog.records)
    assert "n_parts, f16_kv, n_thread (did you mean n_threads?)" in line


class Upper(BaseLlamaTokenizer):
    """Writes capitals."""

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        return [3 + byte for byte in text.upper()]

    def detokenize(
        self, tokens: list[int], prev_tokens: Any = None, special: bool = False
    ) -> bytes:
        return bytes(token - 3 for token in tokens if token > 2)


def test_a_tokenizer_of_ones_own(reciting: Any) -> None:
    llama = reciting(tokenizer=Upper())
    assert llama.detokenize(llama.tokenize(b"abc")) == b"ABC"
    llama("xy", max_tokens=1)
    assert llama.input_ids[:3].tolist() == [BOS, 3 + ord("X"), 3 + ord("Y")]
    assert llama.tokenizer().decode(llama.tokenizer().encode("abc")) == "abc"


# For each parameter that is obeyed, a value other than its default.
OBEYED: dict[str, Any] = {
    "vocab_only": True, "use_mmap": False, "use_mlock": True, "kv_overrides": {"fake.n": 8},
    "seed": 7, "n_ctx": 32, "n_batch": 16, "n_ubatch": 16, "n_threads": 2, "n_threads_batch": 3,
    "rope_scaling_type": 2, "rope_freq_base": 5e5, "rope_freq_scale": 0.5, "yarn_ext_factor": 0.5,
    "yarn_attn_factor": 2.0, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0, "yarn_orig_ctx": 99,
    "logits_all": True, "swa_full": True, "no_perf": True, "last_n_tokens_size": 8,
    "chat_format": "chatml", "chat_handler": print, "type_k": 0, "type_v": 0, "sparse": "off",
    "sparse_threshold": 0.5, "draft_model": "suffix", "spm_infill": True, "verbose": True,
    "n_gpu_layers": -1, "split_mode": 0, "main_gpu": 1, "tensor_split": [0.5, 0.5],
    "offload_kqv": False, "pooling_type": 1, "attention_type": 1, "embedding": True,
    "ctx_checkpoints": 3, "checkpoint_every_n_tokens": 64,
    "moe_cache_mib": 64.0, "kv_keep": 16, "kv_window": 4,
}  # fmt: skip
ELSEWHERE = ("tokenizer", "lora_path", "lora_scale")  # tested on their own
# For each that is refused or warned of, some such values.
NOT_OBEYED: dict[str, tuple[Any, ...]] = {
    "op_offload": (True,), "numa": (True, 1, 2),
}  # fmt: skip


def test_each_parameter_is_obeyed_or_in_a_table() -> None:
    parameters = {*inspect.signature(Llama).parameters} - {"model_path", "kwargs"}
    tables = (
        {*OBEYED, *ELSEWHERE},
        {*arguments.WITHOUT_EFFECT},
        {*arguments.IGNORED},
    )
    for name in parameters:
        assert sum(name in table for table in tables) == 1, name
    assert {*OBEYED, *NOT_OBEYED, *ELSEWHERE} == parameters - {*arguments.IGNORED}


def built(llama: Llama) -> dict[str, Any]:
    """The arguments that model and context got from a `Llama`'s options."""
    made: Any = {name: getattr(llama, name) for name in ("metadata", "chat_handler")}
    made |= {k: v for k, v in vars(llama).items() if isinstance(v, (bool, int, float, str))}
    made |= {"load": vars(llama.model)["given"], "pooling": llama.pooling_type()}
    if llama._held is not None:
        made |= {"context": vars(llama.context)["given"], "all": llama._held.logits_all}
        made |= {"drafter": llama.speculation and type(llama.speculation.drafter)}
    return {key: repr(value) for key, value in made.items()}


@pytest.mark.parametrize("name", OBEYED)
def test_a_parameter_reaches_model_or_context(
    reciting: Any, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    assert built(reciting(**{name: OBEYED[name]})) != built(reciting())
    assert not caplog.records


@pytest.mark.parametrize("name", NOT_OBEYED)
def test_a_parameter_that_is_not_obeyed_says_so(
    reciting: Any, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    plain = built(reciting())
    for value in NOT_OBEYED[name]:
        assert built(reciting(**{name: value})) == plain
        (line,) = (record.getMessage() for record in caplog.records)
        assert line.startswith(f"Llama: {name}={value!r} has no effect: ")
        caplog.clear()
    for value in arguments.WITHOUT_EFFECT[name].same:
        assert built(reciting(**{name: value})) == plain and not caplog.records


@pytest.mark.parametrize(
    "name", sorted(arguments.IGNORED.keys() & {*inspect.signature(Llama).parameters})
)
def test_an_ignored_parameter_has_no_effect(
    reciting: Any, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    default = inspect.signature(Llama).parameters[name].default
    other = 0.5 if isinstance(default, float) else not default
    assert built(reciting(**{name: other})) == built(reciting()) and not caplog.records


def test_rope_of_the_context(reciting: Any) -> None:
    as_the_model = [
        {},
        {"rope_scaling_type": None},
        {"rope_scaling_type": -1, "rope_freq_base": 0.0, "yarn_ext_factor": -1.0},
        {"yarn_attn_factor": -1.0, "yarn_beta_fast": -1.0, "yarn_beta_slow": -1.0},
    ]
    for options in as_the_model:
        assert reciting(**options).context.overrides == Overrides()
    given = {
        "rope_freq_base": 5e5, "rope_freq_scale": 0.5, "yarn_ext_factor": 0.0,
        "yarn_attn_factor": 2.0, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0, "yarn_orig_ctx": 99,
    }  # fmt: skip
    llama = reciting(rope_scaling_type=2, **given)
    assert llama.context.overrides == Overrides(rope_scaling="yarn", **given)


def test_only_a_verbose_one_prints(reciting: Any, capfd: pytest.CaptureFixture[str]) -> None:
    reciting()("The cat", temperature=0)
    assert capfd.readouterr() == ("", "")
    llama = reciting(verbose=True)
    llama("The cat", temperature=0)
    list(llama("The cat", temperature=0, stream=True))
    out, err = capfd.readouterr()
    assert out == "" and "fake 1K F32" in err and "prefix-match hit" in err
    assert err.count("prompt eval time") == 2


def test_huge_scores_are_not_allocated_until_read(reciting: Any) -> None:
    llama = reciting(n_ctx=1 << 24)
    assert text_of(llama("The cat", max_tokens=4, temperature=0)) == " sat"
    assert llama._scores_kept._rows is None


def test_the_defaults_are_llama_cpp_pythons() -> None:
    signature = inspect.signature(Llama).parameters
    given = {"n_ctx": 512, "n_batch": 512, "n_ubatch": 512, "seed": 0xFFFFFFFF, "verbose": True,
             "last_n_tokens_size": 64, "use_mmap": True, "logits_all": False}  # fmt: skip
    assert {name: signature[name].default for name in given} == given
    positional = list(inspect.signature(Llama.create_completion).parameters)[1:9]
    assert positional == [
        "prompt", "suffix", "max_tokens", "temperature", "top_p", "min_p", "typical_p", "logprobs",
    ]  # fmt: skip


def test_an_adapter(tmp_path: Path) -> None:
    spec = Spec()
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec))
    terms: Any = random_terms(adaptable(Model.load(path)), spec.n_vocab, size=2.0)
    lora = write_lora(tmp_path / "a.gguf", "llama", terms, 8)
    plain, changed, half = (
        Llama(path, n_ctx=64, logits_all=True, verbose=False, **given)
        for given in ({}, {"lora_path": str(lora)}, {"lora_path": str(lora), "lora_scale": 0.5})
    )
    for llama in (plain, changed, half):
        llama.eval([1, 70, 71, 72])
    merged = Llama(merge(tmp_path / "m.gguf", path, [(terms, 2.0)]), n_ctx=64, logits_all=True)
    merged.eval([1, 70, 71, 72])
    assert np.abs(changed.scores[:4] - merged.scores[:4]).max() < 5e-3  # an F16 cache
    assert np.abs(half.scores[:4] - plain.scores[:4]).max() > 0.01
    for scale in (float("nan"), "x"):
        with pytest.raises(ModelError, match=f"the scale is {scale}, want"):
            Llama(path, lora_path=str(lora), lora_scale=scale)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="no LoRA adapter"):
        Llama(path, lora_path=str(path))
