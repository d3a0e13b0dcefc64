"""Evaluation tasks for MCP, and the server whose tools they need: a small shop."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mcp.server import MCPServer

from tasks.task import Task

LABEL = "shop"


@dataclass(frozen=True)
class _Customer:
    number: int
    name: str
    city: str


@dataclass(frozen=True)
class _Product:
    name: str
    price: float
    stock: int


_CUSTOMERS = (
    _Customer(1040, "Ole Lund", "Bergen"),
    _Customer(1041, "Berta Klein", "Graz"),
    _Customer(1042, "Rui Costa", "Porto"),
)
_PRODUCTS = (
    _Product("kettle", 34.5, 12),
    _Product("lamp", 61.0, 0),
    _Product("radio", 79.9, 3),
    _Product("mug", 7, 40),
)
_ORDERS = {1040: (34.5,), 1041: (61.0, 14.0, 7.0), 1042: (79.9, 7.0)}
_PER_EURO = {"EUR": 1.0, "SEK": 11.25, "USD": 1.25, "JPY": 160.0}


def server() -> MCPServer:
    """The server, made with the `mcp` SDK."""
    shop = MCPServer("shop", instructions="Customers, orders and products of a shop.")
    for tool in (get_customer, find_customer, order_total, list_products, convert):
        shop.tool()(tool)
    return shop


def get_customer(number: int) -> dict[str, Any]:
    """Name and city of the customer with this number."""
    return asdict(next(one for one in _CUSTOMERS if one.number == number))


def find_customer(name: str) -> dict[str, Any]:
    """Number and city of the customer with this name."""
    return asdict(next(one for one in _CUSTOMERS if name.lower() in one.name.lower()))


def order_total(customer_number: int) -> float:
    """The total of all orders of a customer, in euros."""
    return sum(_ORDERS[customer_number])


def list_products() -> list[dict[str, Any]]:
    """All products with price and stock."""
    return [asdict(product) for product in _PRODUCTS]


def convert(amount: float, from_currency: str, to_currency: str) -> float:
    """Convert an amount of money. Currencies are codes such as EUR or USD."""
    return round(amount / _PER_EURO[from_currency] * _PER_EURO[to_currency], 2)


_BERTA = _CUSTOMERS[1]

TASKS = (
    Task("mcp-customer", "mcp", ("In which city does customer 1042 live?",),
         expected_mentions=(get_customer(1042)["city"],), expected_calls=("get_customer",)),
    Task("mcp-convert", "mcp", ("How many Swedish kronor (SEK) are 240 US dollars (USD)?",),
         expected_mentions=(convert(240, "USD", "SEK"),), expected_calls=("convert",)),
    Task("mcp-list-pick", "mcp", ("Which product is the most expensive one, and how many of it are in stock?",),
         expected_mentions=("radio", max(_PRODUCTS, key=lambda one: one.price).stock),
         expected_calls=("list_products",)),
    Task("mcp-two-calls", "mcp", (f"What is the total of all orders of the customer {_BERTA.name}?",),
         expected_mentions=(order_total(_BERTA.number),), expected_calls=("find_customer", "order_total")),
)  # fmt: skip
