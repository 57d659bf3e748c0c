from collections import Counter

culprits = Counter()
graphs = []


def pytest_cudafork_isolate(item):
    """Give tests of workers a fresh interpreter each, without a marker on every one."""
    return "spawn" if item.name.endswith("_worker") else None


def pytest_cudafork_touch(touch, nodeid):
    """Count the touches of each line."""
    culprits[touch.where.rpartition("/")[2]] += 1


def pytest_cudafork_capture_checked(capture, nodeid):
    """Keep what was checked of each captured graph."""
    graphs.append(f"{nodeid}: {capture.verdict}, {len(capture.checks)} checks, {capture.backend}")


def pytest_terminal_summary(terminalreporter):
    terminalreporter.section("what our plugin saw")
    for line, number in culprits.most_common():
        terminalreporter.write_line(f"{line} touched {number} times")
    for line in graphs:
        terminalreporter.write_line(line)
