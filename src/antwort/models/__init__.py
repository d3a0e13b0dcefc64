"""Model backends: implementations of the engine's `Model` port.

    ChatCompletions    any server with OpenAI's chat completions API: vLLM, Ollama, llama.cpp, LM Studio
    Responses          a server with the Responses API
    Scripted           answers from a YAML file; for tests and offline examples
    Upstream           the HTTP client that the first two use
    RetryingModel      wraps one of them: retries, total timeout, circuit breakers, instrumentation

The embedded model needs an extra and is imported from `antwort.models.embedded`.
`antwort.testing.model` is the conformance suite that every model must pass.
"""

from __future__ import annotations

from antwort.models.chat.completions import ChatCompletions
from antwort.models.responses.model import Responses
from antwort.models.retry import RetryingModel
from antwort.models.scripted.model import Scripted
from antwort.models.scripted.script import parse_script
from antwort.models.upstream import Upstream

__all__ = ["ChatCompletions", "Responses", "RetryingModel", "Scripted", "Upstream", "parse_script"]
