from __future__ import annotations

import json
from pathlib import Path

import pytest

from antwort.engine.stores import ContainerFileRecord
from antwort.tools.builtins.container.citations import cite

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
    """The cited file names with the text of each citation."""
    files = [file(path) for path in (*made, *there)]
    return [
        (one.file_id.removeprefix("cfile_"), text[one.start_index : one.end_index])
        for one in cite(text, files, files[: len(made)])
    ]


def test_a_link_is_cited_by_its_url():
    text = "Here: [the data](sandbox:/mnt/data/a.csv). Enjoy."

    assert cited(text, "a.csv") == [("a.csv", "sandbox:/mnt/data/a.csv")]


def test_a_citation_has_file_and_container_id():
    (citation,) = cite("`x/a.csv`", [], [file("x/a.csv", "cfile_9")])

    assert (citation.container_id, citation.file_id, citation.filename) == ("cntr_1", "cfile_9", "a.csv")
    assert (citation.start_index, citation.end_index) == (1, 8)


def test_indexes_count_code_points():
    text = "Grüße 🎈🎈 an 世界: [数据](sandbox:/mnt/data/数据 1.csv) und 数据"

    assert cited(text, "数据 1.csv") == [("数据 1.csv", "sandbox:/mnt/data/数据 1.csv")]


def test_every_link_is_cited_also_to_the_same_file():
    text = "[a](sandbox:/mnt/data/a.csv), [b](sandbox:/mnt/data/b.csv), [a](sandbox:/mnt/data/a.csv)"

    assert [name for name, _ in cited(text, "b.csv", "a.csv")] == ["a.csv", "b.csv", "a.csv"]


def test_a_linked_file_is_not_cited_by_name():
    assert len(cited("a.csv is here: [a.csv](sandbox:/mnt/data/a.csv)", "a.csv")) == 1


def test_percent_encoded_links_are_found():
    for address in ("my file.csv", "my%20file.csv"):
        assert cited(f"[x](sandbox:/mnt/data/{address})", "my file.csv") == [
            ("my file.csv", f"sandbox:/mnt/data/{address}")
        ]
    assert cited("[x](sandbox:/mnt/data/out%2Fa.csv)", "out/a.csv") == [("out/a.csv", "sandbox:/mnt/data/out%2Fa.csv")]


def test_a_longer_name_is_not_a_mention():
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
def test_a_created_file_is_cited_by_name(text):
    ((name, words),) = cited(text, "a.csv")

    assert name == "a.csv"
    assert words.endswith("a.csv")


def test_a_name_is_cited_once_and_only_of_a_created_file():
    assert cited("a.csv and a.csv again, and old.csv", "a.csv", there=("old.csv",)) == [("a.csv", "a.csv")]
    assert cited("[old](sandbox:/mnt/data/old.csv)", there=("old.csv",)) == [("old.csv", "sandbox:/mnt/data/old.csv")]


def test_an_ambiguous_name_needs_its_path():
    assert cited("a.csv", "x/a.csv", "y/a.csv") == []
    assert cited("y/a.csv", "x/a.csv", "y/a.csv") == [("y/a.csv", "y/a.csv")]
    assert cited("a.csv", "x/a.csv") == [("x/a.csv", "a.csv")]


def test_a_name_without_extension_is_cited_only_in_quotes():
    assert cited("the results show", "results") == []
    assert cited("the file `results` shows", "results") == [("results", "results")]


def test_names_are_not_regular_expressions():
    assert cited("see a+b(1).csv", "a+b(1).csv") == [("a+b(1).csv", "a+b(1).csv")]
    assert cited("see aab1.csv", "a+b(1).csv") == []


def test_a_text_without_files_has_no_citations():
    assert cite("sandbox:/mnt/data/a.csv", [], []) == []
    assert cite("", [file("a.csv")], [file("a.csv")]) == []


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the recordings do not lie beside this clone")
def test_recorded_texts_have_their_recorded_citations():
    stream = (REFERENCE / "openai-code-interpreter-stream.jsonl").read_text(encoding="utf-8").splitlines()
    streamed = json.loads(stream[-1])["response"]["output"]
    whole = json.loads((REFERENCE / "openai-code-interpreter-response.json").read_text(encoding="utf-8"))["output"]
    parts = [item["content"][0] for item in (*streamed, *whole) if item["type"] == "message"]

    assert len(parts) == 2
    for part in parts:
        (recorded,) = part["annotations"]
        files = [file(recorded["filename"])]
        (citation,) = cite(part["text"], files, files)
        assert (citation.start_index, citation.end_index) == (recorded["start_index"], recorded["end_index"])
