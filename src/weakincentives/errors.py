"""Every error this package raises, drawn as one tree. Imports nothing of ours.

    WinkError
    ├── ContractError               a `dbc` contract was broken (also an AssertionError)
    ├── SerdeError                  data and type do not fit
    │   ├── ParseError              …while reading: `path` says where
    │   └── SchemaError             …the type has no such JSON schema
    ├── PromptError                 the prompt itself is wrong: the author's fault
    │   ├── PromptValidationError   …found while it was built
    │   ├── PromptRenderError       …found while it was rendered
    │   └── OutputParseError        the model's answer does not fit the output type
    ├── PromptEvaluationError       an evaluation ended without an answer: `phase` says where
    │   ├── BudgetExceededError     …more tokens than the budget allows
    │   ├── DeadlineExceededError   …no time left
    │   ├── TurnLimitError          …the model never stopped calling tools
    │   ├── NativeToolError         …a provider-run tool cannot be declared like this
    │   │                           (also a PromptValidationError, since it is the author's fault, and a ValueError)
    │   ├── RefusalError            …the model would not answer
    │   ├── ContentFilteredError    …the provider withheld the answer
    │   └── IncompleteAnswerError   …the answer was cut off
    ├── ProviderFault               the provider or the way to it failed; may be worth a retry
    ├── MissingExtraError           an optional dependency is not installed (also an ImportError)
    ├── SessionError
    │   └── ReducerError            a reducer raised; its slice is as it was before
    ├── ResourceError               a resource is missing or of the wrong type
    ├── FilesystemError             (also an OSError)
    │   ├── InvalidPathError        the path leaves the root or is no path at all
    │   ├── MissingFileError        (also a FileNotFoundError)
    │   ├── NotAFileError           (also an IsADirectoryError)
    │   └── NotADirectoryPathError  (also a NotADirectoryError)
    ├── WorkspaceError              host files cannot be mounted
    │   ├── WorkspaceSecurityError  …because they lie outside the allowed roots
    │   └── WorkspaceBudgetError    …because they are too large
    └── ContainerExpiredError       a container is gone, and there is no other in its place

A tool's own failure is never an exception here: it is a `ToolResult` with
`success=False`, and the model reads it.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

Phase: TypeAlias = Literal["request", "response", "tool", "budget"]
"""Where an evaluation ended: building or sending the request, reading the answer, running a tool, or a limit."""


class WinkError(Exception):
    """Root of everything that this package raises on purpose. Can be pickled, so that it survives a process pool."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, dict(self.__dict__))


def _rebuilt(kind: type[WinkError], arguments: tuple[Any, ...], attributes: dict[str, Any]) -> WinkError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(attributes)
    return error


class ContractError(WinkError, AssertionError):
    """A precondition, postcondition or invariant does not hold."""


class SerdeError(WinkError):
    """A value and a type do not fit together."""


class ParseError(SerdeError):
    """Data could not be read as the wanted type; `path` is where, such as `$.items[2].name`."""

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(f"{message} (at {path})" if path != "$" else message)
        self.path = path


class SchemaError(SerdeError):
    """The type has no JSON schema of the wanted kind."""


class PromptError(WinkError):
    """A prompt is wrong in itself."""


class PromptValidationError(PromptError):
    """A prompt, section or tool was declared in a way that cannot work."""


class PromptRenderError(PromptError):
    """A prompt could not be rendered with the parameters that were bound."""


class OutputParseError(PromptError):
    """The model's text is not the structured output that the prompt asks for."""

    def __init__(self, message: str, *, raw: str) -> None:
        super().__init__(message)
        self.raw = raw


class PromptEvaluationError(WinkError):
    """An evaluation ended without an answer."""

    def __init__(
        self,
        message: str,
        *,
        prompt_name: str,
        phase: Phase,
        provider_payload: object = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.prompt_name = prompt_name
        self.phase: Phase = phase
        self.provider_payload = provider_payload


class BudgetExceededError(PromptEvaluationError):
    """The requests of this evaluation, taken together, used more tokens than allowed."""


class DeadlineExceededError(PromptEvaluationError):
    """The deadline passed before the model was done."""


class TurnLimitError(PromptEvaluationError):
    """The model was still calling tools when the turn limit was reached."""


class NativeToolError(PromptEvaluationError, PromptValidationError, ValueError):
    """A tool that the provider runs was declared in a way that it would not take. Found before anything was sent.

    Also raised by the constructors of adapters and sections; `prompt_name` is empty then.
    """


class RefusalError(PromptEvaluationError):
    """The model said that it will not answer; the message has its words."""


class ContentFilteredError(PromptEvaluationError):
    """The provider's filter stopped the answer. What there was of it is in `provider_payload`."""


class IncompleteAnswerError(PromptEvaluationError):
    """The answer ended before it was complete. What there was of it is in `provider_payload`."""


class ProviderFault(WinkError):
    """The provider, or the way to it, failed.

    `status` is the HTTP status, or None where no answer came at all.
    `retry_after` is how many seconds the provider asked us to wait.
    `should_retry` is the provider's own word on it, which wins over the status.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        should_retry: bool | None = None,
        payload: object = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.should_retry = should_retry
        self.payload = payload


class MissingExtraError(WinkError, ImportError):
    """Something was used that needs an extra of this package; the message says which to install."""


class SessionError(WinkError):
    """A session could not do what was asked of it."""


class ReducerError(SessionError):
    """One or more reducers raised. Their slices are unchanged; the others went on."""

    def __init__(self, message: str, *, errors: tuple[Exception, ...]) -> None:
        super().__init__(message)
        self.errors = errors


class ResourceError(WinkError):
    """A resource is not registered, or is not what it was registered as."""


class FilesystemError(WinkError, OSError):
    """A filesystem operation was refused or failed. `path` is the path as the caller gave it."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class InvalidPathError(FilesystemError):
    """The path leaves the root, holds a NUL byte, or has an over-long name."""


class MissingFileError(FilesystemError, FileNotFoundError):
    """There is nothing at this path."""


class NotAFileError(FilesystemError, IsADirectoryError):
    """The path is not a regular file."""


class NotADirectoryPathError(FilesystemError, NotADirectoryError):
    """The path, or a part of it that must be a directory, is not one."""


class WorkspaceError(WinkError):
    """Host files could not be brought into a workspace."""


class WorkspaceSecurityError(WorkspaceError):
    """A mount reaches outside of what the caller allowed."""


class WorkspaceBudgetError(WorkspaceError):
    """A mount holds more bytes than its `max_bytes`."""


class ContainerExpiredError(WinkError):
    """A container is gone, and could not be made again, or is not ours to make again.

    `original_error` is how that was found out; what kept us from making another is the `__cause__`.
    """

    def __init__(self, message: str, *, container_id: str, original_error: Exception) -> None:
        super().__init__(message)
        self.container_id = container_id
        self.original_error = original_error
