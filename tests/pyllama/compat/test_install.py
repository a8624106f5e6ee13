"""`pyllama.compat.install`: names of llama-cpp-python, and scripts that need nothing changed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pyllama
from pyllama import compat
from pyllama.errors import NotSupported, TemplateError
from pyllama.llama.chat_handlers import LlamaChatCompletionHandlerRegistry
from pyllama.runtime.devices import gpu_devices

from ...tiers import some
from ..fake_context import text_of

HI = [{"role": "user", "content": "hi"}]


def test_modules_and_names(llama_cpp: Any) -> None:
    import importlib

    from_module = importlib.import_module
    assert compat.install() is llama_cpp is from_module("llama_cpp")
    assert llama_cpp.Llama is pyllama.Llama is from_module("llama_cpp.llama").Llama
    for module, name in (
        ("llama_grammar", "LlamaGrammar"), ("llama_cache", "LlamaDiskCache"),
        ("llama_tokenizer", "LlamaHFTokenizer"), ("llama_speculative", "LlamaDraftModel"),
        ("llama_types", "ChatCompletionRequestMessage"), ("llama_types", "CompletionChunk"),
        ("llama_chat_format", "Jinja2ChatFormatter"), ("_internals", "LlamaModel"),
        ("llama_cpp", "llama_log_set"),
    ):  # fmt: skip
        assert getattr(from_module(f"llama_cpp.{module}"), name)
    for name in ("LlamaCache", "LlamaRAMCache", "LogitsProcessorList", "StoppingCriteriaList"):
        assert getattr(llama_cpp, name)
    assert llama_cpp.__version__ == "0.3.36"


def test_constants_and_the_c_api(llama_cpp: Any) -> None:
    assert llama_cpp.LLAMA_POOLING_TYPE_MEAN == 1 and llama_cpp.LLAMA_SPLIT_MODE_LAYER == 1
    assert llama_cpp.GGML_TYPE_Q8_0 == 8 and llama_cpp.LLAMA_FTYPE_MOSTLY_BF16 == 32
    assert llama_cpp.LLAMA_ROPE_SCALING_TYPE_YARN == 2
    assert llama_cpp.llama_supports_mmap()
    assert llama_cpp.llama_supports_gpu_offload() is bool(gpu_devices())
    llama_cpp.llama_log_set(llama_cpp.llama_log_callback(print), None)
    for call in (
        llama_cpp.llama_model_default_params,
        llama_cpp.llama_cpp.llama_decode,
        llama_cpp._internals.LlamaBatch,
    ):
        with pytest.raises(NotSupported, match="C API does not exist in pyllama"):
            call()
    with pytest.raises(NotSupported, match="Llava15ChatHandler: only text models"):
        llama_cpp.llama_chat_format.Llava15ChatHandler(clip_model_path="x")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(llama_cpp, "no" + "thing")


def test_texts_of_tokens_by_the_c_api(llama_cpp: Any, model_path: Path) -> None:
    llama = llama_cpp.Llama(str(model_path), vocab_only=True, verbose=False)
    vocab, buffer = llama_cpp.llama_model_get_vocab(llama.model), (ctypes.c_char * 32)()
    for token in range(llama.n_vocab()):
        n = llama_cpp.llama_token_to_piece(vocab, token, buffer, 32, 0, True)
        assert buffer[:n] == llama.model.tokenizer.token_to_piece(token, True)
        assert llama_cpp.llama_token_to_piece(vocab, token, buffer, 0, 0, True) == -n
    space = next(t for t in range(llama.n_vocab()) if vocab.token_to_piece(t) == b" ")
    assert llama_cpp.llama_token_to_piece(vocab, space, buffer, 32, 0, True) == 1
    assert llama_cpp.llama_token_to_piece(vocab, space, buffer, 32, 1, True) == 0


def test_after_llama_cpp_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", ModuleType("llama_cpp"))
    with pytest.raises(ImportError, match="call install"):
        compat.install()


def test_sources_of_its_server(llama_cpp: Any, tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="no subpackage server"):
        compat.install(tmp_path)
    (tmp_path / "llama_cpp" / "server").mkdir(parents=True)
    (tmp_path / "llama_cpp" / "server" / "__init__.py").write_text("import llama_cpp\nX = 5\n")
    compat.install(tmp_path)
    from importlib import import_module

    assert import_module("llama_cpp.server").X == 5
    llama_cpp.__path__.remove(str(tmp_path / "llama_cpp"))


def test_handlers_of_ones_own(llama_cpp: Any, reciting: Any) -> None:
    formats = llama_cpp.llama_chat_format

    @formats.register_chat_format("cat")
    def cat(messages: Any, **options: Any) -> Any:
        assert options["tools"] is None and options["colour"] == "grey"
        return formats.ChatFormatterResponse(prompt="The cat", stop="on")

    try:
        llama = reciting(chat_format="cat", n_ctx=128)
        handler = formats.get_chat_completion_handler("cat")
        whole = handler(llama=llama, messages=HI, temperature=0, colour="grey", repeat_penalty=1.0)
        assert whole["choices"][0]["message"] == {"role": "assistant", "content": " sat "}
        assert whole["object"] == "chat.completion" and whole["usage"]["prompt_tokens"] == 8
        chunks = handler(llama=llama, messages=HI, temperature=0, colour="grey", stream=True)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert deltas[0] == {"role": "assistant"} and deltas[-1] == {}
        assert "".join(delta.get("content", "") for delta in deltas) == " sat "
        with pytest.raises(TemplateError, match="already"):
            formats.register_chat_format("cat")(cat)
    finally:
        LlamaChatCompletionHandlerRegistry().unregister_chat_handler("cat")
    with pytest.raises(formats.LlamaChatCompletionHandlerNotFoundException, match="no chat format"):
        formats.get_chat_completion_handler("cat")(llama=llama, messages=HI)
    reply = formats.get_chat_completion_handler("chatml")(llama=llama, messages=HI, max_tokens=1)
    assert reply["choices"][0]["message"]["role"] == "assistant"


def test_templates_as_formatters(llama_cpp: Any) -> None:
    made = llama_cpp.llama_chat_format.Jinja2ChatFormatter(
        "{{ bos_token }}{{ messages[0].content }}{{ mood }}{{ '>' if add_generation_prompt }}",
        eos_token="</s>", bos_token="<s>", stop_token_ids=[2],
    )(messages=HI, mood="!")  # fmt: skip
    assert (made.prompt, made.stop, made.added_special) == ("<s>hi!>", ["</s>"], True)
    assert made.stopping_criteria[0]([5, 2], None) and not made.stopping_criteria[0]([5], None)


def test_named_formats_as_functions(llama_cpp: Any, reciting: Any) -> None:
    formats = llama_cpp.llama_chat_format
    made = formats.format_chatml(messages=HI, temperature=0)
    assert (made.prompt, made.stop) == (
        "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
        "<|im_end|>",
    )
    assert formats.format(HI).prompt.endswith(" USER: hi ASSISTANT:")
    assert formats.format_llama3(HI).stop == "<|eot_id|>"
    reply = formats.chatml_function_calling(llama=reciting(n_ctx=512), messages=HI, max_tokens=1)
    assert reply["choices"][0]["message"]["role"] == "assistant"


def test_min_tokens(llama_cpp: Any, reciting: Any) -> None:
    llama = reciting("The cat")  # ends after the prompt
    processors = llama_cpp.LogitsProcessorList(
        [llama_cpp.MinTokensLogitsProcessor(3, llama.token_eos())]
    )
    assert text_of(llama("The cat", temperature=0)) == ""
    longer = llama("The cat", temperature=0, logits_processor=processors)
    assert longer["usage"]["completion_tokens"] == 3


SCRIPT = """
import sys
from llama_cpp import Llama, LlamaGrammar
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

llm = Llama(sys.argv[1], verbose=False, draft_model=LlamaPromptLookupDecoding())
grammar = LlamaGrammar.from_string('root ::= "yes"')
print(llm("Is it?", grammar=grammar)["choices"][0]["text"], __name__, sys.argv[2:])
"""


@pytest.mark.parametrize("how", some([["script.py"], ["-m", "script"]], 1))
def test_a_program_from_the_command_line(tmp_path: Path, model_path: Path, how: list[str]) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-P", "-m", "pyllama.compat", *how, str(model_path), "-m", "x"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=250, cwd=tmp_path, env=env
    )
    assert (done.stdout, done.returncode) == ("yes __main__ ['-m', 'x']\n", 0), done.stderr
