"""What an operator configures and monitors: settings and metrics."""
