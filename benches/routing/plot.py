"""Draws docs/routing_hits.svg from what `cargo bench --bench routing hits` has written."""

import csv
import math
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLOURS = {"mm-kv": "#1b6ca8", "media-affinity": "#e08a1e", "prefix-only": "#7a8b3a", "round-robin": "#8a8a8a"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 60, 130, 40, 50


def main() -> None:
    lines: dict[str, list[tuple[int, float]]] = {}
    with (ROOT / "target/routing_hits.csv").open() as file:
        for row in csv.DictReader(file):
            lines.setdefault(row["policy"], []).append((int(row["tokens_per_worker"]), float(row["hit_rate"])))
    sizes = sorted({size for points in lines.values() for size, _ in points})
    low, high = math.log2(sizes[0]), math.log2(sizes[-1])

    def x(size: int) -> float:
        return LEFT + (math.log2(size) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - rate * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">Prompt tokens found in the KV cache, 64 simulated workers</text>',
    ]
    for percent in range(0, 101, 20):
        out.append(
            f'<path d="M{LEFT} {y(percent / 100):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{y(percent / 100) + 4:.1f}" text-anchor="end">{percent} %</text>'
        )
    for size in sizes:
        out.append(f'<text x="{x(size):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{size // 1024}k</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">tokens that a worker can keep</text>')
    label_y = 0.0
    for policy, points in sorted(lines.items(), key=lambda line: -line[1][-1][1]):
        colour = COLOURS.get(policy, "black")
        path = "L".join(f"{x(size):.1f} {y(rate):.1f}" for size, rate in points)
        out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.extend(f'<circle cx="{x(size):.1f}" cy="{y(rate):.1f}" r="3" fill="{colour}"/>' for size, rate in points)
        size, rate = points[-1]
        # Names of lines that end close together stand below each other.
        label_y = max(y(rate) + 4, label_y + 14)
        out.append(f'<text x="{x(size) + 10:.1f}" y="{label_y:.1f}" fill="{colour}">{policy}</text>')
    out.append("</svg>")
    (ROOT / "docs/routing_hits.svg").write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
