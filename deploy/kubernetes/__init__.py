"""Manifests for Kubernetes: `python -m deploy.kubernetes.generate` writes those parts that follow from other files."""
