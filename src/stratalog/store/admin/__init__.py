"""Changing a store from any process: the table of commands and the control socket."""
