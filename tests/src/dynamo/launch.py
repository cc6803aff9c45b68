# Runs a module as `python -m MODULE ARGS` does, or a program by its path, and ends with whoever
# holds the other end of its standard input, however that process ends: a killed test leaves
# nothing running.
import os
import runpy
import signal
import sys
import threading


def end_with_parent():
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


del sys.argv[0]
if os.path.isabs(sys.argv[0]):
    # The program takes this process's place, and another one of its group watches.
    if os.fork() == 0:
        end_with_parent()
    os.execv(sys.argv[0], sys.argv)
threading.Thread(target=end_with_parent, daemon=True).start()
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
