"""Evaluation tasks for MCP, with the server of bench/shop_server.py."""

from __future__ import annotations

from shop_server import CUSTOMERS, PRODUCTS, convert, get_customer, order_total

from tasks.task import Task

_BERTA = CUSTOMERS[1]

TASKS = (
    Task("mcp-customer", "mcp", ("In which city does customer 1042 live?",),
         expected_mentions=(get_customer(1042)["city"],), expected_calls=("get_customer",)),
    Task("mcp-convert", "mcp", ("How many Swedish kronor (SEK) are 240 US dollars (USD)?",),
         expected_mentions=(convert(240, "USD", "SEK"),), expected_calls=("convert",)),
    Task("mcp-list-pick", "mcp", ("Which product is the most expensive one, and how many of it are in stock?",),
         expected_mentions=("radio", max(PRODUCTS, key=lambda one: one.price).stock),
         expected_calls=("list_products",)),
    Task("mcp-two-calls", "mcp", (f"What is the total of all orders of the customer {_BERTA.name}?",),
         expected_mentions=(order_total(_BERTA.number),), expected_calls=("find_customer", "order_total")),
)  # fmt: skip
