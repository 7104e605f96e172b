"""Make the pictures of the README, and put the published tables into docs/results.md: `make pictures`."""

import re
import shutil
import tempfile
from pathlib import Path

from rich.console import Console

from fedaccord import cli, config
from fedaccord.report.split import draw
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.runtime.live import LiveView
from fedaccord.tasks import find_task

DOCS = Path(__file__).parent


class Recorder(LiveView):
    """A live view that shows nothing while a run goes on, and prints its last picture at the end."""

    def begin(self, done):
        self.logs = list(done)

    def end(self):
        self.live.console.print(self.picture())


def main() -> None:
    task = find_task("digits")
    simulation = from_task(task, config.make(task.defaults("non-iid"), {"task": "digits"}))
    console = Console(record=True, width=92, file=open("/dev/null", "w"), force_terminal=True)
    drive(simulation, None, Recorder(simulation, console))
    svg = console.export_svg(title="fedaccord run digits")
    # the picture must not fetch a font from the network
    (DOCS / "live.svg").write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL))

    skewed = from_task(
        task, config.make(task.defaults("dirichlet"), {"split": "dirichlet", "alpha": 0.1, "clients": 20})
    )
    assert skewed.counts is not None
    draw(skewed.counts, skewed.classes, "digits, split dirichlet, alpha 0.1, 20 clients", DOCS / "split")
    page_picture()
    put_tables(DOCS / "results.md")


def put_tables(page: Path) -> None:
    """Put results/tables/NAME.md, without its heading, between `<!-- table NAME -->` and `<!-- end -->` of a page."""

    def table(found: re.Match[str]) -> str:
        text = (DOCS.parent / "results" / "tables" / f"{found[1]}.md").read_text()
        return f"<!-- table {found[1]} -->\n{text.split(chr(10) * 2, 1)[1]}<!-- end -->"

    page.write_text(re.sub(r"<!-- table (\S+) -->.*?<!-- end -->", table, page.read_text(), flags=re.DOTALL))


def page_picture() -> None:
    """Take a screenshot, in a browser, of the report page that `make run` leaves."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "first-look"
        cli.main(["compare", "--task", "digits", "--methods", "FA,FA+RM+AH", "--results", str(results)])
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1200, "height": 1500})
            page.goto((results / "report.html").as_uri())
            page.wait_for_selector("#loss svg")
            page.screenshot(path=DOCS / "report.png")
            browser.close()


if __name__ == "__main__":
    main()
