"""Each option of each command, and each argument of `Llama`'s methods, is read by the code."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from pyllama import Llama
from pyllama_cli.programs import COMMANDS
from pyllama_cli.tool import LazyGroup

MADE = ("spec_ngram_", "draft_")  # the rest of the name is put together
ROOT = Path(__file__).parents[2]
# the table makes options and takes their values by name; convert takes its options whole
READERS = (ROOT / "cli", ROOT / "pyllama/parameters", ROOT / "pyllama/convert")


def commands(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command)
        else:
            yield f"{group.name} {name}", command


def loaded(tree: ast.AST) -> set[str]:
    """Names that are read: variables, attributes, keys that are texts, fields of dataclasses."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def function(of: Callable[..., Any]) -> ast.FunctionDef:
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(of)))
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def unread(of: Callable[..., Any]) -> Iterator[str]:
    """The parameters that a function does not read, unless its name says so."""
    tree = function(of)
    body = set().union(*map(loaded, tree.body))
    spread = {"locals"} & body  # locals() has them all
    for one in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs):
        if one.arg != "self" and one.arg not in body and not spread:
            yield one.arg


@pytest.fixture(scope="module")
def of_cli() -> set[str]:
    """Names that any module of the commands reads."""
    paths = (path for folder in READERS for path in folder.rglob("*.py"))
    trees = (ast.parse(path.read_text("utf-8")) for path in paths)
    return set().union(*map(loaded, trees))


def test_options_of_commands_are_read(of_cli: set[str]) -> None:
    names, unused = 0, list[tuple[str, str]]()
    for name, command in commands(LazyGroup("pyllama", sections=COMMANDS)):
        assert command.callback is not None
        assert not [*unread(command.callback)], name
        for option in command.params:
            if option.expose_value and isinstance(option, click.Option):
                names += 1
                made = str(option.name).startswith(MADE)
                if not made and option.name not in of_cli:
                    unused.append((name, str(option.name)))
    assert not unused
    assert names > 500


METHODS = [n for n, value in vars(Llama).items() if inspect.isfunction(value) and n != "__exit__"]


@pytest.mark.parametrize("name", METHODS)
def test_arguments_of_llama_are_read(name: str) -> None:
    assert not [*unread(getattr(Llama, name))]
