"""Hubs on localhost: as much of Hugging Face's and of ModelScope's protocol as their clients ask for.

Files come from a folder that holds models/OWNER/NAME and datasets/OWNER/NAME.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
JSON = "application/json"


class Stub(BaseHTTPRequestHandler):
    """Answers for one folder; subclasses have `root` and `log`, the paths that were asked for."""

    root: Path
    log: list[str]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(*self.find())

    def do_HEAD(self) -> None:
        self.answer(*self.find())

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        kind, repository, action = self.place()
        if kind is None or action[:1] != ["paths-info"]:
            self.answer(404, b"", {})
            return
        wanted = json.loads(sent)["paths"] if "json" in self.headers["Content-Type"] else parse_qs(sent)["paths"]
        entries = [entry for entry in listing(repository) if entry["path"] in wanted]
        self.answer(200, json.dumps(entries).encode(), {"Content-Type": JSON})

    def place(self) -> tuple[str | None, Path, list[str]]:
        """Kind and folder of the repository that the path is about, and the rest of the path."""
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        self.log.append("/".join(parts))
        parts = parts[1:] if parts[0] == "api" else parts
        parts = parts[1:] if parts[0] == "v1" else parts
        kind = parts.pop(0) if parts[0] in ("models", "datasets") else "models"
        repository = self.root / kind / "/".join(parts[:2])
        return kind if repository.is_dir() and len(parts) > 1 else None, repository, parts[2:]

    def find(self) -> tuple[int, bytes, dict[str, str]]:
        kind, repository, action = self.place()
        if kind is None:
            return 404, b"{}", {"X-Error-Code": "RepoNotFound", "Content-Type": JSON}
        if action[:1] == ["resolve"]:
            return self.file(repository / "/".join(action[2:]))
        if action[:1] == ["tree"]:
            inside = "/".join(action[2:])
            entries = listing(repository, inside, "recursive=true" in self.path.lower())
            return 200, json.dumps(entries).encode(), {"Content-Type": JSON}
        if action and action[0] != "revision":
            return 404, b"{}", {"X-Error-Code": "EntryNotFound", "Content-Type": JSON}
        files = [{"rfilename": entry["path"]} for entry in listing(repository) if entry["type"] == "file"]
        name = repository.relative_to(self.root / kind).as_posix()
        found = {
            "id": name,
            "sha": COMMIT,
            "private": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": files,
        }
        return 200, json.dumps(found).encode(), {"Content-Type": JSON}

    def file(self, path: Path) -> tuple[int, bytes, dict[str, str]]:
        if not path.is_file():
            return 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}
        data = path.read_bytes()
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range", "")
        if self.command == "GET" and wanted.startswith("bytes="):
            start, _, end = wanted.removeprefix("bytes=").partition("-")
            last = min(int(end or len(data) - 1), len(data) - 1)
            headers["Content-Range"] = f"bytes {start}-{last}/{len(data)}"
            return 206, data[int(start) : last + 1], headers
        return 200, data, headers

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": "application/octet-stream"} | headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class ModelScopeStub(Stub):
    """The same folder under ModelScope's addresses, api/v1/models/OWNER/NAME/repo and so on."""

    def find(self) -> tuple[int, bytes, dict[str, str]]:
        kind, repository, action = self.place()
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        if kind is None or action not in (["repo"], ["repo", "files"], ["repo", "tree"]):
            return self.data(None)
        if action == ["repo"]:
            return self.file(repository / asked["FilePath"])
        files = [
            {
                "Path": entry["path"],
                "Name": Path(str(entry["path"])).name,
                "Type": "blob",
                "Size": entry["size"],
                "Sha256": hashlib.sha256((repository / str(entry["path"])).read_bytes()).hexdigest(),
            }
            for entry in listing(repository)
            if entry["type"] == "file" and asked.get("PageNumber", "1") == "1"
        ]
        return self.data({"Files": files, "TotalCount": len(files)})

    def data(self, found: object) -> tuple[int, bytes, dict[str, str]]:
        status = 404 if found is None else 200
        answer = {"Code": status, "Success": status == 200, "Message": "", "Data": found}
        return status, json.dumps(answer).encode(), {"Content-Type": JSON}


def listing(repository: Path, inside: str = "", recursive: bool = True) -> list[dict[str, object]]:
    """Entries of a repository's folder as the hub lists them."""
    found = sorted((repository / inside).rglob("*") if recursive else (repository / inside).glob("*"))
    return [
        {
            "type": "file" if path.is_file() else "directory",
            "path": path.relative_to(repository).as_posix(),
            "oid": hashlib.sha1(path.read_bytes() if path.is_file() else b"").hexdigest(),
            "size": path.stat().st_size if path.is_file() else 0,
        }
        for path in found
    ]


@contextmanager
def serve(root: Path, stub: type[Stub] = Stub) -> Iterator[tuple[str, list[str]]]:
    """The address of a stub hub over `root`, and the list of paths that it is asked for."""
    log: list[str] = []
    handler = type("Handler", (stub,), {"root": root, "log": log})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", log
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
