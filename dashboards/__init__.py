"""Prometheus' configuration, and Grafana's dashboards as code."""
