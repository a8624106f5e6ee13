"""Drawings of compute graphs: DOT, SVG, HTML, memory plans, times, traces and tables; charts.

    from pyggml.viz import graph_dump_dot, graph_html, graph_svg

    graph_dump_dot(graph, "graph.dot", title="one token")
    graph_svg(graph, "graph.svg", layers=(0, 2))
    graph_html(graph, "graph.html", plan=allocator.plan(graph))

Reads graphs, computes nothing.
"""

from .chart import Chart, charts_svg
from .dot import graph_dump_dot
from .html import graph_html
from .memory import memory_svg
from .options import Options
from .svg import graph_svg
from .table import graph_print
from .times import NodeTime, node_times, times_table
from .trace import trace_json, write_trace

__all__ = [
    "Chart",
    "NodeTime",
    "Options",
    "charts_svg",
    "graph_dump_dot",
    "graph_html",
    "graph_print",
    "graph_svg",
    "memory_svg",
    "node_times",
    "times_table",
    "trace_json",
    "write_trace",
]
