"""A server that speaks S3, on loopback, in a process of its own; and one that answers with an error of choice."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
import httpx2
import pytest
from botocore.config import Config
from waiting import wait_until

ACCESS_KEY, SECRET_KEY = "AKIATESTTESTTESTTEST", "Wq7secretsecretsecretsecret"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


class S3Server:
    """A process of moto. It keeps its objects while it is frozen, and loses them when it is stopped."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        """Start the process, at the same port."""
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers)
        self.client().list_buckets()  # the first request to S3 takes long, and others meanwhile may fail

    def stop(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait(30)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The process stopped by SIGSTOP: it accepts connections, and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def bucket(self, name: str | None = None) -> str:
        """The name of a new bucket."""
        name = name or f"test-{uuid.uuid4().hex}"
        self.client().create_bucket(Bucket=name)
        return name

    def client(self) -> Any:
        """A client of Amazon's own, for a look at the objects."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(proxies={}, retries={"max_attempts": 1}),
        )

    def objects(self, bucket: str) -> dict[str, int]:
        """The sizes of the objects by key, multipart uploads that were not completed included."""
        client = self.client()
        found = {
            entry["Key"]: entry["Size"]
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
            for entry in page.get("Contents", [])
        }
        unfinished = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        return found | {f"unfinished {entry['Key']}": -1 for entry in unfinished}

    def _answers(self) -> bool:
        assert self.process.poll() is None, "moto ended"
        try:
            return httpx2.get(f"{self.url}/moto-api/", trust_env=False).status_code < 500
        except httpx2.HTTPError:
            return False


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """Context manager: a server without buckets."""
    server = S3Server()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def s3_server():
    with running_s3() as server:
        yield server


@pytest.fixture
def s3_credentials(monkeypatch):
    """The credentials in the environment of this process, where obstore reads them."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@contextmanager
def answering(status: int, code: str) -> Iterator[str]:
    """The URL of a server that answers every request with this status and error code, and quotes the key id."""
    body = f"<Error><Code>{code}</Code><AWSAccessKeyId>{ACCESS_KEY}</AWSAccessKeyId></Error>".encode()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base class names it
            pass

    for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
        setattr(Handler, f"do_{method}", Handler.answer)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def racing_mark(owner: str, *, has_conditions: bool) -> Iterator[tuple[str, list[str | None]]]:
    """An empty bucket where another store writes its mark before the first write of this one.

    Yields the URL, and a list that gets the `if-none-match` of each write. Without conditions a conditional write is a
    501, as some servers answer.
    """
    writes: list[str | None] = []
    content: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "list-type" in self.path:
                self._answer(200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
            elif content:
                self._answer(200, content[-1])
            else:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            condition = self.headers.get("if-none-match")
            if not content:
                content.append(owner.encode())
            writes.append(condition)
            if condition is None:
                content.append(body)
                self._answer(200, b"")
            elif has_conditions:
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            else:
                self._answer(501, b"<Error><Code>NotImplemented</Code></Error>")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", '"a"')
            self.send_header("last-modified", "Mon, 01 Jan 2024 00:00:00 GMT")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base class names it
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", writes
        finally:
            server.shutdown()
            thread.join()
