from __future__ import annotations

import json
from pathlib import Path

import pytest

from antwort.engine.stores import ContainerFileRecord
from antwort.tools.builtins.codeinterpreter.citations import cite

REFERENCE = Path(__file__).parents[5].parent / "shared" / "reference"


def file(path: str, identifier: str = "") -> ContainerFileRecord:
    return ContainerFileRecord(
        id=identifier or f"cfile_{path}",
        container_id="cntr_1",
        path=path,
        bytes=1,
        created_at=1,
        source="assistant",
        modified=1,
    )


def cited(text: str, *made: str, there: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """The files that are cited, and the words by which they are."""
    files = [file(path) for path in (*made, *there)]
    return [
        (one.file_id.removeprefix("cfile_"), text[one.start_index : one.end_index])
        for one in cite(text, files, files[: len(made)])
    ]


def test_of_a_link_its_address_is_what_cites():
    text = "Here: [the data](sandbox:/mnt/data/a.csv). Enjoy."

    assert cited(text, "a.csv") == [("a.csv", "sandbox:/mnt/data/a.csv")]


def test_a_citation_says_which_file_of_which_container():
    (citation,) = cite("`x/a.csv`", [], [file("x/a.csv", "cfile_9")])

    assert (citation.container_id, citation.file_id, citation.filename) == ("cntr_1", "cfile_9", "a.csv")
    assert (citation.start_index, citation.end_index) == (1, 8)


def test_indexes_count_characters_whatever_they_are():
    text = "Grüße 🎈🎈 an 世界: [数据](sandbox:/mnt/data/数据 1.csv) und 数据"

    assert cited(text, "数据 1.csv") == [("数据 1.csv", "sandbox:/mnt/data/数据 1.csv")]


def test_each_link_cites_also_to_the_same_file():
    text = "[a](sandbox:/mnt/data/a.csv), [b](sandbox:/mnt/data/b.csv), [a](sandbox:/mnt/data/a.csv)"

    assert [name for name, _ in cited(text, "b.csv", "a.csv")] == ["a.csv", "b.csv", "a.csv"]


def test_a_file_that_is_linked_is_not_cited_for_its_name_as_well():
    assert len(cited("a.csv is here: [a.csv](sandbox:/mnt/data/a.csv)", "a.csv")) == 1


def test_links_are_found_however_their_names_are_escaped():
    for address in ("my file.csv", "my%20file.csv"):
        assert cited(f"[x](sandbox:/mnt/data/{address})", "my file.csv") == [
            ("my file.csv", f"sandbox:/mnt/data/{address}")
        ]
    assert cited("[x](sandbox:/mnt/data/out%2Fa.csv)", "out/a.csv") == [("out/a.csv", "sandbox:/mnt/data/out%2Fa.csv")]


def test_a_longer_name_is_another_file():
    assert cited("(sandbox:/mnt/data/a.csv.gz)", "a.csv", "a.csv.gz") == [("a.csv.gz", "sandbox:/mnt/data/a.csv.gz")]
    assert cited("sandbox:/mnt/data/a.csv.gz and xa.csv and a.csvx and b/a.csv", "a.csv") == []


@pytest.mark.parametrize(
    "text",
    [
        "I wrote a.csv.",
        "I wrote `a.csv`",
        "See /mnt/data/a.csv!",
        "(a.csv)",
        "a.csv",
        "**a.csv**",
        "保存为a.csv文件",
        "A: a.csv, b",
    ],
)
def test_a_file_that_was_just_made_is_cited_by_its_name(text):
    ((name, words),) = cited(text, "a.csv")

    assert name == "a.csv"
    assert words.endswith("a.csv")


def test_a_name_cites_once_and_only_what_was_just_made():
    assert cited("a.csv and a.csv again, and old.csv", "a.csv", there=("old.csv",)) == [("a.csv", "a.csv")]
    assert cited("[old](sandbox:/mnt/data/old.csv)", there=("old.csv",)) == [("old.csv", "sandbox:/mnt/data/old.csv")]


def test_a_name_that_two_files_have_needs_its_path():
    assert cited("a.csv", "x/a.csv", "y/a.csv") == []
    assert cited("y/a.csv", "x/a.csv", "y/a.csv") == [("y/a.csv", "y/a.csv")]
    assert cited("a.csv", "x/a.csv") == [("x/a.csv", "a.csv")]


def test_a_name_that_could_be_a_word_cites_only_in_quotes():
    assert cited("the results show", "results") == []
    assert cited("the file `results` shows", "results") == [("results", "results")]


def test_names_are_no_patterns():
    assert cited("see a+b(1).csv", "a+b(1).csv") == [("a+b(1).csv", "a+b(1).csv")]
    assert cited("see aab1.csv", "a+b(1).csv") == []


def test_an_answer_without_files_cites_nothing():
    assert cite("sandbox:/mnt/data/a.csv", [], []) == []
    assert cite("", [file("a.csv")], [file("a.csv")]) == []


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the recordings do not lie beside this clone")
def test_the_recordings_are_cited_as_they_are():
    stream = (REFERENCE / "openai-code-interpreter-stream.jsonl").read_text(encoding="utf-8").splitlines()
    streamed = json.loads(stream[-1])["response"]["output"]
    whole = json.loads((REFERENCE / "openai-code-interpreter-response.json").read_text(encoding="utf-8"))["output"]
    parts = [item["content"][0] for item in (*streamed, *whole) if item["type"] == "message"]

    assert len(parts) == 2
    for part in parts:
        (recorded,) = part["annotations"]
        files = [file(recorded["filename"])]
        (ours,) = cite(part["text"], files, files)
        assert (ours.start_index, ours.end_index) == (recorded["start_index"], recorded["end_index"])
