"""A stand-in for the model hub on this machine: lists files, serves them whole or from an offset.

with HubServer({"user/model": {"model-Q4_K_M.gguf": b"..."}}) as server:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer:
    """Serves repositories until the end of the ``with`` block.

    Attributes:
        requests: method, path and Range header of each request.
        cut_after: bytes of a file after which the next download is cut off, once.
        token: asked for, where it is set.
        gated: whether the token opens nothing.
    """

    def __init__(self, repos: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repos = {name: dict(files) for name, files in repos.items()}
        self.requests: list[tuple[str, str, str | None]] = []
        self.cut_after: int | None = None
        self.token: str | None = None
        self.gated = False
        self.stopped = False
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.stopped = True  # connections that are kept alive end too
        self._http.shutdown()
        self._http.server_close()


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._serve(body=False)

        def do_GET(self) -> None:
            self._serve(body=True)

        def _serve(self, body: bool) -> None:
            if hub.stopped:
                self.close_connection = True
                return
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((self.command, path, self.headers.get("Range")))
            if hub.gated:
                return self._fail(403, "GatedRepo", "Access to model is restricted")
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                return self._fail(401, "RepoNotFound", "Repository not found")
            api = path.startswith("/api/models/")
            repo = "/".join(path.removeprefix("/api/models/").strip("/").split("/")[:2])
            if repo not in hub.repos:
                return self._fail(404, "RepoNotFound", "Repository not found")
            if api:
                return self._list(repo, path, body)
            name = path.split("/resolve/", 1)[1].partition("/")[2]
            if name not in hub.repos[repo]:
                return self._fail(404, "EntryNotFound", "Entry not found")
            self._file(hub.repos[repo][name], body)

        def _list(self, repo: str, path: str, body: bool) -> None:
            files = hub.repos[repo]
            tree: Any = [
                {"type": "file", "path": n, "size": len(d), "oid": hashlib.sha1(d).hexdigest()}
                for n, d in files.items()
            ]
            if "/tree/" not in path:
                siblings = [{"rfilename": name} for name in files]
                tree = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings}
            self._answer(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})

        def _file(self, data: bytes, body: bool) -> None:
            headers = {
                "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
                "X-Repo-Commit": COMMIT,
                "Accept-Ranges": "bytes",
                "Content-Type": "application/octet-stream",
            }
            wanted, status, begin = self.headers.get("Range"), 200, 0
            if wanted:
                begin, status = int(wanted.removeprefix("bytes=").split("-")[0]), 206
                headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
            cut, hub.cut_after = (hub.cut_after, None) if body else (None, hub.cut_after)
            part = data[begin:]
            if cut is not None:
                self._answer(status, part, headers, sent=part[:cut])
                self.close_connection = True
                self.connection.close()
                return
            self._answer(status, part, headers)

        def _answer(
            self, status: int, data: bytes, headers: Mapping[str, str], sent: bytes | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                with contextlib.suppress(ConnectionError):  # the other side stopped
                    self.wfile.write(data if sent is None else sent)
                    self.wfile.flush()

        def _fail(self, status: int, code: str, message: str) -> None:
            headers = {"X-Error-Code": code, "X-Error-Message": message}
            self._answer(status, json.dumps({"error": message}).encode(), headers)

    return Handler
