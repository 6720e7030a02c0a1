"""A network that misbehaves: a TCP proxy in front of a server."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

_CHUNK = 1 << 16


class Proxy:
    """Forwards connections to `target` (a port of this machine); its attributes may be changed at any time."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.delay_s = 0.0
        """How long replies are held back."""
        self.silent = False
        """Whether bytes vanish, in both directions, while connections stay open."""
        self.lose_replies_to: bytes | None = None
        """The reply to a request that contains this is lost, and its connection with it."""
        self.lost = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._refusing = False

    @property
    def url(self) -> str:
        """Where a Redis behind it is reached."""
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self) -> None:
        """Close every connection and refuse new ones."""
        self._refusing = True
        self._close_all()

    def mend(self) -> None:
        """Forward again."""
        self._refusing = self.silent = False
        self.delay_s = 0.0
        self._close_all()

    def _close_all(self) -> None:
        for pair in self._pairs:
            for each in pair:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
        self._pairs = []

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            pair = client, server
            self._pairs.append(pair)
            doomed = threading.Event()
            for source, sink, is_reply in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._pump, args=(source, sink, doomed), kwargs={"is_reply": is_reply}, daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, doomed: threading.Event, *, is_reply: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(_CHUNK):
                if is_reply and self.delay_s:
                    time.sleep(self.delay_s)
                if self.silent:
                    continue
                if not is_reply and self.lose_replies_to is not None and self.lose_replies_to in chunk:
                    doomed.set()
                if is_reply and doomed.is_set():
                    self.lost += 1
                    break
                sink.sendall(chunk)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self._close_all()
