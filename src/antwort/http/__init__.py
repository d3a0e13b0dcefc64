"""HTTP layer: the ASGI application and its server process.

app              composition root: services from `Config`, the Starlette application from the services
resources        request handlers, one module per resource
openapi          routes with their OpenAPI operations
middleware       authentication, rate limits, response headers, error envelopes, access log
protocol         limits of HTTP connections
bodies           JSON bodies, within limits
multipart        uploads, parsed as they arrive
streams          server-sent events and downloads, with back-pressure
errors, paging   error envelopes and query parameters
"""

from __future__ import annotations

__all__: list[str] = []
