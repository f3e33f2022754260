"""The page in a real browser: what a person does with it from the prompt to the pictures."""

from __future__ import annotations

import pytest

from tests.studio.browsing import DESKTOP, choose, expect, finish, generate, link, number, set_up, text
from tests.studio.conftest import serve, until
from tests.studio.holding import WatchedEngine, held
from tests.studio.wishes import run_wish
from thg.studio.jobs import Worker

pytestmark = pytest.mark.browser


def picture_width(page, side: str) -> int:
    image = page.locator(f"#pane-{side} .tile img")
    expect(image).to_be_visible()
    return image.evaluate("image => image.decode().then(() => image.naturalWidth)")


def test_type_generate_and_see_both_pictures(opened):
    page = opened()
    set_up(page, seed=7)
    generate(page)
    assert picture_width(page, "plain") == picture_width(page, "thg") == 32
    assert (number(page, "plain", "nfe"), number(page, "thg", "nfe")) == ("12", "8")
    assert number(page, "thg", "psnr").endswith("dB")
    assert number(page, "plain", "psnr") == "reference"
    for side in ("plain", "thg"):
        assert float(number(page, side, "seconds")) >= 0
        assert page.locator(f"#pane-{side} progress").evaluate("bar => bar.value") == 1


def test_previews_and_progress_while_it_runs(opened, studio):
    page = opened()
    set_up(page, seed=8, steps=20)
    with held(studio.engine, after=12):
        page.click("#generate")
        expect(page.locator("#pane-plain .count")).to_contain_text("step 12 of 20")
        assert page.locator("#pane-plain progress").evaluate("bar => bar.value") == pytest.approx(12 / 20)
        assert picture_width(page, "plain") == 32
        assert text(page, "#pane-thg .count") == "waiting"
    finish(page)


def test_slider_moves_plan_and_numbers(opened):
    page = opened()
    set_up(page, seed=1, steps=20)
    expect(page.locator("#nfe")).to_have_text("26")
    expect(page.locator("#fidelity")).to_have_text("–")  # this plan was made for a number of evaluations
    page.locator("#budget").focus()
    page.keyboard.press("End")
    expect(page.locator("#nfe")).to_have_text("40")
    expect(page.locator("#speedup")).to_have_text("1.00×")
    expect(page.locator('.mark[aria-pressed="true"]')).to_have_count(20)
    expect(page.locator("#fidelity")).to_have_text("0.01 %")
    page.keyboard.press("Home")
    expect(page.locator("#fidelity")).to_have_text("10 %")
    expect(page.locator("#nfe")).to_have_text("14")
    expect(page.locator("#cost")).to_have_text("14 of 40 evaluations")
    expect(page.locator('.mark[aria-pressed="true"]')).to_have_count(7)
    expect(page.locator(".mark.skipped")).to_have_count(13)
    expect(page.locator("#saved")).to_have_text("65 %")
    assert link(page)["error"] == "0.1"


TEN_STEPS = "/#steps=10&plan=custom&of=10&coarse=0.3.6"


def test_marks_are_edited_by_click_drag_and_keyboard(opened):
    page = opened(TEN_STEPS)
    expect(page.locator("#nfe")).to_have_text("13")
    mark = page.locator(".mark")
    pressed = [i for i in range(10) if mark.nth(i).get_attribute("aria-pressed") == "true"]
    assert pressed == [0, 3, 6]
    mark.nth(8).click()
    expect(page.locator("#nfe")).to_have_text("14")
    mark.nth(6).drag_to(mark.nth(5))  # a hare is moved
    expect(mark.nth(5)).to_have_attribute("aria-pressed", "true")
    expect(mark.nth(6)).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#nfe")).to_have_text("14")
    mark.nth(5).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    expect(page.locator("#nfe")).to_have_text("15")
    mark.nth(0).click(force=True)  # the first step stays
    expect(mark.nth(0)).to_have_attribute("aria-pressed", "true")
    assert link(page)["coarse"] == "0.3.5.6.8"


def test_settings_of_a_custom_plan(opened):
    page = opened(TEN_STEPS)
    page.click("#more summary")
    page.fill("#cutoff", "5")
    page.fill("#boost", "1.1")
    choose(page, "order", "1")
    expect(page.locator(".mark.unguided")).to_have_count(5)
    expect(page.locator("#nfe")).to_have_text("12")
    assert {"cutoff": "5", "boost": "1.1", "hare_order": "1"}.items() <= link(page).items()
    page.fill("#steps", "20")  # the grid is stretched
    expect(page.locator(".mark.unguided")).to_have_count(10)
    pressed = page.locator('.mark[aria-pressed="true"]')
    assert [pressed.nth(i).get_attribute("data-index") for i in range(2)] == ["0", "6"]  # 12 is beyond the cutoff
    assert page.input_value("#cutoff") == "10"
    page.locator(".mark").nth(8).click()  # from here on the grid is one of 20 steps
    expect(pressed).to_have_count(3)
    assert {"of": "20", "coarse": "0.6.8", "cutoff": "10", "boost": "1.1"}.items() <= link(page).items()


def test_a_reply_leaves_the_field_that_is_being_typed_in(opened):
    page = opened(TEN_STEPS)
    page.click("#more summary")
    requests = []
    page.route("**/api/plan", lambda route: requests.append(route))  # held back until the next field has its number
    with page.expect_request("**/api/plan"):
        page.fill("#cutoff", "5")
        page.fill("#boost", "1.1")
    requests[0].continue_()
    page.unroute("**/api/plan")
    expect(page.locator(".mark.unguided")).to_have_count(5)
    page.locator("#boost").blur()
    assert page.input_value("#boost") == "1.1"
    assert {"cutoff": "5", "boost": "1.1"}.items() <= link(page).items()


def test_dice_rolls_another_seed(opened):
    page = opened()
    set_up(page, seed=1)
    seen = set()
    for _ in range(4):
        page.click("#dice")
        seen.add(page.input_value("#seed"))
        assert link(page)["seed"] == page.input_value("#seed")
    assert len(seen) > 1


def test_size_and_scheduler_of_the_run(opened):
    page = opened()
    set_up(page, seed=2)
    page.click("#more summary")
    page.fill("#width", "48")
    page.fill("#height", "32")
    page.select_option("#scheduler", label="Heun")
    expect(page.locator(".mark")).to_have_count(11)
    page.fill("#negative", "fog")
    generate(page)
    assert picture_width(page, "plain") == picture_width(page, "thg") == 48
    assert number(page, "plain", "nfe") == "22"
    page.fill("#width", "47")
    page.click("#generate")  # refused by the form itself
    assert page.locator("#width").evaluate("field => field.matches(':invalid')")
    expect(page.locator("#status")).to_contain_text("done:")


def test_run_again_whenever_the_plan_changes(opened):
    page = opened()
    set_up(page, seed=3)
    generate(page)
    page.check("#live")
    page.locator("#budget").focus()
    page.keyboard.press("End")
    expect(page.locator('#pane-thg [data-number="nfe"]')).to_have_text("12")
    expect(page.locator('#pane-thg [data-number="psnr"]')).to_have_text("identical")
    expect(page.locator("#pane-plain .count")).to_have_text("reused")
    expect(page.locator("#history li")).to_have_count(2)


def test_history_brings_a_run_back(opened):
    page = opened()
    set_up(page, seed=4, prompt="the first")
    generate(page)
    shown = page.locator("#pane-thg img").evaluate("image => image.src")
    set_up(page, seed=5, steps=8, prompt="the second")
    generate(page)
    runs = page.locator("#history button")
    expect(runs).to_have_count(2)
    expect(runs.nth(0)).to_contain_text("the second")
    runs.nth(1).click()
    assert (page.input_value("#prompt"), page.input_value("#seed"), page.input_value("#steps")) == (
        "the first",
        "4",
        "6",
    )
    expect(page.locator("#nfe")).to_have_text("8")
    expect(page.locator("#pane-thg img")).not_to_have_attribute("src", shown)
    expect(runs.nth(1)).to_have_attribute("aria-current", "true")
    page.reload()  # the history is in the browser
    expect(page.locator("#history button")).to_have_count(2)
    page.click("#forget")
    expect(page.locator("#history button")).to_have_count(0)
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.locator("#history button").count() == 0


def test_permalink_brings_everything_back(opened):
    page = opened()
    set_up(page, seed=123, prompt="dark trousers & more")
    page.locator(".mark").nth(2).click()
    expect(page.locator('input[name="kind"][value="custom"]')).to_be_checked()
    generate(page)
    address, nfe = page.url, number(page, "thg", "nfe")
    expect(page.locator("#history button")).to_have_count(1)
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.url == address
    assert page.input_value("#prompt") == "dark trousers & more"
    assert (page.input_value("#seed"), page.input_value("#steps")) == ("123", "6")
    expect(page.locator('input[name="kind"][value="custom"]')).to_be_checked()
    expect(page.locator("#nfe")).to_have_text(nfe)
    assert picture_width(page, "thg") == 32  # this browser still has the run
    elsewhere = opened(address.removeprefix(page.evaluate("location.origin")))
    assert elsewhere.input_value("#prompt") == "dark trousers & more"
    expect(elsewhere.locator("#nfe")).to_have_text(nfe)


def test_cancel_in_the_middle(opened, studio):
    page = opened()
    set_up(page, seed=40)
    generate(page)
    set_up(page, seed=41, steps=150)
    with held(studio.engine) as network, studio.client() as client:
        page.click("#generate")
        expect(page.locator("#pane-plain .count")).to_contain_text("step 5 of 150")
        page.click("#cancel")
        expect(page.locator("#status")).to_have_text("cancelled")
        expect(page.locator("#pane-plain .count")).to_have_text("stopped")
        expect(page.locator("#pane-thg .tiles img")).to_have_count(0)  # that of the run before
        expect(page.locator("#pane-thg .empty")).to_be_visible()
        expect(page.locator("#cancel")).to_be_disabled()
        until(lambda: client.get("/api/queue").json()["running"] is False)
        assert network.calls == 6  # the run ended at the next step
    set_up(page, seed=42)
    generate(page)


def test_a_closed_tab_frees_the_worker(opened, studio):
    page = opened()
    set_up(page, seed=42, steps=150)
    with held(studio.engine) as network, studio.client() as client:
        page.click("#generate")
        expect(page.locator("#pane-plain .count")).to_contain_text("step 5 of 150")
        page.close()
        until(lambda: client.get("/api/queue").json()["running"] is False)
        assert network.calls == 6


def test_queue_position_is_shown(opened, studio):
    page = opened()
    set_up(page, seed=70)
    wish = run_wish(steps=150, seed=71)
    with held(studio.engine), studio.client() as client, client.stream("POST", "/api/runs", json=wish) as running:
        lines = running.iter_lines()
        next(lines)
        page.click("#generate")
        expect(page.locator("#status")).to_have_text("1 ahead of you")
    finish(page)


def test_a_run_that_fails_says_why_and_the_next_one_works(opened, studio):
    page = opened()
    set_up(page, seed=90)

    def fail(network, arguments):
        raise RuntimeError("the card is out of memory")

    handle = studio.engine.model.pipe.unet.register_forward_pre_hook(fail)
    try:
        page.click("#generate")
        expect(page.locator("#status.bad")).to_have_text("RuntimeError: the card is out of memory")
    finally:
        handle.remove()
    generate(page)


def test_a_full_queue_says_when_to_come_back(browser, model):
    """The console hears of the 503, so this page is not watched for errors."""
    engine = WatchedEngine(model)
    with serve(engine, worker=Worker(0)) as studio:
        context = browser.new_context(viewport=DESKTOP)
        page = context.new_page()
        page.goto(f"{studio.url}/#prompt=a+bag&steps=6")
        page.wait_for_selector("body[data-ready]")
        page.click("#generate")
        expect(page.locator("#status.bad")).to_have_text("the queue is full; try again in 5 seconds")
        context.close()


def test_errors_are_readable(browser, studio):
    """A plan that cannot be: the console hears of the refused request, so this page is not watched for errors."""
    context = browser.new_context(viewport=DESKTOP)
    page = context.new_page()
    page.goto(f"{studio.url}/#steps=30&plan=paper&preset=sd15")
    expect(page.locator("#plan-error")).to_contain_text("set Steps to 50")
    expect(page.locator("#plan-error")).not_to_contain_text("thg.")  # no advice for programs
    expect(page.locator("#generate")).to_be_disabled()
    choose(page, "kind", "default")
    expect(page.locator("#plan-error")).to_be_empty()
    choose(page, "kind", "paper")
    expect(page.locator("#nfe")).to_have_text("70")
    assert page.input_value("#steps") == "50"
    page.select_option("#preset", index=1)
    expect(page.locator("#nfe")).not_to_have_text("70")
    context.close()
