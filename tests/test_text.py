import pytest

from haystack.text import duration, table, without_folders


def test_tables_align_numbers_to_the_right_and_text_to_the_left():
    rows = [("a", 5, 0.25, "x"), ("bcd", 12, float("nan"), "0.1 .. 0.2")]
    assert table(("name", "count", "share", "note"), rows) == [
        "name  count  share  note",
        "----  -----  -----  ----------",
        "a         5  0.250  x",
        "bcd      12      -  0.1 .. 0.2",
    ]


def test_a_table_of_no_rows_is_its_header():
    assert table(("name", "count"), []) == ["name  count", "----  -----"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (89.4, "89 s"),
        (90, "2 min"),
        (3600, "60 min"),
        (9000, "2.5 h"),
        (2e5, "2.3 days"),
    ],
)
def test_durations_are_in_the_unit_that_people_would_use(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("", ""),
        ("cluster 4: a rank 3 (score 2.35)", "cluster 4: a rank 3 (score 2.35)"),
        (
            "cluster 4: /home/kim: x/run 1, b/model.safetensors rank 3 (score 2.35), "
            "/srv/c.safetensors 0a1b rank 1 (score -1e-05)",
            "cluster 4: model.safetensors rank 3 (score 2.35), c.safetensors 0a1b rank 1 "
            "(score -1e-05)",
        ),
        (
            "cluster 0: /home/kim/own.py:Model@/home/kim/run/model.safetensors rank 1 (score 2)",
            "cluster 0: own.py:Model@model.safetensors rank 1 (score 2)",
        ),
        (
            "cluster 0: ../kim/m.safetensors rank 1 (score 2)",
            "cluster 0: m.safetensors rank 1 (score 2)",
        ),
        ("/mnt/kim@host/model.safetensors", "model.safetensors"),
        ("package.module:Model@/home/kim/run/", "package.module:Model@run"),
        ("found by /home/kim/a script", "a script"),
    ],
)
def test_names_of_models_lose_their_folders_and_nothing_else(said, left):
    assert without_folders(said) == left
