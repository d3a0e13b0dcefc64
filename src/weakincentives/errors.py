"""The exception hierarchy of the package.

    WinkError
    ├── ContractError               a `dbc` contract is violated (also an AssertionError)
    ├── SerdeError                  a value and a type do not match
    │   ├── ParseError              data cannot be parsed; `path` is the location
    │   └── SchemaError             a type has no JSON schema
    ├── PromptError                 the prompt is wrong: an error of its author
    │   ├── PromptValidationError   found on construction
    │   ├── PromptRenderError       found while rendering
    │   └── OutputParseError        the model's answer does not match the output type
    ├── PromptEvaluationError       an evaluation failed; `phase` is the step
    │   ├── BudgetExceededError     token budget exceeded
    │   ├── DeadlineExceededError   deadline passed
    │   ├── TurnLimitError          turn limit reached
    │   ├── NativeToolError         invalid declaration of a provider-run tool
    │   │                           (also a PromptValidationError and a ValueError)
    │   ├── RefusalError            the model refused to answer
    │   ├── ContentFilteredError    the provider's content filter stopped the answer
    │   └── IncompleteAnswerError   the answer was truncated
    ├── ProviderFault               the provider or the connection failed; may be retried
    ├── MissingExtraError           an optional dependency is not installed (also an ImportError)
    ├── SessionError
    │   └── ReducerError            a reducer raised; its slice is unchanged
    ├── ResourceError               a resource is missing or of the wrong type
    ├── FilesystemError             (also an OSError)
    │   ├── InvalidPathError        the path is malformed or leaves the root
    │   ├── MissingFileError        (also a FileNotFoundError)
    │   ├── NotAFileError           (also an IsADirectoryError)
    │   └── NotADirectoryPathError  (also a NotADirectoryError)
    ├── WorkspaceError              host files cannot be mounted
    │   ├── WorkspaceSecurityError  they are outside of the allowed roots
    │   └── WorkspaceBudgetError    they are too large
    ├── ContainerExpiredError       a container expired and was not replaced
    └── CompactionError             the context could not be compacted, or a compacted one could not be rebuilt

The failure of a tool is not an exception: it is a `ToolResult` with `success=False`, which is sent to the model.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

Phase: TypeAlias = Literal["request", "response", "tool", "budget"]
"""The step that failed: building or sending a request, reading the response, running a tool, or a limit."""


class WinkError(Exception):
    """Base class of all exceptions of this package. Instances can be pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, dict(self.__dict__))


def _rebuilt(kind: type[WinkError], arguments: tuple[Any, ...], attributes: dict[str, Any]) -> WinkError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(attributes)
    return error


class ContractError(WinkError, AssertionError):
    """A precondition, postcondition or invariant is violated."""


class SerdeError(WinkError):
    """A value and a type do not match."""


class ParseError(SerdeError):
    """Data cannot be parsed as a type; `path` is the location, such as `$.items[2].name`."""

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(f"{message} (at {path})" if path != "$" else message)
        self.path = path


class SchemaError(SerdeError):
    """The type has no JSON schema, or no strict one."""


class PromptError(WinkError):
    """A prompt is wrong."""


class PromptValidationError(PromptError):
    """The declaration of a prompt, section or tool is invalid."""


class PromptRenderError(PromptError):
    """A prompt cannot be rendered with its bound parameters."""


class OutputParseError(PromptError):
    """The model's answer does not match the output type; `raw` is the text."""

    def __init__(self, message: str, *, raw: str) -> None:
        super().__init__(message)
        self.raw = raw


class PromptEvaluationError(WinkError):
    """An evaluation failed. `request_id` is the provider's id of the request that failed, if it sent one."""

    def __init__(
        self,
        message: str,
        *,
        prompt_name: str,
        phase: Phase,
        provider_payload: object = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.prompt_name = prompt_name
        self.phase: Phase = phase
        self.provider_payload = provider_payload
        self.request_id = request_id


class BudgetExceededError(PromptEvaluationError):
    """The requests of an evaluation together exceeded the token budget."""


class DeadlineExceededError(PromptEvaluationError):
    """The deadline passed during the evaluation."""


class TurnLimitError(PromptEvaluationError):
    """The model was still calling tools when the turn limit was reached."""


class NativeToolError(PromptEvaluationError, PromptValidationError, ValueError):
    """The declaration of a provider-run tool is invalid. Raised before a request is sent.

    Constructors of adapters and sections raise it too, with an empty `prompt_name`.
    """


class RefusalError(PromptEvaluationError):
    """The model refused to answer; the message has the refusal."""


class ContentFilteredError(PromptEvaluationError):
    """The provider's content filter stopped the answer; `provider_payload` has the partial answer."""


class IncompleteAnswerError(PromptEvaluationError):
    """The answer is incomplete; `provider_payload` has the partial answer."""


class ProviderFault(WinkError):
    """A request to the provider failed.

    `status` is the HTTP status, or None without a response. `retry_after` is the provider's delay in seconds.
    `should_retry` is the provider's `x-should-retry`, which takes precedence over the status. `request_id` is its
    `x-request-id`.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        should_retry: bool | None = None,
        payload: object = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.should_retry = should_retry
        self.payload = payload
        self.request_id = request_id


class MissingExtraError(WinkError, ImportError):
    """A feature needs an optional dependency; the message names the extra to install."""


class SessionError(WinkError):
    """Invalid use of a session."""


class ReducerError(SessionError):
    """Reducers raised `errors`. Their slices are unchanged; the other reducers ran."""

    def __init__(self, message: str, *, errors: tuple[Exception, ...]) -> None:
        super().__init__(message)
        self.errors = errors


class ResourceError(WinkError):
    """A resource is not registered, or not an instance of its registered type."""


class FilesystemError(WinkError, OSError):
    """A filesystem operation failed. `path` is the path as the caller passed it."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class InvalidPathError(FilesystemError):
    """The path leaves the root, contains a NUL byte, or has a name that is too long."""


class MissingFileError(FilesystemError, FileNotFoundError):
    """The path does not exist."""


class NotAFileError(FilesystemError, IsADirectoryError):
    """The path is not a regular file."""


class NotADirectoryPathError(FilesystemError, NotADirectoryError):
    """The path, or one of its parents, is not a directory."""


class WorkspaceError(WinkError):
    """Host files cannot be mounted into a workspace."""


class WorkspaceSecurityError(WorkspaceError):
    """A mount is outside of the allowed host roots."""


class WorkspaceBudgetError(WorkspaceError):
    """A mount exceeds its `max_bytes`."""


class ContainerExpiredError(WinkError):
    """A container expired and cannot be recreated, or has an id that the caller passed.

    `original_error` is the error that showed the expiry; an error while recreating it is the `__cause__`.
    """

    def __init__(self, message: str, *, container_id: str, original_error: Exception) -> None:
        super().__init__(message)
        self.container_id = container_id
        self.original_error = original_error


class CompactionError(WinkError):
    """The context could not be compacted, or a compacted context that the provider refuses could not be rebuilt.

    `token_count` is the size of the context, as far as it is known; `original_error` is the provider's error.
    """

    def __init__(self, message: str, *, token_count: int, original_error: Exception) -> None:
        super().__init__(message)
        self.token_count = token_count
        self.original_error = original_error
