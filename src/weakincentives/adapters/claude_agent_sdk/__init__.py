"""Claude Agent SDK adapter: evaluates prompts with Claude Code's CLI and its tools.

adapter       `ClaudeAgentSDKAdapter`
config        configuration of model, CLI process, tools and sandbox
workspace     `ClaudeAgentWorkspaceSection`: host files as the working directory
conversation  one run of the CLI: the client of the SDK, its hook, and the tools of the prompt as an MCP server
channel      the event loop of the SDK in a thread, and its events in the caller's thread
run           the events of a run in the evaluation: limits, tools, audit events
messages      folds the messages of the SDK into replies and results
tools         the tools of the prompt for the CLI
options       options of the SDK
policy        calls of the CLI's tools that are refused
process/      the process of the CLI: directories, environment, sandbox of commands, termination
sdk           the Claude Agent SDK, imported on first use
"""

from __future__ import annotations

from weakincentives.adapters.claude_agent_sdk.adapter import ClaudeAgentSDKAdapter
from weakincentives.adapters.claude_agent_sdk.config import (
    ClaudeAgentSDKClientConfig,
    ClaudeAgentSDKModelConfig,
    ClaudeAgentSDKToolsConfig,
    NetworkPolicy,
)
from weakincentives.adapters.claude_agent_sdk.workspace import ClaudeAgentWorkspaceSection

__all__ = [
    "ClaudeAgentSDKAdapter",
    "ClaudeAgentSDKClientConfig",
    "ClaudeAgentSDKModelConfig",
    "ClaudeAgentSDKToolsConfig",
    "ClaudeAgentWorkspaceSection",
    "NetworkPolicy",
]
