"""What a gateway and a worker's lander cost while nobody asks for anything."""

import contextlib
import pathlib
import time

from house import PATIENCE_SECONDS, Gateway, Worker, programs

WINDOW_SECONDS = 2.5
WINDOWS = 20
MOST_CORES = 0.01


def run_nanoseconds(pid: int) -> dict[int, int]:
    """Time on a processor, by thread (Documentation/scheduler/sched-stats.rst)."""
    ran = {}
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
        # It may end before it is looked at.
        with contextlib.suppress(OSError):
            ran[int(task.parent.name)] = int(task.read_text().split()[0])
    return ran


def cores(pids: list[int]) -> list[float]:
    """That each of these processes takes during a window."""
    before, begun = [run_nanoseconds(pid) for pid in pids], time.monotonic_ns()
    time.sleep(WINDOW_SECONDS)
    after, took = [run_nanoseconds(pid) for pid in pids], time.monotonic_ns() - begun
    return [
        sum(ran - earlier.get(thread, 0) for thread, ran in later.items()) / took
        for earlier, later in zip(before, after, strict=True)
    ]


def test_an_idle_gateway_and_an_idle_lander_cost_less_than_a_hundredth_of_a_core_each():
    """This is time on a processor and no time that passes: it does not depend on who else is busy. What it takes beyond
    (caches that others empty, what is still being settled) passes: the best of some windows counts."""
    worker = Worker("idle-worker")
    try:
        worker.wait("/health")
        gateway = Gateway("idle-gateway", [worker.url], "--arena-bytes", "256MiB")
        try:
            gateway.wait("/ready")
            attached = lambda: gateway.total("mediagate_worker_attached") == 1  # noqa: E731
            programs.until("to be attached", attached, PATIENCE_SECONDS)
            best = [1.0, 1.0]
            for _ in range(WINDOWS):
                best = list(map(min, best, cores([gateway.pid, worker.lander()])))
                if max(best) < MOST_CORES:
                    break
            print(f"gateway {best[0]:.2%}, lander {best[1]:.2%} of a core")
            assert max(best) < MOST_CORES, f"gateway {best[0]:.2%}, lander {best[1]:.2%} of a core"
        finally:
            gateway.end()
    finally:
        worker.end()
