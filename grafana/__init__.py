"""The dashboards as code: `python -m grafana.generate` writes `grafana/dashboards/*.json`."""
