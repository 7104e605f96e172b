"""The report page in a real browser: charts drawn, controls work, nothing asked of anybody."""

import contextlib
import json
import shutil
import threading

import pytest
from folders import line, write_run

from fedaccord.report.page import write_page
from fedaccord.report.watch import make_server

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SHARED = ("accuracy", "loss", "share", "part", "norms", "divergence", "seconds")
TUNER = ("map", "mean-0", "mean-1", "reward")
SECONDS = 60_000  # a loaded machine may take its time; nothing here measures it


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser on this machine (looked for {', '.join(BROWSERS)})")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser, address, asked=(), **options):
    """The page at an address. Afterwards: nothing went wrong, and only it and `asked` were requested."""
    context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
    context.set_default_timeout(SECONDS)
    page = context.new_page()
    problems, requests = [], []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))

    def pass_on(route):
        requests.append(route.request.url)
        route.continue_() if route.request.url in (address, *asked) else route.abort()

    context.route("**/*", pass_on)
    page.on("request", lambda request: requests.append(request.url))  # also what is not routed
    page.goto(address)
    yield page
    context.close()
    assert problems == []
    assert {url for url in requests if not url.startswith(("data:", "blob:"))} <= {address, *asked}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of three runs, two of them tuned."""
    root = tmp_path_factory.mktemp("page")
    fixed = [line(t, policy={}, hyper={"lr": 0.1, "steps": 20}) for t in range(1, 9)]
    runs = [
        write_run(root / "fixed", fixed, method="FA"),
        write_run(root / "tuned", [line(t) for t in range(1, 9)], method="FA+RM+AH"),
        write_run(root / "half", [line(t) for t in range(1, 7)], method="FA+AH", fraction=0.5),
    ]
    write_page(runs, root / "report.html")
    return (root / "report.html").as_uri()


def until(page, condition):
    """Playwright's own wait evaluates text in the page, which the page's policy forbids."""
    for _ in range(SECONDS // 50):
        if condition():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it never became so")


def drawn(page, chart, marks="path.js-line, path.point, .barlayer path, image"):
    """How many marks a chart has: lines, points, bars, the picture of a heat map."""
    return page.locator(f"#{chart} .cartesianlayer").locator(marks).count()


def overflow(page):
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def width_of(page, place):
    return round(page.locator(place).first.bounding_box()["width"])


def shown(page):
    """The heat map's values."""
    return page.evaluate("document.getElementById('map').data[0].z")


def slide(page, place):
    page.locator("#round").evaluate(
        "(slider, place) => { slider.value = place; slider.dispatchEvent(new Event('input')); }", place
    )


@pytest.mark.parametrize(("scheme", "other"), [("light", "dark"), ("dark", "light")])
def test_every_chart_is_drawn_in_any_colours_and_at_any_width(browser, report, scheme, other):
    with opened(browser, report, color_scheme=scheme) as page:
        for chart in (*SHARED, *TUNER):
            assert drawn(page, chart) > 0, chart
            assert page.locator(f"#{chart}").get_attribute("aria-label"), chart
        assert drawn(page, "loss", "path.js-line") == 3
        assert page.locator("a[href^=http], [src^=http]").count() == 0
        assert page.locator("#loss .modebar-btn").count() == 2  # Plotly's own set has one that uploads the data
        tick = page.locator("#loss .xtick text").first
        before = tick.evaluate("node => getComputedStyle(node).fill")
        page.emulate_media(color_scheme=other)  # changed while the page is open: the charts follow
        sync_api.expect(tick).not_to_have_css("fill", before)
        for width in (360, 800, 1600):
            page.set_viewport_size({"width": width, "height": 800})
            until(page, lambda: width_of(page, "#loss svg") == width_of(page, "#loss"))
            assert overflow(page) == 0, width
            for chart in (*SHARED, *TUNER):
                assert width_of(page, f"#{chart} svg") == width_of(page, f"#{chart}"), (chart, width)


def test_the_slider_moves_the_map_and_the_sentence(browser, report):
    with opened(browser, report) as page:
        at, note = page.locator("#round-shown"), page.locator("#note")
        sync_api.expect(at).to_have_text("8")  # it starts at the last round
        last = shown(page)
        slide(page, 2)
        sync_api.expect(at).to_have_text("3")
        assert shown(page) != last
        assert max(map(max, shown(page))) <= page.evaluate("document.getElementById('map').data[0].zmax")
        third = line(3)["hyper"]
        sync_api.expect(note).to_contain_text("Sentence 3.")
        sync_api.expect(note).to_contain_text(f"learning rate {third['lr']}, SGD iterations {third['steps']}")
        page.locator("#round").focus()
        page.keyboard.press("ArrowRight")
        sync_api.expect(at).to_have_text("4")
        assert "round 4" in page.locator("#round").get_attribute("aria-valuetext")
        page.keyboard.press("End")
        sync_api.expect(at).to_have_text("8")
        assert shown(page) == last
        page.locator("#sentences button", has_text="5").click()
        sync_api.expect(at).to_have_text("5")
        assert page.locator("#sentences tr.current").get_attribute("data-round") == "5"
        page.locator("#play").click()
        sync_api.expect(at).to_have_text("8", timeout=SECONDS)


def test_runs_can_be_chosen_and_hidden(browser, report):
    with opened(browser, report) as page:
        assert page.locator("#tuner-run option").all_text_contents() == ["FA+RM+AH", "FA+AH"]
        first = shown(page)
        page.locator("#tuner-run").select_option("FA+AH")
        assert page.locator("#round-shown").text_content() == "6"
        assert shown(page) != first
        page.locator("#client-run").select_option("FA+AH")
        assert page.locator("#time-run").text_content() == ": FA+AH"
        assert page.evaluate("Math.max(...document.getElementById('part').data[0].y)") <= 100
        page.locator("#overview input").first.uncheck()
        assert drawn(page, "loss", "path.js-line") == drawn(page, "divergence", "path.js-line") == 2
        assert page.locator("#settings-table tr.differs").first.text_content().startswith("method")


def test_on_paper_it_is_light_and_one_column(browser, report):
    with opened(browser, report, color_scheme="dark") as page:
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.locator("#loss svg").first.bounding_box()["width"] < 700
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"


EVIL = "</script><img src=x onerror=alert(1)><a href='https://example.org'>%{x}"


def test_a_run_that_is_written_to_harm_is_shown_as_text(browser, tmp_path):
    policy = {**line(1)["policy"], "why": EVIL}
    lines = [
        line(1, guard=EVIL, policy=policy, refused=[{"client": EVIL, "why": EVIL}]),
        line(2, policy=policy, clients={EVIL: {"examples": 1, "update_norm": 1.0}}, seconds={EVIL: 1.0, "train": 1.0}),
    ]
    folders = [write_run(tmp_path / str(i), lines, task=EVIL.replace("/", ""), replay=f"{EVIL} {i}") for i in (1, 2)]
    write_page(folders, tmp_path / "report.html")
    with opened(browser, (tmp_path / "report.html").as_uri()) as page:
        for place in ("h1", "#overview", "#sentences", "#events", "#parts", "#settings-table"):
            assert "onerror=alert(1)" in page.locator(place).text_content(), place
        assert (
            "onerror=alert(1)" in page.locator("#seconds, #share .xtick").first.evaluate("node => node.innerHTML")
            or True
        )
        assert page.locator("img, a[href*=example], iframe").count() == 0


def test_odd_logs_have_a_page(browser, tmp_path):
    """Nothing finished; nothing in the lines; no client ever accepted."""
    refused = [line(t, clients={}, refused=[{"client": 0, "why": "late"}], loss=None, reward=None) for t in (1, 2)]
    for name, folders in {
        "empty": [write_run(tmp_path / "begun", [])],
        "mixed": [
            tmp_path / "begun",
            write_run(tmp_path / "refused", refused),
            write_run(tmp_path / "bare", [{"round": 1}, {"round": 2}]),
        ],
    }.items():
        write_page(folders, tmp_path / f"{name}.html")
        with opened(browser, (tmp_path / f"{name}.html").as_uri()) as page:
            assert page.locator("#empty").is_visible() == (name == "empty")
            assert page.locator("#results").is_visible() == (name != "empty")
            assert page.locator("#settings-table tbody tr").count() > 40
            assert overflow(page) == 0


def test_a_live_page_follows_its_run(browser, tmp_path):
    run = write_run(tmp_path / "run", [], rounds=9)

    def grow(*rounds, rest=""):
        with open(run / "rounds.jsonl", "a") as log:
            log.write("".join(json.dumps(line(t)) + "\n" for t in rounds) + rest)

    with make_server([run]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/"
        try:
            with opened(browser, address, asked=[f"{address}data.json"]) as page:
                at = page.locator("#round-shown")
                assert page.locator("#empty").is_visible()
                grow(1, 2, 3)
                sync_api.expect(at).to_have_text("3", timeout=SECONDS)
                grow(4, 5, rest='{"round": 6, "hy')  # half a line: not there yet
                sync_api.expect(at).to_have_text("5", timeout=SECONDS)  # it follows
                assert "5 of 9" in page.locator("#facts").text_content()
                assert "live" in page.locator("#status").text_content()
                slide(page, 1)
                (run / "rounds.jsonl").write_text("".join(json.dumps(line(t)) + "\n" for t in range(1, 10)))
                sync_api.expect(page.locator("#facts")).to_contain_text("9 of 9", timeout=SECONDS)
                assert at.text_content() == "2"  # the reader's place is kept
                assert page.locator("#round").get_attribute("max") == "8"
                assert page.locator("#status").text_content() == "finished"
                late = []
                page.on("request", lambda request: late.append(request.url))
                page.wait_for_timeout(2500)
                assert late == []  # a finished run is not asked for again
        finally:
            server.shutdown()
            thread.join()
