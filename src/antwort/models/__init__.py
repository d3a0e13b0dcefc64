"""Models: what answers. Each speaks the engine's `Model` port and knows nothing of HTTP requests to us.

    ChatCompletions    any OpenAI-compatible chat server: vLLM, Ollama, llama.cpp, LM Studio
    Responses          a server that speaks the Responses API itself
    Scripted           answers from a YAML file; for tests and offline examples
    Resilient          wraps one of them: retries, a time limit, a circuit breaker

`conformance` is what every model must pass, a stranger's too.
"""

from __future__ import annotations

from antwort.models.chat.completions import ChatCompletions
from antwort.models.chat.messages import ChatDialect
from antwort.models.responses.model import Responses
from antwort.models.retry import CircuitBreaker, Resilient, RetryPolicy
from antwort.models.scripted.model import Scripted
from antwort.models.scripted.script import Script, ScriptError, load_script, parse_script
from antwort.models.upstream import Timeouts

__all__ = [
    "ChatCompletions",
    "ChatDialect",
    "CircuitBreaker",
    "Resilient",
    "Responses",
    "RetryPolicy",
    "Script",
    "ScriptError",
    "Scripted",
    "Timeouts",
    "load_script",
    "parse_script",
]
