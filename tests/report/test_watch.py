"""The live page's server: on this machine alone, for its own name alone."""

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading

import pytest
from folders import line, write_run

from fedaccord.core.errors import RunError, SettingsError
from fedaccord.report.watch import make_server, serve


@contextlib.contextmanager
def serving(*runs):
    with make_server(runs) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def get(port, path="/data.json", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def test_it_gives_the_page_and_the_newest_data(tmp_path):
    run = write_run(tmp_path / "run", [line(1)], rounds=3)
    with serving(run) as port:
        status, headers, text = get(port, "/")
        assert status == 200
        assert headers["Cache-Control"] == "no-store"
        assert "connect-src 'self'" in headers["Content-Security-Policy"]
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert 'data-live="yes"' in text
        assert json.loads(get(port)[2])["runs"][0]["finished"] == 1
        with open(run / "rounds.jsonl", "a") as log:
            log.write(json.dumps(line(2)) + '\n{"round": 3, "hy')
        status, headers, text = get(port)
        assert headers["Cache-Control"] == "no-store"
        assert json.loads(text)["runs"][0]["finished"] == 2
        (run / "metrics.json").write_text('[{"name": "rmse", "higher": false}]')
        assert [metric["name"] for metric in json.loads(get(port)[2])["metrics"]] == ["rmse"]
        (run / "classes.json").write_text('{"names": ["cat"], "round": 2, "tested": [4], "right": [1]}')
        assert json.loads(get(port)[2])["runs"][0]["classes"]["accuracy"] == [0.25]
        assert get(port, "/etc/passwd")[0] == get(port, "/../data.json")[0] == 404


def test_a_foreign_name_is_refused(tmp_path):
    """DNS rebinding: a website makes its own name point to this machine, and asks in that name."""
    with serving(write_run(tmp_path / "run", [line(1)])) as port:
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "localhost.evil.example:80"):
            status, _, text = get(port, Host=host)
            assert status == 403
            assert "round" not in text
        for host in ("localhost", f"localhost:{port}", f"127.0.0.1:{port}"):
            assert get(port, Host=host)[0] == 200


def test_a_run_that_is_deleted_meanwhile_is_told(tmp_path):
    run = write_run(tmp_path / "run", [line(1)])
    with serving(run) as port:
        for file in ("settings.toml", "rounds.jsonl"):
            (run / file).unlink()
        status, _, text = get(port)
    assert status == 503
    assert "not a run folder" in text


def test_what_is_wrong_is_said_before_serving(tmp_path):
    with pytest.raises(RunError, match="not a run folder"):
        serve([tmp_path])
    run = write_run(tmp_path / "run", [line(1)])
    with serving(run) as port, pytest.raises(SettingsError, match=f"port {port}: .*choose another"):
        serve([run], port)
    with pytest.raises(SettingsError, match="port 70000"):
        serve([run], 70000)


@pytest.mark.slow
@pytest.mark.anywhere
def test_ctrl_c_ends_it_cleanly(tmp_path):
    run = write_run(tmp_path / "run", [line(1)])
    code = "import sys, pathlib; from fedaccord.report.watch import serve; serve([pathlib.Path(sys.argv[1])])"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code, str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job inherits that it is ignored
    )
    address = process.stdout.readline()
    assert address.startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert (process.returncode, errors) == (0, "")
