"""The Messages wire: Anthropic's `POST /v1/messages`, its token count, models and files.

handlers    create and count_tokens
request     the types of requests; `validation` describes invalid ones in the words of Anthropic's API
reader      a request as a `CreateResponse`; `history` reads its messages, `tools` its tools
writer      events of the engine as events of this wire; `message` folds those into the answer
errors      which requests are of this wire, and their errors
"""

from __future__ import annotations

__all__: list[str] = []
