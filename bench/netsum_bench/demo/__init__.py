"""The demo: two models trained with Gloo and with netsum, and a report that compares them (docs/start.md)."""
