"""Live runs, which train while people label: the tests that stop them, and the KL budget that grows with evidence.

    python benchmarks/live.py --simulate brake                    two minutes on one core
    python benchmarks/live.py --simulate budget                   four minutes
    python benchmarks/live.py --simulate opponents                four minutes
    python benchmarks/live.py --simulate brake budget --out FILE.json

Simulations (`live_simulations.py`): their tables are printed as Markdown; --out writes them as JSON.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import live_opponents
import live_simulations
from live_simulations import Row

SIMULATIONS = live_simulations.SIMULATIONS | {"opponents": live_opponents.SIMULATIONS}


def markdown(rows: list[Row]) -> str:
    """A table whose columns are the keys of the first row."""
    header = list(rows[0])
    lines = [header, ["---"] * len(header), *([cell(row[name]) for name in header] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.3f}".rstrip("0").rstrip(".")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", nargs="+", choices=tuple(SIMULATIONS), required=True)
    parser.add_argument(
        "--runs", type=int, default=2000, help="simulated runs of each setting; budget: a hundredth of them"
    )
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    tables: dict[str, list[Row]] = {}
    for part in args.simulate:
        for name, simulation in SIMULATIONS[part].items():
            tables[name] = simulation(args.runs)
            print(f"\n{name}. {' '.join((simulation.__doc__ or '').split())}\n\n{markdown(tables[name])}", flush=True)
            if args.out is not None:
                args.out.write_text(json.dumps(tables, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
