"""The cases of every operator in one registry, read by the tests and by `oarlock bench ops`."""

from importlib import import_module

from oarlock.ops import OPERATORS
from oarlock.ops.case import OperatorCases

OPERATOR_CASES: dict[str, OperatorCases] = {
    name: import_module(f"oarlock.ops.{name}.cases").CASES for name in OPERATORS
}
