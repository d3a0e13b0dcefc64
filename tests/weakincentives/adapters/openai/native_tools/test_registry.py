from __future__ import annotations

import json
import subprocess
import sys
import textwrap

from weakincentives.adapters.openai import native_tools
from weakincentives.adapters.openai.native_tools.registry import by_config, by_item, capabilities

SIXTH = """
from __future__ import annotations
from dataclasses import dataclass
from weakincentives.adapters.openai.native_tools.capability import Capability, ProviderRan
from weakincentives.prompt import ToolResult


@dataclass(frozen=True)
class TelepathyConfig:
    distance: int = 1


class Telepathy(Capability):
    name = "telepathy"
    items = frozenset({"telepathy_call"})
    config_type = TelepathyConfig
    example = ProviderRan(None, ToolResult(""))

    def declaration_fields(self, config):
        return {"distance": config.distance}

    def parse_call(self, item, response, config):
        return ProviderRan(item["thought"], ToolResult("received"))


CAPABILITY = Telepathy()
"""

PROGRAM = """
    import json, sys
    from weakincentives.adapters.openai import native_tools
    native_tools.__path__.append(sys.argv[1])
    from weakincentives.adapters.openai import OpenAIHostedToolsConfig
    from weakincentives.adapters.openai.native_tools.registry import capabilities, by_item
    from weakincentives.adapters.openai.native_tools.telepathy_section import TelepathyConfig
    from weakincentives.adapters.openai.responses.parsing import parse_response
    from weakincentives.adapters.openai.responses.tool_params import build_tool_params
    from weakincentives.prompt import MarkdownSection, Prompt
    from weakincentives.testing import ScriptedAdapter
    from weakincentives.runtime import Session

    adapter = ScriptedAdapter([], provider="openai")
    adapter.native_tools = OpenAIHostedToolsConfig(others=(TelepathyConfig(7),)).declarations()
    task = MarkdownSection(title="Task", key="task", template="Think.")
    rendered = adapter.render(Prompt(ns="n", key="k", sections=[task]), session=Session())
    params = build_tool_params(rendered, prompt_name="k", allowed=None)
    item = {"id": "t1", "type": "telepathy_call", "thought": "tea"}
    (call,) = parse_response({"output": [item]}, params, prompt_name="k").native_calls
    print(json.dumps([params.wire, call.name, call.params, call.result.message]))
"""


def test_capabilities_are_found_in_alphabetical_order():
    assert {"apply_patch", "code_interpreter", "file_search", "mcp", "shell", "web_search"} <= capabilities().keys()
    assert list(capabilities()) == sorted(capabilities())
    assert len(by_config()) == len(capabilities())
    assert by_item()["mcp_approval_request"] is capabilities()["mcp"]
    assert all(hasattr(native_tools, name) for name in ("OpenAIShellSection", "OpenAIApplyPatchSection"))


def test_every_section_module_exports_its_section():
    for name in capabilities():
        module = sys.modules[f"{native_tools.__name__}.{name}_section"]
        sections = [kind for kind in vars(module) if kind.startswith("OpenAI") and kind.endswith("Section")]
        assert len(sections) == 1, name


def test_new_section_module_is_found(tmp_path):
    """In a separate process, because the registry is cached."""
    (tmp_path / "telepathy_section.py").write_text(SIXTH, encoding="utf-8")
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)]
    output = subprocess.check_output(program, text=True)

    assert json.loads(output) == [[{"type": "telepathy", "distance": 7}], "telepathy", "tea", "received"]
