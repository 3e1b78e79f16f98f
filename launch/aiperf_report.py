#!/usr/bin/env python3
"""Puts what aiperf measured side by side, as Markdown: aiperf_report.py FOLDER, of folders SERVER-MODE."""

import json
import pathlib
import sys

# What aiperf calls it, which of its numbers, how we call it.
COLUMNS = [
    ("request_throughput", "avg", "requests a second"),
    ("time_to_first_token", "p50", "first token, p50 (ms)"),
    ("time_to_first_token", "p95", "first token, p95 (ms)"),
    ("request_latency", "p50", "whole answer, p50 (ms)"),
    ("request_latency", "p95", "whole answer, p95 (ms)"),
    ("request_count", "avg", "answered"),
    ("error_request_count", "avg", "failed"),
]


def main() -> None:
    print("| server | images | " + " | ".join(title for _, _, title in COLUMNS) + " |")
    print("| --- | --- |" + " ---: |" * len(COLUMNS))
    failed = False
    for run in sorted(pathlib.Path(sys.argv[1]).iterdir()):
        server, _, mode = run.name.rpartition("-")
        measured = json.loads((run / "profile_export_aiperf.json").read_text())
        cells = []
        for metric, number, _ in COLUMNS:
            value = (measured.get(metric) or {}).get(number)
            cells.append("0" if value is None else f"{value:.2f}".rstrip("0").rstrip("."))
        failed |= cells[-1] != "0" or cells[-2] == "0"
        print(f"| {server} | {mode} | " + " | ".join(cells) + " |")
    if failed:
        raise SystemExit("some requests failed: the logs of aiperf, worker and gateway say why")


main()
