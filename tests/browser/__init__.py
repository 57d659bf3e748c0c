"""The page of a session in a real browser: `make test-html`, in an environment of its own."""
