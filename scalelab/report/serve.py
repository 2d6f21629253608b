"""Serve the pages of a sweep or a run to a browser on this machine, drawn anew as the files change.

    /                     the page that `scalelab report` writes; /runs/NAME/ that of one trial
    …/version             changes with the files: the page asks for it and loads itself again
    …/figures/NAME.pdf    the files beside the page, and .csv

The server listens on the loopback address only, and answers only requests that use its own name: otherwise another
site's page, open in the browser, could reach it under a name of its own (DNS rebinding).
"""

import dataclasses
import hashlib
import http.server
import pathlib
import re
import sys
import threading
import time
import urllib.parse
from typing import Any

from scalelab.errors import BadInput, WorkFailed
from scalelab.index.store import file_state
from scalelab.report import html
from scalelab.report.pages import write_report
from scalelab.untrusted.files import read_bytes, read_text
from scalelab.untrusted.paths import list_folders, path_below

ADDRESS, NAMES = "127.0.0.1", ("127.0.0.1", "localhost")
REST_SHARE = 2.0  # a page rests this many times the duration of its drawing, which leaves the processor to training
LEAST_REST_S = 5.0
MOST_LINKS = 1000
MOST_FILE_BYTES = 2**28  # of a page or a figure
FILE_TYPES = {".pdf": "application/pdf", ".csv": "text/csv; charset=utf-8"}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
SCRIPT = """<script>setInterval(async () => {
  if (document.hidden) return;
  const live = document.getElementById("live");
  try {
    const reply = await fetch("version");
    if (reply.ok && (await reply.text()) !== live.dataset.version) location.reload();
  } catch { live.textContent = "Not live any more: the server has ended."; }
}, 3000)</script>"""

_drawing = threading.Lock()  # matplotlib draws one figure at a time


@dataclasses.dataclass
class LivePage:
    """The page of one folder, drawn on request if files have changed, with rests in between."""

    folder: pathlib.Path
    is_trial: bool = False
    text: str = ""
    version: str = ""
    rests_until: float = 0.0

    def read_version(self) -> str:
        """Read the state of the files; while the page rests, the state it was drawn from."""
        return self.version if time.monotonic() < self.rests_until else read_state(self.folder)

    def read(self) -> str:
        """Read the page as HTML, drawn anew if needed."""
        with _drawing:
            if (version := self.read_version()) != self.version:
                started = time.monotonic()
                self.text = self._draw(version)
                self.version = version
                now = time.monotonic()
                self.rests_until = now + max(LEAST_REST_S, REST_SHARE * (now - started))
            return self.text

    def _draw(self, version: str) -> str:
        try:
            text = read_text(write_report(self.folder)["path"], MOST_FILE_BYTES)
        except (BadInput, WorkFailed, OSError) as error:
            text = html.render_page(self.folder.name, "no page yet", [html.render_paragraph(str(error), "bad")])
        line = f"Live, as of {time.strftime('%H:%M:%S')}: loads itself again when files have changed."
        top = f'<p class="soft" id="live" data-version="{version}">{line}</p>{self._links()}'
        text = text.replace("<head>", '<head><link rel="icon" href="data:,">', 1)  # else a browser requests one
        return text.replace("<main>", f"<main>{top}", 1).replace("</body>", f"{SCRIPT}</body>", 1)

    def _links(self) -> str:
        if self.is_trial:
            return '<p class="soft"><a href="../../">all trials</a></p>'
        names = list(run_paths(self.folder))
        links = " · ".join(
            f'<a href="runs/{urllib.parse.quote(name, safe="")}/">{html.escape_html(name)}</a>'
            for name in names[:MOST_LINKS]
        )
        more = f" · and {len(names) - MOST_LINKS:,} more" if len(names) > MOST_LINKS else ""
        return html.render_details(f"pages of {len(names):,} trials", f"<p>{links}{more}</p>") if names else ""


def read_state(folder: pathlib.Path) -> str:
    """Digest of the state of a run's files, or of all runs of a folder."""
    facts: list[Any] = [(path.name, path.lstat().st_mtime_ns) for path in sorted(folder.glob("[!.]*.json"))]
    facts += [(name, file_state(str(path))) for name, path in {"": folder, **run_paths(folder)}.items()]
    return hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()


def run_paths(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """List the folders of trials by name; none if the folder is a run itself."""
    if (folder / "config.json").exists():
        return {}
    place = folder / "runs" if (folder / "runs").is_dir() else folder
    runs = {name: place / name for name in list_folders(place)[0]}
    return {name: run for name, run in runs.items() if (run / "config.json").exists()}


class LiveServer(http.server.ThreadingHTTPServer):
    """Serves the pages of one folder on the loopback address. BadInput for a port that is not available."""

    daemon_threads = True

    def __init__(self, folder: pathlib.Path, port: int) -> None:
        self.folder, self.pages = folder, {"": LivePage(folder)}
        try:
            super().__init__((ADDRESS, port), PageHandler)
        except OverflowError:
            raise BadInput(f"--serve={port} is not a port: 1 to 65535, or 0 for one that is free") from None
        except OSError as error:
            why = str(error.strerror).lower()
            raise BadInput(f"--serve={port}: {why}; --serve=0 takes a port that is free") from None

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def find_page(self, name: str) -> LivePage | None:
        """Find the page of a trial by its name, or of the whole folder by ""; None if there is none."""
        if name not in self.pages and (path := run_paths(self.folder).get(name)):
            self.pages.setdefault(name, LivePage(path, is_trial=True))
        return self.pages.get(name)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of a failed answer, unless the browser just left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class PageHandler(http.server.BaseHTTPRequestHandler):
    """Answers GET for the pages, their versions and their files; everything else is not found."""

    server: LiveServer
    server_version, sys_version = "scalelab", ""

    def do_GET(self) -> None:
        """Answer one request."""
        if _host_name(self.headers.get("Host", "")) not in NAMES:
            self.send_error(403, f"ask for this server as {NAMES[0]} or {NAMES[1]}")
            return
        path = urllib.parse.urlsplit(self.path).path
        match = re.fullmatch(r"/(?:runs/([^/]+)/)?(version|figures/[\w.-]+|)", path)
        page = self.server.find_page(urllib.parse.unquote(match[1] or "")) if match else None
        if match is None or page is None:
            self.send_error(404)
        elif match[2] == "version":
            self._send(page.read_version().encode(), "text/plain; charset=utf-8")
        elif match[2]:
            self._send_file(page.folder, match[2])
        else:
            self._send(page.read().encode(), "text/html; charset=utf-8")

    def _send_file(self, folder: pathlib.Path, name: str) -> None:
        try:
            content = read_bytes(path_below(folder, name), MOST_FILE_BYTES)
            kind = FILE_TYPES[pathlib.PurePath(name).suffix]
        except (BadInput, OSError, KeyError):  # a link, or a file that the page does not have
            self.send_error(404)
        else:
            self._send(content, kind)

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: object) -> None:
        """Log nothing: errors stand in the answers."""


def _host_name(host: str) -> str:
    """Take the name from a Host header, without the port, which differs behind `ssh -L`."""
    return re.sub(r":\d*$", "", host).lower()
