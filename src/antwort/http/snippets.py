"""Two ways to try a server that has just been started: one for a shell, one for a program."""

from __future__ import annotations

_TOOLS = '[{"type": "code_interpreter", "container": {"type": "auto"}}]'


def snippets(url: str, *, locked: bool, code: bool) -> str:
    """`curl` and the SDK, ready to be copied. `url` ends with `/v1`; `locked` where a key is needed."""
    question = "What is the sum of all multiples of 7 below 1000? Compute it." if code else "Name three rivers."
    shell = _shell(url, question, locked=locked, code=code)
    return f"In a shell:\n\n{shell}\n\nIn Python:\n\n{_sdk(url, question, locked=locked, code=code)}"


def _shell(url: str, question: str, *, locked: bool, code: bool) -> str:
    key = ' -H "authorization: Bearer $OPENAI_API_KEY"' if locked else ""
    tools = f', "tools": {_TOOLS}' if code else ""
    return f"""\
curl -s {url}/responses -H 'content-type: application/json'{key} \\
  -d '{{"input": "{question}"{tools}}}'"""


def _sdk(url: str, question: str, *, locked: bool, code: bool) -> str:
    key = "" if locked else ', api_key="none"'  # the SDK reads OPENAI_API_KEY by itself
    tools = f", tools={_TOOLS}" if code else ""
    return f"""\
from openai import OpenAI

client = OpenAI(base_url="{url}"{key})
response = client.responses.create(input="{question}"{tools})
print(response.output_text)"""
