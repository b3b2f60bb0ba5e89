"""Imported once by the process from which those that read uploaded files are forked; see :mod:`numerate.playground.uploaded`."""

import numerate.inspection
import numerate.tokenizers  # noqa: F401

try:
    import tokenizers  # noqa: F401
    from transformers import PreTrainedTokenizerFast  # noqa: F401
except ImportError:  # the tab says what is missing
    pass
