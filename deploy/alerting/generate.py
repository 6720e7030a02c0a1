"""Write the rules that the code describes, or check that the file is what it makes.

python -m deploy.alerting.generate            write deploy/prometheus/rules/ab-monitor.yml
python -m deploy.alerting.generate --check    exit with 1 if the file differs
python -m deploy.alerting.generate --out FILE --grafana URL --runbook URL    write it with your own addresses
python -m deploy.alerting.generate --out FILE --compress 1800                for drills: an hour takes two seconds
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

from deploy.alerting import operations, product, traffic
from deploy.alerting.compression import compressed_group
from deploy.alerting.rules import JSON, Addresses, Group

RULES = Path(__file__).parents[1] / "prometheus" / "rules" / "ab-monitor.yml"
HEADER = "# Made by python -m deploy.alerting.generate: change deploy/alerting/, not this file.\n"
GROUPS = (
    Group("ab-monitor-recorded", recordings=(*product.RECORDINGS, *operations.RECORDINGS, *traffic.RECORDINGS)),
    Group("ab-monitor-operations", alerts=operations.ALERTS),
    Group("ab-monitor-product", alerts=(*product.ALERTS, *traffic.ALERTS)),
)
"""Every rule. A new alert is added to the `ALERTS` of its module, with a section in docs/runbook.md and a scenario."""


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)


def content(addresses: Addresses, compression: int = 1) -> JSON:
    """Return the rules in Prometheus' format; all their times are divided by `compression`."""
    groups = [group.rendered(addresses) for group in GROUPS]
    if compression > 1:
        groups = [compressed_group(group, compression) for group in groups]
    return {"groups": groups}


def dumped(document: JSON) -> str:
    """Return a document as YAML that people can read."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def rendered(addresses: Addresses, compression: int = 1) -> str:
    """Return the text of the file of rules; all their times are divided by `compression`."""
    return HEADER + dumped(content(addresses, compression))


def main(arguments: list[str]) -> int:
    """Write or check the file; returns the exit code."""
    default = Addresses()
    parser = argparse.ArgumentParser(prog="python -m deploy.alerting.generate", description="Generate the rules.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file differs")
    parser.add_argument("--out", type=Path, default=RULES, help="the file")
    parser.add_argument("--grafana", default=default.grafana, help="address of Grafana")
    parser.add_argument("--runbook", default=default.runbook, help="address of the page /runbook")
    parser.add_argument("--compress", type=int, default=1, metavar="N", help="divide all times by N, for a drill")
    options = parser.parse_args(arguments)
    if options.compress < 1 or (options.compress > 1 and options.out == RULES):
        parser.error(f"--compress: got {options.compress}, expected 1 or more, and an --out that is not {RULES.name}")
    text = rendered(Addresses(options.grafana.rstrip("/"), options.runbook), options.compress)
    if options.check:
        same = options.out.exists() and options.out.read_text(encoding="utf-8") == text
        if not same:
            sys.stderr.write(f"{options.out} is not what the code makes: run python -m deploy.alerting.generate\n")
        return 0 if same else 1
    options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
