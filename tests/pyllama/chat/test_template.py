"""Templates of Hugging Face's models, and malicious templates."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from pyllama.chat.limits import Limits
from pyllama.chat.template import JinjaTemplate
from pyllama.errors import TemplateError

from ...tiers import some

USER = [{"role": "user", "content": "Hi"}]
LIMITS = Limits(time_s=0.3)


def render(source: str, messages: Any = USER, **values: Any) -> str:
    return JinjaTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, LIMITS).render(
        messages, **values
    )


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hi</s>"),
        ("  {% if add_generation_prompt %}\nyes\n  {% endif %}\nend", "yes\nend"),
        ("{% for m in messages %}{% if loop.last %}{% break %}{% endif %}x{% endfor %}", ""),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}"
         "{{ ns.n }}", "3"),
        ("{{ {'b': '<é>', 'a': [1]}|tojson }}", '{"b": "<é>", "a": [1]}'),
        ("{{ {'b': 1}|tojson(indent=2) }}", '{\n  "b": 1\n}'),
        ("{% generation %}{{ 'x' }}{% endgeneration %}", "x"),
        ("{{ strftime_now('%Y')|length }}", "4"),
        ("{{ messages[1:]|length }}{{ messages[-1]['role'] }}", "0user"),
        ("{{ messages|map(attribute='content')|join(', ') }}", "Hi"),
        ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}", "1"),
        ("{{ 'a </think> b'.split('</think>')[-1].lstrip() }}", "b"),
        ("{{ '%s-%03d' % ('a', 7) }} {{ '{:>3}'.format('b') }}", "a-007   b"),
        ("{{ missing }}{{ missing is defined }}{{ tools is none }}", "FalseTrue"),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m('a') ~ m(1) }}", "[a][1]"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x * 2 }}", "a1a1"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}", "a=1"),
        ("{{ ('x' * 3)|replace('x', 'yz') }}{{ [3, 1]|sort }}{{ 7 // 2 }}", "yzyzyz[1, 3]3"),
    ],
)  # fmt: skip
def test_supported_template_features(source: str, text: str) -> None:
    assert render(source) == text


def test_variables_reach_the_template() -> None:
    source = "{{ tools[0].name }}{{ enable_thinking }}{{ add_generation_prompt }}"
    values = {"tools": [{"name": "f"}], "enable_thinking": False, "add_generation_prompt": False}
    assert render(source, **values) == "fFalseFalse"


GROW = "{% set ns = namespace(s=SEED) %}{% for i in range(60) %}{% set ns.s = STEP %}{% endfor %}"


def grow(seed: str, step: str, show: str = "{{ ns.s }}") -> str:
    return GROW.replace("SEED", seed).replace("STEP", step) + show


HARM = [
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{% for i in range(9999) recursive %}{{ loop(range(9999)) if loop.depth < 4 }}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ 'a' * 10**10 }}",
    "{{ 10**10 * 'a' }}",
    "{{ [0] * 10**10 }}",
    "{{ 10 ** (10 ** 10) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 999999999) }}",
    "{{ '%999999999d'|format(1) }}",
    "{% set s = '{0}' * 30000 %}{{ s.format('a' * 100000) }}",
    "{% set s = '%s' * 30000 %}{{ s % (['a' * 100000] * 30000) }}",
    "{{ 'a'|center(999999999) }}",
    "{{ 'a'.ljust(999999999) }}",
    "{{ ('a'|attr('zfill'))(999999999) }}",
    "{{ (['a']|map(attribute='ljust')|first)(999999999) }}",
    "{{ (5).to_bytes(999999999, 'big') }}",
    "{{ 1.5|round(999999999, 'ceil') }}",
    "{{ ()|batch(999999999, 'x')|list }}",
    "{{ ()|slice(999999999)|list }}",
    "{{ [1]|tojson(indent=999999999) }}",
    "{{ ('a\n' * 100000)|indent(90000) }}",
    "{{ ('a' * 100000)|list|join('b' * 100000) }}",
    "{{ ('b' * 100000).join(('a' * 100000)|list) }}",
    "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
    "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
    "{{ (range(99999)|batch(1)|list)|sum(start=[])|length }}",
    "{{ range(99999)|map('string')|select('in', range(99999)|list)|list|length }}",
    "{{ strftime_now('%999999999d') }}",
    "{{ strftime_now('%Y' * 1000000) }}",
    grow("'ab'", "ns.s ~ ns.s"),
    grow("'ab'", "ns.s + ns.s", "{{ ns.s|length }}"),
    grow("'ab'", "ns.s|replace('a', 'aaaaaaaa')", ""),
    grow("[1]", "[ns.s, ns.s]"),
    grow("[1]", "(ns.s, ns.s)", "{{ ns.s == ns.s|list }}"),
    grow("[1]", "{'a': ns.s, 'b': ns.s}", "{{ ns.s|tojson }}"),
    grow("{}", "dict(a=ns.s, b=ns.s)", ""),
    grow("9999999999", "ns.s * ns.s"),
    "{% set ns = namespace(s='ab') %}{% for i in range(60) %}"
    "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}",
    "{% set x %}{% for i in range(99999) %}" + "x" * 99999 + "{% endfor %}{% endset %}",
    "{% filter upper %}{% for i in range(99999) %}" + "x" * 99999 + "{% endfor %}{% endfilter %}",
    "{{ ''.__class__ }}{{ ''.__class__.__mro__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({}) }}",
    "{{ cycler.__init__.__globals__ }}",
    "{% include 'x' %}",
    "{% import 'os' as o %}{{ o.system('x') }}",
    "{{ lipsum(n=99999) }}",
    "{{ 'a'|urlize }}",
    "{{ namespace()|tojson }}",
    "{{ raise_exception('one\ntwo') }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "1+" * 5000 + "1 }}",
    "{% if 1 %}" * 2000,
    "{% for %}",
    "{{ x.y.z }}",
    "{{ 1 / 0 }}",
    "x" * 300_000,
]


@pytest.mark.parametrize("source", some(HARM, 20))
def test_harm_ends_soon_in_one_line(source: str) -> None:
    start_s = time.thread_time()
    with pytest.raises(TemplateError) as error:
        render(source)
    assert time.thread_time() - start_s < 5
    message = str(error.value)
    assert "chat template" in message and "\n" not in message and len(message) < 600


def test_nothing_of_the_users_is_changed_or_lost() -> None:
    messages = [{"role": "user", "content": "x", "list": [1]}]
    template = "{% set m = messages[0] %}{{ m.list + [2] }}{{ m.content }}"
    assert render(template, messages) == "[1, 2]x"
    assert messages == [{"role": "user", "content": "x", "list": [1]}]


def test_limits_grow_with_a_long_conversation() -> None:
    messages = [{"role": "user", "content": "x" * 500_000}] * 6
    text = render("{% for m in messages %}{{ m.content | trim }}{% endfor %}", messages)
    assert len(text) == 3_000_000
    template = JinjaTemplate(
        "{% for i in range(99999) %}{% for j in range(99) %}{% endfor %}{% endfor %}",
        limits=Limits(time_s=0.05, message_s=0.0001),
    )
    with pytest.raises(TemplateError, match=r"not finished after 0\.25 s"):
        template.render(USER * 2000)


def test_errors_name_the_problem_and_the_line() -> None:
    with pytest.raises(TemplateError, match=r"invalid \(line 2\): No filter named 'nosuch'"):
        render("\n{{ 1|nosuch }}")
    with pytest.raises(TemplateError, match="rejects these messages: no system"):
        render("{{ raise_exception('no  system') }}")


def test_threads_share_a_template() -> None:
    template = JinjaTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", limits=LIMITS)
    seen = {}

    def go(i: int) -> None:
        seen[i] = template.render([{"role": "user", "content": str(i)}] * 50)

    threads = [threading.Thread(target=go, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {i: str(i) * 50 for i in range(8)}
