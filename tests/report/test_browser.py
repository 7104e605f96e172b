"""The report page in a real browser: charts drawn, controls work, nothing asked of anybody."""

import contextlib
import json
import shutil
import threading

import pytest
from folders import line, train, write_run

from fedaccord.report.page import write_page
from fedaccord.report.watch import make_server
from fedaccord.runtime.folder import read_rounds

pytestmark = pytest.mark.anywhere

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SHARED = ("metric-0", "loss", "share", "part", "norms", "divergence", "seconds")
TUNER = ("map", "mean-0", "mean-1", "reward")
GRAVE = ("serious", "critical")
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
    page.clock.install()  # it goes as usual, but can be put forward
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


def drawn(page, chart, mark=""):
    """How many marks of a kind a chart has (line, dot, bar, rect, area), or of all kinds."""
    kinds = (mark,) if mark else ("line", "dot", "bar", "rect", "area")
    return sum(page.locator(f"#{chart} svg [aria-label={kind}] :is(path, circle, rect)").count() for kind in kinds)


def figures(page, chart):
    """The table below a chart, by columns."""
    fold = page.locator(f"#{chart} + details")
    if fold.get_attribute("open") is None:
        fold.locator("summary").click()
        fold.locator("table").wait_for()
    head = fold.locator("thead th").all_text_contents()
    cells = fold.locator("tbody :is(td, th)").all_text_contents()
    return {name: cells[i :: len(head)] for i, name in enumerate(head)}


def overflow(page):
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def fits(page, chart):
    """Whether a chart was drawn for the width that its place has; the picture itself would only be scaled."""
    return page.locator(f"#{chart}").evaluate("box => box.firstChild.width.baseVal.value === box.clientWidth")


def shown(page):
    """How strong each of the heat map's colours is."""
    cells = page.locator("#map [aria-label=rect] rect")
    return cells.evaluate_all("cells => cells.map((each) => Number(each.getAttribute('fill-opacity')))")


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
        assert drawn(page, "loss", "line") == 3
        assert page.locator("a[href^=http], [src^=http]").count() == 0
        tick = page.locator("#loss svg text").first
        before = tick.evaluate("node => getComputedStyle(node).fill")
        page.emulate_media(color_scheme=other)  # changed while the page is open: the charts follow
        sync_api.expect(tick).not_to_have_css("fill", before)
        for width in (360, 800, 1600):
            page.set_viewport_size({"width": width, "height": 800})
            for chart in (*SHARED, *TUNER):
                until(page, lambda chart=chart: fits(page, chart))
            assert overflow(page) == 0, width


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A page with all that there can be: a tuner, guards, a missing client, classes and labels."""
    root = tmp_path_factory.mktemp("whole")
    gone = {"cohort": [0, 1, 2], "refused": [{"client": 2, "why": "no answer"}], "guard": "shortened"}
    lines = [line(t, **gone, method={"AH.size": t}) for t in range(1, 9)]
    runs = [write_run(root / str(seed), lines, seed=seed, clients=3) for seed in (1, 2)]
    known = {
        "names": ["cat", "dog"],
        "clients": [[3, 0], [1, 2], [0, 9]],
        "round": 8,
        "tested": [4, 5],
        "right": [4, 1],
    }
    for run in runs:
        (run / "classes.json").write_text(json.dumps(known))
    write_page(runs, root / "report.html")
    return (root / "report.html").as_uri()


def test_classes_labels_and_missing_clients_are_shown(browser, whole):
    """Client 1 has one cat and two dogs; of the cats 4 / 4 are right, of the dogs 1 / 5: (1 + 2 / 5) / 3 = 46.67 %."""
    with opened(browser, whole) as page:
        assert figures(page, "classes")["seed 1"] == ["100.00 %", "20.00 %"]
        assert figures(page, "labels")["dog"] == ["0", "2", "9"]
        own = figures(page, "own")
        assert own["Accuracy by client"] == ["100.00 %", "46.67 %", "20.00 %"]
        assert own["state"] == ["there", "there", "missing since round 1: no answer"]
        for chart in ("own", "share", "part"):
            assert page.locator(f"#{chart} svg text", has_text="missing").count() == 1
            assert page.locator(f"#{chart}").get_attribute("aria-label").endswith("missing: 2")
        assert page.locator("#absent p").first.text_content() == "seed 1: client 2 never counted: no answer."
        assert "1 of 3 clients missing at the end" in page.locator("#summary").text_content()


@pytest.mark.parametrize("width", [380, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, whole, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    with opened(browser, whole, color_scheme=scheme, viewport={"width": width, "height": 900}) as page:
        for fold in page.locator("details").all():
            fold.evaluate("fold => { fold.open = true; }")
        found = axe.Axe().run(page).response["violations"]
        assert [(each["id"], each["nodes"][0]["target"]) for each in found if each["impact"] in GRAVE] == []


def test_a_keyboard_reaches_everything(browser, whole):
    """From the top: skip link, fold-out, links; focus is always to be seen."""
    with opened(browser, whole) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
        reached = []
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached
            if reached[-1] == "settings-table":
                break
        assert {"play", "round", "sentences", "client-run", "SUMMARY", "INPUT", "BUTTON"} <= set(reached)


def test_on_a_telephone_each_figure_of_a_table_has_its_name(browser, whole):
    with opened(browser, whole, viewport={"width": 380, "height": 900}) as page:
        cell = page.locator("#overview td").nth(1)
        assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == '"test accuracy"'
        box = page.locator("#overview").bounding_box()
        assert all(each.bounding_box()["width"] <= box["width"] for each in page.locator("#overview td").all())
        assert page.locator("#overview").evaluate("box => box.scrollWidth - box.clientWidth") == 0


def test_the_slider_moves_the_map_and_the_sentence(browser, report):
    with opened(browser, report) as page:
        at, note = page.locator("#round-shown"), page.locator("#note")
        sync_api.expect(at).to_have_text("8")  # it starts at the last round
        last = shown(page)
        slide(page, 2)
        sync_api.expect(at).to_have_text("3")
        assert shown(page) != last
        assert 0 < min(shown(page)) < max(shown(page)) <= 1  # the most that any round has is 1
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
        assert figures(page, "part")["Rounds taken part in by client"] == ["6 of 6 rounds"] * 2
        page.locator("#overview input").first.uncheck()
        assert drawn(page, "loss", "line") == drawn(page, "divergence", "line") == 2
        assert page.locator("#settings-table tr.differs").first.text_content().startswith("method")


TWO = [{"name": "accuracy", "higher": True, "percent": True}, {"name": "rmse", "higher": False, "percent": False}]


def test_every_metric_has_its_chart_and_the_best_is_by_its_direction(browser, tmp_path):
    def run(name, accuracies, errors, **settings):
        values = enumerate(zip(accuracies, errors, strict=True), 1)
        lines = [line(t, metrics={"accuracy": a, "rmse": e}) for t, (a, e) in values]
        return write_run(tmp_path / name, lines, metrics=TWO, **settings)

    first = run("first", [0.5, 0.75, 0.625], [3.0, 1.25, 2.0], seed=1)
    second = run("second", [0.25, 0.5, 0.5], [4.0, 1.5, 1.75], seed=2)
    untested = write_run(tmp_path / "untested", [line(t, metrics={}) for t in (1, 2)], metrics=[], seed=3)

    write_page([first], tmp_path / "one.html")
    with opened(browser, (tmp_path / "one.html").as_uri()) as page:
        assert page.locator("#curves h3").all_text_contents() == ["Test accuracy", "Test rmse", "Loss"]
        captions = page.locator("#curves figcaption").all_text_contents()
        assert captions[0].endswith("Higher is better.")
        assert captions[1].endswith("Lower is better.")
        assert list(figures(page, "metric-0").values()) == [["1", "2", "3"], ["50.00 %", "75.00 %", "62.50 %"]]
        assert list(figures(page, "metric-1").values()) == [["1", "2", "3"], ["3", "1.25", "2"]]
        assert page.locator("#metric-0").get_attribute("aria-label").startswith("Test accuracy by round; last value")
        assert page.locator("#facts .result").all_text_contents()[:2] == ["test accuracy62.50 %", "test rmse2"]
        assert not page.locator("#method, #method-link").first.is_visible()

    write_page([first, second, untested], tmp_path / "three.html")
    with opened(browser, (tmp_path / "three.html").as_uri()) as page:
        head = page.locator("#overview thead th").all_text_contents()
        assert head == ["run", "rounds", "test accuracy", "best", "test rmse", "best", "loss", "sent a round", "time"]
        rows = [row.locator("td").all_text_contents()[1:5] for row in page.locator("#overview tbody tr").all()]
        assert rows == [["62.50 %", "75.00 %", "2", "1.25"], ["50.00 %", "50.00 %", "1.75", "1.5"], ["–"] * 4]
        assert page.locator("#overview .best").all_text_contents() == ["62.50 %", "1.75"]  # the most, the least
        both = {"round": ["1", "2", "3"], "seed 1": ["3", "1.25", "2"], "seed 2": ["4", "1.5", "1.75"]}
        assert figures(page, "metric-1") == both
        page.locator("#overview input").first.uncheck()
        assert figures(page, "metric-1").keys() == {"round", "seed 2"}  # an open table follows


def test_what_a_method_reports_is_shown(browser, tmp_path):
    controlled = train(tmp_path / "controlled", method="SCAFFOLD", rounds=3)
    plain = write_run(tmp_path / "plain", [line(t, policy={}) for t in (1, 2, 3)], method="FA")
    sizes = [each["method"]["SCAFFOLD.size"] for each in read_rounds(controlled)]
    said = f"he clients' control variates had a mean norm of {sizes[-1]:.3g} in the last round."

    write_page([controlled], tmp_path / "one.html")
    with opened(browser, (tmp_path / "one.html").as_uri()) as page:
        assert page.locator("#method-link").is_visible()
        assert page.locator("#method-sentences li").all_text_contents() == [f"T{said}"]
        assert page.locator("#scalars h3").all_text_contents() == ["SCAFFOLD.size"]
        assert drawn(page, "scalar-0", "line") == 1
        assert list(map(float, figures(page, "scalar-0")["SCAFFOLD"])) == pytest.approx(sizes, rel=1e-3)

    write_page([plain, controlled], tmp_path / "two.html")
    with opened(browser, (tmp_path / "two.html").as_uri()) as page:
        assert page.locator("#method-sentences li").all_text_contents() == [f"SCAFFOLD: T{said}"]
        assert drawn(page, "scalar-0", "line") == 1  # the other run has no such figure
        page.locator("#overview input").nth(1).uncheck()
        assert drawn(page, "scalar-0", "line") == 0
        page.set_viewport_size({"width": 360, "height": 800})
        until(page, lambda: fits(page, "scalar-0"))
        assert overflow(page) == 0

    write_page([plain], tmp_path / "none.html")
    with opened(browser, (tmp_path / "none.html").as_uri()) as page:
        assert page.locator("#clients").is_visible()
        assert not page.locator("#method").is_visible()
        assert not page.locator("#method-link").is_visible()


def test_on_paper_it_is_light_and_one_column(browser, report):
    with opened(browser, report, color_scheme="dark") as page:
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.locator("#loss svg").first.bounding_box()["width"] < 700
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"


EVIL = "</script><img src=x onerror=alert(1)><a href='https://example.org'>%{x}"


OWN = f"""
from fedaccord.core.protocols import Part

class Own(Part):
    def report(self, rounds):
        return [{EVIL!r}]

own = Own()
"""


def test_a_run_that_is_written_to_harm_is_shown_as_text(browser, tmp_path):
    policy = {**line(1)["policy"], "why": EVIL}
    lines = [
        line(1, guard=EVIL, policy=policy, refused=[{"client": EVIL, "why": EVIL}]),
        line(2, policy=policy, clients={EVIL: {"examples": 1, "update_norm": 1.0}}, seconds={EVIL: 1.0, "train": 1.0}),
    ]
    lines = [{**each, "metrics": {EVIL: 0.5}, "method": {EVIL: each["round"]}} for each in lines]
    (tmp_path / "evil.py").write_text(OWN)
    settings = {"task": EVIL.replace("/", ""), "method": f"{tmp_path / 'evil.py'}:own"}
    metrics = [{"name": EVIL}]
    folders = [write_run(tmp_path / str(i), lines, metrics, replay=f"{EVIL} {i}", **settings) for i in (1, 2)]
    write_page(folders, tmp_path / "report.html")
    with opened(browser, (tmp_path / "report.html").as_uri()) as page:
        places = ("h1", "#overview", "#curves", "#method-sentences", "#scalars", "#sentences", "#events", "#parts")
        figures(page, "share")
        for place in (*places, "#settings-table", "#share", "#share + details", "#summary"):
            assert "onerror=alert(1)" in page.locator(place).text_content(), place
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
                with page.expect_request(f"{address}data.json"):
                    page.clock.run_for(60_000)  # one that goes on is
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
                page.evaluate("() => { window.asked = 0; window.fetch = async () => { window.asked += 1; }; }")
                page.clock.run_for(60_000)
                assert page.evaluate("window.asked") == 0  # a finished run is not asked for again
        finally:
            server.shutdown()
            thread.join()


def test_what_each_client_measured_is_shown_as_a_distribution(browser, tmp_path):
    """Five clients: least, quartiles and most are the five themselves; the bytes are those of a round on average."""
    shares = (0.1, 0.9, 0.5, 0.3, 0.7)
    entries = {str(n): {"examples": 1, "update_norm": 1.0, "metrics": {"accuracy": a}} for n, a in enumerate(shares)}
    lines = [line(t, clients=entries, bytes=1500 * t) for t in (1, 2, 3)]
    own = write_run(tmp_path / "own", lines)
    plain = write_run(tmp_path / "plain", [line(t) for t in (1, 2)])
    write_page([own], tmp_path / "own.html")
    with opened(browser, (tmp_path / "own.html").as_uri()) as page:
        assert page.locator("#spread-figure h3").text_content() == "Accuracy, from the worst client to the best"
        assert page.locator("#curves figcaption").first.text_content().startswith("By the clients where they measured")
        quarters = list(figures(page, "spread").values())[1:]
        assert quarters == [[f"{each}.00 %"] * 3 for each in (10, 30, 50, 70, 90)]
        assert figures(page, "own")["Accuracy by client"] == [f"{each}.00 %" for each in (10, 90, 50, 30, 70)]
        assert "10.00 % to 90.00 %, middle 50.00 %" in page.locator("#spread").get_attribute("aria-label")
        assert "sent a round3 kB" in page.locator("#facts div").all_text_contents()
    write_page([plain], tmp_path / "plain.html")
    with opened(browser, (tmp_path / "plain.html").as_uri()) as page:
        assert not page.locator("#spread-figure").is_visible()
