from __future__ import annotations

import pytest

from weakincentives.adapters.openai import OPENAI_FILE_TYPES, ContainerConfig, FileTypes
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import CodeInterpreterConfig

OPENAI = "https://api.openai.com/v1/"
OTHER = "http://127.0.0.1:8080/v1/"


def refusal(types: FileTypes, *paths: str, base_url: str = OPENAI) -> str | None:
    return types.refusal(lambda: paths, base_url=base_url, setting="file_types={}")


@pytest.mark.parametrize(
    "base_url, is_openai",
    [
        (OPENAI, True),
        ("https://eu.api.openai.com/v1", True),
        ("https://mine.openai.azure.com/openai/v1/", True),
        (OTHER, False),
        ("https://notopenai.com/v1", False),
        ("https://openai.com.example.org/v1", False),
        ("", False),
    ],
)
def test_default_types_depend_on_the_server(base_url, is_openai):
    assert (refusal(FileTypes(), "a.onnx", base_url=base_url) is not None) is is_openai
    assert refusal(FileTypes(), "a.csv", base_url=base_url) is None


def test_documented_types_are_accepted_in_any_case():
    assert refusal(FileTypes(), *(f"dir.x/a{suffix.upper()}" for suffix in OPENAI_FILE_TYPES)) is None


def test_paths_are_not_listed_without_a_limit():
    types = FileTypes()
    assert types.refusal(lambda: pytest.fail("listed"), base_url=OTHER, setting="file_types={}") is None


def test_refusal_names_files_types_list_and_setting():
    why = refusal(FileTypes(allowed=[".csv", ""]), "data/a.tar.gz", "Makefile", base_url=OTHER)

    assert why == (
        "unsupported file types: 'data/a.tar.gz' (.gz). Supported are no suffix, .csv. Exclude these files, or give "
        "file_types=FileTypes(allowed=…), or file_types=None to upload every type"
    )


def test_refusal_names_a_bounded_number_of_files():
    why = refusal(FileTypes(), *(f"{number}.bin" for number in range(1000)))

    assert why is not None
    assert "'9.bin' (.bin) and 990 more" in why
    assert "'10.bin'" not in why


def test_notebooks_are_logged_by_default_and_refused_by_a_list(caplog):
    assert refusal(FileTypes(), "a.ipynb") is None
    assert "may be unsupported: 'a.ipynb' (.ipynb)" in caplog.text
    assert refusal(FileTypes(allowed=[".py"]), "a.ipynb") is not None


def test_unsupported_types_can_be_logged_only(caplog):
    assert refusal(FileTypes(allowed=[".py"], unsupported="warn"), "a.py", "b.rs", base_url=OTHER) is None
    assert [record.getMessage() for record in caplog.records] == [
        "uploading files of types that may be unsupported: 'b.rs' (.rs)"
    ]


@pytest.mark.parametrize("allowed", [".csv", ["csv"], ["."], [".tar.gz"], [1]])
def test_wrong_suffixes_are_refused(allowed):
    with pytest.raises(ValueError, match=r"allowed must be suffixes such as \['.csv', '.py'\], not"):
        FileTypes(allowed=allowed)


def test_wrong_reaction_is_refused():
    with pytest.raises(ValueError, match="unsupported must be 'refuse' or 'warn', not 'ignore'"):
        FileTypes(unsupported="ignore")  # pyright: ignore[reportArgumentType] - the point of the test


def test_defaults_refuse_for_the_tool_and_warn_for_workspaces():
    assert CodeInterpreterConfig().file_types == FileTypes(allowed=None, unsupported="refuse")
    assert ContainerConfig().file_types == FileTypes(allowed=None, unsupported="warn")
    assert hash(FileTypes(allowed=[".B", ".a"])) == hash(FileTypes(allowed=(".a", ".b")))
