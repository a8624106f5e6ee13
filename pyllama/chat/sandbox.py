"""Jinja for templates that nobody has read: no side effects, and an end to time and memory.

    environment = ChatEnvironment()
    environment.render(environment.prepare(source), {"messages": messages}, Limits())

A template can make a value only by a literal, an operator, a call, a filter, a loop or a block.
Each of these is checked here, before where its size depends on a number, after where it cannot
grow beyond what it was made from; and each looks at the clock. So no single step is long, and the
steps together end. What prompts never need is left out: `_FILTERS` is all there is.

Thread-safe: what one rendering uses up is kept in its own context.
"""

from __future__ import annotations

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
from .checks import (
    MOST_ITEMS,
    check_filter,
    check_format,
    check_method,
    check_power,
    check_product,
    tojson,
)
from .limits import Budget, Limits

_BUDGET, _VALUE, _EACH, _TEXT = "\0budget", "\0value", "\0each", "\0text"  # no template can say so
_FILTERS = """
    abs attr batch capitalize center count d default dictsort e escape first float format groupby
    indent int items join last length list lower map max min reject rejectattr replace reverse
    round safe select selectattr slice sort string sum title tojson trim truncate unique upper
    urlencode wordcount
"""


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
            check_product(budget, left, right)
        elif operator == "**":
            check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            check_format(budget, left, right)
        return _made(budget, super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls of functions, macros and methods."""
        budget = _budget(context)
        budget.check()
        method = getattr(obj, "__wrapped__", obj)  # jinja2 wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            check_method(budget, owner, method.__name__, args, kwargs)
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
        check_filter(budget, name, value, args, kwargs)
        if name == "tojson":
            return tojson(budget, value, *args, **kwargs)
        return _made(budget, plain.call_filter(name, value, args, kwargs, context))

    return checked


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MOST_ITEMS:
        raise TemplateError(f"range{args} has more than {MOST_ITEMS} numbers")
    return numbers
