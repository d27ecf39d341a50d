"""Words of annotators and names of predicates, on SQLite and on PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from haystack.annotate.records import KeyConflictError
from haystack.annotate.simulate import SteppingClock
from haystack.annotate.store.database import Database
from haystack.annotate.store.wordings import (
    LONGEST_HELP,
    LONGEST_NAME,
    LONGEST_WORDS,
    PredicateNames,
    SharedWords,
    Wordings,
)
from haystack.errors import ConflictError, InputError

EATING, PLAYING, PLAYING_WITH = 0, 1, 2
NAMES = ("eating", "playing", "playing with")


@pytest.fixture
def database(location):
    opened = Database(location)
    yield opened
    opened.close()


@pytest.fixture
def words(database):
    return Wordings(database, clock=SteppingClock())


@pytest.fixture
def names(database):
    return PredicateNames(database, NAMES, clock=SteppingClock())


def test_words_are_kept_with_the_pictures_that_were_shown(words):
    shown = (("12", 0, 3), ("7", 4, 1))
    saved = words.add(PLAYING, "  engaged in\tactivity  using ", "ann", "k1", shown)
    assert (saved.words, saved.shown) == ("engaged in activity using", shown)
    assert words.of("ann") == {PLAYING: saved}
    assert words.of("ben") == {}


def test_the_same_key_saves_once_and_never_something_else(words):
    first = words.add(EATING, "chews", "ann", "k1")
    assert words.add(EATING, "chews", "ann", "k1") == first
    assert words.history() == [first]
    for other in ((EATING, "bites", "ann"), (PLAYING, "chews", "ann"), (EATING, "chews", "ben")):
        with pytest.raises(KeyConflictError, match="'k1' already stands for other words"):
            words.add(*other, "k1")
    assert words.history() == [first]


def test_later_words_replace_earlier_ones_which_stay_on_record(words):
    words.add(EATING, "chews", "ann", "k1")
    words.add(EATING, "bites", "ann", "k2")
    assert words.of("ann")[EATING].words == "bites"
    assert [said.words for said in words.history()] == ["chews", "bites"]
    assert words.shared() == {EATING: [SharedWords("bites", ("ann",))]}


def test_equal_words_are_counted_together_and_the_usual_spelling_is_shown(words):
    said = ("Playing", "playing", "playing", "uses", "PLAYING")
    for number, (annotator, text) in enumerate(zip("abcde", said, strict=True)):
        words.add(PLAYING, text, annotator, f"k{number}")
    words.add(EATING, "chews", "a", "k9")
    assert words.shared() == {
        EATING: [SharedWords("chews", ("a",))],
        PLAYING: [SharedWords("playing", ("a", "b", "c", "e")), SharedWords("uses", ("d",))],
    }


def test_words_sent_at_once_under_one_key_are_saved_once(words):
    with ThreadPoolExecutor(8) as threads:
        saved = list(threads.map(lambda _: words.add(EATING, "chews", "ann", "k"), range(16)))
    assert len(set(saved)) == 1
    assert len(words.history()) == 1


UNSUITABLE = {
    "": "of 1 to 120 characters, got 0",
    " \t\n ": "of 1 to 120 characters, got 0",
    "\u200b\u200d": "of 1 to 120 characters, got 0",
    "a" * 10_000: "of 1 to 120 characters, got 10000",
    "a\0b": "without control characters, got U\\+0000",
    "a\ud800b": "without control characters, got U\\+D800",
    "pan\u202eaz": "without control characters, got U\\+202E",
}


def test_what_is_no_wording_is_refused(words):
    for text, complaint in UNSUITABLE.items():
        with pytest.raises(InputError, match=f"expected words {complaint}"):
            words.add(EATING, text, "ann", "k1")
    assert words.history() == []


def test_any_language_and_any_markup_is_text(words):
    texts = (
        "<b>chews</b> & 'bites'; DROP TABLE wordings; --",
        "יושב על",
        "می‌خورد",  # holds a zero-width non-joiner, which Persian spelling needs
        "食べている",
        "👀",
        "x" * LONGEST_WORDS,
    )
    for number, text in enumerate(texts):
        assert words.add(EATING, text, "ann", f"k{number}").words == text
    assert tuple(said.words for said in words.history()) == texts


def test_letters_are_composed_so_that_equal_looking_words_are_equal(words):
    words.add(EATING, "café", "ann", "k1")
    words.add(EATING, "cafe\u0301", "ben", "k2")
    assert words.shared()[EATING] == [SharedWords("café", ("ann", "ben"))]


def test_names_are_those_of_the_vocabulary_until_somebody_sets_others(names, database):
    assert [name.name for name in names.current()] == list(NAMES)
    assert {(name.help, name.edition) for name in names.current()} == {("", 0)}
    given = names.set(
        PLAYING,
        " engaged in  activity using ",
        "With a thing.\r\n\r\n Not a toy. ",
        "lea",
        edition=0,
    )
    assert (given.name, given.help) == (
        "engaged in activity using",
        "With a thing.\n\nNot a toy.",
    )
    assert names.current()[PLAYING] == given
    assert names.name(PLAYING_WITH) == "playing with"
    # Another process sees it as well, whatever its vocabulary says.
    assert PredicateNames(database, ("eats", "plays", "toys")).current()[PLAYING] == given


def test_what_another_process_sets_is_seen_at_the_next_reading(names, database):
    names.current()
    PredicateNames(database, NAMES).set(EATING, "chewing", "", "lea", edition=0)
    assert names.name(EATING) == "chewing"


def test_the_last_name_counts_and_all_are_on_record(names):
    first = names.set(PLAYING, "using", "", "lea", edition=0)
    second = names.set(PLAYING, "engaged in activity using", "", "ben", edition=first.edition)
    assert names.current()[PLAYING] == second
    assert names.history() == {PLAYING: [first, second]}


def test_of_two_leads_who_name_at_once_one_is_told_of_the_other(names):
    def name_it(lead):
        try:
            return names.set(PLAYING, f"name of {lead}", "", lead, edition=0)
        except ConflictError as error:
            return error

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(name_it, ("ann", "ben", "cleo", "dan")))
    (kept,) = (result for result in results if not isinstance(result, ConflictError))
    assert names.history() == {PLAYING: [kept]}
    told = {str(result) for result in results if isinstance(result, ConflictError)}
    assert told == {
        f"{kept.set_by} has called it {kept.name!r} meanwhile; nothing was changed, look at that "
        "and decide again"
    }


def test_two_predicates_cannot_be_called_the_same(names):
    with pytest.raises(InputError, match="predicate 2 is called 'playing with' already"):
        names.set(PLAYING, "Playing With", "", "lea", edition=0)
    names.set(PLAYING_WITH, "toying with", "", "lea", edition=0)
    names.set(PLAYING, "playing with", "", "lea", edition=0)  # nobody is called so any more
    with pytest.raises(InputError, match="predicate 1 is called 'playing with'"):
        names.set(EATING, "playing with", "", "lea", edition=0)


def test_a_name_may_be_kept_while_its_help_text_changes(names):
    first = names.set(EATING, "eating", "Food in the mouth.", "lea", edition=0)
    second = names.set(EATING, "eating", "", "lea", edition=first.edition)
    assert (names.current()[EATING].help, second.edition > first.edition) == ("", True)


def test_what_is_no_name_is_refused(names):
    for change, complaint in (
        ({"name": ""}, "expected a name of 1 to 80 characters, got 0"),
        ({"name": "x" * (LONGEST_NAME + 1)}, "of 1 to 80 characters, got 81"),
        ({"name": "a\0"}, "got U\\+0000"),
        ({"help": "x" * (LONGEST_HELP + 1)}, "help text of at most 2000 characters, got 2001"),
        ({"help": "a\n\0"}, "got U\\+0000"),
        ({"predicate": 3}, "expected a predicate in 0..2, got 3"),
        ({"predicate": -1}, "expected a predicate in 0..2, got -1"),
    ):
        content = {"predicate": EATING, "name": "chewing", "help": ""} | change
        with pytest.raises(InputError, match=complaint):
            names.set(**content, set_by="lea", edition=0)
    assert names.history() == {}


def test_html_in_a_name_is_text(names):
    given = names.set(EATING, "<img src=x onerror=alert(1)>", "<script>1</script>", "l", edition=0)
    assert names.current()[EATING] == given
    assert given.name == "<img src=x onerror=alert(1)>"
