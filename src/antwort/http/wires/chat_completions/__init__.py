"""Chat completions: the wire of `POST /v1/chat/completions` around the engine of the Responses API.

request     structs of the request body
messages    messages of a request -> items
tools       tools, functions, `tool_choice` and `response_format` -> declarations of the Responses API
reader      the bytes of a request -> `ChatRequest`: what the engine is asked, and how to answer
params      errors of the engine in the parameter names of a chat completion
answer      structs of the answer and of the chunks
completion  a response -> the answer
chunks      events of a response -> the frames of a stream
handlers    the routes
"""

from __future__ import annotations

__all__: list[str] = []
