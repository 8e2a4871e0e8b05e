"""What a job does to be moved by lowtide, without any dependency. Copy it beside your script.

restored() tells where an earlier machine left off, start() begins to listen, asked() says that it is time to save and
leave, ready() tells of a complete checkpoint. Outside of lowtide it does no harm: nobody asks, and nothing is restored.
"""

import json
import os
import signal

_dir = os.environ.get("LOWTIDE_CKPT_DIR", "ckpt")
_deadline = os.environ.get("LOWTIDE_DEADLINE", "")
_signalled = False


def directory():
    """Where checkpoints are written."""
    return _dir


def restored():
    """The directory of the restored checkpoint, or None: begin anew."""
    return os.environ.get("LOWTIDE_RESTORED") or None


def start():
    """Call once before the first step, in the main thread."""

    def heard(*_):
        global _signalled
        _signalled = True

    os.makedirs(_dir, exist_ok=True)
    signal.signal(signal.SIGUSR1, heard)
    _write("LISTENING", {"pid": os.getpid()})


def asked():
    """Save at this step, tell it with ready(), and leave with status 0."""
    return _signalled or bool(_deadline) and os.path.exists(_deadline)


def ready(path, step):
    """A directory (or file) that holds a whole checkpoint of that step. It must not change any more."""
    _write("READY", {"path": os.path.abspath(path), "step": int(step)})


def progress(step, of=None):
    """How far it is; optional. of: all steps there are."""
    _write("PROGRESS", {"step": int(step)} if of is None else {"step": int(step), "of": int(of)})


def result(text):
    """What was made, as the last thing; optional."""
    _write("RESULT", {"result": str(text)})


def _write(name, value):
    path = os.path.join(_dir, name)
    with open(path + ".new", "w") as f:
        json.dump(value, f)
    os.replace(path + ".new", path)  # whole or not at all
