"""Pictures of the boards without a Grafana, from a Prometheus."""
