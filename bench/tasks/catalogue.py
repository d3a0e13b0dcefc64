"""Evaluation tasks: fifty small ones. Expected answers are calculated from the same data, not written as constants."""

from __future__ import annotations

import csv
import datetime as dt
import hashlib
import io
import json
import math
import random
import statistics
from collections import Counter
from dataclasses import dataclass

from tasks import mcp_tasks, shell_tasks
from tasks.task import Task

_rng = random.Random(11)  # noqa: S311 - made-up data

# ── data ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_CITIES = ("Lima", "Oslo", "Pune", "Quito")
_SALES = [
    (f"2026-{month:02}", city, _rng.randint(20, 90), _rng.randint(200, 900) / 100)
    for month in range(1, 7)
    for city in _CITIES
]
_STAFF = [
    ("Ana", "sales", 41, 5200),
    ("Ben", "sales", 29, 4100),
    ("Chi", "lab", 35, 6100),
    ("Dov", "lab", 52, 7350),
    ("Eva", "office", 38, 3900),
    ("Fay", "office", 47, 4450),
    ("Gus", "lab", 26, 5000),
]
_TEMPERATURES = [round(12 + 9 * math.sin(day / 5) + _rng.uniform(-1, 1), 1) for day in range(30)]
_LOG = [
    f"2026-05-{1 + line // 12:02} {_rng.choice(('INFO', 'INFO', 'WARNING', 'ERROR'))} worker-{line % 3} step {line}"
    for line in range(60)
]
_POEM = """The rain comes down on the old tin roof
and the cat looks up as if for proof
that the sky has more than the sky can hold
and the night is long and the night is cold
"""


def _table(header: str, rows: list[tuple[object, ...]], delimiter: str = ",") -> str:
    lines = io.StringIO()
    writer = csv.writer(lines, delimiter=delimiter, lineterminator="\n")
    writer.writerow(header.split(","))
    writer.writerows(rows)
    return lines.getvalue()


_SALES_CSV = {"sales.csv": _table("month,city,units,price", list(_SALES))}
_STAFF_CSV = {"staff.csv": _table("name,team,age,salary", list(_STAFF))}
_WEATHER = {"weather.csv": _table("day,celsius", list(enumerate(_TEMPERATURES, 1)))}


def _units(city: str) -> int:
    return sum(units for _, name, units, _ in _SALES if name == city)


_BEST_CITY = max(_CITIES, key=_units)

# ── code only ────────────────────────────────────────────────────────────────────────────────────────────────────────

_LEAP = dt.date(2024, 2, 29)
_FROM, _TO = dt.date(2020, 1, 15), dt.date(2024, 6, 30)
_SENTENCE = "Programming with hosted tools is easier than it looks"


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def _fibonacci(count: int) -> int:
    one, two = 0, 1
    for _ in range(count):
        one, two = two, one + two
    return one


_CODE = (
    Task("squares", "code", ("What is the sum of the squares of the numbers from 1 to 100?",),
         expected_mentions=(sum(n * n for n in range(101)),)),
    Task("primes", "code", ("How many prime numbers are there below 1000?",),
         expected_mentions=(sum(map(_is_prime, range(1000))),)),
    Task("digits", "code", ("What is the sum of the digits of 20 factorial?",),
         expected_mentions=(sum(map(int, str(math.factorial(20)))),)),
    Task("weekday", "code", ("Which day of the week was 2024-02-29?",), expected_mentions=(_LEAP.strftime("%A"),)),
    Task("days", "code", ("How many days are there from 2020-01-15 to 2024-06-30?",),
         expected_mentions=((_TO - _FROM).days,)),
    Task("fibonacci", "code", ("What is the 40th Fibonacci number, if the first two are 1 and 1?",),
         expected_mentions=(_fibonacci(40),)),
    Task("vowels", "code", (f'How many vowels (a, e, i, o, u) are in the sentence "{_SENTENCE}"?',),
         expected_mentions=(sum(letter in "aeiou" for letter in _SENTENCE.lower()),)),
    Task("divisor", "code", ("What is the greatest common divisor of 123456 and 7890?",),
         expected_mentions=(math.gcd(123456, 7890),)),
    Task("interest", "code",
         ("I put 1000 into an account with 5 % compound interest a year. What is it worth after 10? Round to cents.",),
         expected_mentions=(round(1000 * 1.05**10, 2),)),
    Task("hash", "code", ('What are the first 8 hex digits of the SHA-256 hash of the text "antwort"?',),
         expected_mentions=(hashlib.sha256(b"antwort").hexdigest()[:8],)),
)  # fmt: skip

# ── input files ──────────────────────────────────────────────────────────────────────────────────────────────────────

_ORDERS = [(number, _rng.choice("abc"), _rng.randint(1, 9)) for number in range(1, 21)]
_PRICES = {"a": 3, "b": 5, "c": 11}
_LIBRARY = {
    "books": [
        {"title": "Tin", "year": 1994, "pages": 212},
        {"title": "Salt", "year": 2003, "pages": 388},
        {"title": "Ash", "year": 2011, "pages": 145},
        {"title": "Loam", "year": 2019, "pages": 301},
    ]
}
_GAPS = [(day, "" if day % 4 == 0 else day * 3) for day in range(1, 21)]

_FILES = (
    Task("total", "files", ("How many units were sold in all, according to sales.csv?",), _SALES_CSV,
         expected_mentions=(sum(units for _, _, units, _ in _SALES),)),
    Task("best-city", "files", ("Which city sold the most units in sales.csv? Name the city and its units.",),
         _SALES_CSV, expected_mentions=(_BEST_CITY, _units(_BEST_CITY))),
    Task("revenue", "files", ("What is the total revenue (units times price) in sales.csv? Round to cents.",),
         _SALES_CSV, expected_mentions=(round(sum(units * price for _, _, units, price in _SALES), 2),)),
    Task("mean-salary", "files", ("What is the mean salary of the lab team in staff.csv?",), _STAFF_CSV,
         expected_mentions=(statistics.mean(salary for _, team, _, salary in _STAFF if team == "lab"),)),
    Task("oldest", "files", ("Who is the oldest person in staff.csv?",), _STAFF_CSV,
         expected_mentions=(max(_STAFF, key=lambda row: row[2])[0],)),
    Task("hottest", "files", ("On which day was it hottest in weather.csv?",), _WEATHER,
         expected_mentions=(1 + _TEMPERATURES.index(max(_TEMPERATURES)),)),
    Task("errors", "files", ("How many lines of app.log contain ERROR?",), {"app.log": "\n".join(_LOG) + "\n"},
         expected_mentions=(sum("ERROR" in line for line in _LOG),)),
    Task("pages", "files", ("How many pages do all the books in library.json have together?",),
         {"library.json": json.dumps(_LIBRARY)}, expected_mentions=(sum(book["pages"] for book in _LIBRARY["books"]),)),
    Task("join", "files",
         ("orders.csv has product and count, prices.csv has product and price. What do all the orders cost together?",),
         {"orders.csv": _table("order,product,count", list(_ORDERS)),
          "prices.csv": _table("product,price", list(_PRICES.items()))},
         expected_mentions=(sum(_PRICES[product] * count for _, product, count in _ORDERS),)),
    Task("gaps", "files", ("How many values are missing in the column value of gaps.csv?",),
         {"gaps.csv": _table("day,value", list(_GAPS))}, expected_mentions=(sum(value == "" for _, value in _GAPS),)),
)  # fmt: skip

# ── plots ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_PLOTS = (
    Task("bars", "plots", ("Draw a bar chart of the units that each city sold in sales.csv, and save it as bars.png.",),
         _SALES_CSV, expected_images=("bars.png",)),
    Task("line", "plots", ("Draw the temperature by day from weather.csv as a line chart, and save it as line.png.",),
         _WEATHER, expected_images=("line.png",)),
    Task("histogram", "plots", ("Draw a histogram of the ages in staff.csv, and save it as ages.png.",),
         _STAFF_CSV, expected_images=("ages.png",)),
    Task("scatter", "plots", ("Draw a scatter plot of age against salary from staff.csv, and save it as scatter.png.",),
         _STAFF_CSV, expected_images=("scatter.png",)),
    Task("curve", "plots", ("Plot the sine function from 0 to 2 pi, and save it as sine.png.",),
         expected_images=("sine.png",)),
)  # fmt: skip

# ── several questions, one container ─────────────────────────────────────────────────────────────────────────────────

_WORDS = _POEM.lower().split()
_COMMON = Counter(_WORDS).most_common(1)[0][0]

_STEPS = (
    Task("keep", "steps",
         ("Read sales.csv into a pandas DataFrame named `sales`, and say how many rows it has.",
          "The DataFrame `sales` is still there. What is the highest price in it?"),
         _SALES_CSV, expected_mentions=(max(price for *_, price in _SALES),)),
    Task("hand-over", "steps",
         ("Write the units that each city sold in sales.csv to totals.csv, with the columns city and units.",
          "Read totals.csv. Which city has the fewest units?"),
         _SALES_CSV, expected_mentions=(min(_CITIES, key=_units),)),
    Task("count-then-share", "steps",
         ("Count the lines of app.log that contain WARNING, keep the count as the variable `warnings`, and say it.",
          "The variable `warnings` is still there. Of the 60 lines, what percentage is it? Round to 2 digits."),
         {"app.log": "\n".join(_LOG) + "\n"},
         expected_mentions=(round(100 * sum("WARNING" in line for line in _LOG) / len(_LOG), 2),)),
    Task("words", "steps",
         ("Read poem.txt, split it into lower-case words, and keep the list as `words`. Say how many there are.",
          "The list `words` is still there. Which word is the most common in it, and how often is it there?"),
         {"poem.txt": _POEM}, expected_mentions=(_COMMON, _WORDS.count(_COMMON))),
    Task("filter-then-plot", "steps",
         ("Write the rows of sales.csv whose city is Oslo to oslo.csv. Say how many rows there are.",
          "Draw the units by month from oslo.csv as a line chart, and save it as oslo.png."),
         _SALES_CSV, expected_images=("oslo.png",)),
)  # fmt: skip

# ── typed output ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Best:
    """Who sold the most."""

    city: str
    units: int


@dataclass(frozen=True)
class Range:
    """From the least to the most."""

    lowest: float
    highest: float


@dataclass(frozen=True)
class Number:
    """One number."""

    value: int


@dataclass(frozen=True)
class Names:
    """Some names, in alphabetical order."""

    names: list[str]


@dataclass(frozen=True)
class Person:
    """One row of staff.csv."""

    name: str
    team: str
    salary: int


@dataclass(frozen=True)
class Verdict:
    """Whether something is so."""

    yes: bool


_YOUNG = 36


def _best_paid() -> Person:
    name, team, _, salary = max(_STAFF, key=lambda row: row[3])
    return Person(name, team, salary)


_TYPED = (
    Task("typed-best", "typed", ("Which city sold the most units in sales.csv, and how many?",), _SALES_CSV,
         expected_output=Best(_BEST_CITY, _units(_BEST_CITY))),
    Task("typed-range", "typed", ("What are the lowest and the highest temperature in weather.csv?",), _WEATHER,
         expected_output=Range(min(_TEMPERATURES), max(_TEMPERATURES))),
    Task("typed-number", "typed", ("What is the sum of all primes below 100?",),
         expected_output=Number(sum(filter(_is_prime, range(100))))),
    Task("typed-names", "typed", (f"Who in staff.csv is younger than {_YOUNG}? In alphabetical order.",), _STAFF_CSV,
         expected_output=Names(sorted(name for name, _, age, _ in _STAFF if age < _YOUNG))),
    Task("typed-person", "typed", ("Who in staff.csv has the highest salary?",), _STAFF_CSV,
         expected_output=_best_paid()),
    Task("typed-verdict", "typed", ("Is 7919 a prime number?",), expected_output=Verdict(_is_prime(7919))),
)  # fmt: skip

# ── repair of a failed first try ─────────────────────────────────────────────────────────────────────────────────────

_ACCENTS = [("Zoë", 12), ("André", 30), ("Łukasz".replace("Ł", "L"), 7), ("Jürgen", 25)]
_THOUSANDS = [("north", "1,250"), ("south", "980"), ("east", "2,405"), ("west", "1,115")]
_EVENTS = [{"kind": kind, "size": size} for kind, size in (("read", 4), ("write", 9), ("read", 7), ("read", 2))]

_REPAIR = (
    Task("encoding", "repair", ("What is the sum of the column points in people.csv?",),
         {"people.csv": _table("name,points", list(_ACCENTS)).encode("latin-1")},
         expected_mentions=(sum(points for _, points in _ACCENTS),)),
    Task("thousands", "repair", ("What is the sum of the column people in regions.csv?",),
         {"regions.csv": _table("region,people", list(_THOUSANDS))},
         expected_mentions=(sum(int(people.replace(",", "")) for _, people in _THOUSANDS),)),
    Task("delimiter", "repair", ("What is the sum of the column units in export.csv?",),
         {"export.csv": _table("city,units", [(city, _units(city)) for city in _CITIES], delimiter=";")},
         expected_mentions=(sum(map(_units, _CITIES)),)),
    Task("lines", "repair", ("What is the sum of size over all entries of events.json whose kind is read?",),
         {"events.json": "".join(json.dumps(event) + "\n" for event in _EVENTS)},
         expected_mentions=(sum(int(str(event["size"])) for event in _EVENTS if event["kind"] == "read"),)),
)  # fmt: skip

TASKS = (*_CODE, *_FILES, *_PLOTS, *_STEPS, *_TYPED, *_REPAIR, *shell_tasks.TASKS, *mcp_tasks.TASKS)
