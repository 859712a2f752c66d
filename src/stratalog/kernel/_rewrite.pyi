# Nothing here is called from Python: see _rewrite.pxd.
