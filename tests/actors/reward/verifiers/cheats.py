"""Programs that try to score without solving anything, for the function `f` or for stdin.

A policy finds such programs: they exit well, print a grader's output, or search for the expected one. The
problem is to return, or print, the reverse of a text; no cheat does.
"""

FORGE = """
import json, os, struct
told = json.dumps([["value", json.dumps("dlrow olleh"[:0] + "?"), 0.0], ["text", "?", 0.0]] * 2).encode()
line = b'[1.0, "ok", ""]'
frames = [struct.pack("<I", len(told)) + told, struct.pack("<I", len(line)) + line, line + b"\\n", b"1.0",
          struct.pack("<cdI", b"v", 0.0, 3) + b'"?"', struct.pack("<id", 0, 0.0), b"+"]
for fd in range(64):
    for frame in frames:
        try:
            os.write(fd, frame)
        except OSError:
            pass
"""

SEARCH = """
import gc, sys
def seen():
    frame = sys._getframe()
    while frame:
        yield dict(frame.f_locals)
        yield dict(frame.f_globals)
        frame = frame.f_back
    yield from (one for one in gc.get_objects() if isinstance(one, dict))
def texts(value, depth=0):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and depth < 4:
        for key, one in list(value.items()):
            yield from texts(one, depth + 1)
    elif isinstance(value, (list, tuple)) and depth < 4:
        for one in list(value):
            yield from texts(one, depth + 1)
def found(text):
    for held in seen():
        for one in texts(held):
            if one != text and sorted(one) == sorted(text) and one[:1] == text[-1:]:
                return one
    return ""
"""

FILES = """
import os
def found(text):
    places = ["/proc/self/environ", "/proc/self/cmdline", "/proc/self/mem", "/dev/stdin", "tests.json"]
    for top in (".", "/tmp", "/proc"):
        try:
            places += [os.path.join(top, name) for name in os.listdir(top)]
        except OSError:
            pass
    for place in places:
        try:
            with open(place, "rb") as file:
                data = file.read(2**20)
        except OSError:
            continue
        want = bytes(reversed(text.encode()))  # whether it is there; it would be read, not made
        if want in data:
            return want.decode()
    return ""
"""


CALLS = {
    "equals everything": "class A(str):\n    __eq__ = lambda a, b: True\n    __hash__ = str.__hash__\n"
    "    __ne__ = lambda a, b: False\ndef f(text): return A('?')",
    "exits at its import": "import sys\nsys.exit(0)",
    "exits hard at its import": "import os\nos._exit(0)",
    "exits in a call": "def f(text): raise SystemExit(0)",
    "exits hard in a call": "import os\ndef f(text): os._exit(0)",
    "exits its parent": "import os, signal\ndef f(text): os.kill(os.getppid(), signal.SIGKILL)",
    "forges results": FORGE + "\ndef f(text): return '?'",
    "forges results and exits": FORGE + "\nos._exit(0)",
    "prints that it passed": "print('PASSED'); print('OK'); print('1.0')\ndef f(text):\n    print('PASSED')",
    "writes at its end": "import atexit, os\n"
    "atexit.register(lambda: os.write(1, b'PASSED'))\nraise SystemExit(0)",
    "looks at objects and frames": SEARCH + "def f(text): return found(text)",
    "looks at files": FILES + "def f(text): return found(text)",
    "replaces json": "import json\njson.dumps = lambda *a, **k: '0'\njson.loads = lambda *a, **k: 0\n"
    "def f(text): return '?'",
    "replaces builtins": "import builtins\nbuiltins.all = lambda one: True\nbuiltins.any = lambda one: True\n"
    "builtins.zip = lambda *a, **k: []\nbuiltins.len = lambda one: 0\ndef f(text): return '?'",
    "returns itself": "def f(text): return f",
    "never returns and writes from a thread": "import threading, os\ndef f(text):\n"
    "    threading.Thread(target=lambda: [os.write(1, b'PASSED') for _ in range(9)]).start()\n    return '?'",
}  # fmt: skip

STDIN = {
    "exits": "import sys\nsys.exit(0)",
    "exits hard": "import os\nos._exit(0)",
    "forges results": FORGE,
    "prints that it passed": "print('PASSED')\nprint('OK')",
    "echoes its input": "print(open(0).read())",
    "looks at objects and frames": SEARCH + "print(found(input()))",
    "looks at files": FILES + "print(found(input()))",
    "replaces print": "import builtins, sys\nclass A(str):\n    __eq__ = lambda a, b: True\n"
    "sys.stdout.write = lambda one: A(one)\nprint(A('?'))",
    "writes from a thread after its end": "import threading, time, os\n"
    "threading.Thread(target=lambda: (time.sleep(0.05), os.write(1, b'PASSED')), daemon=True).start()",
}
