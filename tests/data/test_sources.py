"""Finding, fetching and verifying files; downloads come from a real HTTP server on the loopback."""

import contextlib
import errno
import gzip
import hashlib
import http.server
import io
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.core.errors import DataError
from fedaccord.data import archives, catalog, sources
from fedaccord.data.sources import Route, Source

FILES = {"images": bytes(range(256)) * 40, "labels": b"0123456789" * 10}
SHA256 = {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}
DAMAGED = {name: data[:-1] + b"!" for name, data in FILES.items()}


class Web:
    """A server whose pages are a table, and which remembers what it was asked for."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.claimed: dict[str, int] = {}  # a Content-Length other than the true one
        self.asked: list[str] = []
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.asked.append(self.path)
                body = web.pages.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(web.claimed.get(self.path, len(body or b""))))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def publish(self, folder: str, files: dict[str, bytes] = FILES) -> None:
        self.pages |= {f"/{folder}/{name}": data for name, data in files.items()}

    def route(self, folder: str) -> Route:
        def fetch(scratch: Path) -> sources.Files:
            for name in FILES:
                yield name, sources.download(f"{self.address}/{folder}/{name}", scratch).read_bytes()

        return Route(f"the {folder} address", fetch)

    def source(self, *folders: str) -> Source:
        return Source("tiny", SHA256, tuple(self.route(folder) for folder in folders))


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()
    yield web
    web.close()


def put(folder: Path, files: dict[str, bytes] = FILES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refused_port() -> int:
    """A port that was free a moment ago: nobody listens there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetched(source: Source) -> dict[str, bytes] | None:
    """As `fedaccord data fetch` gets it, if it is not here yet."""
    if (found := sources.find(source)) is None:
        sources.fetch(source)
        found = sources.find(source)
    return found


# --- the order of search ---


def test_only_fetch_asks_the_network(web):
    web.publish("official")
    with pytest.raises(DataError, match=r"^tiny: not on this machine; `fedaccord data fetch tiny` gets it"):
        sources.load(web.source("official"))
    assert web.asked == []
    assert sources.fetch(web.source("official")) == sources.cache_folder() / "tiny"
    assert sources.load(web.source("official")) == FILES


PLACES = ["FEDACCORD_DATA/tiny", "cache", "official", "registry"]


@pytest.mark.parametrize("place", PLACES)
def test_first_place_that_holds_the_set_wins(place, web, tmp_path, monkeypatch):
    """The set is whole in one place and damaged in all later ones: reading any of these would be an error."""
    monkeypatch.setenv("FEDACCORD_DATA", str(tmp_path))
    folders = {
        "FEDACCORD_DATA/tiny": tmp_path / "tiny",
        "cache": sources.cache_folder() / "tiny",
    }
    for later in PLACES[PLACES.index(place) :]:
        content = FILES if later == place else DAMAGED
        if later in folders:
            put(folders[later], content)
        else:
            web.publish(later, content)
    assert fetched(web.source("official", "registry")) == FILES
    asked = {
        "official": ["/official/images", "/official/labels"],
        "registry": ["/official/images", "/registry/images", "/registry/labels"],
    }
    assert web.asked == asked.get(place, [])
    assert sources.where(web.source()) == folders.get(place, folders["cache"])


def test_what_was_fetched_once_is_not_fetched_again(web):
    web.publish("official")
    assert fetched(web.source("official")) == fetched(web.source("official")) == FILES
    assert len(web.asked) == len(FILES)


@pytest.mark.parametrize("gzipped", [True, False])
def test_a_file_is_read_plain_or_gzipped(gzipped, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDACCORD_DATA", str(tmp_path))
    put(tmp_path / "tiny", {f"{name}.gz": gzip.compress(data) for name, data in FILES.items()} if gzipped else FILES)
    assert sources.find(Source("tiny", SHA256)) == FILES


def test_a_folder_that_does_not_exist_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDACCORD_DATA", str(tmp_path / "absent"))
    with pytest.raises(DataError, match=r"absent, which is not a folder"):
        sources.find(Source("tiny", SHA256))


def test_a_set_that_is_nowhere_is_not_found():
    assert sources.find(Source("tiny", SHA256)) is None
    assert sources.where(Source("tiny", SHA256)) is None


@pytest.mark.parametrize("place", PLACES[:2])
def test_an_incomplete_set_is_an_error_that_names_folder_and_missing_file(place, web, tmp_path, monkeypatch):
    """Even though it is whole on the web: half a set in a folder is a mistake to tell, not to paper over."""
    web.publish("official")
    monkeypatch.setenv("FEDACCORD_DATA", str(tmp_path))
    folder = sources.cache_folder() / "tiny" if place == "cache" else tmp_path / "tiny"
    put(folder, {"images": FILES["images"]})
    with pytest.raises(DataError, match=rf"{folder}: tiny is incomplete there, labels is missing"):
        fetched(web.source("official"))
    assert web.asked == []


# --- damaged files ---


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("images", DAMAGED["images"], "wrong checksum"),
        ("images", b"", "wrong checksum, 0 bytes"),
        ("images.gz", gzip.compress(FILES["images"])[:-20], "truncated or corrupt gzip"),
        ("images.gz", gzip.compress(FILES["images"])[:-5] + b"\0\0\0\0\0", "truncated or corrupt gzip"),
        ("images.gz", b"", "wrong checksum"),  # no gzip member at all decompresses to nothing
        ("images.gz", FILES["images"], "truncated or corrupt gzip"),  # not gzipped, in spite of its name
        ("images.gz", gzip.compress(DAMAGED["images"]), "wrong checksum"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(name, content, complaint, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDACCORD_DATA", str(tmp_path))
    put(tmp_path / "tiny", {name: content, "labels": FILES["labels"]})
    with pytest.raises(DataError, match=rf"{tmp_path}/tiny/{name}: {complaint}"):
        sources.load(Source("tiny", SHA256))


def test_what_cannot_be_read_is_an_error_that_names_it(tmp_path, monkeypatch):
    """The first page of a process's memory is a file that nobody can read, root neither."""
    monkeypatch.setenv("FEDACCORD_DATA", str(tmp_path))
    put(tmp_path / "tiny", {"images": FILES["images"]})
    (tmp_path / "tiny" / "labels").symlink_to("/proc/self/mem")
    with pytest.raises(DataError, match=r"labels: cannot be read: Input/output error"):
        sources.load(Source("tiny", SHA256))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_an_error_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDACCORD_DATA", str(tmp_path))
    (put(tmp_path / "tiny") / "labels").chmod(0)
    with pytest.raises(DataError, match=r"labels: cannot be read: Permission denied"):
        sources.load(Source("tiny", SHA256))


@given(st.binary(min_size=1, max_size=200), st.data())
def test_no_cut_gzip_file_passes(content, data):
    whole = gzip.compress(content)
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(DataError, match=r"some\.gz: truncated or corrupt"):
        archives.gunzip(whole[:cut], "some.gz")


# --- fetching ---


def break_missing_page(web: Web) -> None:
    del web.pages["/first/labels"]


def break_short_body(web: Web) -> None:
    web.claimed["/first/labels"] = len(FILES["labels"]) + 1000


def break_wrong_bytes(web: Web) -> None:
    web.publish("first", {"labels": DAMAGED["labels"]})


BREAKAGES = {
    break_missing_page: "/first/labels: no answer (Not Found)",
    break_short_body: "/first/labels: the connection ended after 100 of 1,100 bytes",
    break_wrong_bytes: "labels from the first address: wrong checksum, 100 bytes",
}


@pytest.fixture(params=BREAKAGES, ids=lambda breakage: breakage.__name__.removeprefix("break_"))
def broken(request, web) -> tuple[Web, str]:
    """The first route breaks at its second file, and what is said about it."""
    web.publish("first")
    request.param(web)
    return web, BREAKAGES[request.param]


def test_when_the_first_route_fails_the_second_is_taken(broken):
    web, _ = broken
    web.publish("second")
    assert fetched(web.source("first", "second")) == FILES
    assert everything_in(sources.cache_folder()) == ["tiny", "tiny/images", "tiny/labels"]


def test_when_all_routes_fail_one_error_names_them_all_and_nothing_is_installed(broken):
    """Not even the first file, which was good: half a set would be in the way of the next attempt."""
    web, complaint = broken
    with pytest.raises(DataError) as caught:
        fetched(web.source("first", "second"))
    message = str(caught.value)
    assert message.startswith("tiny: could not be fetched (the first address: ")
    assert complaint in message
    assert f"; the second address: {web.address}/second/images: no answer (Not Found)" in message
    assert "FEDACCORD_DATA" in message  # what to do
    assert everything_in(sources.cache_folder()) == []
    web.pages.clear()
    web.claimed.clear()
    web.publish("second")
    assert fetched(web.source("first", "second")) == FILES


def test_a_failed_fetch_leaves_the_files_of_before(broken):
    web, _ = broken
    put(sources.cache_folder() / "tiny")
    with pytest.raises(DataError):
        sources.fetch(web.source("first"))
    assert sources.find(web.source()) == FILES


def test_a_route_that_lacks_a_file_is_named_with_the_file():
    route = Route("the short route", lambda _: iter([("images", FILES["images"])]))
    with pytest.raises(DataError, match="the short route has no labels"):
        fetched(Source("tiny", SHA256, (route,)))


def test_a_set_without_a_route_says_how_to_provide_it():
    with pytest.raises(DataError, match=r"tiny: .*not on this machine: put the files .*FEDACCORD_DATA"):
        sources.load(Source("tiny", SHA256))


@pytest.mark.parametrize("content", [DAMAGED, {"labels": FILES["labels"]}], ids=["damaged", "incomplete"])
def test_catalog_fetch_replaces_what_is_wrong_in_the_cache(content, web, monkeypatch):
    web.publish("official")
    source = web.source("official")
    monkeypatch.setitem(catalog.CATALOG, "tiny", catalog.Entry("", lambda: pytest.fail("not asked for"), source))
    folder = put(sources.cache_folder() / "tiny", content)
    assert catalog.fetch("tiny") == str(folder)
    assert sources.find(source) == FILES
    web.asked.clear()
    assert catalog.fetch("tiny") == str(folder)
    assert web.asked == []


def test_a_cache_folder_that_cannot_be_made_is_named(web):
    web.publish("official")
    sources.cache_folder().write_bytes(b"a file where the folder should be")
    with pytest.raises(DataError, match=rf"{sources.cache_folder()}/tiny/images: cannot be written"):
        fetched(web.source("official"))


# --- downloading ---


def test_a_download_has_the_servers_bytes(web, tmp_path):
    web.pages["/a/some.bin"] = bytes(3 * sources.CHUNK // 2)  # more than one chunk
    path = sources.download(f"{web.address}/a/some.bin", tmp_path)
    assert path == tmp_path / "some.bin"
    assert path.read_bytes() == web.pages["/a/some.bin"]


def test_nobody_listening_is_an_error_that_names_the_address(tmp_path):
    url = f"http://127.0.0.1:{refused_port()}/some.bin"
    with pytest.raises(DataError, match=rf"{url}: no answer \(.*refused"):
        sources.download(url, tmp_path)


def test_a_connection_that_ends_early_is_an_error_that_says_where(web, tmp_path):
    web.pages["/some.bin"] = bytes(700)
    web.claimed["/some.bin"] = 2000
    with pytest.raises(DataError, match=rf"{web.address}/some\.bin: the connection ended after 700 of 2,000 bytes"):
        sources.download(f"{web.address}/some.bin", tmp_path)


def test_a_server_that_hangs_up_without_a_word_is_an_error_that_names_the_address(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        hang_up = threading.Thread(target=lambda: server.accept()[0].close())
        hang_up.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/some.bin"
        with pytest.raises(DataError, match=rf"{url}: no answer"):
            sources.download(url, tmp_path)
        hang_up.join()


# --- a full disk ---


@pytest.fixture
def tiny_disk(tmp_path) -> Iterator[Path]:
    """A real file system of 64 KB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small file system can only be mounted by root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def big_source() -> Source:
    """A small file that fits on the tiny disk, and one that does not."""
    files = {"images": FILES["images"], "labels": bytes(200_000)}
    pinned = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return Source("tiny", pinned, (Route("memory", lambda _: iter(files.items())),))


def test_a_full_disk_is_named_and_nothing_stays_on_it(tiny_disk, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tiny_disk))
    with pytest.raises(DataError, match=rf"tiny: no space left .*{tiny_disk}/fedaccord/tiny/labels"):
        fetched(big_source())
    assert everything_in(sources.cache_folder()) == ["tiny"]  # an empty folder


def test_a_full_scratch_disk_is_named_and_no_other_route_is_tried(tiny_disk, web, monkeypatch):
    web.publish("first", {"images": bytes(200_000)})
    web.publish("second")
    monkeypatch.setattr(tempfile, "tempdir", str(tiny_disk))
    with pytest.raises(DataError, match=rf"tiny: no space left .*{tiny_disk}"):
        fetched(web.source("first", "second"))
    assert web.asked == ["/first/images"]
    assert everything_in(tiny_disk) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_write_that_finds_no_space_leaves_no_partial_file():
    """Without root: the temporary name of the second file leads to a device that is always full."""
    folder = sources.cache_folder() / "tiny"
    folder.mkdir(parents=True)
    (folder / f".labels.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(DataError, match=rf"tiny: no space left .*{folder}/labels"):
        fetched(big_source())
    assert everything_in(folder) == []


def test_a_file_is_replaced_by_renaming_never_overwritten(tmp_path):
    """Whoever has the old file open (here: another name of it) keeps the old content, whole."""
    path, other_name = put(tmp_path, {"file": b"old"}) / "file", tmp_path / "other"
    os.link(path, other_name)
    sources.write_atomically({path: b"new"})
    assert path.read_bytes() == b"new"
    assert other_name.read_bytes() == b"old"


def test_an_interrupted_write_leaves_no_partial_file(tmp_path, monkeypatch):
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sources.write_atomically({tmp_path / "a" / "file": b"content"})
    assert everything_in(tmp_path) == ["a"]


def test_other_system_errors_are_not_called_a_full_disk():
    with pytest.raises(PermissionError), sources.full_disk_named("tiny"):
        raise PermissionError(errno.EACCES, "denied")


# --- archives ---


def member(name: str, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def tar_of(*entries: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for info, content in entries:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_members_yields_the_wanted_regular_members_by_our_names(tmp_path):
    archive = tmp_path / "some.tgz"
    archive.write_bytes(tar_of((member("./package/a"), b"1"), (member("package/b"), b"2"), (member("package/c"), b"3")))
    assert dict(archives.members(archive, {"package/a": "A", "package/c": "C", "package/z": "Z"}.get)) == {
        "A": b"1",
        "C": b"3",
    }


@pytest.mark.parametrize(
    ("info", "content", "is_read"),
    [
        (member("../../evil"), b"bad", True),
        (member("{outside}/evil"), b"bad", True),
        (member("link", type=tarfile.SYMTYPE, linkname="../../evil"), b"", False),
        (member("link", type=tarfile.SYMTYPE, linkname="{outside}/evil"), b"", False),
        (member("link", type=tarfile.LNKTYPE, linkname="good"), b"", False),
        (member("device", type=tarfile.CHRTYPE), b"", False),
        (member("folder", type=tarfile.DIRTYPE), b"", False),
    ],
    ids=["parent", "absolute", "symlink", "absolute symlink", "hard link", "device", "folder"],
)
def test_no_member_ever_lands_on_disk(info, content, is_read, tmp_path, monkeypatch):
    """Even if its name were wanted: a regular member is only read into memory, anything else is passed over."""
    info.name, info.linkname = (text.replace("{outside}", str(tmp_path)) for text in (info.name, info.linkname))
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    archive = inside / "some.tgz"
    archive.write_bytes(tar_of((member("good"), b"good"), (info, content)))
    before = everything_in(tmp_path)
    got = dict(archives.members(archive, {"good": "good", info.name: "it"}.get))
    assert got == ({"good": b"good", "it": content} if is_read else {"good": b"good"})
    assert everything_in(tmp_path) == before


@given(st.data())
def test_a_damaged_archive_is_a_data_error_or_gives_whole_members(tmp_path_factory, data):
    """Whole, if perhaps wrong: the checksum is what catches that."""
    content = bytes(range(256)) * 4
    whole = tar_of((member("a"), content), (member("b"), content[::-1]))
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    archive = tmp_path_factory.mktemp("archive") / "some.tgz"
    archive.write_bytes(damaged[: data.draw(st.integers(0, len(whole)))])
    with contextlib.suppress(DataError):
        got = dict(archives.members(archive, {"a": "a", "b": "b"}.get))
        assert all(len(each) == len(content) for each in got.values())


# --- the registries' own clients ---


def test_a_tool_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="npm is not installed"):
        sources.npm_archive("some-package@1.0.0", tmp_path)


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        ("import sys; print('first', file=sys.stderr); sys.exit('404 Not Found')", "failed: 404 Not Found$"),
        ("import sys; print('on stdout'); sys.exit(3)", "failed: on stdout$"),
        ("import sys; sys.exit(3)", "failed: no message$"),
    ],
)
def test_a_tool_that_fails_is_quoted_by_its_last_line(program, complaint, tmp_path):
    with pytest.raises(DataError, match=complaint):
        sources.run_tool([sys.executable, "-c", program], tmp_path)


@pytest.mark.parametrize("names", [[], ["a.tgz", "b.tgz"]])
def test_a_tool_that_leaves_not_one_archive_is_an_error_that_names_the_package(names, tmp_path):
    put(tmp_path, dict.fromkeys(names, b""))
    with pytest.raises(DataError, match=rf"some-package: expected one \*\.tgz, got {len(names)}"):
        sources.only_file(tmp_path, "*.tgz", "some-package")


def test_a_large_file_with_a_wrong_checksum_is_named(tmp_path):
    path = put(tmp_path) / "images"
    sources.verify_file(path, SHA256["images"])
    with pytest.raises(DataError, match="images: wrong checksum"):
        sources.verify_file(path, SHA256["labels"])
