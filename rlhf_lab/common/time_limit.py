"""A time limit for Python code of others, such as chat templates, in the thread that runs it."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupt_after(seconds: float, error: type[Exception]) -> Iterator[None]:
    """Raise an exception of this class, without arguments, in the block if it runs longer. Python code is interrupted between two
    of its instructions, a single long call of C code only when it returns."""
    thread_id, lock, is_over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False

    def interrupt() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, ctypes.py_object(error))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            is_over = True
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, None)  # one that was not raised any more
        timer.cancel()
