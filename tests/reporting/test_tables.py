"""Tables in four notations say the same numbers."""

# ruff: noqa: RUF001  (letters of other alphabets are what is tested)

import csv
import io
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from haystack.reporting.latex import beyond_pdflatex, escape
from haystack.reporting.tables import Estimate, Table

TABLE = Table(
    name="numbers",
    title="Numbers & <more>",
    header=["predicate", "P-AUC", "R@50", "P-AUC", "R@50", "+"],
    rows=[
        ["in front_of", Estimate(0.5, 0.25, 0.75), 0.125, Estimate(0.75, best=True), math.nan, 3],
        ["100 % | <b>", Estimate(math.nan), 1.0, Estimate(0.25, 0.0, 0.5), 0.5, 12],
    ],
    groups=[("", 1), ("one_model", 2), ("two", 2), ("labels", 1)],
    notes=["A note with 5 %."],
    ruled=True,
)


def test_csv_holds_numbers_in_full_and_leaves_undefined_ones_empty():
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows[0] == [
        *("predicate", "one_model P-AUC", "one_model P-AUC low", "one_model P-AUC high"),
        *("one_model R@50", "two P-AUC", "two P-AUC low", "two P-AUC high", "two R@50"),
        "labels +",
    ]
    assert rows[1] == ["in front_of", "0.5", "0.25", "0.75", "0.125", "0.75", "", "", "", "3"]
    assert rows[2][:4] == ["100 % | <b>", "", "", ""]


def test_markdown_has_as_many_cells_in_every_line():
    lines = [line for line in TABLE.markdown().splitlines() if line.startswith("|")]
    assert len(lines) == 4
    counts = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert counts == {7}
    assert "**0.750**" in lines[2]
    assert "0.500 [0.250, 0.750]" in lines[2]
    assert lines[1] == "| --- | ---: | ---: | ---: | ---: | ---: |"


def test_a_printed_value_lies_in_its_printed_interval_in_every_notation():
    # With fewer decimals than the value the interval would be printed as 0.01 to 0.01.
    table = Table("small", "Small", ["predicate", "PDD"], [["on", Estimate(0.008, 0.006, 0.0088)]])
    printed = ("0.008", "0.006", "0.009")
    for text in (table.markdown(), table.latex(), table.html()):
        assert tuple(re.findall(r"\d\.\d+", text)) == printed
    assert table.csv().splitlines()[1] == "on,0.008,0.006,0.0088"


def test_latex_is_escaped_and_its_columns_add_up():
    text = TABLE.latex()
    assert r"Numbers \& \textless{}more\textgreater{}" in text
    assert r"in front\_of" in text
    assert r"100 \%" in text
    assert r"\textbf{0.750}" in text
    assert r"\multicolumn{2}{c}{one\_model}" in text
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5} \cmidrule(lr){6-6}" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.replace(r"\&", "").count("&") for line in body[1:]} == {5}
    assert text.count(r"\midrule") == 2
    assert text.count("{") == text.count("}")


def test_latex_takes_no_name_for_an_option_of_the_line_before():
    rows = [["[ours] net", 0.5], ["*", 0.25], ["two\nlines", 0.0]]
    text = Table("names", "Names", ["model", "R@50"], rows).latex()
    lines = [line for line in text.splitlines() if "&" in line]
    assert [line.partition(" &")[0] for line in lines] == [
        "model",
        "{}[ours] net",
        "{}*",
        "two lines",
    ]


def test_markdown_escapes_the_header_too():
    table = Table("t", "T", ["", "R"], [["a|b\nc", 0.5]], groups=[("x|y", 2)])
    lines = [line for line in table.markdown().splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3}


class Cells(HTMLParser):
    """Counts the cells of each row, colspans included, and collects text."""

    def __init__(self):
        super().__init__()
        self.rows, self.open, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += int(dict(attrs).get("colspan", 1))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_html_is_well_formed_and_escaped():
    parser = Cells()
    parser.feed(TABLE.html())
    assert parser.open == []
    assert parser.rows == [6, 6, 6, 6]
    assert "Numbers & <more>" in parser.text
    assert "100 % | <b>" in parser.text
    assert "<b>0.750</b>" in TABLE.html()
    assert '<tr class="mean">' in TABLE.html()


LATIN_AND_GREEK = [
    "100 % & more_of #1 {x} $y$ ~^\\",
    "café_au_lait, Łódź, über, naïve, ệ, ő, straße, Ærø",
    "Modèle Δ-net α = 0.5, πάνω σε, ΰ, ουρανός, μ",
    'ours "best" – [a] … 10 × 3 ± 1',
]


def test_accents_and_greek_letters_are_written_in_ascii():
    assert escape("à côté_de") == r"\`{a} c\^{o}t\'{e}\_de"
    assert escape("e\N{COMBINING ACUTE ACCENT}ï") == r"\'{e}\"{\i}"
    assert escape("Łódź") == r"\L{}\'{o}d\'{z}"
    assert escape("Ωά") == r"\ensuremath{\Omega}\ensuremath{\acute{\alpha}}"
    assert escape("ΑΣς") == (r"\ensuremath{\mathrm{A}}\ensuremath{\Sigma}\ensuremath{\varsigma}")
    for name in LATIN_AND_GREEK:
        assert escape(name).isascii()
        assert not beyond_pdflatex(escape(name))


def test_letters_that_pdflatex_lacks_are_named_in_the_head():
    rows = [["在…上", 0.5], ["на столе", 0.25], ["Ἀ", 0.0]]
    text = Table("names", "Names", ["model", "R@50"], rows).latex()
    head = text.splitlines()[1]
    assert head.startswith("% pdfLaTeX does not know these letters; take XeLaTeX or LuaLaTeX")
    assert head.endswith("在上настоле" + "Ἀ")
    assert all(line.startswith("%") for line in text.splitlines()[:2])
    assert "pdfLaTeX" not in TABLE.latex()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_pdflatex_sets_tables_of_latin_and_greek_names(tmp_path):
    rows = [[name, Estimate(0.5, 0.25, 0.75, best=True)] for name in LATIN_AND_GREEK]
    groups = [("", 1), ("Modèle_α & 50 %", 1)]
    table = Table("names", "Ονόματα: é %", ["ünder", "R@50"], rows, groups, ["Größe _ &."], True)
    (tmp_path / "names.tex").write_text(table.latex(), encoding="utf-8")
    (tmp_path / "all.tex").write_text(
        "\\documentclass{article}\n"
        + table.latex().splitlines()[0].removeprefix("% ")
        + "\n\\begin{document}\n\\input{names}\n\\end{document}\n"
    )
    words = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "all.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert (tmp_path / "all.pdf").is_file()
