from haystack.text import table


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
