"""A local server that speaks as much of the Hub's protocol as fetching a model takes."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves the given models.

    Attributes:
        endpoint: for HF_ENDPOINT.
        fetched: the names of the files that were fetched.
    """

    def __init__(self, models: dict[str, dict[str, bytes]], gated: set[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models = models
        self.gated = gated
        self.fetched: list[str] = []
        self.endpoint = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> "FakeHub":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._describe("/".join(parts[2:4]), parts[4], parts[5])
        elif len(parts) < 5:
            self._answer(404, b"")
        else:
            self._give("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    do_HEAD = do_GET

    def _describe(self, repo: str, what: str, revision: str) -> None:
        files = self._files(repo, revision)
        if files is None:
            return
        if what == "revision":
            names = [{"rfilename": name} for name in files]
            self._answer(200, json.dumps({"id": repo, "sha": COMMIT, "siblings": names}).encode())
            return
        entries = [
            {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
            for name, data in files.items()
        ]
        self._answer(200, json.dumps(entries).encode())

    def _give(self, repo: str, revision: str, name: str) -> None:
        files = self._files(repo, revision)
        if files is None:
            return
        if name not in files:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        if self.command == "GET":
            self.server.fetched.append(name)
        etag = _etag(files[name])
        self._answer(200, files[name], {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def _files(self, repo: str, revision: str) -> dict[str, bytes] | None:
        """The files of a model, or None once the answer says that there are none."""
        if repo in self.server.gated:
            self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif repo not in self.server.models:
            self._answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", COMMIT):
            self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            return self.server.models[repo]
        return None

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
