"""The run folders of the report's tests."""

from tests.report.conftest import alone as alone
from tests.report.conftest import five as five
