"""What whoever runs a broker gives it and hears of it: settings and metrics."""
