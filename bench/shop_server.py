"""MCP server of a small shop on loopback, made with the `mcp` SDK: `python shop_server.py PORT`."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Any

import uvicorn
from mcp.server import MCPServer
from starlette.requests import Request
from starlette.responses import Response

LABEL = "shop"
READY = "/ready"


@dataclass(frozen=True)
class Customer:
    """Whom the shop sells to."""

    number: int
    name: str
    city: str


@dataclass(frozen=True)
class Product:
    """What the shop sells."""

    name: str
    price: float
    stock: int


CUSTOMERS = (
    Customer(1040, "Ole Lund", "Bergen"),
    Customer(1041, "Berta Klein", "Graz"),
    Customer(1042, "Rui Costa", "Porto"),
)
PRODUCTS = (
    Product("kettle", 34.5, 12),
    Product("lamp", 61.0, 0),
    Product("radio", 79.9, 3),
    Product("mug", 7, 40),
)
_ORDERS = {1040: (34.5,), 1041: (61.0, 14.0, 7.0), 1042: (79.9, 7.0)}
_PER_EURO = {"EUR": 1.0, "SEK": 11.25, "USD": 1.25, "JPY": 160.0}


def server() -> MCPServer:
    """The server, made with the `mcp` SDK."""
    shop = MCPServer("shop", instructions="Customers, orders and products of a shop.")
    for tool in (get_customer, find_customer, order_total, list_products, convert):
        shop.tool()(tool)
    shop.custom_route(READY, ["GET"])(_ready)
    return shop


async def _ready(request: Request) -> Response:
    del request
    return Response()


def get_customer(number: int) -> dict[str, Any]:
    """Name and city of the customer with this number."""
    return asdict(next(one for one in CUSTOMERS if one.number == number))


def find_customer(name: str) -> dict[str, Any]:
    """Number and city of the customer with this name."""
    return asdict(next(one for one in CUSTOMERS if name.lower() in one.name.lower()))


def order_total(customer_number: int) -> float:
    """The total of all orders of a customer, in euros."""
    return sum(_ORDERS[customer_number])


def list_products() -> list[dict[str, Any]]:
    """All products with price and stock."""
    return [asdict(product) for product in PRODUCTS]


def convert(amount: float, from_currency: str, to_currency: str) -> float:
    """Convert an amount of money. Currencies are codes such as EUR or USD."""
    return round(amount / _PER_EURO[from_currency] * _PER_EURO[to_currency], 2)


def main() -> None:
    """Serve on loopback until the process is stopped."""
    app = server().streamable_http_app(stateless_http=True)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
