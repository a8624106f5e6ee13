"""Small chat templates with the conventions of the families of tool calls; ours, for tests.

TEMPLATES["hermes"].format(TOKENIZER).turn(messages, TurnOptions(tools=TOOLS))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyllama.chat.formats import LLAMA_CPP_PYTHON_FORMATS, ChatFormat
from pyllama.chat.template import JinjaTemplate
from pyllama.tokenizer import Tokenizer

from .. import record

_CHATML_REST = """
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""

HERMES = """
{%- if tools %}<|im_start|>system
You may call functions:
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
Reply with <tool_call>
{"name": <name>, "arguments": <arguments>}
</tool_call><|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == "tool" %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls or [] %}
{%- if m.content or not loop.first %}{{ "\\n" }}{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}{% endfor %}"""

QWEN = HERMES.replace("{{ m.content }}\n{%- for", "{{ m.content.split('</think>')[-1] }}\n{%- for")

LLAMA = """{{- bos_token }}
{%- for m in messages %}
{%- if m.role == "user" and loop.first and tools %}<|start_header_id|>user<|end_header_id|>

Respond in the format {"name": function name, "parameters": dictionary of argument name and its \
value}. Do not use variables.
{% for t in tools %}{{ t | tojson(indent=4) }}

{% endfor %}{{ m.content }}<|eot_id|>
{%- elif m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception("only single tool-calls") }}{% endif %}
{%- set call = m.tool_calls[0].function %}<|start_header_id|>assistant<|end_header_id|>

{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot_id|>
{%- else %}<|start_header_id|>{{ "ipython" if m.role == "tool" else m.role }}<|end_header_id|>

{{ m.content }}<|eot_id|>
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""

_MISTRAL = """{{- bos_token }}
{%- for m in messages %}
{%- if m.role == "user" %}
{%- if tools and loop.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif -%}
[INST]{{ m.content }}[/INST]
{%- elif m.tool_calls %}CALLS
{%- elif m.role == "assistant" %}{{ m.content }}{{ eos_token }}
{%- elif m.role == "tool" %}
{%- if m.tool_call_id | length != 9 %}{{ raise_exception("ids have length 9") }}{% endif -%}
[TOOL_RESULTS]{"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]
{%- endif %}{% endfor %}"""

MISTRAL_ARRAY = _MISTRAL.replace(
    "CALLS",
    """[TOOL_CALLS][
{%- for call in m.tool_calls %}{{ (call.function | tojson)[:-1] }}, "id": "{{ call.id }}"}
{%- if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}""",
)
MISTRAL_NAMED = _MISTRAL.replace(
    "CALLS",
    """
{%- for call in m.tool_calls %}[TOOL_CALLS]{{ call.function.name }}[CALL_ID]{{ call.id -}}
[ARGS]{{ call.function.arguments | tojson }}{% endfor %}{{ eos_token }}""",
)
MAGISTRAL = MISTRAL_NAMED.replace("[CALL_ID]{{ call.id -}}", "{{ '' -}}") + (
    "{# the model reasons in [THINK]...[/THINK] #}"
)

FUNCTIONARY_31 = """{{- bos_token }}
{%- if tools %}<|start_header_id|>system<|end_header_id|>

{% for t in tools %}Use the function '{{ t.function.name }}'
{{ t.function | tojson }}
{% endfor %}Reply as <function=example>{"name": "value"}</function><|eot_id|>
{%- endif %}
{%- for m in messages %}
{%- set role = "ipython" if m.role == "tool" else m.role -%}
<|start_header_id|>{{ role }}<|end_header_id|>

{{ m.content }}
{%- for call in m.tool_calls or [] -%}
<function={{ call.function.name }}>{{ call.function.arguments | tojson }}</function>
{%- endfor %}{{ "<|eom_id|>" if m.tool_calls else "<|eot_id|>" }}{% endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""

FUNCTIONARY_32 = """{{- bos_token -}}
<|start_header_id|>system<|end_header_id|>

Respond in this format:
>>>${recipient}
${content}
{% for t in tools or [] %}type {{ t.function.name }} = {{ t.function.parameters | tojson }}
{% endfor %}<|eot_id|>
{%- for m in messages -%}
<|start_header_id|>{{ m.role }}<|end_header_id|>

{% if m.role == "assistant" %}
{%- if m.content %}>>>all
{{ m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}{{ ">>>" + call.function.name + "\\n" + \
call.function.arguments }}{% endfor %}
{%- else %}{{ m.content }}{% endif %}<|eot_id|>
{%- endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

>>>{% endif %}"""

PLAIN = """
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

DEEPSEEK = """{{- bos_token }}
{%- for m in messages %}
{%- if m.role == "system" %}{{ m.content }}
{%- elif m.role == "user" %}<｜User｜>{{ m.content }}
{%- elif m.role == "tool" %}<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>
{%- else %}<｜Assistant｜>{{ m.content.split("</think>")[-1] }}
{%- if m.tool_calls %}<｜tool▁calls▁begin｜>{% for call in m.tool_calls -%}
<｜tool▁call▁begin｜>{{ call.function.name }}<｜tool▁sep｜>{{ call.function.arguments -}}
<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>{% endif %}<｜end▁of▁sentence｜>
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<｜Assistant｜><think>
{% endif %}"""


@dataclass(frozen=True)
class Case:
    """A template, or the name of a format that has none, and the family that it is of."""

    source: str
    call_format: str
    named: str = ""

    def format(self, tokenizer: Tokenizer) -> ChatFormat:
        """The chat format of a model with this template."""
        if self.named:
            return ChatFormat(self.named, LLAMA_CPP_PYTHON_FORMATS[self.named], tokenizer)
        template = JinjaTemplate(self.source, {"bos_token": "<s>", "eos_token": "</s>"})
        return ChatFormat("jinja", template, tokenizer)


TEMPLATES = {
    "hermes": Case(HERMES + _CHATML_REST.replace("<think>\n\n</think>\n\n", ""), "hermes"),
    "qwen": Case(QWEN + _CHATML_REST, "hermes"),
    "qwq": Case(QWEN + _CHATML_REST.split("{% if enable")[0] + "<think>\n{% endif %}", "hermes"),
    "llama": Case(LLAMA, "llama3"),
    "mistral-array": Case(MISTRAL_ARRAY, "mistral"),
    "mistral-named": Case(MISTRAL_NAMED, "mistral-args"),
    "magistral": Case(MAGISTRAL, "mistral-args"),
    "functionary-3.1": Case(FUNCTIONARY_31, "functionary-3.1"),
    "functionary-3.2": Case(FUNCTIONARY_32, "functionary-3.2"),
    "functionary-2": Case(record.TEMPLATES["functionary-v2"], "functionary-2"),
    "functionary-1": Case(record.TEMPLATES["functionary-v1"], "functionary-1"),
    "functionary-0": Case("", "functionary-0", "functionary"),
    "functions": Case("", "functions", "chatml-function-calling"),
    "plain": Case(PLAIN, "generic"),
    "deepseek": Case(DEEPSEEK, "deepseek-v3.1"),
}


def function(name: str, **properties: Any) -> dict[str, Any]:
    """The definition of a tool whose properties are all required."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    definition = {"name": name, "description": f"The tool {name}.", "parameters": parameters}
    return {"type": "function", "function": definition}


TOOLS = [
    function("special_function", arg1={"type": "integer"}),
    function("get_time", city={"type": "string"}),
    function("python", code={"type": "string"}),
    function("nothing"),
]
