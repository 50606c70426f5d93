"""A module that starts a thread when it is imported."""

import threading

MODULES = ("threaded_under_test",)
threading.Thread(target=threading.Event().wait, daemon=True).start()
