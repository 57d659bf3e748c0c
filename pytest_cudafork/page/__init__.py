"""The page of a session: its document as one HTML file that needs no network."""
