"""The report in a real browser: it fits a phone, follows the dark mode, and its script works without a complaint.

Runs with `make test-browser`; plain pytest skips it. Screenshots stay in the folder RATEMESH_SCREENSHOTS, if set.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from ratemesh.report.page import write_report
from toy_runs import copier, edited, on, smoke_run, smoke_trials, without

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    os.environ.get("RATEMESH_BROWSER") != "1", reason="needs chromium; run make test-browser"
)

SWITCHES = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", "--v=0"),
    *("--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--no-first-run",
]
DARK = "--blink-settings=preferredColorScheme=0"
WIDTHS = {"wide": 1280, "phone": 390}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with several runs, the paper's table, a gap, and a name that is hard to break."""
    assert CHROMIUM, "chromium must be on the PATH: who asks for the browser's tests must not get them skipped"
    parent = tmp_path_factory.mktemp("browser")
    smoke = smoke_run(parent)
    copy = copier(smoke, parent)
    others = [
        copy("a-name-as-long-as-the-road-and_without_any_place_to_break_it", on("cifar100")),
        copy("stopped", without("metrics.json")),
        copy("other", edited("metrics.json", acc_average=0.5, a_new_number=1 / 3)),
        copier(smoke_trials(parent / "all"), parent)("several", on("mnist"), without("trial-3/metrics.json")),
    ]
    return write_report([smoke, *others], parent / "report.html").page


def browse(page: Path, *more: str, width: int, height: int = 900) -> subprocess.CompletedProcess[str]:
    """Open a page in a browser that knows nothing of any other visit."""
    home = page.parent / f"home-{os.urandom(4).hex()}"
    command = [CHROMIUM or "", *SWITCHES, f"--user-data-dir={home}", f"--window-size={width},{height}", *more]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    shutil.rmtree(home, ignore_errors=True)
    assert done.returncode == 0, done.stderr
    return done


def complaints(stderr: str) -> list[str]:
    """What scripts and the page's own security policy said on the console."""
    return [line for line in stderr.splitlines() if "CONSOLE" in line]


def asked(page: Path, script: str, *more: str, width: int) -> dict[str, object]:
    """Run a script in a copy of the page, once it is loaded, and return the object that it evaluates to.

    Windows are at least 500 wide while no screenshot is taken, so the page is put into a frame of the wanted width.
    """
    stem = page.with_name(f"asked-{os.urandom(4).hex()}")
    inner, outer = stem.with_suffix(".inner.html"), stem.with_suffix(".html")
    answer = "const tell = (value) => parent.postMessage(JSON.stringify(value), '*');"
    answer += f"addEventListener('load', () => (async () => {{ {script} }})().then(tell));"
    inner.write_text(page.read_text().replace("</body>", f"<script>{answer}</script></body>"))
    outer.write_text(
        "<meta name='color-scheme' content='light dark'><body><script>"
        "addEventListener('message', (event) => { document.body.dataset.answer = event.data; });</script>"
        f"<iframe src='{inner.name}' style='border: 0; width: {width}px; height: 800px'></iframe></body>"
    )
    done = browse(outer, "--dump-dom", "--virtual-time-budget=5000", *more, width=1400)
    found = re.search(r'data-answer="([^"]*)"', done.stdout)
    assert found, done.stderr
    content = json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&"))
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize("look", ["light", "dark"])
@pytest.mark.parametrize("size", WIDTHS)
def test_it_is_shown_in_every_size_and_light_without_complaints(
    size: str, look: str, report: Path, tmp_path: Path
) -> None:
    folder = Path(os.environ.get("RATEMESH_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    shot = folder / f"report-{size}-{look}.png"
    switches = [f"--screenshot={shot}", *([DARK] if look == "dark" else [])]
    done = browse(report, *switches, width=WIDTHS[size], height=9000)
    assert complaints(done.stderr) == []
    with Image.open(shot) as picture:
        assert picture.width == WIDTHS[size]
        corner = picture.convert("L").getpixel((2, 2))
    assert isinstance(corner, int)
    assert (corner < 60) if look == "dark" else (corner > 200)


def test_complaints_would_be_heard(report: Path) -> None:
    loud = report.with_name("loud.html")
    loud.write_text(report.read_text().replace("</body>", "<script>null.x; </script><img src='http://x.test/'></body>"))
    heard = complaints(browse(loud, "--dump-dom", width=1280).stderr)
    assert any("TypeError" in line for line in heard)
    assert any("Content Security Policy" in line for line in heard)  # nothing is fetched, whatever a page asks for


@pytest.mark.parametrize("width", WIDTHS.values())
def test_the_page_never_scrolls_sideways(width: int, report: Path) -> None:
    script = """
      const wide = [...document.querySelectorAll(".scroll, .board")];
      return {
        window: innerWidth,
        page: document.documentElement.scrollWidth,
        boxes: wide.length,
        outside: wide.filter((box) => box.getBoundingClientRect().right > innerWidth).length,
        scrolling: wide.filter((box) => box.scrollWidth > box.clientWidth).length,
      };"""
    found = asked(report, script, width=width)
    assert found["window"] == found["page"] == width
    assert found["outside"] == 0
    assert int(str(found["boxes"])) >= 10
    assert (int(str(found["scrolling"])) >= 3) == (width == 390)  # tables scroll in their boxes instead


def test_figures_stand_on_white_in_the_dark(report: Path) -> None:
    script = """
      const colour = (name) => getComputedStyle(document.querySelector(name)).backgroundColor;
      return {figure: colour(".board"), page: colour("body")};"""
    assert asked(report, script, DARK, width=1280) == {"figure": "rgb(255, 255, 255)", "page": "rgb(15, 20, 27)"}


def test_figures_open_step_close_and_give_the_focus_back(report: Path) -> None:
    script = """
      const dialog = document.getElementById("large"), seen = {};
      const openers = [...document.querySelectorAll("button.zoom")];
      const shown = () => dialog.querySelector("img").src;
      seen.before = dialog.open;
      openers[1].focus();
      openers[1].click();
      seen.opened = dialog.open && shown() === openers[1].querySelector("img").src;
      seen.inside = dialog.contains(document.activeElement);
      dialog.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowLeft"}));
      seen.stepped = shown() === openers[0].querySelector("img").src;
      dialog.querySelector("[data-do=size]").click();
      seen.full = dialog.classList.contains("full");
      seen.saved = dialog.querySelector("[data-do=save]").download;
      dialog.querySelector("[data-do=close]").click();
      seen.closed = !dialog.open;
      await new Promise((done) => setTimeout(done, 50));
      seen.back = document.activeElement === openers[0];
      return seen;"""
    expected = {
        "before": False,
        "opened": True,
        "inside": True,
        "stepped": True,
        "full": True,
        "closed": True,
        "back": True,
    }
    assert asked(report, script, width=1280) == {**expected, "saved": "language.svg"}


def test_every_control_has_a_name(report: Path) -> None:
    script = """
      const controls = [...document.querySelectorAll("button, a, [tabindex='0']")];
      const named = (one) => one.getAttribute("aria-label") || one.textContent.trim();
      const pictures = [...document.querySelectorAll("figure img")];
      const nameless = controls.filter((one) => !named(one));
      const broken = pictures.filter((one) => !one.complete || !one.naturalWidth);
      return {
        controls: controls.length, nameless: nameless.length, pictures: pictures.length, broken: broken.length,
      };"""
    found = asked(report, script, width=1280)
    assert found["nameless"] == found["broken"] == 0
    assert int(str(found["controls"])) > 20
    assert found["pictures"] == 7
