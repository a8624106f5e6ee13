"""Pictures of compute graphs: DOT text, SVG and tables.

    from pyggml.viz import graph_dump_dot, render_svg

    render_svg(graph_dump_dot(graph, title="one token"), "graph.svg")

Reads graphs, computes nothing.
"""

from .dot import graph_dump_dot
from .render import render_svg
from .table import graph_print

__all__ = ["graph_dump_dot", "graph_print", "render_svg"]
