"""The page: one file without a network, well formed, with the numbers of the table."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from made_cells import cell, failed

from bitune_pl.reproduction.tables import plots
from bitune_pl.reproduction.tables.cells import parse
from bitune_pl.reproduction.tables.page import page
from bitune_pl.reproduction.tables.published import PAPER
from bitune_pl.reproduction.tables.rows import rows

CHROMIUM = shutil.which("chromium")
VOID = {"meta", "br", "hr", "img", "link"}


class Read(HTMLParser):
    """Elements with their attributes, and the text by the element it stands in; checks that all are closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", " ".join(data.split())))

    def of(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def said(self, *tags):
        return [text for tag, text in self.texts if text and tag in tags]


RECORDS = [cell(m, s) for m in ("LoRA", "Bitune") for s in (42, 43)] + [
    cell("Pretrained"),
    failed("LoRA16", 42, "<b>&"),
]


@pytest.fixture(scope="module")
def made():
    return rows([parse(record) for record in RECORDS])


@pytest.fixture(scope="module")
def text(made):
    return page(made)


@pytest.fixture(scope="module")
def read(text):
    return Read(text)


def test_it_needs_no_network(text, read):
    assert not [said for _, said in read.elements for name in said if name in ("src", "href") and "#" != said[name][:1]]
    assert "http://" not in text and "https://" not in text and "@import" not in text
    assert all(element not in {tag for tag, _ in read.elements} for element in ("link", "img", "iframe"))


def test_what_was_recorded_is_shown_and_not_run(read):
    assert any("<b>&" in said for said in read.said("li"))
    assert read.of("b") and "LoRA16: seed 42 left out: failed (<b>&)." in read.said("li")


def test_cells_are_sorted_by_their_numbers(made, read):
    """Each cell of a sortable table has a value to be sorted by: a number, or nothing where there is none."""
    shown = {said["data-sort"] for said in read.of("td") if "data-sort" in said}
    for row in made:
        for entry in row.columns.values():
            assert entry.ours is None or str(entry.ours.mean) in shown
    assert "" in shown and "None" not in shown
    heads = len(read.of("th"))
    assert len(read.of("button")) == heads - 3 - 3, "but for the two tables that are not sorted"


def test_the_plot_has_a_bar_for_each_mean_and_a_point_for_each_gain(made, read):
    titles = [said for said in read.said("title") if ":" in said and "LoRA16" not in said and "Table" not in said]
    entries = [entry for row in made for entry in row.columns.values()]
    assert len(titles) == sum(entry.ours is not None for entry in entries) + sum(
        entry.gain is not None for entry in entries
    )
    bitune = next(row for row in made if row.method == "Bitune").columns["Avg."]
    assert any(f"Bitune, Avg.: {bitune.ours.mean:.1f}" in title for title in titles)
    assert any(f"Bitune, Avg.: {bitune.gain.mean:+.1f} points over LoRA" in title for title in titles)


def test_the_plot_takes_the_pages_colours(text, made):
    svg = plots.plot(made)
    assert "#0102" not in svg and "#000000" not in svg and "#ffffff" not in svg.lower()
    used = {f"--m{plots.colour(made, row.method)}" for row in made if row.done} | set(plots.VARIABLES.values())
    assert all(f"var({name})" in svg for name in used)
    head = text[: text.index("</style>")]
    assert all(head.count(f"{name}:") == 2 for name in used), "one for light pages, one for dark ones"


def test_ids_are_unique_and_there():
    """Of two plots on one page, too."""
    text = page(rows([parse(cell("LoRA", model=model)) for model in ("smollm2", "gemma3-270m")]))
    ids = [said["id"] for _, said in Read(text).elements if "id" in said]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text)) == set(ids)


def test_methods_of_a_table_can_be_told_apart():
    for name, table in PAPER["tables"].items():
        methods = next(iter(table["rows"].values()))
        said = rows([parse(cell(method, table=name, tasks=("piqa",), n=4)) for method in methods])
        assert len({plots.colour(said, method) for method in methods}) == len(methods), name


def test_the_page_says_what_differs_in_the_paper(read):
    for claim in PAPER["claims"]:
        assert (claim["says"] in read.said("td")) == ("table1" in claim["tables"])
    assert read.said("span").count("differs") == 2


def said_of(*records):
    return Read(page(rows([parse(record) for record in records])))


def test_a_smoke_table_has_no_headline():
    """Its numbers mean nothing."""
    both = [cell(method, tasks=("categories",)) for method in ("LoRA", "Bitune")]
    assert {"class": "headline"} in said_of(*both).of("p")
    assert {"class": "headline"} not in said_of(*(record | {"profile": "smoke"} for record in both)).of("p")


@pytest.mark.parametrize(
    ("training", "told"),
    [
        (0.2, "0 seconds"),
        (1.2, "1 second"),
        (61, "61 seconds"),
        (150, "2 minutes"),
        (3600, "60 minutes"),
        (9000, "2.5 hours"),
    ],
)
def test_time_has_a_unit_that_fits(training, told):
    said = said_of(cell("LoRA", train_seconds=training, evaluate_seconds=1.0)).said("p")
    assert any(text.startswith(f"1 cell, {told} of training and 1 second of evaluation.") for text in said)


def test_titles_say_what_stands_below_them(read):
    assert "What was run here and in the paper" in read.said("h3")
    assert "What the paper's text and its tables say" in read.said("h2")
    assert {"holds", "differs"} <= set(read.said("span"))


def test_the_headline_rounds_as_the_table_does():
    """A loss of two answers in 10 000 is 0.0 in both."""
    right = {"LoRA": [1] * 5000 + [0] * 5000, "Bitune": [1] * 4998 + [0] * 5002}
    read = said_of(*(cell(method, tasks=(), right={"piqa": marks}) for method, marks in right.items()))
    [headline] = [said for said in read.said("p") if "95 % interval" in said and "points over" in said]
    assert headline.startswith("Bitune gains 0.0 points over LoRA on PIQA: 95 % interval -0.1 to 0.0, so zero")
    assert "0.0" in read.said("span") and "+0.0" not in " ".join(read.said("p", "span", "title", "small"))


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine")
def test_no_table_is_wider_than_a_window_of_1280(tmp_path):
    much = {"train_seconds": 28_000.0, "evaluate_seconds": 12_000.0, "trained_parameters": 2_504_815_420}
    methods = ("Full FT", "Bitune (Full FT)")
    text = page(rows([parse(cell(method, table="table7", model="gemma3-270m", **much)) for method in methods]))
    measure = "[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)"
    (tmp_path / "page.html").write_text(text.replace("</body>", f"<script>document.title = {measure}</script></body>"))
    argv = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,800", "--dump-dom"]
    done = subprocess.run([*argv, (tmp_path / "page.html").as_uri()], capture_output=True, text=True, timeout=120)
    assert re.search(r"<title>([0,]+)</title>", done.stdout)


def test_the_page_says_what_was_run(read):
    said = read.said("td", "p", "li", "code")
    for expected in ("{root}/ultrafeedback_binarized/train.jsonl", "4,815,420", "data.max_length", "seeds 42, 43"):
        assert expected in said, expected
    assert any("bitune_pl 0.1.0" in text and "torch 2.13.0" in text for text in said)
    assert any("PIQA 1,838" in text for text in said) and any("PIQA 100" in text for text in said)


def test_other_versions_among_the_cells_are_shown(made):
    records = [cell("LoRA"), cell("Bitune", versions={"torch": "2.12.0"})]
    assert "torch 2.12.0" in page(rows([parse(record) for record in records]))
