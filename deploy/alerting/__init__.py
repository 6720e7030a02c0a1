"""The rules and alerts as code: `python -m deploy.alerting.generate` writes `deploy/prometheus/rules/*.yml`."""
