"""A page that shows a run while it runs, served on this machine only; it loads nothing from anywhere else."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

from equipoise.deploy.server.status import STATUS
from equipoise.errors import InputError
from equipoise.files import reason

REPORT = "report.html"
HOSTS = ("127.0.0.1", "localhost", "::1")


@contextmanager
def live_page(folder: Path, port: int = 0) -> Iterator[str]:
    """Serves the page on 127.0.0.1; gives its address.

    A browser that was sent here under another name, as by a page whose name was pointed to this machine, gets nothing.
    """
    text = (resources.files("equipoise.deploy.operations") / "live.html").read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files = {f"/{STATUS}": (folder / STATUS, "application/json"), f"/{REPORT}": (folder / REPORT, "text/html")}
            if not asked_here(self.headers.get_all("Host") or []):
                self.answer(403, "text/plain", f"the page is at http://127.0.0.1:{server.server_port}/\n".encode())
            elif self.path == "/":
                self.answer(200, "text/html", text)
            elif self.path in files and files[self.path][0].is_file():
                path, kind = files[self.path]
                self.answer(200, kind, path.read_bytes())
            else:
                self.answer(404, "text/plain", b"nothing here yet\n")

        def answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    def asked_here(hosts: list[str]) -> bool:
        try:
            found = [urlsplit(f"//{host}") for host in hosts]
            return [(at.hostname in HOSTS, at.port) for at in found] == [(True, server.server_port)]
        except ValueError:
            return False

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise InputError(f"the live page cannot have port {port} ({reason(error)}); give another --page") from error
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
