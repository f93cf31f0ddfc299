"""A stand-in for the Hugging Face hub with some data sets, on this machine: the real client libraries talk to it."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "someone/stories"


# twelve documents as WikiText stores articles: a heading row and then rows of text
STORY_ROWS = [
    row
    for n in range(12)
    for row in (
        f" = Story {n} = \n",
        "",
        f" It began with {n} . \n",
        " = = Part = = \n",
        f" It went on to {n + 1} . \n",
    )
]


class Handler(http.server.BaseHTTPRequestHandler):
    """The handful of routes that `dataset_info` and `load_dataset` ask for."""

    protocol_version = "HTTP/1.1"
    sets: ClassVar[dict[str, dict[str, bytes]]] = {
        NAME: {
            "README.md": b"---\nconfigs:\n- config_name: default\n  data_files: rows.jsonl\n---\n",
            "rows.jsonl": "".join(
                json.dumps({"text": row, "n": i}) + "\n" for i, row in enumerate(STORY_ROWS)
            ).encode(),
        }
    }

    def log_message(self, *_: object) -> None:
        pass

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if path == "/":
            return self.send(b"")
        found = re.match("(?:/api)?/datasets/([^/]+/[^/]+)", path)
        name = found[1] if found else ""
        if name not in self.sets:
            return self.send(b"", 404, {"X-Error-Code": "RepoNotFound"})
        self.files = self.sets[name]
        if re.fullmatch(f"/api/datasets/{name}(/revision/(main|{COMMIT}))?", path):
            return self.send_json({"id": name, "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.files]})
        if path == f"/api/datasets/{name}/revision/absent":
            return self.send(b"", 404, {"X-Error-Code": "RevisionNotFound"})
        if path.startswith(f"/api/datasets/{name}/tree/{COMMIT}"):
            return self.send_json([self.entry(name) for name in self.files])
        if path == f"/api/datasets/{name}/paths-info/{COMMIT}":
            asked = re.findall(r"[\w.]+\.\w+", body.decode())
            return self.send_json([self.entry(name) for name in self.files if name in asked])
        file = re.fullmatch(f"/datasets/{name}/resolve/(main|{COMMIT})/(.+)", path)
        if file and file[2] in self.files:
            content = self.files[file[2]]
            headers = {"ETag": f'"{len(content)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            if part is None:
                return self.send(content, 200, headers)
            first, last = int(part[1]), min(int(part[2] or len(content) - 1), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            return self.send(content[first : last + 1], 206, headers)
        return self.send(b"", 404, {"X-Error-Code": "EntryNotFound"})

    do_GET = do_HEAD = do_POST = answer

    def entry(self, name: str) -> dict[str, object]:
        return {"type": "file", "path": name, "size": len(self.files[name]), "oid": f"{hash(name) & 0xFFFF:040x}"}

    def send_json(self, value: object) -> None:
        self.send(json.dumps(value).encode(), 200, {"Content-Type": "application/json"})

    def send(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def hub(sets: dict[str, dict[str, bytes]] | None = None) -> Iterator[str]:
    """The address at which it answers, as long as the context lasts. sets: the files of each data set by name."""
    handler = Handler if sets is None else type("HandlerOfSets", (Handler,), {"sets": sets})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
