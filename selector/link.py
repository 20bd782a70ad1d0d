"""A connection between the tools of two nodes: whole JSON messages, each behind its length."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

from aiak_tune.errors import JobError

LENGTH = struct.Struct("!Q")
LONGEST = 1 << 30  # traces of some steps, packed, are a few MB a rank
SEND_S = 60.0
Message = dict[str, Any]


class Link:
    """One end; `who` is what the other is called in messages."""

    def __init__(self, connection: socket.socket, who: str) -> None:
        self.who = who
        self._connection = connection
        self._data = bytearray()
        connection.settimeout(SEND_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A host that vanished is noticed after a minute and a half, not after two hours.
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message.

        Raises:
            JobError: the other is gone.
        """
        data = json.dumps(message).encode()
        try:
            self._connection.sendall(LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise self._gone(error) from error

    def poll(self) -> Message | None:
        """Return a message that has come, without waiting; None: there is none.

        Raises:
            JobError: the other is gone, or does not speak our language.
        """
        if (known := self._whole()) is not None:
            return known
        while select.select([self._connection], [], [], 0)[0]:
            try:
                data = self._connection.recv(1 << 20)
            except OSError as error:
                raise self._gone(error) from error
            if not data:
                raise self._gone(None)
            self._data += data
            if len(data) < 1 << 20:
                break
        return self._whole()

    def receive(self, seconds: float | None) -> Message | None:
        """Wait for a message, for ever where `seconds` is None; return None when none came."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while (message := self.poll()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            select.select([self._connection], [], [], left)
        return message

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _whole(self) -> Message | None:
        if len(self._data) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._data)
        if length > LONGEST:
            raise JobError(f"{self.who} is no aiak-tune: is the port another program's?")
        if len(self._data) < LENGTH.size + length:
            return None
        text = bytes(self._data[LENGTH.size : LENGTH.size + length])
        del self._data[: LENGTH.size + length]
        try:
            message = json.loads(text)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise JobError(f"{self.who} is no aiak-tune: is the port another program's?")
        return message

    def _gone(self, error: OSError | None) -> JobError:
        why = "it ended, or was ended" if error is None else (error.strerror or str(error))
        return JobError(f"{self.who} is gone ({why}): see what it printed")
