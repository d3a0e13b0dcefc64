from __future__ import annotations

import pytest

from antwort.api.items import InputFile, Item, read
from antwort.tools.builtins.container.attachments import (
    attached_files,
    containers_in,
    is_listed,
    items_since_last_use,
    name_for,
    with_names,
)


def message(*files: dict) -> Item:
    return read({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}, *files]})


def call(container: str) -> Item:
    return read(
        {"type": "code_interpreter_call", "id": "ci_1", "container_id": container, "code": "1", "outputs": None}
    )


def test_files_are_found_in_messages_and_outputs():
    answer = read(
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file", "file_id": "file-3"}]}
    )
    plain = read({"type": "message", "role": "user", "content": "no files"})
    history = [
        message({"type": "input_file", "file_id": "file-1"}, {"type": "input_file", "file_id": "file-2"}),
        plain,
        answer,
    ]

    assert [(one.file.file_id, one.location.param) for one in attached_files(history, images=False)] == [
        ("file-1", "input[0].content[1]"),
        ("file-2", "input[0].content[2]"),
        ("file-3", "input[2].output[0]"),
    ]


def test_images_are_files_where_the_model_cannot_read_them():
    uploaded = {"type": "input_image", "file_id": "file-1"}
    inline = {"type": "input_image", "image_url": "data:image/png;base64,eA=="}
    linked = {"type": "input_image", "image_url": "https://x.example/a.png"}
    history = [message(uploaded, inline, inline, linked)]

    assert list(attached_files(history, images=False)) == []
    assert [one.file.file_id for one in attached_files(history, images=True)] == ["file-1", None, None]
    assert [name for _, name in with_names(history, images=True)] == ["image.png", "2-image.png"]


def test_file_names_are_unique_within_a_message():
    def inline(name: str | None) -> dict:
        return {"type": "input_file", "filename": name, "file_data": "eA=="}

    first = message(inline("a.csv"), inline("there/a.csv"), inline(None), {"type": "input_file", "file_id": "file-1"})
    second = message(inline("a.csv"), inline(None), inline(None))

    assert [name for _, name in with_names([first, second], ["2-a.csv"], images=False)] == [
        *("a.csv", "3-a.csv", "file"),
        *("a.csv", "file", "2-file"),
    ]


def test_containers_are_in_the_order_of_their_last_use():
    shell = read({"type": "shell_call", "environment": {"type": "container_reference", "container_id": "c3"}})
    local = read({"type": "shell_call", "environment": {"type": "local"}})

    assert containers_in([call("c1"), call("c2"), shell, local, call("c1")]) == ["c2", "c3", "c1"]


def test_items_since_the_last_use_of_a_container():
    old, new = message(), message()

    assert items_since_last_use([old, call("c1"), call("c2"), new], "c1")[-1] is new
    assert len(items_since_last_use([old, call("c1"), call("c2"), new], "c1")) == 2
    assert items_since_last_use([old, call("c1"), new], "c2") == [old, call("c1"), new]


@pytest.mark.parametrize(
    "given, name",
    [
        ("a b.csv", "a b.csv"),
        ("../../etc/passwd", "passwd"),
        ("C:\\data\\x.csv", "x.csv"),
        ("数据.csv", "数据.csv"),
        ("a\nb\x00.csv", "ab.csv"),
        ("..", "file"),
        ("", "file"),
        (None, "file"),
        ("x" * 300 + ".csv", "x" * 196 + ".csv"),
    ],
)
def test_an_attachment_gets_a_valid_file_name(given, name):
    assert name_for(InputFile(filename=given)) == name


@pytest.mark.parametrize(
    "path, expected",
    [("a.txt", True), (".gitignore", True), ("tea/.github/x", True), (".git/HEAD", False), ("tea/.git/config", False)],
)
def test_what_git_stores_is_not_listed_to_the_model(path, expected):
    assert is_listed(path) is expected
