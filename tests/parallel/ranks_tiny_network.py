"""`python -m ddrl.roles` whose network has no parameters, so that any server is one too many."""

from __future__ import annotations

import sys

from ddrl.roles import __main__ as ranks

if __name__ == "__main__":
    from ddrl.networks.network import Network

    Network.size = property(lambda self: 0, lambda self, value: None)
    sys.exit(ranks.main())
