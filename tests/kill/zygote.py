"""A process that has imported torch once and forks trainers from that point, so that a start takes milliseconds.

Forking is safe here because the process has one thread (it checks) and has computed nothing: torch starts its threads
with the first operation, in the child.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback

import torch._dynamo  # noqa: F401 - the first optimizer imports it, which takes longer than all else in a start
import trainer

REQUEST_BYTES_MAX = 4096  # a request is one path


def serve(requests: socket.socket) -> None:
    """For every root that comes with the writing end of a pipe: fork a trainer, answer with its process id, and when
    it has ended with its exit code."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 1)
        if not request:
            return
        threads = len(os.listdir("/proc/self/task"))
        assert threads == 1, f"a fork of {threads} threads may hang"
        child = os.fork()
        if child == 0:
            requests.close()
            _become_trainer(request.decode(), descriptors[0])
        os.close(descriptors[0])
        requests.sendall(f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        requests.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become_trainer(root: str, descriptor: int) -> None:
    """Never returns."""
    os.setsid()
    code = 1
    try:
        trainer.train(root, trainer.Wire(descriptor))
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stderr.flush()
        os._exit(code)  # the way back leads into the server's loop


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
