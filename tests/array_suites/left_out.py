"""The tests that `array_api_strict` passes and GT's namespace does not, each with the reason."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["reason_of"]

BY_MESSAGE: Final = {
    r"not a dtype of GT; allowed": "the test expects the words of another error for values that are no numbers",
    r"Expected regex: 'not be broadcast\|Chunks do not add": "the test lists the words of other libraries' errors",
    r"scipy.ndimage cannot write to a GT tensor": "values live on workers, and SciPy would write to a copy",
}
"""By what the failure says."""

PROMOTION: Final = "an integer beside float32 is float32, as in PyTorch; the standard leaves it open"
BY_NAME: Final = {
    r"mismatched_dtypes\[.*-(rel_entr|xlogy)\]": PROMOTION,
    r"test_support_alternative_backends\[.*-(rel_entr|xlogy)-intp-": PROMOTION,
}
"""By the test's name."""


def reason_of(name: str, message: str) -> str | None:
    """Why a test that failed with this message is left out; None: it is not."""
    for table, text in ((BY_MESSAGE, message), (BY_NAME, name)):
        for pattern, reason in table.items():
            if re.search(pattern, text):
                return reason
    return None
