# Runs a module as `python -m MODULE ARGS` does, and ends with whoever holds the other end
# of its standard input, however that process ends: a killed test leaves nothing running.
import os
import runpy
import signal
import sys
import threading


def end_with_parent():
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


threading.Thread(target=end_with_parent, daemon=True).start()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
