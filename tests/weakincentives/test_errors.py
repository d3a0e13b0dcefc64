from __future__ import annotations

import inspect
import pickle

import pytest

from weakincentives import errors

ALL = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__]


def documented_tree() -> dict[str, str]:
    """Child → parent, from the tree in the module's docstring."""
    parents: dict[int, str] = {}
    edges = {}
    for line in (inspect.getdoc(errors) or "").splitlines():
        branch, _, rest = line.rpartition("── ")
        if branch or line.strip() == "WinkError":
            depth = len(branch)
            name = (rest or line).split()[0]
            parents[depth] = name
            edges[name] = max(((d, p) for d, p in parents.items() if d < depth), default=(0, ""))[1]
    return edges


def test_docstring_tree_matches_the_classes():
    names = {cls.__name__ for cls in ALL}
    actual = {
        cls.__name__: next((base.__name__ for base in cls.__bases__ if base.__name__ in names), "") for cls in ALL
    }

    assert documented_tree() == actual


@pytest.mark.parametrize("cls", ALL)
def test_all_errors_have_one_root_and_a_docstring(cls):
    assert issubclass(cls, errors.WinkError)
    assert cls.__doc__


@pytest.mark.parametrize(
    "cls, builtin",
    [
        (errors.ContractError, AssertionError),
        (errors.FilesystemError, OSError),
        (errors.MissingFileError, FileNotFoundError),
        (errors.NotAFileError, IsADirectoryError),
        (errors.NotADirectoryPathError, NotADirectoryError),
    ],
)
def test_errors_are_also_built_in_exceptions(cls, builtin):
    assert issubclass(cls, builtin)


def test_parse_error_has_a_path():
    deep = errors.ParseError("expected int", path="$.items[2].name")

    assert (str(deep), deep.path) == ("expected int (at $.items[2].name)", "$.items[2].name")
    assert str(errors.ParseError("not JSON")) == "not JSON"


def test_evaluation_error_has_prompt_phase_and_payload():
    error = errors.BudgetExceededError("too much", prompt_name="review", phase="budget", provider_payload={"id": 1})

    assert (str(error), error.message, error.prompt_name, error.phase, error.provider_payload) == (
        "too much",
        "too much",
        "review",
        "budget",
        {"id": 1},
    )


def test_provider_fault_attributes():
    fault = errors.ProviderFault("slow down", status=429, retry_after=2.5, should_retry=True, payload="body")

    assert (fault.status, fault.retry_after, fault.should_retry, fault.payload) == (429, 2.5, True, "body")
    assert errors.ProviderFault("no answer").status is None


def test_attributes_of_other_errors():
    cause = ValueError("x")

    assert errors.OutputParseError("no", raw="{").raw == "{"
    assert errors.ReducerError("no", errors=(cause,)).errors == (cause,)
    assert errors.InvalidPathError("no", path="../x").path == "../x"
    assert str(errors.MissingFileError("there is no a.txt", path="a.txt")) == "there is no a.txt"


@pytest.mark.parametrize(
    "error",
    [
        errors.PromptEvaluationError("no", prompt_name="p", phase="tool", provider_payload={"a": 1}),
        errors.MissingFileError("gone", path="a/b"),
        errors.ParseError("wrong", path="$.a"),
        errors.ProviderFault("busy", status=429, retry_after=3),
        errors.OutputParseError("no JSON", raw="text"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_pickled(error: errors.WinkError):
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
