"""The page of a run: what it holds, that nothing said can break it, and its use."""

import base64
import gzip
import json
import re
import shutil
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import sync_playwright

import runs
from evoharness_jax import evaluate
from evoharness_jax.bpe import views
from evoharness_jax.envs.alfworld import domain as alfworld
from evoharness_jax.experience.bank import Entry
from evoharness_jax.experience.bank import arrays as bank_arrays
from evoharness_jax.experience.bank import write as write_bank
from evoharness_jax.page import (
    build,
    episodes,
    folder,
    outlines,
    tables,
)
from evoharness_jax.rollout import record as record_
from evoharness_jax.types import AGENT

EVIL = (
    "</script><script>window.broken = 1</script><!--<script>"
    "<img src=x onerror='window.broken = 2'>{{data}} var(--won) &amp; \u2028 \\u003c"
)


def evaluation(policy: str, where: Path, arg: str = "") -> Path:
    settings = runs.config("alfworld_eval", f"env=counter,policy={policy}{arg}")
    runs.make(evaluate.run, settings, where)
    return where


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return evaluation("teacher", tmp_path_factory.mktemp("teacher"))


def page_of(where: Path, **options) -> str:
    return build.write(folder.read(where), **options).path.read_text()


def data_of(page: str):
    block = re.search(r'<script type="application/octet-stream" id="data">(.*?)<', page)
    return json.loads(gzip.decompress(base64.b64decode(block[1])))


def change(where: Path, **fields) -> None:
    """Change fields of an evaluation's first record."""
    path = where / "episodes.jsonl"
    first, *rest = path.read_text().splitlines()
    lines = [json.dumps(json.loads(first) | fields), *rest]
    path.write_text("".join(line + "\n" for line in lines))


# What is shown of an episode.


def test_an_episode_is_shown_with_what_each_turn_changed(teacher):
    data = data_of(page_of(teacher))
    assert data["note"] == "23 of 23 recorded episodes are in this page."
    one = data["episodes"][2]
    assert (one["task"], one["type"], one["won"]) == ("coded-foxtrot", "coded", True)
    assert (one["objective"], one["bank"]) == ("reach foxtrot", "")
    assert "why" not in one
    counter = one["names"].index("counter")
    assert one["start"] == {"B": [[counter, "at 0", 0]]}
    commit, recall, *_, last = one["turns"]
    assert (commit["v"], commit["t"], commit["o"]) == ("commit", "ok", "plan updated")
    assert commit["P"] == [["open", "reach the number"]]
    assert (recall["a"], recall["o"]) == ("recall", "recalled: foxtrot: -3")
    assert recall["H"] == ["foxtrot: -3"] and "P" not in recall and "B" not in recall
    assert (last["o"], last["P"]) == ("counter: -3", [["proven", "reach the number"]])
    assert last["B"] == [[counter, "at -3", 3]]


def household(times: int, where: Path) -> Path:
    """Write an evaluation whose records are the package's own household episode."""
    file = resources.files("evoharness_jax").joinpath("data/household_episode.json")
    saved = json.loads(file.read_text())
    where.mkdir(exist_ok=True)
    entries = tuple(Entry(**entry) for entry in saved["entries"])
    bank = write_bank(where / "bank", entries, "", 0)
    settings = runs.config("alfworld_eval", "policy=teacher").to_dict()
    (where / "config.json").write_text(json.dumps({"stage": "evaluate", **settings}))
    record = saved["record"] | {"bank": bank.name, "tokens": 0, "error": ""}
    arrays, words = bank_arrays(entries, record["setting"]["entries"])
    final = record_.replay(alfworld.make(root="."), arrays, words, record)[1]
    record |= {"dropped": 0, "digest": record_.digest(final)}
    with (where / "episodes.jsonl").open("w") as lines:
        for uid in range(times):
            lines.write(json.dumps(record | {"uid": uid}) + "\n")
    return where


def test_changes_of_belief_add_up_to_belief(tmp_path):
    run = folder.read(household(1, tmp_path))
    player, (outline,) = episodes.player(run), run.outlines
    page = episodes.shown(run, player, outline)
    assert "why" not in page
    record = outlines.record(outline)
    _, lexicon, start, _, every = episodes.replay(run, player, record)
    states = [start, *(record_.pick(every, t) for t in range(18))]
    rebuilt = {}
    for one, state in zip([page["start"], *page["turns"]], states, strict=True):
        belief = state.workspace.belief
        for name, words, seen in one.get("B", []):
            rebuilt[name] = (rebuilt[name][0] if words is None else words, seen)
        known = np.flatnonzero(belief.known).tolist()
        assert sorted(rebuilt) == known
        for name in set(known) - {AGENT}:
            words, seen = rebuilt[name]
            said = f"{page['names'][name]}: {words}"
            assert said == views.node(lexicon, belief, name)
            assert seen == belief.last_seen[name]
    assert rebuilt[AGENT][0] == "at microwave 1"


def test_an_older_record_is_shown_without_its_workspace(tmp_path):
    settings = runs.config("alfworld_eval", "env=counter").to_dict()
    where = household(1, tmp_path)
    (where / "config.json").write_text(json.dumps({"stage": "evaluate", **settings}))
    record = json.loads((where / "episodes.jsonl").read_text())
    del record["bank"]
    (where / "episodes.jsonl").write_text(json.dumps(record) + "\n")
    run = folder.read(where)
    run = run._replace(summary={k: v for k, v in run.summary.items() if k != "bank"})
    page = episodes.shown(run, episodes.player(run), run.outlines[0])
    assert page["why"].startswith("its record does not say which version of the bank")
    assert page["turns"][1]["a"] == "recall [egg]"
    assert "start" not in page


@pytest.mark.parametrize(
    "fields, why",
    [
        ({"bank": "0123456789abcdef"}, "bank version 0123456789abcdef of .* is no lon"),
        ({"digest": "00000000"}, "replayed, it ends otherwise than it was recorded"),
        ({"start": {}}, "its record is of another format: "),
    ],
)
def test_why_an_episode_is_without_workspace_is_said(fields, why, teacher, tmp_path):
    shutil.copytree(teacher, tmp_path / "run")
    change(tmp_path / "run", **fields)
    first, second, *_ = data_of(page_of(tmp_path / "run"))["episodes"]
    assert re.match(why, first["why"]) and "why" not in second


@given(st.integers(0, 60), st.integers(0, 60))
def test_chosen_episodes_are_spread_evenly(many, most):
    chosen = episodes.choose(list(range(many)), most)
    assert len(chosen) == min(many, most)
    assert chosen == sorted(set(chosen))
    gaps = np.diff(chosen)
    assert not len(gaps) or gaps.max() - gaps.min() <= 1


def test_episodes_of_a_training_run_come_from_all_its_steps():
    data = data_of(page_of(runs.rl(), most=4))
    assert data["note"] == (
        "4 of 16 recorded episodes are in this page, evenly spread."
    )
    assert [one["step"] for one in data["episodes"]] == [1, 1, 2, 2]
    assert all("start" in one for one in data["episodes"])
    banks = {path.stem for path in (runs.rl() / "bank").glob("*.jsonl")}
    assert {one["bank"] for one in data["episodes"]} <= banks


# Size.


def test_five_hundred_household_episodes_are_small(tmp_path):
    page = build.write(folder.read(household(500, tmp_path)))
    assert (page.episodes, page.of) == (500, 500)
    assert page.bytes < 2_500_000
    assert page.bytes == page.path.stat().st_size


def test_what_does_not_fit_is_left_out_and_that_is_said(teacher, tmp_path):
    shutil.copytree(teacher, tmp_path / "run")
    path = tmp_path / "run" / "episodes.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    noise = np.random.default_rng(0).bytes(6_000_000).hex()
    records[3]["turns"][0]["prompt"] = noise
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    data = data_of(page_of(tmp_path / "run"))
    assert len(data["episodes"]) == 23
    assert "Prompts were left out to keep it small." in data["note"]
    records[3]["opening"] = noise
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    page = build.write(folder.read(tmp_path / "run"))
    assert page.bytes < build.BYTES and (page.episodes, page.of) == (12, 23)


# Escaping.

TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.just(EVIL)
JSON = st.recursive(
    TEXT | st.integers(-(2**53), 2**53) | st.none() | st.booleans(),
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=8,
)


@given(JSON)
def test_packed_data_comes_back_and_can_end_no_script(data):
    packed = build.packed(data)
    assert re.fullmatch(r"[A-Za-z0-9+/=]*", packed)
    assert json.loads(gzip.decompress(base64.b64decode(packed))) == data


class Cells(HTMLParser):
    """The text of every cell of a table, and all tags."""

    def __init__(self, html):
        super().__init__()
        self.cells, self.tags = [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, text):
        if self.cells:
            self.cells[-1] += text


@given(TEXT, TEXT)
def test_a_table_shows_words_as_they_are(head, cell):
    parsed = Cells(tables.table((head, "n"), [(cell, "1")]))
    assert parsed.cells == [head, "n", cell, "1"]
    assert parsed.tags == "div table thead tr th th tbody tr th td".split()


@given(st.dictionaries(st.sampled_from(["a", "b"]), TEXT, min_size=2))
def test_what_is_filled_in_is_not_filled_again(fill):
    page = build._filled("<{{a}}|{{b}}>", fill)
    assert page == f"<{fill['a']}|{fill['b']}>"


def test_a_page_names_its_scripts_and_lets_no_other_run(teacher):
    page = page_of(teacher)
    assert len(re.findall("<script", page)) == len(re.findall("</script>", page)) == 3
    policy = re.search('http-equiv="Content-Security-Policy" content="(.*?)"', page)[1]
    assert policy.startswith("default-src 'none'; ")
    assert len(re.findall("'sha256-", policy)) == 2
    assert "script-src 'sha256-" in policy
    words = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "://" not in words and " src=" not in words


# In a browser.


@pytest.fixture(scope="module")
def browser(chromium):
    with sync_playwright() as playwright:
        # No sandbox: a container's root may not have one, and the page is our own.
        started = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )
        yield started
        started.close()


def opened(browser, path: Path, **options):
    """Open a page and wait until it is drawn; note what it asks for, and errors."""
    options = {"viewport": {"width": 1280, "height": 900}} | options
    page = browser.new_page(**options)
    page.set_default_timeout(30_000)
    page.asked, page.wrong = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("console", lambda line: page.wrong.append(line.text))
    page.goto(path.resolve().as_uri())
    page.wait_for_selector("body[data-ready]")
    return page


@pytest.fixture(scope="module")
def training_page():
    return build.write(folder.read(runs.rl())).path


def panel(page, letter: str) -> str:
    return page.inner_text(f"#state [data-part={letter}]")


def test_a_page_is_read_by_mouse_and_keyboard(browser, teacher):
    page = opened(browser, build.write(folder.read(teacher)).path)
    assert page.inner_text("#count") == "23 of 23"
    page.fill("#words", "foxtrot")
    assert page.inner_text("#count") == "1 of 23"
    assert page.inner_text("#task") == "reach foxtrot"
    assert page.inner_text("#where") == "opening, 6 turns follow"
    assert page.is_disabled("#previous")
    page.click("#next")
    assert page.inner_text("#where") == "turn 1 of 6"
    assert "commit [reach the number]" in page.inner_text("#talk")
    assert "open reach the number" in panel(page, "P")
    page.keyboard.press("ArrowRight")
    assert "recalled foxtrot: -3" in panel(page, "E")
    assert page.inner_text("#state [data-part=E] .new") == "recalled foxtrot: -3"
    page.keyboard.press("End")
    assert page.inner_text("#where") == "turn 6 of 6"
    assert "counter at -3" in panel(page, "B")
    assert "proven reach the number" in panel(page, "P")
    assert page.is_disabled("#next")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#where") == "turn 5 of 6"
    page.click("#strip button:has-text('2')")
    assert page.inner_text("#where") == "turn 2 of 6"
    page.fill("#words", "")

    page.select_option("#outcome", "lost")
    assert page.inner_text("#count") == "9 of 23"
    page.select_option("#type", "plain")
    assert page.inner_text("#count") == "4 of 23"
    page.select_option("#outcome", "")
    assert page.inner_text("#count") == "10 of 23"
    page.select_option("#verb", "track")
    assert page.inner_text("#count") == "8 of 23"
    page.select_option("#type", "")
    page.select_option("#verb", "")
    page.click("#list button >> nth=0")
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#task") == "reach delta"
    assert page.evaluate("document.activeElement.textContent").startswith("reach delta")
    page.fill("#words", "no such words")
    assert page.inner_text("#count") == "0 of 23" and page.is_hidden("#episode")
    page.close()


def test_the_address_says_where_the_reader_is(browser, teacher):
    page = opened(browser, build.write(folder.read(teacher)).path)
    page.select_option("#type", "plain")
    page.click("#list button >> nth=2")
    page.keyboard.press("ArrowRight")
    task = page.inner_text("#task")
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.input_value("#type") == "plain"
    assert page.inner_text("#task") == task
    assert page.inner_text("#where").startswith("turn 1 of ")
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_a_page_fits_light_and_dark_and_asks_for_nothing(
    browser, training_page, width, scheme
):
    page = opened(
        browser,
        training_page,
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
    )
    assert page.asked == [training_page.resolve().as_uri()]
    assert page.wrong == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    places = page.query_selector_all("[data-figure]")
    assert len(places) > 10
    for place in places:
        assert place.query_selector("svg.marks")
        assert place.evaluate("e => e.scrollWidth <= e.clientWidth + 1")
    assert page.get_attribute("body", "data-drawn") == scheme
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(247, 247, 245)", "dark": "rgb(18, 21, 24)"}[scheme]
    page.close()


def test_figures_follow_a_change_to_dark(browser, training_page):
    page = opened(browser, training_page, color_scheme="light")
    assert page.get_attribute("body", "data-drawn") == "light"
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector("body[data-drawn=dark]")
    won = page.evaluate("document.querySelector('#annealing svg').innerHTML")
    assert "#4fc3aa" in won and "#0b7a64" not in won
    page.close()


def test_what_a_model_says_stays_words(browser, teacher, tmp_path):
    shutil.copytree(teacher, tmp_path / "run")
    lines = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    turns = json.loads(lines[0])["turns"]
    turns[0]["response"] = EVIL
    turns[1]["prompt"] = EVIL + "\ud800"
    change(
        tmp_path / "run",
        task=EVIL,
        type=EVIL,
        objective=EVIL,
        opening=EVIL,
        stop=EVIL,
        turns=turns,
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    summary["games"][0] |= {"task": EVIL, "type": EVIL}
    summary["split"] = summary["policy"] = EVIL
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    page = opened(browser, build.write(folder.read(tmp_path / "run")).path)
    assert page.wrong == [] and len(page.asked) == 1
    assert page.evaluate("window.broken") is None
    assert page.text_content("#task") == EVIL
    assert page.text_content("#talk pre >> nth=0") == EVIL
    page.keyboard.press("ArrowRight")
    assert page.text_content(".say pre") == EVIL
    assert page.query_selector_all("img") == []
    assert EVIL in page.text_content("#types")
    page.close()


def test_a_page_of_a_run_under_way_loads_itself_again_until_paused(browser, teacher):
    path = build.write(folder.read(teacher), reload=3.0).path
    page = opened(browser, path)
    assert page.inner_text("#live span") == "Loads itself again every 3 s."
    with page.expect_request(path.resolve().as_uri()):
        pass
    page.wait_for_selector("body[data-ready]")
    page.click("#live button")
    assert page.inner_text("#live span") == "Paused."
    asked = len(page.asked)
    page.wait_for_timeout(4000)
    assert len(page.asked) == asked
    page.close()
    still = opened(browser, build.write(folder.read(teacher)).path)
    assert still.is_hidden("#live")
    still.close()
