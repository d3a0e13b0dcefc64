from __future__ import annotations

import subprocess
import sys

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import ResponseOutputMessage, ResponseOutputRefusal

from weakincentives.adapters.openai import OpenAICodeInterpreterTool
from weakincentives.adapters.openai.sdk_hints import install


@pytest.fixture(autouse=True)
def installed():
    install()
    install()  # a second time changes nothing


@pytest.mark.parametrize("kind", [OpenAI, AsyncOpenAI])
def test_client_without_container_files_names_download(kind):
    client = kind(api_key="none", base_url="http://127.0.0.1:1")
    with pytest.raises(
        AttributeError, match=r"'container_files': write a cited file with .*openai\.download\(client"
    ) as e:
        _ = client.container_files

    assert (e.value.name, e.value.obj) == ("container_files", client)
    assert not hasattr(client.with_options(max_retries=1), "container_files")


def test_item_without_get_names_citations():
    item = ResponseOutputMessage.construct(id="msg_1", content=[])
    with pytest.raises(AttributeError, match=r"no attribute 'get': .*openai\.citations\(response\)"):
        item.get("annotations")  # pyright: ignore - the point of the test
    with pytest.raises(AttributeError, match="no attribute 'getter'"):
        _ = item.getter  # pyright: ignore - the point of the test

    assert getattr(item, "get", None) is None
    assert ResponseOutputMessage.construct(id="m", get=1).to_dict()["get"] == 1
    with pytest.raises(AttributeError, match=r"no attribute 'get'$"):
        ResponseOutputRefusal.construct(refusal="").get("x")  # pyright: ignore - not an item


def test_import_and_construction_do_not_change_the_sdk():
    program = """
import openai
from weakincentives.adapters.openai import OpenAICodeInterpreterTool
tool = OpenAICodeInterpreterTool()
assert "container_files" not in dir(openai.OpenAI)
tool.container
assert "container_files" in dir(openai.OpenAI)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_container_is_available_without_the_sdk():
    program = """
import sys
from weakincentives.adapters.openai import OpenAICodeInterpreterTool
assert OpenAICodeInterpreterTool().container == {"type": "auto", "memory_limit": "1g"}
assert "openai" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert OpenAICodeInterpreterTool().container == {"type": "auto", "memory_limit": "1g"}
