"""Every byte of one small federation at the socket, behind TLS termination, and what would be found in it."""

import gzip
import io
import zipfile
import zlib

import numpy as np
import pytest

pytest.importorskip("flwr")
pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own

from benchmarks.chaos import canaries, capture  # noqa: E402
from benchmarks.chaos.tls_proxy import Talk, exchanges, messages  # noqa: E402

VALUES = np.random.default_rng(0).random(12, dtype=np.float32)


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.parametrize("number", range(3), ids=capture.METHODS)
def test_declared_slots_and_no_canary_are_in_the_bytes_of_a_federation(number, tmp_path):
    outcome = capture.captured(number, tmp_path)
    assert outcome.lost == 0, outcome.told
    assert outcome.tried >= 2 * capture.ROUNDS * capture.CLIENTS


def packed(data):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a", data)
    return archive.getvalue()


WAYS = {
    "as it is": lambda raw: raw,
    "big-endian": lambda raw: VALUES.astype(">f4").tobytes(),
    "doubles": lambda raw: VALUES.astype("<f8").tobytes(),
    "halves": lambda raw: VALUES.astype("<f2").tobytes(),
    "text": lambda raw: repr(VALUES.astype(float).tolist()).encode(),
    "hex": lambda raw: raw.hex().encode(),
    "base64 at 0": lambda raw: canaries.base64.b64encode(raw),
    "base64 at 1": lambda raw: canaries.base64.b64encode(b"x" + raw),
    "base64 at 2": lambda raw: canaries.base64.b64encode(b"xy" + raw),
    "zlib": zlib.compress,
    "gzip": gzip.compress,
    "zip": packed,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_canary_is_found_in_every_encoding(way):
    stream = b"before" * 1000 + WAYS[way](VALUES.tobytes()) + b"after" * 1000
    needles = canaries.of_numbers(VALUES)
    assert canaries.leaks(needles, [stream])
    others = np.random.default_rng(1).random(3000, dtype=np.float32)
    assert not canaries.leaks(canaries.of_numbers(others), [stream])


def test_a_name_is_found():
    with pytest.raises(ValueError, match="too short"):
        canaries.of_name("dr-no")
    needles = canaries.of_name("patients-of-dr-no")
    for text in (b"/x/patients-of-dr-no.pt", "patients-of-dr-no".encode("utf-16"), b"patients-of-dr-no".hex().encode()):
        assert canaries.leaks(needles, [b"...." + text + b"...."])
    assert not canaries.leaks(needles, [b"clients-of-dr-yes"])


def test_http_is_taken_apart_to_the_last_byte():
    up = b"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcPOST /b HTTP/1.1\r\nhost: x\r\n\r\n"
    down = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    ((asked, answered),) = exchanges(Talk("x", bytearray(up), bytearray(down)))
    assert (asked.line, asked.body, answered.body) == ("POST /a HTTP/1.1", b"abc", b"abc")
    assert [said.line for said in messages(up)] == ["POST /a HTTP/1.1", "POST /b HTTP/1.1"]
    assert list(messages(up[:40])) == []  # cut off
    with pytest.raises(ValueError, match="2 requests and 0 responses"):
        exchanges(Talk("x", bytearray(up), bytearray()))
