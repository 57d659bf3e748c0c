"""A thread that runs from the import on."""

import threading

threading.Thread(target=threading.Event().wait, name="exporter", daemon=True).start()
