"""`ClaudeAgentSDKAdapter`: evaluates prompts with Claude Code's CLI, through the Claude Agent SDK.

The CLI runs the agent loop itself, with its own tools in the working directory. So this adapter implements `run`: it
renders, starts the CLI (`conversation`), and handles what the CLI reports (`run`), with the limits, tools, rollback and
events of every adapter.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Self
from weakref import WeakSet

from weakincentives.adapters.claude_agent_sdk.channel import DeadlinePassed, running
from weakincentives.adapters.claude_agent_sdk.config import (
    ClaudeAgentSDKClientConfig,
    ClaudeAgentSDKModelConfig,
    ClaudeAgentSDKToolsConfig,
)
from weakincentives.adapters.claude_agent_sdk.conversation import CliConversation
from weakincentives.adapters.claude_agent_sdk.messages import qualified_name
from weakincentives.adapters.claude_agent_sdk.options import RunSettings, build_options, user_message
from weakincentives.adapters.claude_agent_sdk.process.directories import SessionDirectories
from weakincentives.adapters.claude_agent_sdk.process.environment import cli_environment
from weakincentives.adapters.claude_agent_sdk.process.sandbox import find_programs, sandbox_settings, secret_places
from weakincentives.adapters.claude_agent_sdk.process.termination import end_processes, remove_daemon_directory
from weakincentives.adapters.claude_agent_sdk.run import CliRun
from weakincentives.adapters.claude_agent_sdk.sdk import bundled_cli, load_sdk
from weakincentives.adapters.claude_agent_sdk.tools import ToolDeclaration, declared_tools
from weakincentives.adapters.claude_agent_sdk.workspace import PROVIDER, ClaudeAgentWorkspaceSection
from weakincentives.adapters.core import DEFAULT_MAX_TURNS, Evaluation, ProviderAdapter
from weakincentives.adapters.retry import ThrottlePolicy
from weakincentives.adapters.turn import LoopResult
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.errors import NativeToolError
from weakincentives.prompt.structured_output import output_schema
from weakincentives.runtime import Session

_STOP_TIMEOUT = 20.0
"""In seconds, for the interrupt and the end of the CLI. What still runs then is killed."""

_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class KeptConversation:
    """A conversation that the CLI keeps for the next evaluation of a session."""

    directories: SessionDirectories = field(default_factory=SessionDirectories)
    session_id: str | None = None
    lock: Lock = field(default_factory=Lock)


class ClaudeAgentSDKAdapter(ProviderAdapter[Any]):
    """Evaluates prompts with the CLI of the Claude Agent SDK, and any model behind the Messages API.

    A prompt with a `ClaudeAgentWorkspaceSection` gets the tools of the CLI that `tools_config` names, in the directory
    of the workspace; a prompt without one gets its own tools only.

    The CLI starts with a configuration of its own: without the user's or the project's settings, hooks, MCP servers and
    instructions, and without the variables of this process. `throttle.max_attempts` limits the retries of the CLI,
    which waits between them as it sees fit.

    With `continue_conversation`, the evaluations of a session are one conversation: the model sees the earlier ones.
    The CLI keeps it in a temporary directory, which is removed with the session, by `close`, or at the end of a `with`
    block.
    """

    provider = PROVIDER

    def __init__(
        self,
        *,
        model: str,
        model_config: ClaudeAgentSDKModelConfig | None = None,
        client_config: ClaudeAgentSDKClientConfig | None = None,
        tools_config: ClaudeAgentSDKToolsConfig | None = None,
        max_turns: int = DEFAULT_MAX_TURNS,
        throttle: ThrottlePolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        continue_conversation: bool = False,
    ) -> None:
        super().__init__(max_turns=max_turns, throttle=throttle, clock=clock)
        if not model:
            raise ValueError("model is empty: name the model to ask, such as model='claude-opus-5'")
        self.model = model
        self.model_config = model_config or ClaudeAgentSDKModelConfig()
        self.client_config = client_config or ClaudeAgentSDKClientConfig()
        self.tools_config = tools_config or ClaudeAgentSDKToolsConfig()
        self.continue_conversation = continue_conversation
        self._kept: WeakSet[SessionDirectories] = WeakSet()  # their sessions hold them

    def run(self, evaluation: Evaluation) -> LoopResult:
        self._check_prompt(evaluation)
        sdk = load_sdk()
        workspace = _find_workspace(evaluation)
        evaluation.limits.check_request(0, None)
        with ExitStack() as stack:
            kept = self._kept_conversation(evaluation.session, stack)
            directories = SessionDirectories() if kept is None else kept.directories
            if kept is None:
                stack.callback(directories.remove)
            if workspace is not None:
                stack.callback(workspace.remove_cli_directory)
            stack.callback(remove_daemon_directory)
            stack.callback(end_processes, "CLAUDE_CONFIG_DIR", str(directories.config))
            tools = declared_tools(evaluation)
            settings = self._settings(evaluation, directories, workspace, tools)
            if kept is not None:
                settings = replace(settings, persist=True, resume=kept.session_id)
            evaluation.audit.record_prompt_rendered(evaluation.rendered)
            text = user_message(evaluation.rendered.text, self.model_config)
            conversation = CliConversation(sdk, build_options(settings), tools, text)
            run = CliRun(
                evaluation,
                offered=(*settings.tools, *settings.own_tools),
                directory=settings.directory,
                stream=self.model_config.stream,
                is_resumed=settings.resume is not None,
            )
            self._drive(conversation, run, evaluation)
            result = run.finish()
            if kept is not None and run.result is not None:
                kept.session_id = run.result.session_id
            return result

    def _kept_conversation(self, session: Session, stack: ExitStack) -> KeptConversation | None:
        """The conversation that evaluations of this session continue; None if another evaluation uses it now."""
        if not self.continue_conversation:
            return None
        kept = session.shared(KeptConversation, KeptConversation, reuse=lambda known: not known.directories.is_removed)
        if not kept.lock.acquire(blocking=False):
            return None
        stack.callback(kept.lock.release)
        self._kept.add(kept.directories)
        return kept

    def close(self) -> None:
        """Remove the conversations that are kept for `continue_conversation`."""
        for directories in list(self._kept):
            directories.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_prompt(self, evaluation: Evaluation) -> None:
        choice = self.resolve_tool_choice(evaluation)
        if choice != "auto":
            raise evaluation.error(f"tool_choice is {choice!r}, and the CLI of the Claude Agent SDK takes 'auto' only")
        if containers := [section for section in evaluation.rendered.active if hasattr(section, "open_container")]:
            raise evaluation.error(
                f"section {containers[0].key!r} needs a container, which the Claude Agent SDK does not have: "
                "use ClaudeAgentWorkspaceSection"
            )
        if evaluation.rendered.native_tools:
            declared = evaluation.rendered.native_tools[0]
            raise NativeToolError(
                f"tool {declared.name!r} ({declared.origin}) is run by the provider, and the Claude Agent SDK has no "
                "such tools: remove it. With a ClaudeAgentWorkspaceSection the model can run commands",
                prompt_name=evaluation.prompt.name,
                phase="request",
            )

    def _settings(
        self,
        evaluation: Evaluation,
        directories: SessionDirectories,
        workspace: ClaudeAgentWorkspaceSection | None,
        tools: list[ToolDeclaration],
    ) -> RunSettings:
        client = self.client_config.resolve(os.environ)
        if client.api_key is None:
            raise evaluation.error(
                "no API key: set ANTHROPIC_API_KEY, or api_key of ClaudeAgentSDKClientConfig. For a server without "
                "keys any text will do"
            )
        directory = directories.empty if workspace is None else workspace.filesystem.root
        builtin, search_path = self._builtin_tools(evaluation, workspace)
        environment = cli_environment(
            os.environ,
            directories,
            client,
            self.model_config,
            max_attempts=self.throttle.max_attempts,
            search_path=search_path,
        )
        schema = output_schema(evaluation.rendered)
        is_system = self.model_config.prompt_role == "system"
        return RunSettings(
            model=self.model,
            config=self.model_config,
            directory=directory,
            tools=builtin,
            own_tools=[qualified_name(tool.name) for tool in tools],
            private=directories.private,
            max_turns=self.max_turns,
            launcher=directories.write_launcher(str(_cli_program(client)), environment),
            key_file=directories.write_private("key", client.api_key),
            system_prompt_file=directories.write_private("system", evaluation.rendered.text) if is_system else None,
            output_schema=schema and schema.schema,
            sandbox=self._sandbox(directories, [directory, *map(Path, search_path)]) if "Bash" in builtin else None,
        )

    def _builtin_tools(
        self, evaluation: Evaluation, workspace: ClaudeAgentWorkspaceSection | None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The tools of the CLI for this evaluation, and directories for its PATH."""
        builtin = self.tools_config.builtin
        if workspace is None:
            return (), ()
        if "Bash" not in builtin:
            return builtin, ()
        programs = find_programs()
        if programs.missing is None:
            return builtin, programs.directories
        if self.tools_config.require_bash:
            raise evaluation.error(f"Bash needs its sandbox: {programs.missing}")
        _logger.warning("Bash is left out of the tools, because it has no sandbox: %s", programs.missing)
        return tuple(name for name in builtin if name != "Bash"), ()

    def _sandbox(self, directories: SessionDirectories, needed: list[Path]) -> dict[str, Any]:
        config = self.tools_config
        readable = [*needed, _cli_program(self.client_config).parent]
        readable += [directories.config, directories.temporary, directories.home]
        return sandbox_settings(
            network=config.network,
            readable=[*readable, *map(Path, config.visible_paths)],
            hidden=[*secret_places(), *map(Path, config.hidden_paths), directories.private],
            unwritable=[directories.config, directories.private],
        )

    def _drive(self, conversation: CliConversation, run: CliRun, evaluation: Evaluation) -> None:
        """Handle the events of the conversation until it ends. The CLI has ended then, also after an error."""
        deadline = evaluation.limits.deadline
        with running(conversation.run, stop_timeout=_STOP_TIMEOUT) as (channel, thread):
            try:
                for asked in channel.receive(deadline):
                    run.handle(asked)
            except DeadlinePassed:
                raise evaluation.limits.deadline_error(run.turns, run.text) from None
        if thread.error is not None and run.result is None:
            stderr = "\n".join(conversation.stderr)
            raise evaluation.error(
                f"the CLI of the Claude Agent SDK failed: {thread.error}", payload=stderr or None
            ) from thread.error


def _cli_program(client: ClaudeAgentSDKClientConfig) -> Path:
    return bundled_cli() if client.cli_path is None else Path(client.cli_path)


def _find_workspace(evaluation: Evaluation) -> ClaudeAgentWorkspaceSection | None:
    sections = evaluation.rendered.active  # with two, their resources collide
    return next((section for section in sections if isinstance(section, ClaudeAgentWorkspaceSection)), None)
