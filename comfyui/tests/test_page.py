"""ComfyUI's page in a real browser, in the version that belongs to this ComfyUI and in a newer one, on both canvases:
the report appears and stays, and the examples and nodes are found."""

import contextlib
import json
import re

import pytest
from http_server import EXAMPLES, Server

playwright = pytest.importorskip("playwright.sync_api")
browser = pytest.importorskip("browser")
pytestmark = pytest.mark.skipif(browser.CHROMIUM is None, reason="there is no chromium")
LOOK, LOOKS = 2_000, 60  # ms
ONE_LINE = 30  # pixels
OPENED = "window.app.graph._nodes.some(node => node.type == 'TortoiseHareGuidance')"


@pytest.fixture(scope="module")
def servers(server, tmp_path_factory):
    newer = Server(tmp_path_factory.mktemp("newer"), "newer")
    yield {"pinned": server, "newer": newer}
    newer.stop()


def check_layout(page):
    """Nodes do not overlap, and the headline of the report is one line."""
    assert not browser.overlapping(page)
    height = page.locator(f"{browser.REPORT}:visible [data-part=headline]").evaluate("part => part.clientHeight")
    assert height < ONE_LINE


@pytest.mark.parametrize("canvas", ["classic", "nodes 2.0"])
@pytest.mark.parametrize("version", ["pinned", "newer"])
def test_the_report_stays(servers, version, canvas):
    server = servers[version]
    workflow = browser.with_shipped_model(server.example(EXAMPLES[0]))
    with browser.opened(server.url, canvas) as page:
        browser.load(page, workflow, "one")
        page.wait_for_function("!window.app.canvas.low_quality", timeout=10_000)  # texts are drawn at 1,366 pixels
        text = browser.run(page)
        check_layout(page)
        headline, details = text.split("\n")[0], text.split("\n")[-1]
        assert re.fullmatch(r"\d\d% saved · \d\.\dx · [a-z ]+ \(\d\.\d%\)", headline)
        assert re.fullmatch(r"the network ran at \d+ of 30 calls, in \d+\.\d\d s", details)
        bars = page.locator(f"{browser.REPORT} [data-part=strip] > div").evaluate_all(
            "bars => bars.map(bar => getComputedStyle(bar).backgroundColor)"
        )
        assert len(bars) == 30
        assert len(set(bars)) == 2, "evaluated and skipped calls have different colours"
        assert bars.count(bars[0]) == int(re.search(r"ran at (\d+)", details)[1])
        assert browser.run(page) == text, "of a run that is in the server's cache"
        browser.reload(page)
        assert browser.shown(page) == text, "after a reload"

        plain = json.loads(json.dumps(workflow))
        sampler = next(node for node in plain["nodes"] if node["type"] == "KSampler")
        sampler["widgets_values"][4] = "euler_ancestral"
        browser.load(page, plain, "two")
        lines = browser.run(page).split("\n")
        assert lines[0] == "nothing saved"
        assert lines[-1].startswith("nothing is skipped: the sampler adds noise"), "each line stands alone"
        page.get_by_text("one", exact=True).first.click()
        page.wait_for_function(
            "name => window.app.extensionManager.workflow.activeWorkflow.filename == name", arg="one"
        )
        page.wait_for_timeout(LOOK)
        assert browser.shown(page) == text, "after another workflow was open"


@pytest.mark.parametrize("canvas", ["classic", "nodes 2.0"])
def test_the_example_beside_a_plain_run_in_a_large_window(servers, canvas):
    server = servers["newer"]
    with browser.opened(server.url, canvas, 2560, 1440) as page:
        browser.load(page, browser.with_shipped_model(server.example(EXAMPLES[1])), "beside")
        browser.run(page)
        check_layout(page)


def test_a_report_in_a_subgraph_stays(servers):
    server = servers["newer"]
    with browser.opened(server.url) as page:
        browser.load(page, browser.with_shipped_model(server.example(EXAMPLES[0])), "with a subgraph")
        page.evaluate(browser.INTO_SUBGRAPH, ["TortoiseHareGuidance", "KSampler", "TortoiseHareReport"])
        page.evaluate("() => window.app.queuePrompt(0)")
        page.wait_for_function("async () => Object.keys(await (await fetch('/history')).json()).length")
        browser.wait_for_job(page)
        browser.open_subgraph(page)
        text = browser.shown(page)
        assert "saved" in text
        browser.reload(page)
        browser.open_subgraph(page)
        assert browser.shown(page) == text, "after a reload"


def test_the_example_opens_from_the_templates(server):
    """Each look tries the last step first: the example, the pack in the browser's list, the button that opens it."""
    with browser.opened(server.url) as page:
        parts = [page.get_by_text(text).first for text in (EXAMPLES[0], "tortoise_hare_guidance")]
        parts.append(page.get_by_role("button", name="Templates").first)
        for _ in range(LOOKS):
            for part in parts:
                if part.is_visible():
                    with contextlib.suppress(playwright.TimeoutError):
                        part.click(timeout=LOOK)
                    break
            with contextlib.suppress(playwright.TimeoutError):
                page.wait_for_function(OPENED, timeout=LOOK)
                return
        raise AssertionError(f"the example does not open\n{page.locator('body').inner_text()}")
