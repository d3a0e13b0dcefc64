"""Quick-start snippets for a running server: a `curl` command and a Python program with the OpenAI SDK."""

from __future__ import annotations

_TOOLS = '[{"type": "code_interpreter", "container": {"type": "auto"}}]'


def snippets(url: str, *, requires_key: bool, has_code_interpreter: bool) -> str:
    """The snippets as text. `url` ends with `/v1`."""
    if has_code_interpreter:
        question, tools = "What is the sum of all multiples of 7 below 1000? Compute it.", _TOOLS
    else:
        question, tools = "Name three rivers.", None
    curl = _curl(url, question, tools, requires_key=requires_key)
    return f"In a shell:\n\n{curl}\n\nIn Python:\n\n{_sdk(url, question, tools, requires_key=requires_key)}"


def _curl(url: str, question: str, tools: str | None, *, requires_key: bool) -> str:
    key = ' -H "authorization: Bearer $OPENAI_API_KEY"' if requires_key else ""
    field = f', "tools": {tools}' if tools else ""
    return f"""\
curl -s {url}/responses -H 'content-type: application/json'{key} \\
  -d '{{"input": "{question}"{field}}}'"""


def _sdk(url: str, question: str, tools: str | None, *, requires_key: bool) -> str:
    key = "" if requires_key else ', api_key="none"'  # otherwise the SDK reads OPENAI_API_KEY
    argument = f", tools={tools}" if tools else ""
    return f"""\
from openai import OpenAI

client = OpenAI(base_url="{url}"{key})
response = client.responses.create(input="{question}"{argument})
print(response.output_text)"""
