"""``python -m haystack VERB`` is the same as ``haystack VERB``."""

import sys

from haystack.cli import main

if __name__ == "__main__":
    sys.exit(main())
