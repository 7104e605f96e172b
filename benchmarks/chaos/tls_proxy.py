"""A proxy that terminates TLS in front of the SuperLink and keeps every byte, and a parser of those bytes as HTTP."""

import asyncio
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Talk:
    """All bytes of one connection, without TLS."""

    who: str
    up: bytearray = field(default_factory=bytearray)  # from the node or the server
    down: bytearray = field(default_factory=bytearray)  # to it


class Proxy:
    """A proxy that has a port of loopback for each node and the server, and passes everything on to the SuperLink.

    It has the SuperLink's own certificate, so whoever connects takes it for the SuperLink; towards the SuperLink it
    checks the certificate as they do. `keys` is the folder with server.pem, server.key and ca.pem.
    """

    def __init__(self, keys: Path, superlink: str):
        self.talks: list[Talk] = []
        self.host, port = superlink.split(":")
        self.port = int(port)
        self.own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.own.load_cert_chain(keys / "server.pem", keys / "server.key")
        self.theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.theirs.load_verify_locations(keys / "ca.pem")
        self.loop = asyncio.new_event_loop()
        self.servers: list[asyncio.Server] = []
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def listen(self, who: str) -> str:
        """Open a port for a node or the server, and return the address to give it in place of the SuperLink's."""

        async def start() -> str:
            server = await asyncio.start_server(lambda r, w: self.serve(who, r, w), "127.0.0.1", 0, ssl=self.own)
            self.servers.append(server)
            return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

        return asyncio.run_coroutine_threadsafe(start(), self.loop).result(60)

    async def serve(self, who: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either end closes it."""
        talk = Talk(who)
        self.talks.append(talk)
        try:
            far = await asyncio.open_connection(self.host, self.port, ssl=self.theirs)
        except OSError:  # the SuperLink is not there, so neither is its proxy
            writer.close()
            return
        pumps = [
            asyncio.ensure_future(pump(reader, far[1], talk.up)),
            asyncio.ensure_future(pump(far[0], writer, talk.down)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for each in (writer, far[1]):
            each.close()
        await asyncio.gather(*pumps, return_exceptions=True)

    def close(self) -> None:
        async def stop() -> None:
            for server in self.servers:
                server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self.loop).result(60)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(60)
        self.loop.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
    """Pass on everything from the reader to the writer, and keep a copy of it."""
    while data := await reader.read(65_536):
        kept += data
        writer.write(data)
        await writer.drain()


# ---------------------------------------------------------------- HTTP/1.1


@dataclass(frozen=True)
class Said:
    """One HTTP request or response."""

    line: str
    headers: Mapping[str, str]
    body: bytes


def messages(data: bytes) -> Iterator[Said]:
    """Yield the messages of one direction of a connection: all its bytes, but for a last message that was cut off."""
    place = 0
    while place < len(data):
        end = data.find(b"\r\n\r\n", place)
        if end < 0:
            return
        line, *rest = data[place:end].decode("ascii").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in rest)}
        place = end + 4
        if headers.get("transfer-encoding") == "chunked":
            body, place = chunked(data, place)
        else:
            size = int(headers.get("content-length", 0))
            body, place = data[place : place + size], place + size
        if place > len(data):
            return
        yield Said(line, headers, body)


def chunked(data: bytes, place: int) -> tuple[bytes, int]:
    """Return a body that was sent in chunks, and the place where it ends."""
    body = b""
    while True:
        end = data.find(b"\r\n", place)
        if end < 0:
            return body, len(data) + 1
        size = int(data[place:end].split(b";")[0], 16)
        body += data[end + 2 : end + 2 + size]
        place = end + 2 + size + 2
        if size == 0:
            return body, place


def exchanges(talk: Talk) -> list[tuple[Said, Said]]:
    """Return the requests of a connection, each with its response, in order; a last one without any is left out."""
    asked, answered = list(messages(bytes(talk.up))), list(messages(bytes(talk.down)))
    if len(asked) - len(answered) not in (0, 1):
        raise ValueError(f"{talk.who}: {len(asked)} requests and {len(answered)} responses")
    return list(zip(asked, answered, strict=False))
