"""One module a page of the reference: each has `make()`, which gives the page's text."""

from pagemaker import source  # puts this repository's packages on the path, before any page imports them

__all__ = ["source"]
