"""``/graph.json`` and ``/graph.html``: the model's graph for the page ``/graph``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ...page.graph_page import GraphQuery, draw_graph, graph_drawing, graph_json
from ...request.errors import ApiError
from ...worker.served import GraphTexts, ServedModel


async def data(request: Request, served: ServedModel) -> Response:
    """``GET /graph.json``: nodes and times; ``times=1`` measures again."""
    query = _query(request)
    if query.times or served.graph is None or served.graph.query != query:
        await _draw(served, query)
    assert served.graph is not None
    return Response(served.graph.data, media_type="application/json")


async def drawing(request: Request, served: ServedModel) -> Response:
    """``GET /graph.html``: the drawing of the run that ``/graph.json`` has measured."""
    query = _query(request)
    if served.graph is None or served.graph.query != query:
        await _draw(served, query)
    assert served.graph is not None
    return Response(served.graph.drawing, media_type="text/html")


def _query(request: Request) -> GraphQuery:
    try:
        return GraphQuery.read(request.query_params)
    except ValueError as error:
        raise ApiError.invalid(str(error)) from None


async def _draw(served: ServedModel, query: GraphQuery) -> None:
    def draw() -> GraphTexts:
        drawn = draw_graph(served.engine.context, query)
        return GraphTexts(query, graph_json(drawn, query), graph_drawing(drawn))

    async with served.drawing:
        served.graph = await served.prepare(draw)
