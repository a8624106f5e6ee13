"""Jinja for untrusted templates: no side effects, and limits on time and memory.

    environment = ChatEnvironment()
    environment.render(environment.prepare(source), {"messages": messages}, Limits())

A template creates values by literals, operators, calls, filters, loops and blocks. Each of these is
checked here: before it runs if its result can be much larger than its inputs, otherwise after it.
Each also checks the time, so that no step and no sequence of steps runs long. Filters that prompts
do not need are removed: `_FILTERS` is the complete list.

Thread-safe: the resources used by a rendering are kept in its own context.
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
    MAX_ITEMS,
    check_filter,
    check_format,
    check_method,
    check_power,
    check_product,
    tojson,
)
from .limits import Limits, RenderBudget

# names that cannot be written in a template
_BUDGET, _VALUE, _ITER, _TEXT = "\0budget", "\0value", "\0each", "\0text"
_FILTERS = """
    abs attr batch capitalize center count d default dictsort e escape first float format groupby
    indent int items join last length list lower map max min reject rejectattr replace reverse
    round safe select selectattr slice sort string sum title tojson trim truncate unique upper
    urlencode wordcount
"""


class _Generation(Extension):
    """``{% generation %}``, which marks text for training: replaced by its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 reads it from the class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """A namespace whose repr is constant, since it may contain itself."""

    def __repr__(self) -> str:
        return "<namespace>"


class _Checks(NodeTransformer):
    """Inserts checks around container literals, loops and output."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filter(node.iter, _ITER)
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
    """The environment of Hugging Face's chat templates, with checks.

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
        self.filters |= {_VALUE: _value, _ITER: _iterable, _TEXT: _text}
        self.globals |= {"range": _range, "namespace": _Namespace, **globals_}
        del self.globals["lipsum"]

    def prepare(self, source: str) -> Any:
        """Compile a template with checks."""
        code = self.compile(_Checks().visit(self.parse(source)))
        return self.template_class.from_code(self, code, self.make_globals(None))

    def render(self, template: Any, values: Mapping[str, Any], limits: Limits) -> str:
        """The text of a prepared template."""
        budget = RenderBudget(limits, values.values())
        text: str = template.render({**values, _BUDGET: budget})
        return text

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Checks for operators whose results can be large."""
        budget = _budget(context)
        if operator == "*":
            check_product(budget, left, right)
        elif operator == "**":
            check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            check_format(budget, left, right)
        return _checked_result(budget, super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Checks for calls of functions, macros and methods."""
        budget = _budget(context)
        budget.check_time()
        method = getattr(obj, "__wrapped__", obj)  # jinja2 wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            check_method(budget, owner, method.__name__, args, kwargs)
        elif isinstance(owner, (bytes, int, float, complex)):
            raise TemplateError(
                f"it calls the method {method.__name__} of a number, which prompts do not need"
            )
        return _checked_result(budget, super().call(context, obj, *args, **kwargs))


def _budget(context: Context) -> RenderBudget:
    budget: RenderBudget = context.parent[_BUDGET]
    return budget


def _checked_result(budget: RenderBudget, value: Any) -> Any:
    """The value after checks of size and time; iterators check while they run."""
    if isinstance(value, Iterator):
        return budget.limit_items(value)
    budget.measure(value)
    budget.check_time()
    return value


@pass_context
def _value(context: Context, value: Any) -> Any:
    return _checked_result(_budget(context), value)


@pass_context
def _iterable(context: Context, value: Any) -> Any:
    budget = _budget(context)
    budget.check_time()
    return budget.limit_items(value) if isinstance(value, Iterator) else value


@pass_context
def _text(context: Context, value: Any) -> str:
    budget = _budget(context)
    budget.measure(value)
    text = str(value)
    budget.write(len(text))
    return text


def _checked(plain: ImmutableSandboxedEnvironment, name: str) -> Callable[..., Any]:
    @pass_context  # also disables constant folding, which would run it at compile time
    def checked(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context)
        budget.check_time()
        check_filter(budget, name, value, args, kwargs)
        if name == "tojson":
            return tojson(budget, value, *args, **kwargs)
        return _checked_result(budget, plain.call_filter(name, value, args, kwargs, context))

    return checked


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_ITEMS:
        raise TemplateError(f"range{args} has more than {MAX_ITEMS} numbers")
    return numbers
