"""Jinja for templates that nobody has read: no side effects, and an end to time and memory.

    environment = ChatEnvironment()
    environment.render(environment.prepare(source), {"messages": messages}, Limits())

A template can make a value only by a literal, an operator, a call, a filter, a loop or a block.
Each of these is checked here, before where its size depends on a number, after where it cannot
grow beyond what it was made from; and each looks at the clock. So no single step is long, and the
steps together end. What prompts never need is left out: `_FILTERS`, `_METHODS` are all there is.

Thread-safe: what one rendering uses up is kept in its own context.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from ..errors import TemplateError
from .limits import Budget, Limits

_BUDGET, _VALUE, _EACH, _TEXT = "\0budget", "\0value", "\0each", "\0text"  # no template can say so
_FILTERS = """
    abs attr batch capitalize center count d default dictsort e escape first float format groupby
    indent int items join last length list lower map max min reject rejectattr replace reverse
    round safe select selectattr slice sort string sum title tojson trim truncate unique upper
    urlencode wordcount
"""
_METHODS = """
    capitalize casefold count endswith find format index isalnum isalpha isdecimal isdigit
    islower isnumeric isspace istitle isupper join lower lstrip partition removeprefix
    removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip
    swapcase title upper
"""
_MOST_ITEMS = 100_000  # of a range, and any other number that says how many
_MOST_BITS = 4096
_WIDEST = 9999  # of a field in a format, which is also the most that its digits can say


class _Generation(Extension):
    """``{% generation %}``, which marks what a trainer learns from: its body alone counts."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 reads it from the class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """A namespace that may hold itself, and says nothing of what it holds."""

    def __repr__(self) -> str:
        return "<namespace>"


class _Checks(NodeTransformer):
    """Puts a check around every literal that holds values, every loop and every piece of text."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filter(node.iter, _EACH)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_filter(_constant(child), _TEXT) for child in node.nodes]
        return node

    def _literal(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") == "store" else _filter(node, _VALUE)

    visit_List = visit_Tuple = visit_Dict = visit_Concat = _literal


def _filter(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _constant(node: nodes.Expr) -> nodes.Expr:
    if isinstance(node, nodes.TemplateData):
        return nodes.Const(node.data, lineno=node.lineno)
    return node


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment that Hugging Face's chat templates expect, with checks.

    Source: transformers, ``_compile_jinja_template``.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, globals_: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        plain = ImmutableSandboxedEnvironment()
        self.filters = {name: _checked(plain, name) for name in _FILTERS.split()}
        self.filters |= {_VALUE: _value, _EACH: _each, _TEXT: _text}
        self.globals |= {"range": _range, "namespace": _Namespace, **globals_}
        del self.globals["lipsum"]

    def prepare(self, source: str) -> Any:
        """A template with checks in it."""
        code = self.compile(_Checks().visit(self.parse(source)))
        return self.template_class.from_code(self, code, self.make_globals(None))

    def render(self, template: Any, values: Mapping[str, Any], limits: Limits) -> str:
        """The text of a prepared template."""
        budget = Budget(limits, values.values())
        text: str = template.render({**values, _BUDGET: budget})
        return text

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators that make large values of small ones."""
        budget = _budget(context)
        if operator == "*":
            _check_product(budget, left, right)
        elif operator == "**":
            _check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            _check_format(budget, left, right)
        return _made(budget, super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls of functions, macros and methods."""
        budget = _budget(context)
        budget.check()
        method = getattr(obj, "__wrapped__", obj)  # jinja2 wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _check_method(budget, owner, method.__name__, args, kwargs)
        elif isinstance(owner, (bytes, int, float, complex)):
            raise TemplateError(
                f"it calls {method.__name__} of a number, which prompts do not need"
            )
        return _made(budget, super().call(context, obj, *args, **kwargs))


def _budget(context: Context) -> Budget:
    budget: Budget = context.parent[_BUDGET]
    return budget


def _made(budget: Budget, value: Any) -> Any:
    """A value that is not too large, or an iterator that looks at the clock."""
    if isinstance(value, Iterator):
        return budget.watch(value)
    budget.weigh(value)
    budget.check()
    return value


@pass_context
def _value(context: Context, value: Any) -> Any:
    return _made(_budget(context), value)


@pass_context
def _each(context: Context, value: Any) -> Any:
    budget = _budget(context)
    budget.check()
    return budget.watch(value) if isinstance(value, Iterator) else value


@pass_context
def _text(context: Context, value: Any) -> str:
    budget = _budget(context)
    budget.weigh(value)
    text = str(value)
    budget.write(len(text))
    return text


def _checked(plain: ImmutableSandboxedEnvironment, name: str) -> Callable[..., Any]:
    @pass_context  # also keeps jinja2 from running it on constants while it compiles
    def checked(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context)
        budget.check()
        _check_filter(budget, name, value, args, kwargs)
        if name == "tojson":
            return _tojson(budget, value, *args, **kwargs)
        return _made(budget, plain.call_filter(name, value, args, kwargs, context))

    return checked


def _check_filter(
    budget: Budget, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    given = [*args, *kwargs.values()]
    numbers = [abs(n) for n in given if isinstance(n, int)]
    if max(numbers, default=0) > (100 if name == "round" else _MOST_ITEMS):
        raise TemplateError(f"{name}({max(numbers)}) is too much")
    if name == "indent":
        width = max([4, *numbers, *(len(g) for g in given if isinstance(g, str))])
        budget.fits(len(str(value)) + width * (str(value).count("\n") + 1))
    elif name == "join":
        budget.fits(budget.weigh(value) + _n_items(value) * sum(map(_length, given)))
    elif name == "replace":
        _check_replace(budget, str(value), given)
    elif name == "format":
        _check_format(budget, str(value), given)
    elif name == "sum" and any(isinstance(g, _Sequences) for g in given):
        raise TemplateError("it sums lists; use + instead")


_Sequences = (str, list, tuple)


def _n_items(value: Any) -> int:
    # an iterator is watched, its items are at most these
    return len(value) if hasattr(value, "__len__") else _MOST_ITEMS


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str) else 0


def _check_method(
    budget: Budget, owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if name not in _METHODS.split():
        raise TemplateError(f"it calls str.{name}, which prompts do not need")
    if name == "replace":
        _check_replace(budget, owner, args)
    elif name == "join" and args:
        budget.fits(budget.weigh(args[0]) + _n_items(args[0]) * len(owner))
    elif name == "format":
        _check_format(budget, owner, [*args, *kwargs.values()])


def _check_replace(budget: Budget, text: str, args: Any) -> None:
    if len(args) >= 2 and isinstance(args[0], str):
        n = text.count(args[0]) if args[0] else len(text) + 1
        budget.fits(len(text) + n * _length(args[1]))


def _check_format(budget: Budget, text: str, args: Any) -> None:
    """``%`` and ``str.format``: a width may be any number, or be taken from an argument."""
    if re.search(r"\d{5}|\*|\{[^{}]*\{", text):
        raise TemplateError(f"the format {text[:40]!r} has a width that is too much")
    fields = text.count("%") + text.count("{")
    budget.fits(
        len(text) + fields * (budget.weigh(args) + (_WIDEST if re.search(r"\d", text) else 0))
    )


def _check_product(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    elif isinstance(right, _Sequences):
        left, right = right, left
    if isinstance(left, _Sequences) and isinstance(right, int):
        budget.fits((budget.weigh(left) + 1) * max(right, 0))


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int):
        _check_bits(base.bit_length() * abs(exponent))


def _check_bits(n_bits: int) -> None:
    if n_bits > _MOST_BITS:
        raise TemplateError(f"it makes a number of {n_bits} bits")


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > _MOST_ITEMS:
        raise TemplateError(f"range{args} has more than {_MOST_ITEMS} numbers")
    return numbers


def _tojson(
    budget: Budget,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: no escapes for HTML."""
    import json

    budget.weigh(value)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    parts, size = [], 0
    for part in encoder.iterencode(value):
        parts.append(part)
        size += len(part)
        budget.fits(size)
    budget.check()
    return "".join(parts)
