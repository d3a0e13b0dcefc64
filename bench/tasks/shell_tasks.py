"""Evaluation tasks for the hosted shell: files, text and git in a container."""

from __future__ import annotations

import random

from tasks.task import Task

_rng = random.Random(7)  # noqa: S311 - made-up data

_NOTES = {
    "notes/2025/garden.txt": "Plant the beans in May.\nCut the hedge.\n",
    "notes/2025/kitchen.txt": "Bread with walnut and honey.\n",
    "notes/2025/list.md": "- flour\n- salt\n",
    "notes/2026/travel.txt": "Night train to Oslo.\n",
    "notes/2026/trees.txt": "The old pear has to go.\n",
    "notes/todo.txt": "Call the plumber.\n",
    "notes/draft.md": "Dear all,\n",
}
_WITH_WALNUT = "kitchen.txt"

_ORDERS = [(number, _rng.choice(("tea", "rice", "soap")), _rng.randint(2, 40)) for number in range(1, 31)]
_ORDERS_CSV = "order,product,count\n" + "".join(f"{one},{product},{count}\n" for one, product, count in _ORDERS)

_COMMITS = (("Ines", "Start with a parser"), ("Jon", "Read empty lines"), ("Ines", "Faster, and without recursion"))
_GIT_COMMIT = "git -C project -c user.name={0} -c user.email={0}@example.com commit -q --allow-empty -m '{1}'"
_REPOSITORY = "\n".join(
    [
        "mkdir project && git init -q project && echo 'pass' > project/parser.py && git -C project add parser.py",
        *(_GIT_COMMIT.format(*commit) for commit in _COMMITS),
    ]
)

_PARTS = ("apple 12", "plum 30", "pear 9")
_BUILD = """\
#!/bin/sh
# Builds report.sh from the files in parts.
cd "$(dirname "$0")" || exit 1
{ echo '#!/bin/sh'; echo "echo Total: $(cat parts/* | awk '{ n += $2 } END { print n }')"; } > report.sh
"""
_PROJECT = {"app/build.sh": _BUILD, **{f"app/parts/{at}.txt": f"{part}\n" for at, part in enumerate(_PARTS)}}

_TEXTS = {
    "docs/paint.txt": "The colour is grey.\nAny colour will do.\n",
    "docs/more/light.txt": "No colour at night.\n",
}

TASKS = (
    Task("shell-count-files", "shell",
         ("How many files in the folder notes and its subfolders have a name that ends with .txt?",), _NOTES,
         expected_mentions=(sum(path.endswith(".txt") for path in _NOTES),), expected_calls=("shell",)),
    Task("shell-grep", "shell", ("Which file in the folder notes or its subfolders contains the word walnut?",),
         _NOTES, expected_mentions=(_WITH_WALNUT,), expected_calls=("shell",)),
    Task("shell-sum-column", "shell",
         ("What is the sum of the third column of orders.csv? The first line of the file has the names.",),
         {"orders.csv": _ORDERS_CSV},
         expected_mentions=(sum(count for *_, count in _ORDERS),), expected_calls=("shell",)),
    Task("shell-git-log", "shell",
         ("The folder project is a git repository. Who wrote its last commit, and what is the message of it?",),
         setup=_REPOSITORY, expected_mentions=_COMMITS[-1], expected_calls=("shell",)),
    Task("shell-build", "shell",
         ("Run app/build.sh with sh. It builds the script app/report.sh: run that one too. What does it print?",),
         _PROJECT, expected_mentions=(sum(int(part.split()[1]) for part in _PARTS),), expected_calls=("shell",)),
    Task("shell-replace", "shell",
         ("Replace the word colour by color in all .txt files of the folder docs and its subfolders.",), _TEXTS,
         expected_files={path: text.replace("colour", "color") for path, text in _TEXTS.items()},
         expected_calls=("shell",)),
)  # fmt: skip
