"""Workers of pytest-xdist on other hosts: what they are told, and what comes home from them.

Such a worker cannot write the session's ledger, so it has one of its own, on its host. Its records
travel with the reports of its tests, through the connection that pytest-xdist has anyway, and the
controller writes them into the session's ledger: who reads that needs to know nothing of hosts.
"""
